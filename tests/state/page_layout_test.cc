#include "cairn/state/page_layout.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/random.h"

namespace cairn::testing {
namespace {

struct Shape {
  uint32_t word_bytes;
  uint32_t words;  // of a record
  bool by_position;
};

constexpr uint32_t kPagePositions = 64;
constexpr uint32_t kHeads = 2;
constexpr uint32_t kCounts[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 31, 64};
constexpr uint32_t kFirsts[] = {0, 1, 3, 4, 33, 63};

PlanePlace place_of(const Shape& shape) {
  PlanePlace plane{
      .offset = 64, .record_bytes = shape.words * shape.word_bytes, .word_bytes = shape.word_bytes};
  plane.head_bytes = uint64_t{kPagePositions} * plane.record_bytes + 64;
  plane.position_stride = shape.by_position ? shape.word_bytes : plane.record_bytes;
  plane.word_stride =
      shape.by_position ? uint64_t{kPagePositions} * shape.word_bytes : uint64_t{shape.word_bytes};
  return plane;
}

std::string random_bytes(size_t count, uint64_t seed) {
  Random random(seed);
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random.below(256));
  return bytes;
}

std::byte* data(std::string& bytes) { return reinterpret_cast<std::byte*>(bytes.data()); }

// Calls move(byte in the page, byte in the dense records) for every byte, as the layout says it.
template <class Move>
void for_each_byte(
    const PlanePlace& plane, uint32_t first, uint32_t count, size_t dense_stride, Move move) {
  for (uint32_t i = 0; i < count; ++i)
    for (uint32_t byte = 0; byte < plane.record_bytes; ++byte)
      move(plane.offset + plane.head_bytes + (first + i) * plane.position_stride +
               byte / plane.word_bytes * plane.word_stride + byte % plane.word_bytes,
           i * dense_stride + byte);
}

void check_copies(const Shape& shape, uint32_t first, uint32_t count) {
  const PlanePlace plane = place_of(shape);
  const size_t page_bytes = plane.offset + kHeads * plane.head_bytes;
  for (const size_t dense_stride : {size_t{plane.record_bytes}, size_t{plane.record_bytes} + 6}) {
    const std::string page = random_bytes(page_bytes, 1);
    const std::string dense = random_bytes(count * dense_stride, 2);

    std::string expected = page, found = page;
    for_each_byte(plane, first, count, dense_stride,
                  [&](size_t in_page, size_t in_dense) { expected[in_page] = dense[in_dense]; });
    copy_in(plane, 1, data(found), first, count, reinterpret_cast<const std::byte*>(dense.data()),
            dense_stride);
    EXPECT_TRUE(found == expected) << "in";

    expected = found = dense;
    for_each_byte(plane, first, count, dense_stride,
                  [&](size_t in_page, size_t in_dense) { expected[in_dense] = page[in_page]; });
    copy_out(plane, 1, reinterpret_cast<const std::byte*>(page.data()), first, count, data(found),
             dense_stride);
    EXPECT_TRUE(found == expected) << "out";
  }
}

TEST(PageLayout, CopiesEveryByteToItsPlaceAndNoOther) {
  for (const uint32_t word_bytes : {1, 2, 4, 8})
    for (const uint32_t words : {1, 2, 3, 4, 5, 8, 13, 64})
      for (const bool by_position : {true, false})
        for (const uint32_t first : kFirsts)
          for (const uint32_t count : kCounts) {
            if (first + count > kPagePositions) continue;
            SCOPED_TRACE(::testing::Message() << words << " words of " << word_bytes
                                              << (by_position ? " by position, " : " by record, ")
                                              << count << " from " << first);
            check_copies({word_bytes, words, by_position}, first, count);
          }
}

}  // namespace
}  // namespace cairn::testing
