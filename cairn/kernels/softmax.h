// The softmax of attention in blocks and its joins: what no encoding knows. Order of operations:
// docs/numbers.md.
//
// A block is what a query row sees of 256 consecutive positions (counted from position 0): one or
// two ascending ranges (sinks, then the window). Scores are in base 2. A partial result is (m, l,
// o): the maximum, the sum of weights E(s - m), and the weighted sum of values. Partial results are
// joined left to right inside segments of 1,024 positions, and segments left to right.
#ifndef CAIRN_KERNELS_SOFTMAX_H_
#define CAIRN_KERNELS_SOFTMAX_H_

#include <cstddef>
#include <cstdint>

#include "cairn/core/ids.h"

namespace cairn {

inline constexpr uint32_t kSegmentPositions = 1024;

// Positions [begin, end).
struct Range {
  Pos begin = 0;
  Pos end = 0;
  bool empty() const { return begin >= end; }
  bool operator==(const Range&) const = default;
};

struct Softmax {
  float max = 0;  // m; meaningless while sum is 0
  float sum = 0;  // l; 0: nothing seen
};

struct SoftmaxFunctions {
  // Of rows that see the same: scores[row * stride + i] is a row's score of position first + i, for
  // a block that starts at position `first` (a multiple of 256). Reads the scores inside the
  // ranges, replaces them by weights E(s - m), and writes (m, l) to results[row]. Ranges ascend, do
  // not overlap, and lie in [first, first + 256); at least one is not empty. A row has room for all
  // 256: some targets write what lies beside a range as they find it.
  void (*block)(
      float* scores, size_t stride, uint32_t rows, Pos first, Range a, Range b, Softmax* results);

  // running <- running joined with part; `width` numbers of o each.
  void (*join)(
      Softmax& running, float* running_o, const Softmax& part, const float* part_o, uint32_t width);

  // o * (1 / l) into out; zeros when l is 0.
  void (*normalize)(const Softmax& total, const float* o, float* out, uint32_t width);
};

const SoftmaxFunctions& softmax_functions();  // for the target in use

// E(x) = 2^x for x <= 0: the scalar definition. Exactly 1 at 0, +0 below -64, NaN for NaN.
float exp2_nonpositive(float x);

// Natural log of the sum of exp of all scores: (m + log2 l) * ln 2. Minus infinity when nothing was
// seen.
float log_sum_exp(const Softmax& total);

}  // namespace cairn

#endif  // CAIRN_KERNELS_SOFTMAX_H_
