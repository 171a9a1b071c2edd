#include "cairn/state/page_layout.h"

#include <algorithm>
#include <cstring>

#include "cairn/core/bytes.h"

namespace cairn {
namespace {

constexpr uint64_t kPlaneAlignment = 64;

// Words by position help only scores: what is also (or only) accumulated lies by records.
bool words_first(const Family& family, const PlaneGeometry& plane) {
  return plane.words_first && family.is_scored && !family.is_accumulated;
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
  if (words_first(family, plane)) {
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

// The same for two-byte words by position: the transposition that every f16 key makes on its way to
// a file and back.
template <class Word, class Move>
void for_each_word(const PlanePlace& plane,
                   uint32_t head,
                   uint32_t first,
                   uint32_t count,
                   size_t dense_stride,
                   Move move) {
  const uint64_t base = plane.offset + head * plane.head_bytes + first * plane.position_stride;
  const uint32_t words = plane.record_bytes / sizeof(Word);
  constexpr uint32_t kTile =
      16;  // words of a record per pass: both sides stay in whole cache lines
  for (uint32_t w0 = 0; w0 < words; w0 += kTile)
    for (uint32_t i = 0; i < count; ++i)
      for (uint32_t w = w0; w < std::min(words, w0 + kTile); ++w)
        move(base + i * sizeof(Word) + w * plane.word_stride, i * dense_stride + w * sizeof(Word));
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

void copy_out(const PlanePlace& plane,
              uint32_t head,
              const std::byte* page,
              uint32_t first,
              uint32_t count,
              std::byte* dense,
              size_t dense_stride) {
  if (is_words_of<uint16_t>(plane)) {
    for_each_word<uint16_t>(plane, head, first, count, dense_stride,
                            [&](uint64_t in_page, size_t in_dense) {
                              std::memcpy(dense + in_dense, page + in_page, sizeof(uint16_t));
                            });
    return;
  }
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
  if (is_words_of<uint16_t>(plane)) {
    for_each_word<uint16_t>(plane, head, first, count, dense_stride,
                            [&](uint64_t in_page, size_t in_dense) {
                              std::memcpy(page + in_page, dense + in_dense, sizeof(uint16_t));
                            });
    return;
  }
  for_each_stretch(plane, head, first, count, dense_stride,
                   [&](uint64_t in_page, size_t in_dense, size_t bytes) {
                     std::memcpy(page + in_page, dense + in_dense, bytes);
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
