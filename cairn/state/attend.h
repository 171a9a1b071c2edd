// Attention over the pages a step shows, in their encoded form: the one loop.
//
// Every result is defined to the last bit (docs/numbers.md) and does not depend on the batch, the
// run lengths, the page size, the number of parts or the target.
//
// How exact it is: against exact arithmetic on the decoded numbers, all of them finite, a row that
// sees n positions has
//
//   |out - exact| <= V min(2 + r, exp(2 e + r) - 1)        r = (1200 + n / 128) 2^-24
//   |log_sum_exp - exact| <= e + r + 2^-24 |exact|
//
// where V is the length of the longest value vector seen, and e what a score is off at most: scale
// times the sum, over the scored families, of Geometry::score_error * 2^-24 |q| |k|, k the longest
// key seen. That is the worst case; docs/numbers.md says what is usual.
#ifndef CAIRN_STATE_ATTEND_H_
#define CAIRN_STATE_ATTEND_H_

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>

#include "cairn/core/ids.h"
#include "cairn/state/view.h"

namespace cairn {

// Positions chosen for each row of the batch (sparse attention): ascending, each at most the row's
// own and held. A list of everything gives the bits of attending without one, an empty one zeros.
struct Chosen {
  const uint32_t* positions = nullptr;  // [rows, row_stride]
  const uint32_t* counts = nullptr;     // [rows]
  size_t row_stride = 0;
  std::span<const uint32_t> of(Pos row) const {
    return {positions + row * row_stride, counts[row]};
  }
};

// Query heads share key heads in order: query head h reads key head h / (query_heads / key_heads).
struct Queries {
  // [rows, query_heads, width], rows as in the batch; width: of the slot's scored families, one
  // after the other (keys; latent, then rope).
  const float* data = nullptr;
  uint32_t heads = 0;              // query heads: a multiple of the slot's key heads
  ptrdiff_t row_stride = 0;        // floats; 0: dense
  ptrdiff_t head_stride = 0;       // floats; 0: dense
  float scale = 0;                 // of the scores; 0: 1 / sqrt(width)
  const Chosen* chosen = nullptr;  // null: every row sees what its slot's retention shows it
};

struct Attended {
  float* data = nullptr;      // [rows, query_heads, value width]
  ptrdiff_t row_stride = 0;   // floats; 0: dense
  ptrdiff_t head_stride = 0;  // floats; 0: dense
  float* log_sum_exp =
      nullptr;  // [rows, query_heads], natural log, of the scaled scores; may be null
};

// Causal within the runs, windows and sinks by the slot's retention. Every row sees at least
// itself. NaN in what a row sees gives NaN in that row.
//
// Part `part.index` of `part.count`: the parts may run at once or one after the other, in any
// order, on any threads. Who comes takes a share of what is left, so that a part may find nothing
// to do. Every part of a call is called, even after one failed, and all of them end before the next
// call on the same step begins.
void attend(const View& view, const Queries& queries, const Attended& out, Part part = {});

// Scratch that the parts of a call share; owned by a session (or a snapshot's reader) and reused
// from call to call, so that nothing is allocated once it has grown.
class AttendWorkspace {
 public:
  AttendWorkspace();
  ~AttendWorkspace();
  struct State;
  State& state() { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

}  // namespace cairn

#endif  // CAIRN_STATE_ATTEND_H_
