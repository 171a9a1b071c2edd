// Which positions a query attends to: the scores of a lightning indexer and the exact choice of the
// best k. (DeepSeek-V3.2: I(t, s) = sum over index heads j of w(t, j) * relu(q(t, j) . k(s)).)
//
// A score is one chain of fma over the heads in order, each product of q and k as its encoding
// defines it; the choice is exact, ties go to the lower position, and a score that is no number
// counts as the lowest. So a choice, like everything else, does not depend on batches, runs, pages,
// parts or targets.
#ifndef CAIRN_STATE_SPARSE_H_
#define CAIRN_STATE_SPARSE_H_

#include <cstddef>
#include <cstdint>

#include "cairn/core/ids.h"
#include "cairn/state/attend.h"
#include "cairn/state/view.h"

namespace cairn {

struct IndexQueries {
  const float* data = nullptr;     // [rows, heads, index width], rows as in the batch, dense
  const float* weights = nullptr;  // [rows, heads], dense
  uint32_t heads = 0;
  float scale = 1;  // of q . k, before the relu
};

// Where choose() writes: what attend() takes as Chosen.
struct ChosenOut {
  uint32_t* positions = nullptr;  // [rows, row_stride]
  uint32_t* counts = nullptr;     // [rows]: min(k, positions the row sees)
  size_t row_stride = 0;          // at least k
  Chosen view() const { return {positions, counts, row_stride}; }
};

// The scores of batch row `row` for the positions [0, its own position], into scores. ContractError
// when the slot has no index family.
void index_scores(const View& view, const IndexQueries& queries, Pos row, float* scores);

// The k best positions of every row, ascending. Part i of n takes its share of the rows; as in
// attend(), all parts end before the next call on the same step begins.
void choose(const View& view,
            const IndexQueries& queries,
            uint32_t k,
            const ChosenOut& out,
            Part part = {});

}  // namespace cairn

#endif  // CAIRN_STATE_SPARSE_H_
