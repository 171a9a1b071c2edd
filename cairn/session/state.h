// What a session and its steps share; private to cairn/session.
#ifndef CAIRN_SESSION_STATE_H_
#define CAIRN_SESSION_STATE_H_

#include <atomic>
#include <unordered_map>

#include "cairn/session/session.h"
#include "cairn/state/attend.h"
#include "cairn/state/positional.h"

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
};

struct SessionState {
  ModelSpec spec;
  Scheme scheme;
  const Registry* registry = nullptr;
  SessionOptions options;
  std::vector<Positional> groups;     // slots of one retention each
  std::vector<SlotIndex> slot_index;  // per slot
  std::vector<SlotId> slots;
  std::unordered_map<SeqId, Sequence> sequences;
  uint32_t next_seq = 0;
  const StepState* open_step = nullptr;
  AttendWorkspace workspace;

  const Positional& group_of(SlotId slot) const { return groups[slot_index[slot.value].group]; }
  const SlotPlace& place_of(SlotId slot) const {
    const SlotIndex& index = slot_index[slot.value];
    return groups[index.group].layout().slots[index.place];
  }
  Sequence& sequence(SeqId seq);
  SeqId add(Sequence sequence);
  void check_slot(SlotId slot) const;
  void check_closed(SeqId seq, const char* verb) const;  // no open step works on this sequence
};

// Encodes rows [begin, end) of a run, a row being one head of one position in head-major order.
uint64_t encode_rows(const FamilyPlace& place,
                     const PageMap& pages,
                     uint32_t page_positions,
                     Pos first,
                     Pos count,
                     const Numbers& numbers,
                     Part part);

}  // namespace cairn::internal

#endif  // CAIRN_SESSION_STATE_H_
