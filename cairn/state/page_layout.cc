#include "cairn/state/page_layout.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "cairn/core/bytes.h"

namespace cairn {
namespace {

constexpr uint64_t kPlaneAlignment = 64;

// A vector that serves all heads meets so many rows that turning it costs them little, and where
// positions are chosen its record is then found in one place.
bool lies_by_words(const Family& family, const PlaneGeometry& plane) {
  if (plane.record_bytes == plane.word_bytes) return false;  // both orders are one
  if (family.serves_all_heads && !family.is_index) return false;
  const bool is_only_scored = family.is_scored && !family.is_accumulated;
  return plane.order == PlaneOrder::Words ||
         (plane.order == PlaneOrder::WordsIfScored && is_only_scored);
}

PlanePlace place_plane(const Family& family,
                       const PlaneGeometry& plane,
                       uint32_t heads,
                       uint32_t positions,
                       uint64_t& end) {
  PlanePlace place{
      .offset = end, .record_bytes = plane.record_bytes, .word_bytes = plane.word_bytes};
  place.head_bytes = round_up(uint64_t{positions} * plane.record_bytes, kPlaneAlignment);
  place.position_stride = plane.record_bytes;
  place.word_stride = plane.word_bytes;
  if (lies_by_words(family, plane)) {
    place.position_stride = plane.word_bytes;
    place.word_stride = uint64_t{positions} * plane.word_bytes;
  }
  end += heads * place.head_bytes;
  return place;
}

// Calls move(page bytes, dense bytes, length) for every stretch that is contiguous on both sides.
template <class Move>
void for_each_stretch(const PlanePlace& plane,
                      uint32_t head,
                      uint32_t first,
                      uint32_t count,
                      size_t dense_stride,
                      Move move) {
  const uint64_t base = plane.offset + head * plane.head_bytes;
  if (plane.word_stride == plane.word_bytes) {  // by records
    const bool is_dense = dense_stride == plane.record_bytes;
    const uint32_t stretches = is_dense ? (count > 0) : count;
    const size_t bytes = is_dense ? size_t{count} * plane.record_bytes : plane.record_bytes;
    for (uint32_t i = 0; i < stretches; ++i)
      move(base + (first + i) * plane.position_stride, i * dense_stride, bytes);
    return;
  }
  for (uint32_t i = 0; i < count; ++i)
    for (uint32_t w = 0; w * plane.word_bytes < plane.record_bytes; ++w)
      move(base + (first + i) * plane.position_stride + w * plane.word_stride,
           i * dense_stride + w * plane.word_bytes, plane.word_bytes);
}

// Words by position are a matrix that every record crosses on its way to a file and back: it is
// transposed in square tiles of as many words as fit a register.
static_assert(std::endian::native == std::endian::little, "a tile's words lie low to high");
template <class Word>
constexpr uint32_t kTile = sizeof(uint64_t) / sizeof(Word);

uint64_t load_row(const std::byte* from) {
  uint64_t row = 0;
  std::memcpy(&row, from, sizeof(row));
  return row;
}

void store_row(std::byte* to, uint64_t row) { std::memcpy(to, &row, sizeof(row)); }

// to[column][row] = from[row][column] for one tile; strides are bytes between rows.
template <class Word>
void transpose_tile(const std::byte* from, size_t from_stride, std::byte* to, size_t to_stride);

constexpr uint64_t kLowHalf = 0x00000000ffffffff, kLowQuarters = 0x0000ffff0000ffff;

template <>
void transpose_tile<uint32_t>(const std::byte* from,
                              size_t from_stride,
                              std::byte* to,
                              size_t to_stride) {
  const uint64_t a = load_row(from), b = load_row(from + from_stride);
  store_row(to, (a & kLowHalf) | (b << 32));
  store_row(to + to_stride, (a >> 32) | (b & ~kLowHalf));
}

template <>
void transpose_tile<uint16_t>(const std::byte* from,
                              size_t from_stride,
                              std::byte* to,
                              size_t to_stride) {
  const uint64_t a = load_row(from), b = load_row(from + from_stride),
                 c = load_row(from + 2 * from_stride), d = load_row(from + 3 * from_stride);
  // Words 0 and 2 of two rows, and 1 and 3.
  const uint64_t ab_even = (a & kLowQuarters) | ((b & kLowQuarters) << 16),
                 ab_odd = ((a >> 16) & kLowQuarters) | (b & ~kLowQuarters),
                 cd_even = (c & kLowQuarters) | ((d & kLowQuarters) << 16),
                 cd_odd = ((c >> 16) & kLowQuarters) | (d & ~kLowQuarters);
  store_row(to, (ab_even & kLowHalf) | (cd_even << 32));
  store_row(to + to_stride, (ab_odd & kLowHalf) | (cd_odd << 32));
  store_row(to + 2 * to_stride, (ab_even >> 32) | (cd_even & ~kLowHalf));
  store_row(to + 3 * to_stride, (ab_odd >> 32) | (cd_odd & ~kLowHalf));
}

struct Matrix {
  uint32_t rows;
  uint32_t columns;
};

// The same for a matrix of any shape.
template <class Word>
void transpose(
    Matrix shape, const std::byte* from, size_t from_stride, std::byte* to, size_t to_stride) {
  const auto move_words = [&](uint32_t row, uint32_t first, uint32_t end) {
    for (uint32_t column = first; column < end; ++column)
      std::memcpy(to + column * to_stride + row * sizeof(Word),
                  from + row * from_stride + column * sizeof(Word), sizeof(Word));
  };
  const uint32_t tiled_rows = shape.rows / kTile<Word> * kTile<Word>;
  const uint32_t tiled_columns = shape.columns / kTile<Word> * kTile<Word>;
  for (uint32_t row = 0; row < tiled_rows; row += kTile<Word>)
    for (uint32_t column = 0; column < tiled_columns; column += kTile<Word>)
      transpose_tile<Word>(from + row * from_stride + column * sizeof(Word), from_stride,
                           to + column * to_stride + row * sizeof(Word), to_stride);
  for (uint32_t row = 0; row < shape.rows; ++row)
    move_words(row, row < tiled_rows ? tiled_columns : 0, shape.columns);
}

template <class Word>
bool is_words_of(const PlanePlace& plane) {
  return plane.word_bytes == sizeof(Word) && plane.word_stride != plane.word_bytes;
}

}  // namespace

PageLayout make_page_layout(std::span<const SlotSpec* const> slots,
                            const std::vector<std::vector<Codec>>& codecs,
                            uint32_t page_positions) {
  PageLayout layout{.page_positions = page_positions};
  for (size_t i = 0; i < slots.size(); ++i) {
    SlotPlace slot;
    for (size_t j = 0; j < slots[i]->families.size(); ++j) {
      const FamilySpec& family = slots[i]->families[j];
      FamilyPlace place{.family = family.family,
                        .heads = family.heads,
                        .codec = codecs[i][j],
                        .capacity = page_positions};
      for (const PlaneGeometry& plane : place.codec.geometry.planes) {
        place.planes.push_back(
            place_plane(*family.family, plane, family.heads, page_positions, layout.page_bytes));
        layout.record_bytes += uint64_t{family.heads} * plane.record_bytes;
      }
      slot.families.push_back(std::move(place));
    }
    layout.slots.push_back(std::move(slot));
  }
  return layout;
}

namespace {

// Of words by position: the first word at position `first`.
uint64_t first_word(const PlanePlace& plane, uint32_t head, uint32_t first) {
  return plane.offset + head * plane.head_bytes + first * plane.position_stride;
}

template <class Word>
void words_out(const PlanePlace& plane,
               const std::byte* words,
               uint32_t count,
               std::byte* dense,
               size_t dense_stride) {
  transpose<Word>({plane.record_bytes / plane.word_bytes, count}, words, plane.word_stride, dense,
                  dense_stride);
}

template <class Word>
void words_in(const PlanePlace& plane,
              std::byte* words,
              uint32_t count,
              const std::byte* dense,
              size_t dense_stride) {
  transpose<Word>({count, plane.record_bytes / plane.word_bytes}, dense, dense_stride, words,
                  plane.word_stride);
}

}  // namespace

void copy_out(const PlanePlace& plane,
              uint32_t head,
              const std::byte* page,
              uint32_t first,
              uint32_t count,
              std::byte* dense,
              size_t dense_stride) {
  if (is_words_of<uint16_t>(plane))
    return words_out<uint16_t>(plane, page + first_word(plane, head, first), count, dense,
                               dense_stride);
  if (is_words_of<uint32_t>(plane))
    return words_out<uint32_t>(plane, page + first_word(plane, head, first), count, dense,
                               dense_stride);
  for_each_stretch(plane, head, first, count, dense_stride,
                   [&](uint64_t in_page, size_t in_dense, size_t bytes) {
                     std::memcpy(dense + in_dense, page + in_page, bytes);
                   });
}

void copy_in(const PlanePlace& plane,
             uint32_t head,
             std::byte* page,
             uint32_t first,
             uint32_t count,
             const std::byte* dense,
             size_t dense_stride) {
  if (is_words_of<uint16_t>(plane))
    return words_in<uint16_t>(plane, page + first_word(plane, head, first), count, dense,
                              dense_stride);
  if (is_words_of<uint32_t>(plane))
    return words_in<uint32_t>(plane, page + first_word(plane, head, first), count, dense,
                              dense_stride);
  for_each_stretch(plane, head, first, count, dense_stride,
                   [&](uint64_t in_page, size_t in_dense, size_t bytes) {
                     std::memcpy(page + in_page, dense + in_dense, bytes);
                   });
}

namespace {

// Calls visit(plane, head, heads, dense offset of the plane) for every plane of every head, where
// `stride` positions of a plane are packed.
template <class Visit>
void for_each_plane(const PageLayout& layout, uint64_t stride, Visit visit) {
  uint64_t offset = 0;
  for (const SlotPlace& slot : layout.slots)
    for (const FamilyPlace& family : slot.families)
      for (const PlanePlace& plane : family.planes) {
        for (uint32_t head = 0; head < family.heads; ++head)
          visit(plane, head, size_t{family.heads}, offset);
        offset += stride * family.heads * plane.record_bytes;
      }
}

}  // namespace

void pack(const PageLayout& layout,
          const std::byte* page,
          uint32_t first,
          uint32_t count,
          std::byte* dense) {
  for_each_plane(
      layout, count, [&](const PlanePlace& plane, uint32_t head, size_t heads, uint64_t offset) {
        copy_out(plane, head, page, first, count,
                 dense + offset + size_t{head} * plane.record_bytes, heads * plane.record_bytes);
      });
}

void unpack(const PageLayout& layout,
            std::byte* page,
            uint32_t first,
            uint32_t count,
            const std::byte* dense,
            uint32_t stride) {
  for_each_plane(
      layout, stride, [&](const PlanePlace& plane, uint32_t head, size_t heads, uint64_t offset) {
        copy_in(plane, head, page, first, count, dense + offset + size_t{head} * plane.record_bytes,
                heads * plane.record_bytes);
      });
}

void copy_page(const PageLayout& layout, const std::byte* page, std::byte* out) {
  if (layout.page_bytes == layout.page_positions * layout.record_bytes) {  // no gaps
    std::memcpy(out, page, layout.page_bytes);
    return;
  }
  std::memset(out, 0, layout.page_bytes);
  for_each_plane(layout, 0, [&](const PlanePlace& plane, uint32_t head, size_t, uint64_t) {
    const uint64_t at = plane.offset + head * plane.head_bytes;
    std::memcpy(out + at, page + at, uint64_t{layout.page_positions} * plane.record_bytes);
  });
}

namespace {

constexpr size_t kStaged = 8192;  // numbers, or bytes times four: the widest vector

void move_records(const Spot& from, const Spot& to, uint32_t head, uint32_t count) {
  alignas(64) std::byte staged[kStaged * sizeof(float)];
  for (size_t plane = 0; plane < from.family.planes.size(); ++plane) {
    const size_t record = from.family.planes[plane].record_bytes;
    const auto most = static_cast<uint32_t>(sizeof(staged) / record);
    for (uint32_t done = 0; done < count; done += most) {
      const uint32_t n = std::min(most, count - done);
      copy_out(from.family.planes[plane], head, from.page, from.first + done, n, staged, record);
      copy_in(to.family.planes[plane], head, to.page, to.first + done, n, staged, record);
    }
  }
}

uint64_t reencode(const Spot& from, const Spot& to, uint32_t head, uint32_t count) {
  alignas(64) float staged[kStaged];
  const auto most = static_cast<uint32_t>(kStaged / from.family.codec.width);
  uint64_t saturated = 0;
  for (uint32_t done = 0; done < count; done += most) {
    const uint32_t n = std::min(most, count - done);
    from.family.codec.encoding->functions().decode(
        from.family.codec, from.family.records(from.page, head, from.first + done, n), staged);
    saturated += to.family.codec.encoding->functions().encode(
        to.family.codec, staged, to.family.records(to.page, head, to.first + done, n));
  }
  return saturated;
}

}  // namespace

uint64_t transcode(Spot from, Spot to, uint32_t count) noexcept {
  const Codec &a = from.family.codec, &b = to.family.codec;
  const bool is_same = a.encoding == b.encoding && a.params == b.params;
  uint64_t saturated = 0;
  for (uint32_t head = 0; head < from.family.heads; ++head) {
    if (is_same)
      move_records(from, to, head, count);
    else
      saturated += reencode(from, to, head, count);
  }
  return saturated;
}

}  // namespace cairn
