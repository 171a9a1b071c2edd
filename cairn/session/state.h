// What a session and its steps share; private to cairn/session.
#ifndef CAIRN_SESSION_STATE_H_
#define CAIRN_SESSION_STATE_H_

#include <atomic>
#include <unordered_map>

#include "cairn/session/session.h"
#include "cairn/state/attend.h"
#include "cairn/state/recurrent.h"
#include "cairn/state/state.h"

namespace cairn::internal {

struct Sequence {
  Pos length = 0;
  bool is_derived = false;
  std::vector<PageTable> tables;  // per group
};

// Where a slot's records lie: a place in a group's page.
struct SlotIndex {
  size_t group = 0;
  size_t place = 0;
  bool operator==(const SlotIndex&) const = default;
};

// The slots of a session with the same retention share one state, and all recurrent slots one.
struct Groups {
  std::vector<std::unique_ptr<State>> states;
  std::vector<SlotIndex> slots;  // per slot
  size_t recurrent_group = SIZE_MAX;

  Groups clone() const;
  const State& of(SlotId slot) const { return *states[slots[slot.value].group]; }
  bool is_recurrent(SlotId slot) const { return slots[slot.value].group == recurrent_group; }
  const Recurrent& recurrent(SlotId slot) const {  // ContractError for a positional slot
    CAIRN_CHECK(is_recurrent(slot), "session: slot {} is not recurrent", slot.value);
    return static_cast<const Recurrent&>(of(slot));
  }
  const SlotPlace& place(SlotId slot) const {
    return of(slot).forms().encoded.layout.slots[slots[slot.value].place];
  }
  const SlotPlace* exact_place(SlotId slot) const {
    const auto& exact = of(slot).forms().exact;
    return exact ? &exact->layout.slots[slots[slot.value].place] : nullptr;
  }
  View view(SlotId slot, std::span<const RunView> runs) const;
};

// Counts the parts of one family of one run that have been written.
struct Written {
  std::atomic<uint32_t> done{0};
  std::atomic<uint32_t> expected{0};
  bool is_complete() const { return done > 0 && done == expected; }
  void add(Part part) {
    expected = part.count;
    ++done;
  }
};

struct SessionState;

// The step of a session: one is open at a time, and the next one uses the same memory, so that
// planning allocates nothing once there has been a step of as many runs.
struct StepState {
  struct StepRun {
    SeqId seq;
    Sequence* sequence = nullptr;  // stays where it is while the step is open
    Pos count = 0;
    Pos row = 0;
  };

  SessionState* session = nullptr;  // null: no step is open
  Round round = Round::no;
  Pos rows = 0;
  std::vector<StepRun> runs;
  std::vector<Pos> counts;                // per run
  std::vector<Reservation> reservations;  // [runs][groups] or more; what lies beyond is empty
  std::vector<RunView> views;             // [groups][runs]
  std::unique_ptr<Written[]> written;     // [families of all slots][runs] or more
  size_t written_room = 0;
  std::atomic<uint64_t> saturated{0};

  void end() noexcept;  // drops what it holds
  StepRun& run(size_t index);
  Reservation& reservation(size_t run, size_t group);
  std::span<const RunView> views_of(size_t group) const;
  Written& written_of(SlotId slot, size_t family, size_t run);
  void check_written();
};

struct SessionState {
  ModelSpec spec;
  Scheme scheme;
  const Registry* registry = nullptr;
  SessionOptions options;
  Groups groups;
  std::vector<SlotId> slots;
  std::unordered_map<SeqId, Sequence> sequences;
  uint32_t next_seq = 0;
  uint64_t saturated = 0;
  StepState step;
  std::vector<size_t> first_family;  // per slot: its first index among all families
  size_t families = 0;               // of all slots
  AttendWorkspace workspace;

  Sequence& sequence(SeqId seq);
  SeqId add(Sequence sequence);
  void check_slot(SlotId slot) const;
  void check_closed(SeqId seq, const char* verb) const;  // no open step works on this sequence
};

}  // namespace cairn::internal

#endif  // CAIRN_SESSION_STATE_H_
