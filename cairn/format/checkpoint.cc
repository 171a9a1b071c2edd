#include "cairn/format/checkpoint.h"

#include <algorithm>

#include "cairn/format/json_fields.h"

namespace cairn {
namespace {

// Somewhere between the sequence's ends: the whole and nothing are always there.
bool can_resume_within(const CheckpointInfo& info, const CheckpointSlot& slot, Pos position) {
  if (slot.is_fixed) return false;  // holds its last state only
  // The sequence was encoded when it reached encoded_after; one shorter than that is exact.
  if (info.length >= info.encoded_after && position < info.encoded_after) return false;
  return holds_window(slot, position);
}

// How many positions below `position` the slot stores.
uint64_t rows_below(const CheckpointSlot& slot, Pos position) {
  if (slot.first_kept == 0) return position;
  return std::min(position, slot.sinks) + (std::max(position, slot.first_kept) - slot.first_kept);
}

}  // namespace

Digest fingerprint_of(CheckpointInfo info) {
  info.registry.clear();
  info.name_space.clear();
  info.is_derived = false;
  info.length = 0;
  info.tokens = 0;
  info.fingerprint = {};
  for (CheckpointSlot& slot : info.slots) {
    slot.rewind = slot.max_positions = slot.first_kept = 0;
    for (CheckpointFamily& family : slot.families) family.begin = family.end = 0;
  }
  return sha256(to_json(info));
}

bool can_resume_at(const CheckpointInfo& info, Pos position) {
  if (position == 0 || position >= info.length) return position <= info.length;
  return std::ranges::all_of(info.slots, [&](const CheckpointSlot& slot) {
    return can_resume_within(info, slot, position);
  });
}

std::vector<PositionRun> resume_positions(const CheckpointInfo& info) {
  // Where the answer may change; one too many, a sum that wraps for instance, does no harm. The
  // positions are not walked through, because a length is the file's word.
  std::vector<Pos> borders{0, 1, info.encoded_after, info.length};
  for (const CheckpointSlot& slot : info.slots) {
    borders.push_back(std::min(slot.sinks, info.length) + 1);
    borders.push_back(slot.first_kept + slot.window - 1);
  }
  std::ranges::sort(borders);
  std::vector<PositionRun> runs;
  for (size_t i = 0; i < borders.size() && borders[i] <= info.length; ++i) {
    const Pos end =
        i + 1 < borders.size() ? std::min(borders[i + 1], info.length + 1) : info.length + 1;
    if (borders[i] == end || !can_resume_at(info, borders[i])) continue;
    if (!runs.empty() && runs.back().first + runs.back().count == borders[i])
      runs.back().count += end - borders[i];
    else
      runs.push_back({borders[i], end - borders[i]});
  }
  return runs;
}

bool holds_window(const CheckpointSlot& slot, Pos length) {
  if (slot.first_kept == 0 || length <= slot.sinks) return true;
  const Pos first_needed =
      std::max(slot.sinks, length < slot.window ? 0 : length - slot.window + 1);
  return slot.first_kept <= first_needed || length <= first_needed;
}

size_t forms_of(const CheckpointSlot& slot) {
  return slot.families.size() > 1 && slot.families[0].name == slot.families[1].name ? 2 : 1;
}

Pos stored_rows(const CheckpointSlot& slot, Pos length) {
  return rows_below(slot, slot.is_fixed ? std::min<Pos>(1, length) : length);
}

Pos stored_rows(const CheckpointSlot& slot, const CheckpointFamily& family) {
  return rows_below(slot, family.end) - rows_below(slot, family.begin);
}

std::array<PositionRun, 2> positions_of(const CheckpointSlot& slot,
                                        uint64_t first_row,
                                        uint64_t rows) {
  if (slot.first_kept == 0) return {{{first_row, rows}, {}}};
  const Pos in_sinks = first_row < slot.sinks ? std::min(rows, slot.sinks - first_row) : 0;
  const Pos first_recent = first_row + in_sinks - slot.sinks + slot.first_kept;
  return {{{first_row, in_sinks}, {first_recent, rows - in_sinks}}};
}

std::array<PositionRun, 2> positions_of(const CheckpointSlot& slot,
                                        const CheckpointFamily& family,
                                        uint64_t first_row,
                                        uint64_t rows) {
  return positions_of(slot, rows_below(slot, family.begin) + first_row, rows);
}

}  // namespace cairn
