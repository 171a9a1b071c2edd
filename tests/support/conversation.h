// A small session whose sequences are filled from seeds: the same seed, the same records.
#ifndef CAIRN_TESTS_SUPPORT_CONVERSATION_H_
#define CAIRN_TESTS_SUPPORT_CONVERSATION_H_

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "cairn/session/session.h"
#include "tests/support/must.h"
#include "tests/support/random.h"

namespace cairn::testing {

// Plain, windowed, and windowed with sinks; heads and widths differ.
inline ModelSpec conversation_spec() {
  ModelSpec spec;
  spec.identity = sha256("conversation");
  spec.tokenizer = sha256("words");
  spec.arithmetic = "test";
  spec.slots = {attention({.heads = 2, .head_dim = 64}),
                window({.heads = 1, .head_dim = 64, .value_dim = 32, .window = 40}),
                window({.heads = 3, .head_dim = 32, .window = 24, .sinks = 5})};
  spec.slots[1].retention.rewind = 16;
  spec.slots[2].retention.rewind = 8;
  return spec;
}

struct ConversationOptions {
  ModelSpec spec = conversation_spec();
  std::string scheme = "f16";
  uint32_t page_positions = 64;
  uint64_t max_bytes = uint64_t{1} << 30;
  const Registry* registry = &builtin();
};

class Conversation {
 public:
  explicit Conversation(ConversationOptions options = {})
      : memory_({.max_bytes = options.max_bytes}),
        session_(must(open_session(options.spec,
                                   must(parse_scheme(options.scheme, *options.registry)),
                                   memory_,
                                   {.page_positions = options.page_positions},
                                   *options.registry))) {}

  Session& session() { return session_; }
  Memory& memory() { return memory_; }

  SeqId start(Pos length, uint64_t seed) {
    const SeqId seq = session_.start();
    append(seq, length, seed);
    return seq;
  }

  // In as few runs as the session allows.
  void append(SeqId seq, Pos count, uint64_t seed) {
    for (; count > 0; ++seed) {
      const Pos run = std::min(count, session_.max_run(seq));
      write({{.seq = seq, .count = run}}, seed).commit();
      count -= run;
    }
  }

  // A step of which everything is written.
  Step write(const std::vector<Run>& batch, uint64_t seed, Round round = Round::no) {
    Step step = must(session_.plan(batch, round));
    for (SlotId slot : session_.slots())
      for (size_t run = 0; run < batch.size(); ++run)
        if (batch[run].count > 0) write_slot(step, slot, run, batch[run].count, seed + 100 * run);
    return step;
  }

  // Every record that the sequence holds, in slot, family, form, plane and position order, each
  // plane as [position, head, record].
  std::string records(SeqId seq) const {
    const Snapshot snapshot = session_.snapshot(seq);
    std::string all;
    for (SlotId slot : session_.slots()) {
      const View view = snapshot.view(slot);
      const bool is_fixed = is_fixed_slot(slot);
      const Pos length = is_fixed ? std::min<Pos>(1, snapshot.length()) : snapshot.length();
      const Pos sinks = std::min(view.retention.sinks, length);
      const size_t families = view.slot->families.size();
      for (size_t family = 0; family < families; ++family)
        for (const SlotPlace* form : {view.exact, view.slot}) {
          if (form == nullptr || (is_fixed && form == view.exact)) continue;
          for (const PlanePlace& plane : form->families[family].planes) {
            const FormPlane place{*form, form->families[family].heads, plane};
            copy_positions(view, place, 0, sinks, all);
            copy_positions(view, place, std::max(sinks, snapshot.first_kept(slot)), length, all);
          }
        }
    }
    return all;
  }

 private:
  struct FormPlane {
    const SlotPlace& form;
    uint32_t heads;
    const PlanePlace& plane;
  };

  bool is_fixed_slot(SlotId slot) const {
    return session_.spec().slots[slot.value].families[0].family->is_fixed;
  }

  void write_slot(Step& step, SlotId slot, size_t run, Pos count, uint64_t seed) {
    const bool is_fixed = is_fixed_slot(slot);
    for (const FamilySpec& family : session_.spec().slots[slot.value].families) {
      const std::vector<float> numbers =
          random_floats(scatter(seed) ^ (slot.value * 8 + family.family->id.value),
                        (is_fixed ? 1 : count) * family.heads * family.width);
      if (!is_fixed) {
        step.write_run(slot, family.family->id, run, numbers.data());
        continue;
      }
      for (Pos i = step.holds_states(slot) ? 0 : count - 1; i < count; ++i)
        std::ranges::copy(numbers, step.next(slot, family.family->id, run, i));
    }
    if (is_fixed) step.mark_written(slot, run);
  }

  // Of the positions [first, end) those that are in this form.
  static void copy_positions(
      const View& view, const FormPlane& place, Pos first, Pos end, std::string& out) {
    for (Pos position = first; position < end; ++position)
      for (uint32_t head = 0; head < place.heads; ++head) {
        if (&view.place(view.runs[0], position) != &place.form) continue;
        std::string record(place.plane.record_bytes, '\0');
        copy_out(place.plane, head, view.runs[0].pages.page(position / view.page_positions),
                 static_cast<uint32_t>(position % view.page_positions), 1,
                 reinterpret_cast<std::byte*>(record.data()), place.plane.record_bytes);
        out += record;
      }
  }

  Memory memory_;
  Session session_;
};

// The conversations that tests/engine/save_loop saves; long enough that a kill lands in the middle.
inline constexpr Pos kSaveLoopLength = 3000;

inline std::vector<int32_t> count_tokens(Pos length, int32_t first = 0) {
  std::vector<int32_t> tokens(length);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

}  // namespace cairn::testing

#endif  // CAIRN_TESTS_SUPPORT_CONVERSATION_H_
