#include "cairn/format/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/sample_checkpoint.h"

namespace cairn::testing {
namespace {

using ::testing::HasSubstr;

TEST(Layout, TensorsTouchAndAreAlignedAsWellAsTheirBytesAllow) {
  for (Pos length : {0, 1, 3, 16, 63, 64, 300}) {
    const CheckpointLayout layout = make_layout(sample_checkpoint(length)).value();
    EXPECT_EQ(layout.data_offset % 4096, 0u);
    uint64_t next = layout.data_offset;
    for (const CheckpointTensor& tensor : layout.tensors) {
      EXPECT_EQ(tensor.begin, next);
      const uint64_t power =
          tensor.bytes() == 0 ? 64 : std::min<uint64_t>(64, tensor.bytes() & -tensor.bytes());
      EXPECT_EQ(tensor.begin % power, 0u) << length;
      next += tensor.bytes();
    }
    EXPECT_EQ(next, layout.file_bytes);
  }
}

TEST(Layout, ChunksCoverEveryTensorAndEndWherePagesDo) {
  CheckpointInfo info = sample_checkpoint(70000);
  info.slots[0].families[0].planes[0].record_bytes =
      48;  // 96 bytes a row: 2,730 rows fit, 2,688 are whole pages
  const CheckpointLayout layout = make_layout(info).value();
  uint64_t next = layout.data_offset;
  for (uint64_t i = 0; i < layout.chunks; ++i) {
    const Chunk chunk = layout.chunk(i);
    EXPECT_EQ(chunk.offset, next);
    EXPECT_LE(chunk.bytes, kChunkBytes);
    EXPECT_EQ(chunk.first_row % 64, 0u);
    next += chunk.bytes;
  }
  EXPECT_EQ(next, layout.file_bytes);
}

TEST(Layout, ARowLargerThanAChunkIsAChunk) {
  CheckpointInfo info = sample_checkpoint(3);
  info.slots[0].families[0].heads = 1 << 10;
  info.slots[0].families[0].planes[0].record_bytes = 1 << 10;
  const CheckpointLayout layout = make_layout(info).value();
  EXPECT_EQ(layout.tensors[0].chunk_rows, 1u);
  EXPECT_EQ(layout.tensors[0].chunks(), 3u);
}

TEST(Layout, DescribesAChunkByPositions) {
  const CheckpointInfo info = sample_checkpoint(100);
  const CheckpointLayout layout = make_layout(info).value();
  std::vector<std::string> all;
  for (uint64_t i = 0; i < layout.chunks; ++i)
    all.push_back(describe(info, layout, layout.chunk(i)));
  EXPECT_THAT(
      all, ::testing::UnorderedElementsAre("token ids 0-100", "slot 0, key, values, positions 0-99",
                                           "slot 0, value, codes, positions 0-99",
                                           "slot 0, value, scales, positions 0-99",
                                           "slot 0, value, biases, positions 0-99",
                                           "slot 1, key, values, positions 0-1 and 88-99"));
}

void expect_refused(const CheckpointInfo& info, std::string_view says) {
  const auto layout = make_layout(info);
  ASSERT_FALSE(layout) << says;
  EXPECT_EQ(layout.error().code, Code::BadInput);
  EXPECT_THAT(layout.error().message, HasSubstr(says));
}

TEST(Layout, RefusesADescriptionThatContradictsItself) {
  const CheckpointInfo good = sample_checkpoint(100);
  CheckpointInfo bad = good;
  bad.tokens = 99;
  expect_refused(bad, "99 token ids");
  bad = good;
  bad.slots[1].first_kept = 90;  // a query at 100 sees 93 and up
  EXPECT_TRUE(make_layout(bad));
  bad.slots[1].first_kept = 94;
  expect_refused(bad, "a window lacks positions");
  bad.slots[1].first_kept = 101;
  expect_refused(bad, "slot 1: first kept position 101");
  bad.slots[1].first_kept = 2;
  expect_refused(bad, "slot 1: first kept position 2");
  bad = good;
  bad.slots[0].first_kept = 50;
  expect_refused(bad, "slot 0: first kept position 50");
  bad = good;
  bad.slots[0].families[1].name = "key";
  expect_refused(bad, "a family is repeated");
  bad.slots[0].families[1].name = "a.b";
  expect_refused(bad, "family name");
  bad = good;
  bad.slots[0].families[1].planes[2].name = "codes";
  expect_refused(bad, "a plane is repeated");
  bad = good;
  bad.slots[0].families[0].planes[0].record_bytes = 15;
  expect_refused(bad, "records of 15 bytes of F16");
  bad.slots[0].families[0].planes[0].dtype = "F4";
  expect_refused(bad, "records of 15 bytes of F4");
  bad = good;
  bad.name_space = "\xff";
  expect_refused(bad, "UTF-8");
  bad = good;
  bad.slots[0].families[1].encoding = "affine\xcb";
  expect_refused(bad, "UTF-8");
}

TEST(Layout, SizesThatNoFileHasAllocateNothing) {
  CheckpointInfo bad = sample_checkpoint(100);
  bad.slots[0].families[0].heads = UINT64_MAX;
  expect_refused(bad, "heads");
  bad = sample_checkpoint(100);
  bad.length = uint64_t{1} << 61;
  bad.tokens = bad.length;
  bad.slots[1].first_kept = bad.length - 8;
  expect_refused(bad, "are no file");
  bad.length = bad.tokens = uint64_t{1} << 50;
  bad.slots[1].first_kept = bad.length - 8;
  expect_refused(bad, "checksums");
}

}  // namespace
}  // namespace cairn::testing
