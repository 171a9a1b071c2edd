#include "cairn/state/sparse.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "cairn/kernels/dispatch.h"

namespace cairn {
namespace {

struct AlignedFloats {
  explicit AlignedFloats(size_t count) : floats(count + 16) {}
  float* data() {
    const auto address = reinterpret_cast<uintptr_t>(floats.data());
    return floats.data() + (64 - address % 64) % 64 / sizeof(float);
  }
  std::vector<float> floats;
};

size_t index_family(const SlotPlace& slot) {
  for (size_t i = 0; i < slot.families.size(); ++i)
    if (slot.families[i].family->is_index) return i;
  CAIRN_CHECK(false, "sparse: the slot has no index keys");
  __builtin_unreachable();
}

const RunView& run_of(const View& view, Pos row) {
  for (const RunView& run : view.runs)
    if (row >= run.row && row < run.row + run.count) return run;
  CAIRN_CHECK(false, "sparse: row {} of {}", row, view.rows);
  __builtin_unreachable();
}

// One row's queries, prepared for both forms of the records.
class RowScorer {
 public:
  RowScorer(const View& view, const IndexQueries& queries, Pos row)
      : view_(view),
        queries_(queries),
        run_(run_of(view, row)),
        family_(index_family(*view.slot)),
        weights_(queries.weights + row * queries.heads),
        head_scores_(size_t{queries.heads} * kBlockPositions) {
    prepare(*view.slot, row, encoded_);
    if (view.exact != nullptr) prepare(*view.exact, row, exact_);
  }

  void score(Pos end, float* scores) {
    for (Pos position = 0; position < end;) {
      const Pos in_page = position % view_.page_positions;
      const Pos count = std::min<Pos>(view_.page_positions - in_page, end - position);
      const bool is_exact = position < run_.exact_end;
      const FamilyPlace& place = view_.place(run_, position).families[family_];
      std::byte* page = run_.pages.page(position / view_.page_positions);
      place.codec.encoding->functions().scores(
          place.codec, reinterpret_cast<const std::byte*>((is_exact ? exact_ : encoded_).data()),
          queries_.heads,
          place.records(page, 0, static_cast<uint32_t>(in_page), static_cast<uint32_t>(count)),
          head_scores_.data(), kBlockPositions);
      for (Pos i = 0; i < count; ++i) scores[position + i] = weigh(i);
      position += count;
    }
  }

 private:
  float weigh(Pos column) {
    float sum = 0;
    for (uint32_t head = 0; head < queries_.heads; ++head) {
      const float product = head_scores_.data()[head * kBlockPositions + column];
      sum = std::fma(weights_[head], product > 0 || std::isnan(product) ? product : 0.f, sum);
    }
    return sum;
  }

  void prepare(const SlotPlace& slot, Pos row, AlignedFloats& prepared) {
    const Codec& codec = slot.families[family_].codec;
    const size_t stride = codec.geometry.prepared_bytes / sizeof(float);
    prepared = AlignedFloats(stride * queries_.heads);
    std::vector<float> query(codec.width);
    for (uint32_t head = 0; head < queries_.heads; ++head) {
      const float* from = queries_.data + (row * queries_.heads + head) * codec.width;
      for (uint32_t i = 0; i < codec.width; ++i) query[i] = from[i] * queries_.scale;
      codec.encoding->functions().prepare(
          codec, query.data(), reinterpret_cast<std::byte*>(prepared.data() + head * stride));
    }
  }

  const View& view_;
  const IndexQueries& queries_;
  const RunView& run_;
  size_t family_;
  const float* weights_;
  AlignedFloats head_scores_;
  AlignedFloats encoded_{0}, exact_{0};
};

}  // namespace

void index_scores(const View& view, const IndexQueries& queries, Pos row, float* scores) {
  const RoundingScope rounding;
  const RunView& run = run_of(view, row);
  RowScorer(view, queries, row).score(run.first + (row - run.row) + 1, scores);
}

void choose(
    const View& view, const IndexQueries& queries, uint32_t k, const ChosenOut& out, Part part) {
  CAIRN_CHECK(part.index < part.count, "choose: part {} of {}", part.index, part.count);
  CAIRN_CHECK(out.row_stride >= k, "choose: room for {} positions a row, expected {}",
              out.row_stride, k);
  std::vector<float> scores;
  std::vector<uint32_t> order;
  const Pos end = view.rows * (part.index + 1) / part.count;
  for (Pos row = view.rows * part.index / part.count; row < end; ++row) {
    const RunView& run = run_of(view, row);
    const Pos seen = run.first + (row - run.row) + 1;
    scores.resize(seen);
    index_scores(view, queries, row, scores.data());
    for (float& score : scores)
      if (std::isnan(score)) score = -std::numeric_limits<float>::infinity();
    order.resize(seen);
    std::iota(order.begin(), order.end(), 0u);
    const Pos count = std::min<Pos>(k, seen);
    std::nth_element(order.begin(), order.begin() + static_cast<ptrdiff_t>(count), order.end(),
                     [&](uint32_t a, uint32_t b) {
                       return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
                     });
    std::sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(count));
    std::copy_n(order.begin(), count, out.positions + row * out.row_stride);
    out.counts[row] = static_cast<uint32_t>(count);
  }
}

}  // namespace cairn
