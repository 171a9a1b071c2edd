#include "cairn/format/checkpoint.h"

#include <algorithm>

#include "cairn/format/json_fields.h"

namespace cairn {
namespace {

bool can_resume_at(const CheckpointSlot& slot, Pos position) {
  if (slot.first_kept == 0 || position <= slot.sinks) return true;
  const Pos first_needed = position < slot.window ? 0 : position - slot.window + 1;
  return slot.first_kept <= std::max(slot.sinks, first_needed);
}

}  // namespace

Digest fingerprint_of(CheckpointInfo info) {
  info.registry.clear();
  info.name_space.clear();
  info.is_derived = false;
  info.length = 0;
  info.tokens = 0;
  info.fingerprint = {};
  for (CheckpointSlot& slot : info.slots) slot.rewind = slot.max_positions = slot.first_kept = 0;
  return sha256(to_json(info));
}

bool can_resume_at(const CheckpointInfo& info, Pos position) {
  return position <= info.length &&
         std::ranges::all_of(
             info.slots, [&](const CheckpointSlot& slot) { return can_resume_at(slot, position); });
}

Pos stored_rows(const CheckpointSlot& slot, Pos length) {
  return slot.first_kept == 0 ? length : slot.sinks + (length - slot.first_kept);
}

std::array<PositionRun, 2> positions_of(const CheckpointSlot& slot,
                                        uint64_t first_row,
                                        uint64_t rows) {
  if (slot.first_kept == 0) return {{{first_row, rows}, {}}};
  const Pos in_sinks = first_row < slot.sinks ? std::min(rows, slot.sinks - first_row) : 0;
  const Pos first_recent = first_row + in_sinks - slot.sinks + slot.first_kept;
  return {{{first_row, in_sinks}, {first_recent, rows - in_sinks}}};
}

}  // namespace cairn
