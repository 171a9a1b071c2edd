// Does one block of one item at a time: scores, softmax, weighted sum; of attend.cc alone.
//
// What a page holds can be in one of two forms (exact, encoded); each has its own prepared queries
// and its own weighted sum, and an output is what both contributed. A score is the sum over the
// slot's scored families. A chosen list is attended like a run of positions whose places are the
// list's: everything here that speaks of positions then means ranks, until records are looked up.
#ifndef CAIRN_STATE_ATTEND_WORKER_H_
#define CAIRN_STATE_ATTEND_WORKER_H_

#include <algorithm>
#include <array>

#include "cairn/kernels/softmax.h"
#include "cairn/state/attend_plan.h"
#include "cairn/state/attend_records.h"
#include "cairn/state/workspace.h"

namespace cairn::attending {

// Between the scores of two rows: one line more than a block, or all rows would share a few sets of
// the first cache.
inline constexpr uint64_t kScoreStride = kBlockPositions + 16;
inline constexpr float kLog2E = 1.44269504f;

// Partial results of up to most_rows rows.
struct Partials {
  Softmax* softmax;
  std::array<float*, 2> o;  // per form: form.partial_floats() per row
};

inline Partials take_partials(Carver& carver, const Call& call, uint64_t rows) {
  Partials partials{.softmax = carver.take<Softmax>(rows)};
  for (uint32_t form = 0; form < call.form_count; ++form)
    partials.o[form] = carver.take<float>(rows * call.forms[form].partial_floats());
  return partials;
}

// One part's memory for one item at a time.
struct Scratch {
  std::array<std::array<std::byte*, kMostScored>, 2> prepared;  // per form and scored family
  float* query;                                                 // one, scaled
  float* scores;                                                // [rows, 256]; then weights
  float* more;          // the same, of a further scored family; null where there is one
  float* output;        // one, of a further form
  std::byte* gathered;  // records of one head that were chosen; null where none are
  Partials block, segment, running;
};

inline Scratch take_scratch(Carver& carver, const Call& call, uint64_t rows) {
  Scratch scratch{};
  for (uint32_t form = 0; form < call.form_count; ++form)
    for (uint32_t i = 0; i < call.forms[form].scored_count; ++i)
      scratch.prepared[form][i] = carver.take<std::byte>(
          rows * call.forms[form].scored[i].place->codec.geometry.prepared_bytes);
  scratch.query = carver.take<float>(call.query_width);
  scratch.scores = carver.take<float>(rows * kScoreStride);
  if (call.forms[0].scored_count > 1) scratch.more = carver.take<float>(rows * kScoreStride);
  scratch.output = carver.take<float>(call.value_width);
  if (call.queries.chosen != nullptr)
    scratch.gathered = carver.take<std::byte>(gathered_bytes(call));
  scratch.block = take_partials(carver, call, rows);
  scratch.segment = take_partials(carver, call, rows);
  scratch.running = take_partials(carver, call, rows);
  return scratch;
}

// Queries of an item, by number: [begin, end).
struct QuerySpan {
  uint32_t begin = 0;
  uint32_t end = 0;
};

// Does one item's blocks.
class Worker {
 public:
  Worker(const Call& call, const Scratch& scratch)
      : call_(call), scratch_(scratch), records_(call, scratch.gathered) {}

  void start(const Item& item) {
    item_ = item;
    seen_ = seen_by(call_.view.retention, item);
    records_.start(item_, seen_.recent);
    rows_ = rows_of(call_, item);
    rows_per_head_ = item.queries() * call_.group;
    prepare_queries();
    clear(scratch_.running);
  }

  // The block's result, into `result`.
  void attend_block(Pos block, const Partials& result) {
    result_ = result;
    block_ = {block * kBlockPositions, (block + 1) * kBlockPositions};
    const QuerySpan all{0, item_.queries()};
    if (item_.runs == 1) {
      attend_queries(all);
      return;
    }
    for (QuerySpan some; some.end < all.end; some.begin = some.end) {
      do ++some.end;
      while (some.end < all.end && read_the_same(some.begin, some.end));
      attend_queries(some);
    }
  }

  void clear(const Partials& partials) const { std::fill_n(partials.softmax, rows_, Softmax{}); }

  void join(const Partials& into, const Partials& part) const {
    for (uint32_t row = 0; row < rows_; ++row) {
      const Softmax before = into.softmax[row];
      for (uint32_t form = 0; form < call_.form_count; ++form) {
        into.softmax[row] = before;
        call_.softmax.join(into.softmax[row], o_of(into, form, row), part.softmax[row],
                           o_of(part, form, row), call_.value_width);
      }
    }
  }

  // The output of all rows, from scratch.running.
  void finish() {
    each_place([&](uint32_t row, Place place, Place) {
      float* out = call_.out.data + static_cast<ptrdiff_t>(place.query) * call_.out.row_stride +
                   static_cast<ptrdiff_t>(place.head) * call_.out.head_stride;
      const Softmax& total = scratch_.running.softmax[row];
      for (uint32_t i = 0; i < call_.form_count; ++i) {
        const AttendForm& form = call_.forms[i];
        float* part = i == 0 ? out : scratch_.output;
        call_.softmax.normalize(total, o_of(scratch_.running, i, row), part, call_.value_width);
        if (form.value_functions->finish != nullptr)
          form.value_functions->finish(form.value_codec(), part);
        for (uint32_t d = 0; i > 0 && d < call_.value_width; ++d) out[d] += part[d];
      }
      if (call_.out.log_sum_exp != nullptr)
        call_.out.log_sum_exp[place.query * call_.queries.heads + place.head] = log_sum_exp(total);
    });
  }

 private:
  // Where a row's query and output lie.
  struct Place {
    Pos query;      // row of the batch
    uint32_t head;  // query head
  };
  // Calls f(row, its place, the place of the same head's next query, or its own) for all rows.
  template <class F>
  void each_place(F f) const {
    const uint32_t last = item_.queries() - 1, first_head = item_.first_head * call_.group;
    uint32_t row = 0;
    for (uint32_t head = 0; head < item_.heads; ++head)
      for (uint32_t query = 0; query <= last; ++query) {
        const Pos here = item_.row_of(query), next = item_.row_of(std::min(query + 1, last));
        for (uint32_t i = 0; i < call_.group; ++i, ++row) {
          const uint32_t query_head = first_head + head * call_.group + i;
          f(row, Place{here, query_head}, Place{next, query_head});
        }
      }
  }

  const float* query_at(Place place) const {
    return call_.queries.data + static_cast<ptrdiff_t>(place.query) * call_.queries.row_stride +
           static_cast<ptrdiff_t>(place.head) * call_.queries.head_stride;
  }

  float* o_of(const Partials& partials, uint32_t form, uint32_t row) const {
    return partials.o[form] + row * call_.forms[form].partial_floats();
  }
  float* scores_of(uint32_t row) const { return scratch_.scores + uint64_t{row} * kScoreStride; }

  void prepare_queries() {
    const float factor = call_.queries.scale * kLog2E;
    constexpr uint32_t kLine = 64 / sizeof(float);
    each_place([&](uint32_t row, Place place, Place next) {
      const float* from = query_at(place);
      for (uint32_t i = 0; i < call_.query_width; i += kLine)
        __builtin_prefetch(query_at(next) + i);
      for (uint32_t i = 0; i < call_.query_width; ++i) scratch_.query[i] = from[i] * factor;
      for (uint32_t form = 0; form < call_.form_count; ++form)
        for (uint32_t i = 0; i < call_.forms[form].scored_count; ++i) {
          const Scored& scored = call_.forms[form].scored[i];
          scored.functions->prepare(scored.place->codec, scratch_.query + scored.query_offset,
                                    prepared_of(form, i, row));
        }
    });
  }
  std::byte* prepared_of(uint32_t form, uint32_t scored, uint32_t row) const {
    const Codec& codec = call_.forms[form].scored[scored].place->codec;
    return scratch_.prepared[form][scored] + uint64_t{row} * codec.geometry.prepared_bytes;
  }

  // What query number `query` sees of the block.
  Retention::Visible visible(uint32_t query) const {
    if (item_.is_sparse()) return {{}, clip(seen_.recent, block_)};
    const Retention::Visible all = call_.view.retention.visible(item_.position_of(query));
    return {clip(all.sinks, block_), clip(all.recent, block_)};
  }

  bool see_the_same(uint32_t a, uint32_t b) const {
    const Retention::Visible first = visible(a), second = visible(b);
    return first.sinks == second.sinks && first.recent == second.recent;
  }
  // Of one run: who is between two sees what both see.
  bool see_the_same(QuerySpan queries) const {
    return see_the_same(queries.begin, queries.end - 1);
  }

  // Whether what two runs' queries see of the block is the same memory.
  bool read_the_same(uint32_t a, uint32_t b) const {
    const RunView &first = item_.run_of(a), &second = item_.run_of(b);
    if (first.exact_end != second.exact_end || !see_the_same(a, b)) return false;
    const Range range = visible(a).recent;
    if (range.empty()) return true;
    const Pos page_positions = call_.view.page_positions;
    for (Pos page = range.begin / page_positions; page * page_positions < range.end; ++page)
      if (first.pages.page(page) != second.pages.page(page)) return false;
    return true;
  }

  // What all of them see is taken for all at once. What only some see is taken by a few queries at
  // a time, cut where their ranges begin and end, so that every position of a piece is seen by the
  // same rows: weights of 0 would not do, because 0 * NaN is NaN and 0 + -0 is not -0.
  void attend_queries(QuerySpan queries) {
    records_.read(item_.run_of(queries.begin));
    const Range common = seen_by_all(queries);
    const Range before{block_.begin, common.begin}, after{common.end, block_.end};
    each_step(queries, [&](QuerySpan step) {
      score_pieces(step, before);
      score_pieces(step, after);
    });
    score(queries, common);
    soften(queries);
    each_step(queries, [&](QuerySpan step) { accumulate_pieces(step, before); });
    accumulate(queries, common);
    each_step(queries, [&](QuerySpan step) { accumulate_pieces(step, after); });
    finish_block(queries);
  }

  // Of their windows; at the block's end, and empty, where they have nothing in common.
  Range seen_by_all(QuerySpan queries) const {
    const Range first = visible(queries.begin).recent, last = visible(queries.end - 1).recent;
    const Range common{last.begin, first.end};
    const bool have_some = !first.empty() && !last.empty() && !common.empty();
    return have_some ? common : Range{block_.end, block_.end};
  }

  template <class F>
  void each_step(QuerySpan queries, F f) const {
    const uint32_t count = see_the_same(queries) ? queries.end - queries.begin : call_.step_queries;
    for (uint32_t query = queries.begin; query < queries.end; query += count)
      f({query, std::min(query + count, queries.end)});
  }

  void finish_block(QuerySpan queries) const {
    for (uint32_t i = 0; i < call_.form_count; ++i) {
      const AttendForm& form = call_.forms[i];
      if (form.value_functions->finish_block == nullptr) continue;
      each_rows(queries, [&](Rows rows) {
        form.value_functions->finish_block(form.value_codec(), rows.count,
                                           o_of(result_, i, rows.first));
      });
    }
  }

  static constexpr uint32_t kMaxCuts = 4 * kStepRows;
  struct Cuts {
    std::array<Pos, kMaxCuts> positions;
    uint32_t count = 0;
  };

  Cuts cuts_of(QuerySpan queries, Range within) const {
    Cuts cuts;
    const uint32_t stride = see_the_same(queries) ? queries.end - queries.begin : 1;
    for (uint32_t query = queries.begin; query < queries.end; query += stride) {
      const Retention::Visible seen = visible(query);
      for (const Range& range : {clip(seen.sinks, within), clip(seen.recent, within)})
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
  void each_piece(QuerySpan queries, Range within, F f) const {
    if (within.empty()) return;
    const Cuts cuts = cuts_of(queries, within);
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

  // Scores of what somebody sees, for all: pieces that touch are one.
  void score_pieces(QuerySpan queries, Range within) const {
    Range pending;
    each_piece(queries, within, [&](Range piece, QuerySpan) {
      if (pending.end == piece.begin && !pending.empty()) {
        pending.end = piece.end;
        return;
      }
      score(queries, pending);
      pending = piece;
    });
    score(queries, pending);
  }

  void accumulate_pieces(QuerySpan queries, Range within) const {
    each_piece(queries, within, [&](Range piece, QuerySpan seers) { accumulate(seers, piece); });
  }

  // The rows of some queries of one head of the item.
  struct Rows {
    uint32_t first, count;
  };
  Rows rows_of_head(QuerySpan queries, uint32_t head) const {
    return {head * rows_per_head_ + queries.begin * call_.group,
            (queries.end - queries.begin) * call_.group};
  }
  template <class F>
  void each_rows(QuerySpan queries, F f) const {
    for (uint32_t head = 0; head < item_.heads; ++head) f(rows_of_head(queries, head));
  }

  void score(QuerySpan queries, Range piece) const {
    records_.each_stretch(piece, [&](const Stretch& stretch) {
      const AttendForm& form = call_.forms[stretch.form];
      const Pos column = stretch.index - block_.begin;
      for (uint32_t i = 0; i < form.scored_count; ++i) {
        const Scored& scored = form.scored[i];
        records_.each_head(*scored.place, stretch, [&](uint32_t head, const Records& records) {
          const Rows rows = rows_of_head(queries, head);
          float* scores = (i == 0 ? scores_of(rows.first) : more_of(rows.first)) + column;
          scored.functions->scores(scored.place->codec, prepared_of(stretch.form, i, rows.first),
                                   rows.count, records, scores, kScoreStride);
          if (i > 0) add_scores(rows, column, stretch.count);
        });
      }
    });
  }

  float* more_of(uint32_t row) const { return scratch_.more + uint64_t{row} * kScoreStride; }

  void add_scores(Rows rows, Pos column, uint32_t count) const {
    for (uint32_t r = rows.first; r < rows.first + rows.count; ++r)
      for (Pos i = column; i < column + count; ++i) scores_of(r)[i] += more_of(r)[i];
  }

  // Scores become weights.
  void soften(QuerySpan queries) const {
    if (!see_the_same(queries)) {
      for (uint32_t query = queries.begin; query < queries.end; ++query) soften({query, query + 1});
      return;
    }
    const Retention::Visible seen = visible(queries.begin);
    const bool is_blind = seen.sinks.empty() && seen.recent.empty();
    const auto soften_rows = [&](Rows rows) {
      for (uint32_t form = 0; form < call_.form_count; ++form)
        std::fill_n(o_of(result_, form, rows.first),
                    rows.count * call_.forms[form].partial_floats(), 0.f);
      Softmax* results = result_.softmax + rows.first;
      if (is_blind)
        std::fill_n(results, rows.count, Softmax{});
      else
        call_.softmax.block(scores_of(rows.first), kScoreStride, rows.count, block_.begin,
                            seen.sinks, seen.recent, results);
    };
    if (queries.end - queries.begin == item_.queries())
      soften_rows({0, rows_});
    else
      each_rows(queries, soften_rows);
  }

  void accumulate(QuerySpan queries, Range piece) const {
    records_.each_stretch(piece, [&](const Stretch& stretch) {
      const AttendForm& form = call_.forms[stretch.form];
      records_.each_head(*form.value, stretch, [&](uint32_t head, const Records& records) {
        const Rows rows = rows_of_head(queries, head);
        form.value_functions->accumulate(form.value_codec(),
                                         scores_of(rows.first) + (stretch.index - block_.begin),
                                         kScoreStride, rows.count, stretch.index, records,
                                         o_of(result_, stretch.form, rows.first));
      });
    });
  }

  const Call& call_;
  const Scratch& scratch_;
  Item item_;
  Retention::Visible seen_;  // by some query of the item
  uint32_t rows_ = 0;
  uint32_t rows_per_head_ = 0;
  Range block_;
  Partials result_;
  RecordReader records_;
};

}  // namespace cairn::attending

#endif  // CAIRN_STATE_ATTEND_WORKER_H_
