// Rectangles for frameworks that want them: Cairn's sequences are ragged, their tensors are not.
//
// Nothing of this is stored. A rectangle of stored positions [B, width, heads, numbers] is made
// when it is asked for, right-justified: what comes next stands in the column behind the last one
// for every row, and the columns in front of a shorter row are zeros.
//
//              column  0 1 2 3 4 | 5 6           width 5, then two new columns
//   row of 3           . . 0 1 2 | 3 4           pad 2, offset 3
//   row of 5           0 1 2 3 4 | 5 6           pad 0, offset 5
//
// A prompt that arrives as a rectangle, padded on the left or on the right, goes the other way: its
// rows' tokens become the runs of a step, and the padding is read by nobody. So there is nothing to
// finalize: after any chunk every row is right-justified again, at its true length, and a row that
// leaves the batch is left out of the next call. Padding never reaches a recurrence either.
//
//   const PrefillChunk chunk = prefill_chunk(rows, first, columns);   // chunk by chunk
//   Step step = CAIRN_TRY(session.plan(chunk.runs));
//   for (SlotId slot : session.slots()) {
//     write_padded(step, slot, kKey, chunk, keys(slot));               // and the other families
//     const Padded shape = padded(step.view(slot));
//     read_padded(step.view(slot), kKey, numbers);                     // [B, width, heads, dim]
//     fill_mask(shape, {.count = columns, .tokens = chunk.tokens}, mask);
//   }
//   step.commit();
//
// To read sequences outside of a step, plan one of empty runs ({.seq = a}, {.seq = b}) and drop it.
#ifndef CAIRN_SESSION_PADDED_H_
#define CAIRN_SESSION_PADDED_H_

#include <span>
#include <vector>

#include "cairn/session/session.h"

namespace cairn {

// What a row's columns hold. Of a window: its sinks and what the first new position sees, not what
// is kept for a rewind.
struct PaddedRow {
  Pos pad = 0;     // columns [0, pad) are padding
  Pos sinks = 0;   // the next `sinks` columns are positions [0, sinks); 0 without a window
  Pos first = 0;   // those behind them are positions [first, offset)
  Pos offset = 0;  // the row's length, the new positions included: where its next token stands
  Pos end() const { return pad + sinks + offset - first; }  // the column behind its last one
};

struct Padded {
  Pos width = 0;  // columns: those of the longest row
  std::vector<PaddedRow> rows;
};

// The rows of sequences of these lengths, `count` new positions each included, in a slot that keeps
// `retention`. Pure arithmetic: merging, picking and dropping rows is another list of lengths.
Padded padded(const Retention& retention, std::span<const Pos> lengths, Pos count = 0);
// The runs of a step (or snapshot) as it shows them: their new positions included, also where runs
// have different counts.
Padded padded(const View& view);

// One family, decoded: out is [B, width, heads, numbers], dense, as padded(view) says; padding is
// zero. REQUIRES: new positions are written. Calls for different families may run at once.
void read_padded(const View& view, FamilyId family, float* out);

// The queries of a mask: `count` columns that end where their row ends, at least 1.
struct MaskQueries {
  Pos count = 1;
  Pos window = 0;  // a query sees itself and the window - 1 positions before it, and the row's
                   // sinks; 0: everything before it
  std::span<const Range> tokens = {};  // per row: which of them are tokens; empty: all are
};

// What a framework's attention needs to be told. Equal rows need no array.
enum class MaskNeed {
  none,    // every query sees every column
  causal,  // query i sees columns [0, width - count + i]: what most have built in
  array,   // fill_mask
};
MaskNeed mask_need(const Padded& shape, MaskQueries queries);

// Who sees what: out is [B, 1, count, width]. A row's last token stands in its last column, the
// others before it; each sees neither padding nor what comes behind it. A query that is padding
// sees nothing; the NaN that a softmax makes of it goes no further, because padding is never
// written. Rows may end before the rectangle does, where a framework keeps ragged rows of its own.
void fill_mask(const Padded& shape, MaskQueries queries, bool* out);
void fill_mask(const Padded& shape, MaskQueries queries, float* out);  // added: 0 or -infinity

// A row of a prompt that arrives as a rectangle: its columns [left, end) are tokens, what stands
// before and behind them is padding.
struct PrefillRow {
  SeqId seq;
  Pos left = 0;
  Pos end = 0;
};

// Columns [first, first + columns) of such a rectangle.
struct PrefillChunk {
  Pos columns = 0;
  std::vector<Range> tokens;  // per row, counted from the chunk's first column; empty: only padding
  std::vector<Run> runs;      // per row, for Session::plan; of 0 positions where there is padding
                              // only
};
PrefillChunk prefill_chunk(std::span<const PrefillRow> rows, Pos first, Pos columns);

// How many columns the chunk from `first` on may have: under `after N` no run crosses N, and it is
// tokens that count, not columns. UINT64_MAX: any.
Pos longest_chunk(const Session& session, std::span<const PrefillRow> rows, Pos first);

// Step::write for a step over chunk.runs: `rectangle` is [B, chunk.columns, heads, numbers], its
// rows `row_stride` elements apart (0: dense). A recurrent slot is the model's to advance: through
// chunk.tokens of each row, in Step::next.
void write_padded(Step& step,
                  SlotId slot,
                  FamilyId family,
                  const PrefillChunk& chunk,
                  const Numbers& rectangle,
                  ptrdiff_t row_stride = 0,
                  Part part = {});

}  // namespace cairn

#endif  // CAIRN_SESSION_PADDED_H_
