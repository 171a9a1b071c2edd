#include "cairn/session/padded.h"

#include <algorithm>
#include <limits>

namespace cairn {
namespace {

PaddedRow row_of(const Retention& retention, Pos length, Pos count) {
  PaddedRow row{.offset = length + count};
  if (retention.keeps_all()) return row;
  row.sinks = std::min(retention.sinks, row.offset);
  row.first = std::max(row.sinks, retention.first_needed(length));
  return row;
}

Padded justified(std::vector<PaddedRow> rows) {
  Padded shape{.rows = std::move(rows)};
  for (const PaddedRow& row : shape.rows) shape.width = std::max(shape.width, row.end());
  for (PaddedRow& row : shape.rows) row.pad = shape.width - row.end();
  return shape;
}

const FamilyPlace& place_of(const View& view, FamilyId family) {
  const FamilyPlace* place = view.slot->find(family);
  CAIRN_CHECK(place != nullptr && !place->family->is_fixed,
              "padded: the slot has no family {} with a vector per position", family.value);
  return *place;
}

void check(const Padded& shape, const MaskQueries& queries) {
  CAIRN_CHECK(queries.count >= 1, "mask: no queries, expected at least 1");
  CAIRN_CHECK(queries.tokens.empty() || queries.tokens.size() == shape.rows.size(),
              "mask: tokens of {} rows for {}", queries.tokens.size(), shape.rows.size());
}

Range tokens_of(const MaskQueries& queries, size_t row) {
  return queries.tokens.empty() ? Range{0, queries.count} : queries.tokens[row];
}

template <class T>
void fill(const Padded& shape, const MaskQueries& queries, T seen, T hidden, T* out) {
  check(shape, queries);
  for (size_t b = 0; b < shape.rows.size(); ++b) {
    const PaddedRow& row = shape.rows[b];
    const Range tokens = tokens_of(queries, b);
    for (Pos query = 0; query < queries.count; ++query)
      for (Pos column = 0; column < shape.width; ++column) {
        // The query's column is row.end() - (tokens.end - query), of which the difference may be
        // negative: a row shorter than its queries.
        const Pos behind = row.end() + query, at = column + tokens.end;
        const bool is_token = query >= tokens.begin && query < tokens.end;
        const bool is_past = column >= row.pad && at <= behind;
        const bool is_recent =
            queries.window == 0 || behind < at + queries.window || column < row.pad + row.sinks;
        *out++ = is_token && is_past && is_recent ? seen : hidden;
      }
  }
}

}  // namespace

Padded padded(const Retention& retention, std::span<const Pos> lengths, Pos count) {
  std::vector<PaddedRow> rows;
  for (const Pos length : lengths) rows.push_back(row_of(retention, length, count));
  return justified(std::move(rows));
}

Padded padded(const View& view) {
  std::vector<PaddedRow> rows;
  for (const RunView& run : view.runs) rows.push_back(row_of(view.retention, run.first, run.count));
  return justified(std::move(rows));
}

void read_padded(const View& view, FamilyId family, float* out) {
  const FamilyPlace& place = place_of(view, family);
  const uint64_t column = uint64_t{place.heads} * place.codec.width;  // floats
  const Padded shape = padded(view);
  for (size_t run = 0; run < shape.rows.size(); ++run) {
    const PaddedRow& row = shape.rows[run];
    out = std::fill_n(out, row.pad * column, 0.f);
    decode(view, run, family, 0, row.sinks, out);
    out += row.sinks * column;
    decode(view, run, family, row.first, row.offset - row.first, out);
    out += (row.offset - row.first) * column;
  }
}

MaskNeed mask_need(const Padded& shape, MaskQueries queries) {
  check(shape, queries);
  for (size_t b = 0; b < shape.rows.size(); ++b) {
    const PaddedRow& row = shape.rows[b];
    const bool hides_columns = row.pad > 0 || row.end() < shape.width;
    const bool hides_queries = tokens_of(queries, b) != Range{0, queries.count};
    const bool slides = queries.window != 0 && shape.width > queries.window + row.sinks;
    if (hides_columns || hides_queries || slides) return MaskNeed::array;
  }
  return queries.count == 1 ? MaskNeed::none : MaskNeed::causal;
}

void fill_mask(const Padded& shape, MaskQueries queries, bool* out) {
  fill(shape, queries, true, false, out);
}

void fill_mask(const Padded& shape, MaskQueries queries, float* out) {
  fill(shape, queries, 0.f, -std::numeric_limits<float>::infinity(), out);
}

PrefillChunk prefill_chunk(std::span<const PrefillRow> rows, Pos first, Pos columns) {
  PrefillChunk chunk{.columns = columns};
  for (const PrefillRow& row : rows) {
    const Pos end = std::clamp(row.end, first, first + columns);
    const Pos begin = std::clamp(row.left, first, end);
    chunk.tokens.push_back({begin - first, end - first});
    chunk.runs.push_back({.seq = row.seq, .count = end - begin});
  }
  return chunk;
}

Pos longest_chunk(const Session& session, std::span<const PrefillRow> rows, Pos first) {
  Pos longest = UINT64_MAX;
  for (const PrefillRow& row : rows) {
    const Pos begin = std::max(first, row.left);
    const Pos most = session.max_run(row.seq);
    if (begin < row.end && row.end - begin > most)
      longest = std::min(longest, begin - first + most);
  }
  return longest;
}

void write_padded(Step& step,
                  SlotId slot,
                  FamilyId family,
                  const PrefillChunk& chunk,
                  const Numbers& rectangle,
                  ptrdiff_t row_stride,
                  Part part) {
  const View view = step.view(slot);
  CAIRN_CHECK(chunk.runs.size() == view.runs.size(), "padded: {} rows for a step of {} runs",
              chunk.runs.size(), view.runs.size());
  const FamilyPlace& place = place_of(view, family);
  const ptrdiff_t position_stride = rectangle.position_stride != 0
                                        ? rectangle.position_stride
                                        : ptrdiff_t{place.heads} * place.codec.width;
  if (row_stride == 0) row_stride = position_stride * static_cast<ptrdiff_t>(chunk.columns);
  const auto element = static_cast<ptrdiff_t>(bytes_of(rectangle.dtype));
  for (size_t row = 0; row < chunk.runs.size(); ++row) {
    CAIRN_CHECK(chunk.runs[row].count == view.runs[row].count,
                "padded: row {} has {} tokens, expected the {} of its run", row,
                chunk.runs[row].count, view.runs[row].count);
    Numbers numbers = rectangle;
    numbers.data = static_cast<const std::byte*>(rectangle.data) +
                   element * (static_cast<ptrdiff_t>(row) * row_stride +
                              static_cast<ptrdiff_t>(chunk.tokens[row].begin) * position_stride);
    step.write_run(slot, family, row, numbers, part);
  }
}

}  // namespace cairn
