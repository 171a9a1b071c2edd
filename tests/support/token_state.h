// State that follows from tokens, as a model's does: the numbers of a position are a function of
// all tokens up to it, so a sequence that resumed in the wrong place, or from somebody else's
// pages, differs at once.
#ifndef CAIRN_TESTS_SUPPORT_TOKEN_STATE_H_
#define CAIRN_TESTS_SUPPORT_TOKEN_STATE_H_

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cairn/session/session.h"
#include "tests/support/must.h"
#include "tests/support/random.h"

namespace cairn::testing {

using Tokens = std::vector<int32_t>;

inline Tokens first(const Tokens& tokens, size_t count) {
  return {tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(count)};
}

inline Tokens joined(Tokens tokens, const Tokens& more) {
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

inline Tokens random_tokens(Random& random, size_t count, uint32_t vocabulary = 3) {
  Tokens tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random.below(vocabulary));
  return tokens;
}

// Computes the state of tokens[length(seq) ..), at most `chunk` positions a step; `after_step` is
// called after each commit.
inline void compute(Session& session,
                    SeqId seq,
                    const Tokens& tokens,
                    Pos chunk = 32,
                    const std::function<void()>& after_step = {}) {
  std::vector<uint64_t> prefix(tokens.size());  // of the tokens up to each position
  uint64_t hash = 0;
  for (size_t i = 0; i < tokens.size(); ++i)
    prefix[i] = hash = scatter(hash ^ scatter(static_cast<uint64_t>(tokens[i]) + 1));
  while (session.length(seq) < tokens.size()) {
    const Pos begin = session.length(seq);
    const Pos count = std::min({chunk, tokens.size() - begin, session.max_run(seq)});
    Step step = must(session.plan({{.seq = seq, .count = count}}));
    for (const SlotId slot : session.slots()) {
      const auto& families = session.spec().slots[slot.value].families;
      for (const FamilySpec& family : families) {
        const size_t width = size_t{family.heads} * family.width;
        const uint64_t salt = scatter(slot.value * 16 + family.family->id.value);
        if (family.family->is_fixed) {
          const auto state = random_floats(prefix[begin + count - 1] ^ salt, width);
          std::ranges::copy(state, step.next(slot, family.family->id, 0, count - 1));
          continue;
        }
        std::vector<float> numbers;
        for (Pos i = 0; i < count; ++i) {
          const auto vector = random_floats(prefix[begin + i] ^ salt, width);
          numbers.insert(numbers.end(), vector.begin(), vector.end());
        }
        step.write(slot, family.family->id, numbers.data());
      }
      if (families[0].family->is_fixed) step.mark_written(slot, 0);
    }
    step.commit();
    if (after_step) after_step();
  }
}

// What differs between what `seq` holds and the same of `other`, which holds at least as much;
// none: nothing.
inline std::optional<std::string> difference(const Session& session,
                                             SeqId seq,
                                             const Session& other_session,
                                             SeqId other) {
  const Snapshot ours = session.snapshot(seq), theirs = other_session.snapshot(other);
  if (ours.length() != theirs.length()) return "length";
  for (const SlotId slot : session.slots()) {
    const View a = ours.view(slot), b = theirs.view(slot);
    const bool is_fixed = session.spec().slots[slot.value].families[0].family->is_fixed;
    const Pos length = is_fixed ? std::min<Pos>(1, ours.length()) : ours.length();
    for (Pos position = 0; position < length; ++position) {
      if (!is_fixed && position >= a.retention.sinks && position < ours.first_kept(slot)) continue;
      const SlotPlace& place = a.place(a.runs[0], position);
      for (size_t family = 0; family < place.families.size(); ++family)
        for (const PlanePlace& plane : place.families[family].planes)
          for (uint32_t head = 0; head < place.families[family].heads; ++head) {
            const auto record = [&](const View& view) {
              std::string bytes(plane.record_bytes, '\0');
              copy_out(plane, head, view.runs[0].pages.page(position / view.page_positions),
                       static_cast<uint32_t>(position % view.page_positions), 1,
                       reinterpret_cast<std::byte*>(bytes.data()), plane.record_bytes);
              return bytes;
            };
            if (record(a) != record(b))
              return fmt::format("slot {}, family {}, position {}", slot.value, family, position);
          }
    }
  }
  return std::nullopt;
}

}  // namespace cairn::testing

#endif  // CAIRN_TESTS_SUPPORT_TOKEN_STATE_H_
