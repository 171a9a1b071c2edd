// What a call of attend() is about, and which part of it does what; of attend.cc alone.
//
//   item     a tile of one run's queries, or the queries of runs that decode from shared pages;
//            and key heads: all of them where that makes few rows (a page is then read in one
//            sweep), else one. Rows are [head][query][query head of the group]
//   segment  1,024 positions of an item: results are joined inside segments, then over them
//   block    256 positions: scores, softmax, weighted sum, join
//
// Every part makes the same plan: all blocks of all items in order, each with a cost; part i of n
// takes those whose middle lies in the i-th n-th of the total. An item inside one part is finished
// there.
#ifndef CAIRN_STATE_ATTEND_PLAN_H_
#define CAIRN_STATE_ATTEND_PLAN_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "cairn/kernels/softmax.h"
#include "cairn/state/attend.h"

namespace cairn::attending {

inline constexpr Pos kBlocksPerSegment = kSegmentPositions / kBlockPositions;
// Rows of an item, about: bounds the scratch, shares each page among many rows.
inline constexpr uint32_t kTileRows = 96;
// Rows that see different positions are taken about so many at a time.
inline constexpr uint32_t kStepRows = 6;
inline constexpr size_t kMostScored = 2;

struct Scored {
  const FamilyPlace* place = nullptr;
  const RecordFunctions* functions = nullptr;
  uint32_t query_offset = 0;  // floats into a query
};

// How one form of the records meets queries and weights.
struct AttendForm {
  std::array<Scored, kMostScored> scored;
  uint32_t scored_count = 0;
  const FamilyPlace* value = nullptr;
  const RecordFunctions* value_functions = nullptr;

  const Codec& value_codec() const { return value->codec; }
  uint64_t partial_floats() const { return value->codec.geometry.partial_floats; }
};

// What a call is about, with strides resolved.
struct Call {
  const View& view;
  const SoftmaxFunctions& softmax;
  Queries queries;
  Attended out;
  std::array<AttendForm, 2> forms;  // encoded, exact
  uint32_t form_count = 1;
  uint32_t key_heads = 0;
  uint32_t query_width = 0;  // of all scored families
  uint32_t value_width = 0;
  uint32_t group = 0;         // query heads per key head
  uint32_t tile_queries = 0;  // of an item, at most
  uint32_t step_queries = 0;
};

struct Item {
  const RunView* run = nullptr;  // of all queries; of several runs the first, with one query each
  uint32_t runs = 1;
  uint32_t first_head = 0;  // of the keys
  uint32_t heads = 0;
  Pos first = 0;  // the least and the greatest position of a query; of one run all between them
  Pos last = 0;
  std::span<const uint32_t> chosen;  // of the item's only query; not used: empty with null data

  bool is_sparse() const { return chosen.data() != nullptr; }
  uint32_t queries() const { return runs > 1 ? runs : static_cast<uint32_t>(last - first + 1); }
  const RunView& run_of(uint32_t query) const { return runs > 1 ? run[query] : *run; }
  Pos position_of(uint32_t query) const { return runs > 1 ? run[query].first : first + query; }
  Pos row_of(uint32_t query) const {
    return run_of(query).row + (position_of(query) - run_of(query).first);
  }
};

Call make_call(const View& view, const Queries& queries, const Attended& out);

// What some query of an item sees: sinks, then the window; ascending, not overlapping.
Retention::Visible seen_by(const Retention& retention, const Item& item);

inline Range clip(Range range, Range to) {
  const Range clipped{std::max(range.begin, to.begin), std::min(range.end, to.end)};
  return clipped.empty() ? Range{} : clipped;
}

// Calls f(block, positions) for every block in which an item sees something.
template <class F>
void each_block(const Retention::Visible& seen, F f) {
  Pos next = 0;
  for (const Range& range : {seen.sinks, seen.recent}) {
    if (range.empty()) continue;
    for (Pos block = std::max(next, range.begin / kBlockPositions);
         block * kBlockPositions < range.end; next = ++block) {
      const Range bounds{block * kBlockPositions, (block + 1) * kBlockPositions};
      const Range a = clip(seen.sinks, bounds), b = clip(seen.recent, bounds);
      f(block, (a.end - a.begin) + (b.end - b.begin));
    }
  }
}

// How many of the runs decode one position each from pages of which they share the first.
uint32_t runs_together(const Call& call, std::span<const RunView> runs);

// Calls f(item) for every item, in order.
template <class F>
void each_item(const Call& call, F f) {
  const auto each_heads = [&](Item item) {
    const bool are_few = uint64_t{item.queries()} * call.queries.heads <= kTileRows;
    item.heads = are_few ? call.key_heads : 1;
    for (; item.first_head < call.key_heads; item.first_head += item.heads) f(item);
  };
  std::span<const RunView> runs = call.view.runs;
  for (uint32_t together; !runs.empty(); runs = runs.subspan(together)) {
    const RunView& run = runs[0];
    together = runs_together(call, runs);
    if (together > 1) {
      const auto [least, most] = std::ranges::minmax(runs.first(together), {}, &RunView::first);
      each_heads({.run = &run, .runs = together, .first = least.first, .last = most.first});
      continue;
    }
    for (Pos first = 0; first < run.count; first += call.tile_queries) {
      const Pos last = std::min<Pos>(first + call.tile_queries, run.count) - 1;
      Item item{.run = &run, .first = run.first + first, .last = run.first + last};
      if (call.queries.chosen != nullptr) item.chosen = call.queries.chosen->of(run.row + first);
      each_heads(item);
    }
  }
}

inline uint32_t rows_of(const Call& call, const Item& item) {
  return item.heads * item.queries() * call.group;
}

// Of one block: in proportion to rows times positions, and a little for what every block costs.
inline uint64_t cost_of(const Call& call, const Item& item, Pos positions) {
  return (positions + 8) * (rows_of(call, item) + 1);
}

// Which part takes what.
struct Plan {
  uint64_t total_cost = 0;
  uint64_t most_segments = 0;  // of one item
  uint32_t most_rows = 0;      // of one item

  uint32_t owner(uint64_t cost_before, uint64_t cost, uint32_t parts) const {
    __extension__ using Wide = unsigned __int128;
    return static_cast<uint32_t>((Wide{cost_before} * 2 + cost) * parts / (Wide{total_cost} * 2));
  }
};

Plan make_plan(const Call& call);

// The blocks of one segment that an item sees, and the parts that take them.
struct Segment {
  uint64_t place = 0;  // among the item's segments
  uint32_t blocks = 0;
  std::array<Pos, kBlocksPerSegment> block{};
  std::array<uint32_t, kBlocksPerSegment> owner{};

  bool is_cut() const { return owner[0] != owner[blocks - 1]; }
};

// Calls f(segment) for every segment of an item; returns the cost up to its end.
template <class F>
uint64_t each_segment(const Call& call,
                      const Plan& plan,
                      const Item& item,
                      uint64_t cost_before,
                      uint32_t parts,
                      F f) {
  Segment segment;
  each_block(seen_by(call.view.retention, item), [&](Pos block, Pos positions) {
    if (segment.blocks != 0 && segment.block[0] / kBlocksPerSegment != block / kBlocksPerSegment) {
      f(segment);
      segment = {.place = segment.place + 1};
    }
    const uint64_t cost = cost_of(call, item, positions);
    segment.block[segment.blocks] = block;
    segment.owner[segment.blocks++] = plan.owner(cost_before, cost, parts);
    cost_before += cost;
  });
  if (segment.blocks > 0) f(segment);
  return cost_before;
}

}  // namespace cairn::attending

#endif  // CAIRN_STATE_ATTEND_PLAN_H_
