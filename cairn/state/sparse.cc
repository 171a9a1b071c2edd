#include "cairn/state/sparse.h"

#include <algorithm>

#include "cairn/kernels/choice.h"
#include "cairn/kernels/dispatch.h"
#include "cairn/state/workspace.h"

namespace cairn {
namespace {

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

// Between the products of two heads: one line more than the largest page, or all heads would share
// a few sets of the first cache.
constexpr size_t kHeadStride = 64 + 16;

// What scoring one row after the other needs.
struct Scratch {
  float* query;                // one head's, scaled
  std::byte *encoded, *exact;  // a row's queries, prepared for both forms of the records
  float* head_scores;          // [heads, kHeadStride]
  float* scores = nullptr;     // [positions a row sees]; of choose() only, like the ranks
  uint32_t* ranks = nullptr;
};

Scratch take_scratch(Carver& carver, const View& view, uint32_t heads) {
  const size_t family = index_family(*view.slot);
  const auto prepared_bytes = [&](const SlotPlace& slot) {
    return heads * uint64_t{slot.families[family].codec.geometry.prepared_bytes};
  };
  return {.query = carver.take<float>(view.slot->families[family].codec.width),
          .encoded = carver.take<std::byte>(prepared_bytes(*view.slot)),
          .exact = carver.take<std::byte>(view.exact != nullptr ? prepared_bytes(*view.exact) : 0),
          .head_scores = carver.take<float>(heads * kHeadStride)};
}

Scratch take_scratch(Carver& carver, const View& view, uint32_t heads, Pos seen) {
  Scratch scratch = take_scratch(carver, view, heads);
  scratch.scores = carver.take<float>(seen);
  scratch.ranks = carver.take<uint32_t>(seen);
  return scratch;
}

// One row's queries, prepared for both forms of the records.
class RowScorer {
 public:
  RowScorer(const View& view, const IndexQueries& queries, Pos row, const Scratch& scratch)
      : view_(view),
        queries_(queries),
        run_(run_of(view, row)),
        family_(index_family(*view.slot)),
        weights_(queries.weights + row * queries.heads),
        scratch_(scratch) {
    prepare(*view.slot, row, scratch.encoded);
    if (view.exact != nullptr) prepare(*view.exact, row, scratch.exact);
  }

  void score(Pos end, float* scores) const {
    for (Pos position = 0; position < end;) {
      const Pos in_page = position % view_.page_positions;
      const Pos count = std::min<Pos>(view_.page_positions - in_page, end - position);
      const bool is_exact = position < run_.exact_end;
      const FamilyPlace& place = view_.place(run_, position).families[family_];
      std::byte* page = run_.pages.page(position / view_.page_positions);
      place.codec.encoding->functions().scores(
          place.codec, is_exact ? scratch_.exact : scratch_.encoded, queries_.heads,
          place.records(page, 0, static_cast<uint32_t>(in_page), static_cast<uint32_t>(count)),
          scratch_.head_scores, kHeadStride);
      weigh_heads(scratch_.head_scores, kHeadStride, weights_, queries_.heads,
                  static_cast<uint32_t>(count), scores + position);
      position += count;
    }
  }

 private:
  void prepare(const SlotPlace& slot, Pos row, std::byte* prepared) const {
    const Codec& codec = slot.families[family_].codec;
    for (uint32_t head = 0; head < queries_.heads; ++head) {
      const float* from = queries_.data + (row * queries_.heads + head) * codec.width;
      for (uint32_t i = 0; i < codec.width; ++i) scratch_.query[i] = from[i] * queries_.scale;
      codec.encoding->functions().prepare(codec, scratch_.query,
                                          prepared + head * codec.geometry.prepared_bytes);
    }
  }

  const View& view_;
  const IndexQueries& queries_;
  const RunView& run_;
  const size_t family_;
  const float* const weights_;
  const Scratch& scratch_;
};

// How many positions a row sees.
Pos seen_by(const View& view, Pos row) {
  const RunView& run = run_of(view, row);
  return run.first + (row - run.row) + 1;
}

}  // namespace

void index_scores(const View& view, const IndexQueries& queries, Pos row, float* scores) {
  const RoundingScope rounding;
  Carver measure(nullptr);
  take_scratch(measure, view, queries.heads);
  const AlignedBytes bytes = make_aligned(measure.used());
  Carver carver(bytes.get());
  const Scratch scratch = take_scratch(carver, view, queries.heads);
  RowScorer(view, queries, row, scratch).score(seen_by(view, row), scores);
}

void choose(
    const View& view, const IndexQueries& queries, uint32_t k, const ChosenOut& out, Part part) {
  CAIRN_CHECK(part.index < part.count, "choose: part {} of {}", part.index, part.count);
  CAIRN_CHECK(out.row_stride >= k, "choose: room for {} positions a row, expected {}",
              out.row_stride, k);
  const RoundingScope rounding;
  Pos most_seen = 0;
  for (const RunView& run : view.runs) most_seen = std::max(most_seen, run.first + run.count);
  Carver measure(nullptr);
  take_scratch(measure, view, queries.heads, most_seen);
  std::byte* bytes = view.workspace->state().reserve(measure.used() * part.count, part.count);
  Carver carver(bytes + part.index * measure.used());
  const Scratch scratch = take_scratch(carver, view, queries.heads, most_seen);

  const Pos end = view.rows * (part.index + 1) / part.count;
  for (Pos row = view.rows * part.index / part.count; row < end; ++row) {
    const Pos seen = seen_by(view, row);
    RowScorer(view, queries, row, scratch).score(seen, scratch.scores);
    out.counts[row] =
        choose_best({scratch.scores, seen}, k, out.positions + row * out.row_stride, scratch.ranks);
  }
}

}  // namespace cairn
