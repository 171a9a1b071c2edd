#include "cairn/state/sparse.h"

#include <algorithm>
#include <vector>

#include "cairn/kernels/choice.h"
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
        head_scores_(size_t{queries.heads} * kStride) {
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
          head_scores_.data(), kStride);
      weigh_heads(head_scores_.data(), kStride, weights_, queries_.heads,
                  static_cast<uint32_t>(count), scores + position);
      position += count;
    }
  }

 private:
  // Between the products of two heads: one line more than the largest page, or all heads would
  // share a few sets of the first cache.
  static constexpr size_t kStride = 64 + 16;

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
  std::vector<uint32_t> scratch;
  const Pos end = view.rows * (part.index + 1) / part.count;
  for (Pos row = view.rows * part.index / part.count; row < end; ++row) {
    const RunView& run = run_of(view, row);
    const Pos seen = run.first + (row - run.row) + 1;
    scores.resize(seen);
    index_scores(view, queries, row, scores.data());
    out.counts[row] = choose_best(scores, k, out.positions + row * out.row_stride, scratch);
  }
}

}  // namespace cairn
