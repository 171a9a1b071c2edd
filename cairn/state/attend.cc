// The loop over what queries see.
//
//   item     one key head of one run, and a tile of its queries: rows are [query][query head of the
//   group] segment  1,024 positions of an item: what a part takes whole (results are joined inside
//   segments, then over them) block    256 positions: scores, softmax, weighted sum, join
//
// Every part makes the same plan: all segments of all items in order, each with a cost; part i of n
// takes those whose middle lies in the i-th n-th of the total. An item inside one part is finished
// there. Segments of an item that spans parts go to the workspace, and the part that adds the last
// one joins them in order. Nobody waits for anybody.
#include "cairn/state/attend.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <new>

#include "cairn/core/bytes.h"
#include "cairn/kernels/dispatch.h"
#include "cairn/kernels/softmax.h"

namespace cairn {
namespace {

constexpr Pos kBlocksPerSegment = kSegmentPositions / kBlockPositions;
constexpr uint32_t kTileRows =
    96;  // rows of an item, about: bounds the scratch, shares each page among many rows
constexpr uint32_t kStepRows =
    6;  // rows that see different positions are taken about so many at a time
constexpr float kLog2E = 1.44269504f;

struct AlignedDelete {
  void operator()(std::byte* bytes) const { ::operator delete[](bytes, std::align_val_t{64}); }
};
using AlignedBytes = std::unique_ptr<std::byte[], AlignedDelete>;

// Hands out pieces of a buffer; with no buffer it measures.
class Carver {
 public:
  explicit Carver(std::byte* begin) : begin_(begin) {}
  template <class T>
  T* take(uint64_t count) {
    std::byte* piece = begin_ == nullptr ? nullptr : begin_ + used_;
    used_ += round_up(count * sizeof(T), 64);
    return reinterpret_cast<T*>(piece);
  }
  uint64_t used() const { return used_; }

 private:
  std::byte* begin_;
  uint64_t used_ = 0;
};

}  // namespace

struct AttendWorkspace::State {
  std::mutex mutex;
  AlignedBytes bytes;
  uint64_t byte_count = 0;
  std::unique_ptr<std::atomic<uint64_t>[]>
      finished;  // per part: segments done of the item that starts in it; 0 between calls
  uint32_t part_count = 0;

  // All parts of a call ask for the same, so only the first one can find too little.
  std::byte* reserve(uint64_t wanted_bytes, uint32_t parts) {
    const std::lock_guard lock(mutex);
    if (byte_count < wanted_bytes) {
      bytes.reset();
      bytes.reset(static_cast<std::byte*>(::operator new[](wanted_bytes, std::align_val_t{64})));
      byte_count = wanted_bytes;
    }
    if (part_count < parts) {
      finished = std::make_unique<std::atomic<uint64_t>[]>(parts);
      part_count = parts;
    }
    return bytes.get();
  }
};

AttendWorkspace::AttendWorkspace() : state_(std::make_unique<State>()) {}
AttendWorkspace::~AttendWorkspace() = default;

namespace {

// What a call is about, with strides resolved.
struct Call {
  const View& view;
  const FamilyPlace& key;
  const FamilyPlace& value;
  const RecordFunctions& key_functions;
  const RecordFunctions& value_functions;
  const SoftmaxFunctions& softmax;
  Queries queries;
  Attended out;
  uint32_t group = 0;         // query heads per key head
  uint32_t tile_queries = 0;  // of an item, at most
  uint32_t step_queries = 0;
};

struct Item {
  const RunView* run = nullptr;
  uint32_t head = 0;  // of the keys
  Pos first = 0;      // positions of the item's queries: [first, last]
  Pos last = 0;

  uint32_t queries() const { return static_cast<uint32_t>(last - first + 1); }
};

// What some query of an item sees: sinks, then the window; ascending, not overlapping.
Retention::Visible seen_by(const Retention& retention, Pos first, Pos last) {
  const Retention::Visible early = retention.visible(first);
  const Retention::Visible late = retention.visible(last);
  // The window's low end rises with the query, and ranges merge where they touch.
  const Range recent{early.recent.begin, late.recent.end};
  const Pos sinks_end = std::max(early.sinks.end, late.sinks.end);
  if (recent.begin <= sinks_end) return {{0, 0}, {0, recent.end}};
  return {{0, sinks_end}, recent};
}

Range clip(Range range, Range to) {
  const Range clipped{std::max(range.begin, to.begin), std::min(range.end, to.end)};
  return clipped.empty() ? Range{} : clipped;
}

// Calls f(index, positions) for every segment (or block) of `unit` positions in which an item sees
// something.
template <class F>
void each_unit(const Retention::Visible& seen, Pos unit, Range within, F f) {
  Pos next = 0;
  for (const Range& whole : {seen.sinks, seen.recent}) {
    const Range range = clip(whole, within);
    if (range.empty()) continue;
    for (Pos i = std::max(next, range.begin / unit); i * unit < range.end; ++i) {
      const Range bounds{i * unit, (i + 1) * unit};
      const Range a = clip(clip(seen.sinks, bounds), within),
                  b = clip(clip(seen.recent, bounds), within);
      f(i, (a.end - a.begin) + (b.end - b.begin));
      next = i + 1;
    }
  }
}

constexpr Range kEverything{0, ~Pos{0}};

template <class F>
void each_item(const Call& call, F f) {
  for (const RunView& run : call.view.runs)
    for (Pos first = 0; first < run.count; first += call.tile_queries)
      for (uint32_t head = 0; head < call.key.heads; ++head) {
        const Pos last = std::min<Pos>(first + call.tile_queries, run.count) - 1;
        f(Item{&run, head, run.first + first, run.first + last});
      }
}

// Of one segment: in proportion to rows times positions, and a little for what every block costs.
uint64_t cost_of(const Call& call, const Item& item, Pos positions) {
  return (positions + 32) * (uint64_t{item.queries()} * call.group + 1);
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

Plan make_plan(const Call& call) {
  Plan plan;
  each_item(call, [&](const Item& item) {
    uint64_t segments = 0;
    each_unit(seen_by(call.view.retention, item.first, item.last), kSegmentPositions, kEverything,
              [&](Pos, Pos positions) {
                plan.total_cost += cost_of(call, item, positions);
                ++segments;
              });
    plan.most_segments = std::max(plan.most_segments, segments);
    plan.most_rows = std::max(plan.most_rows, item.queries() * call.group);
  });
  return plan;
}

// Partial results of up to most_rows rows.
struct Partials {
  Softmax* softmax;
  float* o;  // value.geometry.partial_floats per row
};

Partials take_partials(Carver& carver, const Call& call, uint64_t rows) {
  auto* softmax = carver.take<Softmax>(rows);
  return {softmax, carver.take<float>(rows * call.value.codec.geometry.partial_floats)};
}

// One part's memory for one item at a time.
struct Scratch {
  std::byte* prepared;
  float* query;   // one, scaled
  float* scores;  // [rows, 256]; then weights
  Partials block, segment, running;
};

Scratch take_scratch(Carver& carver, const Call& call, uint64_t rows) {
  return {carver.take<std::byte>(rows * call.key.codec.geometry.prepared_bytes),
          carver.take<float>(call.key.codec.width),
          carver.take<float>(rows * kBlockPositions),
          take_partials(carver, call, rows),
          take_partials(carver, call, rows),
          take_partials(carver, call, rows)};
}

// Queries of an item, by number: [begin, end).
struct QuerySpan {
  uint32_t begin = 0;
  uint32_t end = 0;
};

// Does one item's blocks.
class Worker {
 public:
  Worker(const Call& call, const Scratch& scratch) : call_(call), scratch_(scratch) {}

  void start(const Item& item) {
    item_ = item;
    seen_ = seen_by(call_.view.retention, item.first, item.last);
    prepare_queries();
    clear(scratch_.running);
  }

  // The segment's result, in scratch.segment.
  void attend_segment(Pos segment) {
    clear(scratch_.segment);
    each_unit(seen_, kBlockPositions,
              {segment * kSegmentPositions, (segment + 1) * kSegmentPositions},
              [&](Pos block, Pos) { attend_block(block * kBlockPositions); });
  }

  void join_running(const Partials& part) { join(scratch_.running, part); }

  void finish() {
    const auto value_width = call_.value.codec.width;
    for (uint32_t row = 0; row < rows(); ++row) {
      const Pos query = item_.first - item_.run->first + row / call_.group + item_.run->row;
      const uint32_t head = item_.head * call_.group + row % call_.group;
      float* out = call_.out.data + static_cast<ptrdiff_t>(query) * call_.out.row_stride +
                   static_cast<ptrdiff_t>(head) * call_.out.head_stride;
      const Softmax& total = scratch_.running.softmax[row];
      call_.softmax.normalize(total, o_of(scratch_.running, row), out, value_width);
      if (call_.value_functions.finish != nullptr)
        call_.value_functions.finish(call_.value.codec, out);
      if (call_.out.log_sum_exp != nullptr)
        call_.out.log_sum_exp[query * call_.queries.heads + head] = log_sum_exp(total);
    }
  }

  uint32_t rows() const { return item_.queries() * call_.group; }

 private:
  float* o_of(const Partials& partials, uint32_t row) const {
    return partials.o + uint64_t{row} * call_.value.codec.geometry.partial_floats;
  }

  void clear(const Partials& partials) const { std::fill_n(partials.softmax, rows(), Softmax{}); }

  void join(const Partials& into, const Partials& part) const {
    for (uint32_t row = 0; row < rows(); ++row)
      call_.softmax.join(into.softmax[row], o_of(into, row), part.softmax[row], o_of(part, row),
                         call_.value.codec.width);
  }

  void prepare_queries() {
    const Codec& codec = call_.key.codec;
    const float factor = call_.queries.scale * kLog2E;
    for (uint32_t row = 0; row < rows(); ++row) {
      const Pos query = item_.first - item_.run->first + row / call_.group + item_.run->row;
      const uint32_t head = item_.head * call_.group + row % call_.group;
      const float* from = call_.queries.data +
                          static_cast<ptrdiff_t>(query) * call_.queries.row_stride +
                          static_cast<ptrdiff_t>(head) * call_.queries.head_stride;
      for (uint32_t i = 0; i < codec.width; ++i) scratch_.query[i] = from[i] * factor;
      call_.key_functions.prepare(
          codec, scratch_.query, scratch_.prepared + uint64_t{row} * codec.geometry.prepared_bytes);
    }
  }

  // What query number `query` sees of the block.
  Retention::Visible visible(uint32_t query) const {
    const Retention::Visible all = call_.view.retention.visible(item_.first + query);
    return {clip(all.sinks, block_), clip(all.recent, block_)};
  }

  bool see_the_same(QuerySpan queries) const {
    const Retention::Visible first = visible(queries.begin), last = visible(queries.end - 1);
    return first.sinks == last.sinks && first.recent == last.recent;
  }

  void attend_block(Pos first) {
    block_ = {first, first + kBlockPositions};
    const QuerySpan all{0, item_.queries()};
    if (see_the_same(all)) {
      attend_queries(all);
    } else {
      for (uint32_t query = 0; query < all.end; query += call_.step_queries)
        attend_queries({query, std::min(query + call_.step_queries, all.end)});
    }
    join(scratch_.segment, scratch_.block);
  }

  // Queries that see different positions are cut where their ranges begin and end, so that every
  // position of a piece is seen by the same rows: weights of 0 would not do, because 0 * NaN is NaN
  // and 0 + -0 is not -0.
  void attend_queries(QuerySpan queries) {
    const Cuts cuts = cuts_of(queries);
    each_piece(queries, cuts, [&](Range piece, QuerySpan) { score(queries, piece); });
    for (uint32_t query = queries.begin; query < queries.end; ++query) soften(query);
    each_piece(queries, cuts, [&](Range piece, QuerySpan seers) { accumulate(seers, piece); });
    if (call_.value_functions.finish_block == nullptr) return;
    const uint32_t row = queries.begin * call_.group;
    call_.value_functions.finish_block(
        call_.value.codec, (queries.end - queries.begin) * call_.group, o_of(scratch_.block, row));
  }

  static constexpr uint32_t kMaxCuts = 4 * kStepRows;
  struct Cuts {
    std::array<Pos, kMaxCuts> positions;
    uint32_t count = 0;
  };

  Cuts cuts_of(QuerySpan queries) const {
    Cuts cuts;
    const uint32_t stride = see_the_same(queries) ? queries.end - queries.begin : 1;
    for (uint32_t query = queries.begin; query < queries.end; query += stride) {
      const Retention::Visible seen = visible(query);
      for (const Range& range : {seen.sinks, seen.recent})
        if (!range.empty())
          for (const Pos position : {range.begin, range.end})
            cuts.positions[cuts.count++] = position;
    }
    auto* begin = cuts.positions.data();
    std::sort(begin, begin + cuts.count);
    cuts.count = static_cast<uint32_t>(std::unique(begin, begin + cuts.count) - begin);
    return cuts;
  }

  // Calls f(piece, queries that see it) for every piece between two cuts that somebody sees. Those
  // who see a position are neighbours, because both ends of the window rise with the query and
  // sinks are seen by all that come after them.
  template <class F>
  void each_piece(QuerySpan queries, const Cuts& cuts, F f) const {
    for (uint32_t i = 0; i + 1 < cuts.count; ++i) {
      const Range piece{cuts.positions[i], cuts.positions[i + 1]};
      const auto sees = [&](uint32_t query) {
        const Retention::Visible seen = visible(query);
        const auto in = [&](Range r) { return r.begin <= piece.begin && piece.begin < r.end; };
        return in(seen.sinks) || in(seen.recent);
      };
      QuerySpan seers = queries;
      while (seers.begin < seers.end && !sees(seers.begin)) ++seers.begin;
      while (seers.begin < seers.end && !sees(seers.end - 1)) --seers.end;
      if (seers.begin < seers.end) f(piece, seers);
    }
  }

  // Calls f(records) for the pages of a piece.
  template <class F>
  void each_page(const FamilyPlace& place, Range piece, F f) const {
    const uint32_t page_positions = call_.view.page_positions;
    for (Pos position = piece.begin; position < piece.end;) {
      const Pos page = position / page_positions;
      const auto first = static_cast<uint32_t>(position % page_positions);
      const auto count =
          static_cast<uint32_t>(std::min<Pos>(piece.end - position, page_positions - first));
      Records records = place.records(item_.run->pages.page(page), item_.head, first, count);
      point_ahead(place, position + kBlockPositions, records);
      f(records, position);
      position += count;
    }
  }

  // Lets kernels ask early for what the next block reads, if the item sees it.
  void point_ahead(const FamilyPlace& place, Pos position, Records& records) const {
    const auto page = position / call_.view.page_positions;
    const Pos begin = page * call_.view.page_positions;
    if (begin < seen_.recent.begin || begin >= seen_.recent.end) return;
    const std::byte* bytes = item_.run->pages.page(page);
    for (size_t i = 0; i < place.planes.size(); ++i)
      records.planes[i].next =
          bytes + place.planes[i].offset + item_.head * place.planes[i].head_bytes;
  }

  void score(QuerySpan queries, Range piece) const {
    const uint32_t row = queries.begin * call_.group;
    const Codec& codec = call_.key.codec;
    each_page(call_.key, piece, [&](const Records& records, Pos position) {
      call_.key_functions.scores(codec,
                                 scratch_.prepared + uint64_t{row} * codec.geometry.prepared_bytes,
                                 (queries.end - queries.begin) * call_.group, records,
                                 scores_of(row) + (position - block_.begin), kBlockPositions);
    });
  }

  void soften(uint32_t query) const {
    const Retention::Visible seen = visible(query);
    const bool is_blind = seen.sinks.empty() && seen.recent.empty();
    for (uint32_t row = query * call_.group; row < (query + 1) * call_.group; ++row) {
      std::fill_n(o_of(scratch_.block, row), call_.value.codec.geometry.partial_floats, 0.f);
      scratch_.block.softmax[row] =
          is_blind ? Softmax{}
                   : call_.softmax.block(scores_of(row), block_.begin, seen.sinks, seen.recent);
    }
  }

  void accumulate(QuerySpan queries, Range piece) const {
    const uint32_t row = queries.begin * call_.group;
    each_page(call_.value, piece, [&](const Records& records, Pos position) {
      call_.value_functions.accumulate(call_.value.codec,
                                       scores_of(row) + (position - block_.begin), kBlockPositions,
                                       (queries.end - queries.begin) * call_.group, position,
                                       records, o_of(scratch_.block, row));
    });
  }

  float* scores_of(uint32_t row) const { return scratch_.scores + uint64_t{row} * kBlockPositions; }

  const Call& call_;
  const Scratch& scratch_;
  Item item_;
  Retention::Visible seen_;
  Range block_;
};

const FamilyPlace& family_that(const View& view, bool Family::*does) {
  for (const FamilyPlace& place : view.slot->families)
    if (place.family->*does) return place;
  CAIRN_CHECK(false, "attend: the slot has no family to attend to");
  __builtin_unreachable();
}

Call make_call(const View& view, const Queries& queries, const Attended& out) {
  const FamilyPlace& key = family_that(view, &Family::is_scored);
  const FamilyPlace& value = family_that(view, &Family::is_accumulated);
  CAIRN_CHECK(queries.heads != 0 && queries.heads % key.heads == 0,
              "attend: {} query heads, expected a multiple of {} key heads", queries.heads,
              key.heads);
  Call call{.view = view,
            .key = key,
            .value = value,
            .key_functions = key.codec.encoding->functions(),
            .value_functions = value.codec.encoding->functions(),
            .softmax = softmax_functions(),
            .queries = queries,
            .out = out};
  const auto dense = [](ptrdiff_t& stride, uint64_t floats) {
    if (stride == 0) stride = static_cast<ptrdiff_t>(floats);
  };
  dense(call.queries.head_stride, key.codec.width);
  dense(call.queries.row_stride, uint64_t{queries.heads} * key.codec.width);
  dense(call.out.head_stride, value.codec.width);
  dense(call.out.row_stride, uint64_t{queries.heads} * value.codec.width);
  if (call.queries.scale == 0)
    call.queries.scale = 1.f / std::sqrt(static_cast<float>(key.codec.width));
  call.group = queries.heads / key.heads;
  call.step_queries = static_cast<uint32_t>(ceil_div(kStepRows, call.group));
  call.tile_queries =
      std::max(1u, kTileRows / (call.step_queries * call.group)) * call.step_queries;
  return call;
}

}  // namespace

void attend(const View& view, const Queries& queries, const Attended& out, Part part) {
  CAIRN_CHECK(part.index < part.count, "attend: part {} of {}", part.index, part.count);
  if (view.rows == 0) return;
  const RoundingScope rounding;
  const Call call = make_call(view, queries, out);
  const Plan plan = make_plan(call);

  // The workspace: scratch per part, then room for the segments of the item that starts in a part
  // and goes on beyond it.
  Carver measure(nullptr);
  take_scratch(measure, call, plan.most_rows);
  const uint64_t scratch_bytes = measure.used();
  Carver measure_segment(nullptr);
  take_partials(measure_segment, call, plan.most_rows);
  const uint64_t segment_bytes = measure_segment.used();
  const uint64_t shared_bytes = part.count == 1 ? 0 : segment_bytes * plan.most_segments;
  AttendWorkspace::State& workspace = view.workspace->state();
  std::byte* bytes = workspace.reserve((scratch_bytes + shared_bytes) * part.count, part.count);

  Carver carver(bytes + part.index * scratch_bytes);
  const Scratch scratch = take_scratch(carver, call, plan.most_rows);
  Worker worker(call, scratch);
  uint64_t cost_before = 0;
  each_item(call, [&](const Item& item) {
    struct Mine {
      Pos segment;
      uint64_t place;  // among the item's segments
    };
    uint64_t segments = 0, mine = 0;
    Pos first_mine = 0;
    uint32_t first_owner = part.count, last_owner = 0;
    const Retention::Visible seen = seen_by(view.retention, item.first, item.last);
    const auto owner_of_next = [&](Pos positions, uint64_t& before) {
      const uint64_t cost = cost_of(call, item, positions);
      const uint32_t owner = plan.owner(before, cost, part.count);
      before += cost;
      return owner;
    };
    uint64_t before = cost_before;
    each_unit(seen, kSegmentPositions, kEverything, [&](Pos, Pos positions) {
      const uint32_t owner = owner_of_next(positions, before);
      first_owner = std::min(first_owner, owner);
      last_owner = std::max(last_owner, owner);
      if (owner == part.index && mine++ == 0) first_mine = segments;
      ++segments;
    });
    cost_before = before;
    if (mine == 0) return;

    worker.start(item);
    const bool is_whole = first_owner == last_owner;
    std::byte* shared = bytes + scratch_bytes * part.count + first_owner * shared_bytes;
    const auto shared_partials = [&](uint64_t index) {
      Carver place(shared + index * segment_bytes);
      return take_partials(place, call, plan.most_rows);
    };
    uint64_t index = 0;
    each_unit(seen, kSegmentPositions, kEverything, [&](Pos segment, Pos) {
      const uint64_t place = index++;
      if (place < first_mine || place >= first_mine + mine) return;
      worker.attend_segment(segment);
      if (is_whole) {
        worker.join_running(scratch.segment);
      } else {
        const Partials to = shared_partials(place);
        std::copy_n(scratch.segment.softmax, worker.rows(), to.softmax);
        std::copy_n(scratch.segment.o,
                    uint64_t{worker.rows()} * call.value.codec.geometry.partial_floats, to.o);
      }
    });
    if (!is_whole) {
      std::atomic<uint64_t>& finished = workspace.finished[first_owner];
      if (finished.fetch_add(mine, std::memory_order_acq_rel) + mine != segments) return;
      finished.store(0, std::memory_order_relaxed);
      for (uint64_t i = 0; i < segments; ++i) worker.join_running(shared_partials(i));
    }
    worker.finish();
  });
}

void decode(const View& view, size_t run, FamilyId family, Pos first, Pos count, float* out) {
  const RoundingScope rounding;
  std::vector<float> records;
  for (Pos position = first; position < first + count;) {
    const FamilyPlace* place = view.place(view.runs[run], position).find(family);
    CAIRN_CHECK(place != nullptr, "decode: the slot has no family {}", family.value);
    const uint32_t width = place->codec.width;
    records.resize(uint64_t{view.page_positions} * width);
    const auto begin = static_cast<uint32_t>(position % view.page_positions);
    const auto part =
        static_cast<uint32_t>(std::min<Pos>(first + count - position, view.page_positions - begin));
    std::byte* page = view.runs[run].pages.page(position / view.page_positions);
    for (uint32_t head = 0; head < place->heads; ++head) {
      place->codec.encoding->functions().decode(
          place->codec, place->records(page, head, begin, part), records.data());
      for (uint32_t i = 0; i < part; ++i)
        std::copy_n(records.data() + uint64_t{i} * width, width,
                    out + ((position - first + i) * place->heads + head) * width);
    }
    position += part;
  }
}

}  // namespace cairn
