// Sessions that remember through tiers, and a plain account of what they should remember.
#ifndef CAIRN_TESTS_ENGINE_REMEMBERING_H_
#define CAIRN_TESTS_ENGINE_REMEMBERING_H_

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "cairn/engine/prefix.h"
#include "tests/support/token_state.h"

namespace cairn::testing {

inline ModelSpec spec_of(std::vector<SlotSpec> slots) {
  ModelSpec spec;
  spec.identity = sha256("prefixes");
  spec.arithmetic = "test";
  spec.slots = std::move(slots);
  return spec;
}

inline SlotSpec plain() { return attention({.heads = 2, .head_dim = 32}); }
inline SlotSpec sliding(Pos width, Pos sinks, Pos rewind) {
  return window({.heads = 1, .head_dim = 32, .window = width, .sinks = sinks, .rewind = rewind});
}
inline SlotSpec fixed() {
  return recurrent({{.family = &kConvFamily, .heads = 3, .width = 8},
                    {.family = &kRecurrentFamily, .heads = 2, .width = 16}});
}

struct Setting {
  std::string name;
  std::vector<SlotSpec> slots;
  std::string scheme = "f32";
  uint32_t page_positions = 16;
};

inline std::vector<Setting> settings() {
  return {{"attention", {plain()}},
          {"attention_f16_small_pages", {plain()}, "f16", 4},
          {"attention_affine", {plain()}, "affine4-g32"},
          {"attention_keep", {plain()}, "affine8-g32-keep64"},
          {"window", {plain(), sliding(24, 0, 32)}},
          {"window_sinks", {sliding(20, 5, 40), plain()}},
          {"windows_only", {sliding(40, 3, 32), sliding(24, 0, 32)}},
          {"latent", {latent({.latent_dim = 32, .rope_dim = 32, .index_dim = 32}), plain()}},
          {"recurrent", {fixed(), plain(), fixed()}},
          {"recurrent_only", {fixed()}},
          {"recurrent_window", {plain(), fixed(), sliding(24, 2, 32)}}};
}

// One process: a memory, a session, tiers over a store that others may share.
class Host {
 public:
  explicit Host(const Setting& setting,
                Store* store = nullptr,
                PrefixOptions options = {},
                TierOptions tiers = {},
                uint64_t max_bytes = uint64_t{1} << 30)
      : memory_({.max_bytes = max_bytes}),
        session_(must(open_session(spec_of(setting.slots),
                                   must(parse_scheme(setting.scheme)),
                                   memory_,
                                   {.page_positions = setting.page_positions}))),
        tiers_(memory_, store, tiers),
        prefixes_(must(Prefixes::make(session_, tiers_, std::move(options)))) {}

  Session& session() { return session_; }
  Memory& memory() { return memory_; }
  Tiers& tiers() { return tiers_; }
  Prefixes& prefixes() { return prefixes_; }

  // A turn: finds, computes the rest, publishes after every step, marks the end.
  Found tell(const Tokens& tokens, bool marks = true) {
    Found found = prefixes_.find(session_, tokens);
    go_on(found, tokens, marks);
    return found;
  }
  void go_on(Found& found, const Tokens& tokens, bool marks = true) {
    compute(session_, found.seq, tokens, 32,
            [&] { prefixes_.publish(session_, found.seq, tokens, found.published); });
    if (marks) prefixes_.mark(session_, found.seq, tokens, found.published);
  }

  // What differs between `seq` and a run that computes everything.
  std::optional<std::string> wrong(SeqId seq, const Tokens& tokens) {
    const SeqId cold = session_.start();
    compute(session_, cold, first(tokens, session_.length(seq)), 1000);
    auto differs = difference(session_, seq, session_, cold);
    session_.drop(cold);
    return differs;
  }

 private:
  Memory memory_;
  Session session_;
  Tiers tiers_;
  Prefixes prefixes_;
};

inline Setting setting_of(const std::string& name) {
  for (const Setting& setting : settings())
    if (setting.name == name) return setting;
  throw std::runtime_error(name);
}

// What was told and is remembered, in plain terms: the oracle of how much can be reused.
struct Told {
  Tokens tokens;
  bool is_marked = false;
};

inline bool is_recurrent(const Setting& setting) { return setting.name.starts_with("recurrent"); }

// The greatest number of tokens that `told` lets a prompt reuse.
inline Pos reusable(const Setting& setting, const std::vector<Told>& told, const Tokens& prompt) {
  Pos best = 0;
  for (const Told& one : told) {
    const auto common =
        static_cast<Pos>(std::ranges::mismatch(one.tokens, first(prompt, prompt.size() - 1)).in1 -
                         one.tokens.begin());
    const Pos length = one.tokens.size();
    if (is_recurrent(setting)) {
      if (one.is_marked && common == length) best = std::max(best, length);
    } else {
      const Pos covered =
          one.is_marked ? length : length / setting.page_positions * setting.page_positions;
      best = std::max(best, std::min(common, covered));
    }
  }
  return best;
}

// A prompt that begins like an earlier one, as far as chance likes.
inline Tokens random_prompt(Random& random, const std::vector<Told>& told) {
  Tokens prompt;
  if (!told.empty() && !random.one_in(5)) {
    const Tokens& from = told[random.below(told.size())].tokens;
    prompt = first(from, random.one_in(2) ? from.size() : random.below(from.size() + 1));
  }
  return joined(std::move(prompt), random_tokens(random, 1 + random.below(70), 2));
}

}  // namespace cairn::testing

#endif  // CAIRN_TESTS_ENGINE_REMEMBERING_H_
