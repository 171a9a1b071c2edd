// What a step shows of one slot: per run its pages, the new positions included, and who sees what.
//
// A view is borrowed from its step (or snapshot), costs nothing to make, and is valid until the
// step ends.
#ifndef CAIRN_STATE_VIEW_H_
#define CAIRN_STATE_VIEW_H_

#include <span>

#include "cairn/state/page_layout.h"
#include "cairn/state/page_table.h"
#include "cairn/state/retention.h"

namespace cairn {

class AttendWorkspace;  // attend.h

// One run of the batch: positions [first, first + count) of a sequence, at rows [row, row + count)
// of the batch.
struct RunView {
  PageMap pages;
  Pos first = 0;
  Pos count = 0;
  Pos row = 0;
  Pos exact_end = 0;  // positions below it lie in the exact form
};

struct View {
  const SlotPlace* slot = nullptr;   // in the encoded form
  const SlotPlace* exact = nullptr;  // in the exact form; null where the scheme has none
  Retention retention;
  uint32_t page_positions = 0;
  std::span<const RunView> runs;
  Pos rows = 0;                          // of the batch: the sum of the runs' counts
  AttendWorkspace* workspace = nullptr;  // of the step

  // How the records at a position of a run lie in their page.
  const SlotPlace& place(const RunView& run, Pos position) const {
    return position < run.exact_end ? *exact : *slot;
  }
};

// Decodes positions [first, first + count) of one run's sequence into out: [count, heads, width],
// dense. The positions must be held (for windows: sinks, or not yet dropped).
void decode(const View& view, size_t run, FamilyId family, Pos first, Pos count, float* out);

}  // namespace cairn

#endif  // CAIRN_STATE_VIEW_H_
