// What a call of attend() is about, and which part of it does what; of attend.cc alone.
//
//   item     a tile of one run's queries, or the queries of runs that decode from shared pages;
//            and key heads: all of them where that makes few rows (a page is then read in one
//            sweep), else one. Rows are [head][query][query head of the group]
//   segment  1,024 positions of an item: results are joined inside segments, then over them
//   block    256 positions: scores, softmax, weighted sum, join
//
// Every part makes the same plan: all blocks of all items in order, each with a cost, cut into
// shares. Parts take shares in order, each the first that nobody has (attend.cc): of n parts the
// first n shares are three quarters of all work and those after them small, so that nobody waits
// long for a part that came late or whose core is slow. An item inside one share is finished there.
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

struct Plan {
  uint32_t parts = 1;
  uint64_t total_cost = 0;
  uint32_t most_rows = 0;     // of one item
  uint64_t kept_results = 0;  // that shares keep for each other, of items in several shares

  // Of n parts the first n shares are 12 sixteenths of the total, the next n two, the last 2 n two.
  uint32_t share_count() const { return 4 * parts; }
  // Of a block, by where the middle of its cost lies. One part takes all at once.
  uint32_t share_of(uint64_t cost_before, uint64_t cost) const {
    if (parts == 1) return 0;
    __extension__ using Wide = unsigned __int128;
    const auto at =
        static_cast<uint64_t>((Wide{cost_before} * 2 + cost) * 16 * parts / (Wide{total_cost} * 2));
    const uint64_t n = parts;
    if (at < 12 * n) return static_cast<uint32_t>(at / 12);
    if (at < 14 * n) return static_cast<uint32_t>(n + (at - 12 * n) / 2);
    return static_cast<uint32_t>(2 * n + (at - 14 * n));
  }
};

Plan make_plan(const Call& call, uint32_t parts);

// The blocks of one segment that an item sees, and their shares.
struct Segment {
  uint64_t place = 0;  // among the item's segments
  uint32_t blocks = 0;
  std::array<Pos, kBlocksPerSegment> block{};
  std::array<uint32_t, kBlocksPerSegment> share{};

  bool is_split() const { return share[0] != share[blocks - 1]; }
};
inline constexpr uint32_t kNoShare = ~uint32_t{0};
inline constexpr uint32_t kMostBlocksApart = kBlocksPerSegment - 1;  // from a segment's first

// Calls f(segment) for every segment of an item; returns the cost up to its end.
template <class F>
uint64_t each_segment(
    const Call& call, const Plan& plan, const Item& item, uint64_t cost_before, F f) {
  Segment segment;
  each_block(seen_by(call.view.retention, item), [&](Pos block, Pos positions) {
    if (segment.blocks != 0 && segment.block[0] / kBlocksPerSegment != block / kBlocksPerSegment) {
      f(segment);
      segment = {.place = segment.place + 1};
    }
    const uint64_t cost = cost_of(call, item, positions);
    segment.block[segment.blocks] = block;
    segment.share[segment.blocks++] = plan.share_of(cost_before, cost);
    cost_before += cost;
  });
  if (segment.blocks > 0) f(segment);
  return cost_before;
}

// Where an item lies in the plan.
struct Extent {
  uint32_t first_share = kNoShare, last_share = kNoShare;  // none: it sees nothing
  uint64_t blocks = 0, segments = 0, split_segments = 0;
  uint64_t cost_after = 0;

  bool is_split() const { return first_share != last_share; }
  // What shares keep for each other: every segment, and of a split one all blocks but the first,
  // which the others are joined to.
  uint64_t kept_results() const {
    return is_split() ? segments + split_segments * kMostBlocksApart : 0;
  }
};

inline Extent extent_of(const Call& call,
                        const Plan& plan,
                        const Item& item,
                        uint64_t cost_before) {
  Extent extent;
  extent.cost_after = each_segment(call, plan, item, cost_before, [&](const Segment& segment) {
    if (extent.blocks == 0) extent.first_share = segment.share[0];
    extent.last_share = segment.share[segment.blocks - 1];
    extent.blocks += segment.blocks;
    ++extent.segments;
    extent.split_segments += segment.is_split();
  });
  return extent;
}

}  // namespace cairn::attending

#endif  // CAIRN_STATE_ATTEND_PLAN_H_
