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
  info.slots[0].families[1].planes[0].record_bytes =
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
  info.slots[0].families[0].heads = info.slots[0].families[1].heads = 1 << 10;
  info.slots[0].families[0].planes[0].record_bytes = 1 << 10;  // 3 positions are all exact
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
      all, ::testing::UnorderedElementsAre(
               "token ids 0-100", "slot 0, exact key, values, positions 0-3",
               "slot 0, key, values, positions 4-99", "slot 0, exact value, values, positions 0-3",
               "slot 0, value, codes, positions 4-99", "slot 0, value, scales, positions 4-99",
               "slot 0, value, biases, positions 4-99", "slot 1, exact key, values, positions 0-1",
               "slot 1, key, values, positions 88-99", "slot 2, conv, values"));
  const CheckpointInfo shorter = sample_checkpoint(15);  // keeps 3, of which 3 is exact
  const CheckpointLayout its = make_layout(shorter).value();
  std::vector<std::string> texts;
  for (uint64_t i = 0; i < its.chunks; ++i) texts.push_back(describe(shorter, its, its.chunk(i)));
  EXPECT_THAT(texts, ::testing::Contains("slot 1, exact key, values, positions 0-1 and 3-3"));
  EXPECT_THAT(texts, ::testing::Contains("slot 1, key, values, positions 4-14"));
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
  bad.slots[0].families[2].name = bad.slots[0].families[3].name = "key";
  expect_refused(bad, "a family is repeated");
  bad.slots[0].families[2].name = bad.slots[0].families[3].name = "a.b";
  expect_refused(bad, "family name");
  bad = good;
  bad.slots[0].families[3].planes[2].name = "codes";
  expect_refused(bad, "a plane is repeated");
  bad = good;
  bad.slots[0].families[1].planes[0].record_bytes = 15;
  expect_refused(bad, "records of 15 bytes of F16");
  bad.slots[0].families[1].planes[0].dtype = "F4";
  expect_refused(bad, "records of 15 bytes of F4");
  bad = good;
  bad.name_space = "\xff";
  expect_refused(bad, "UTF-8");
  bad = good;
  bad.slots[0].families[1].encoding = "affine\xcb";
  expect_refused(bad, "UTF-8");
}

TEST(Layout, RefusesFormsThatDoNotCoverEveryPositionOnce) {
  const CheckpointInfo good = sample_checkpoint(100);
  const auto refused = [&](auto change, std::string_view says) {
    CheckpointInfo bad = good;
    change(bad);
    expect_refused(bad, says);
  };
  const auto family = [&](size_t index, Pos begin, Pos end, std::string_view says) {
    refused(
        [&](CheckpointInfo& bad) {
          bad.slots[0].families[index].begin = begin;
          bad.slots[0].families[index].end = end;
        },
        says);
  };
  family(0, 1, 4, "key covers positions 1 to 4, expected 0 to 4");
  family(0, 0, 3, "key covers positions 4 to 100, expected 3 to 100");  // a hole
  family(0, 0, 5, "key covers positions 4 to 100, expected 5 to 100");  // twice
  family(0, 0, 101, "key covers positions 0 to 101, expected 0 to 100");
  family(0, 0, UINT64_MAX, "expected 0 to 100");
  family(1, 4, 99, "key covers positions 4 to 99, expected 4 to 100");
  family(1, 4, 101, "key covers positions 4 to 101, expected 4 to 100");
  family(1, 100, 4, "key covers positions 100 to 4, expected 4 to 100");
  family(3, 5, 100, "value covers positions 5 to 100, expected 4 to 100");
  refused(
      [](CheckpointInfo& bad) {  // another split than the other family's
        bad.slots[0].families[2].end = bad.slots[0].families[3].begin = 5;
      },
      "value covers positions 0 to 5, expected 0 to 4");
  refused(
      [](CheckpointInfo& bad) { std::swap(bad.slots[0].families[0], bad.slots[0].families[1]); },
      "key covers positions");
  refused([](CheckpointInfo& bad) { bad.slots[0].families.pop_back(); }, "a family is repeated");
  refused([](CheckpointInfo& bad) { bad.slots[0].families[2].name = "other"; },
          "value is [1, 8], expected other [1, 8] in both forms");
  refused([](CheckpointInfo& bad) { bad.slots[0].families[0].width = 16; },
          "key is [2, 8], expected key [2, 16] in both forms");
  refused([](CheckpointInfo& bad) { bad.slots[0].families[3].heads = 2; }, "in both forms");
}

TEST(Layout, RefusesAnEncodingThatTheLengthContradicts) {
  CheckpointInfo bad = sample_checkpoint(100);
  bad.encoded_after = 101;
  expect_refused(bad, "100 positions are not all exact, expected so below 101");
  bad = sample_checkpoint(9);
  EXPECT_TRUE(make_layout(bad));
  bad.slots[0].families.erase(bad.slots[0].families.begin() + 2);
  bad.slots[0].families.erase(bad.slots[0].families.begin());
  for (CheckpointFamily& family : bad.slots[0].families) family.begin = 0;
  expect_refused(bad, "slot 0: 9 positions are not all exact");
  bad.encoded_after = 9;
  expect_refused(bad, "slot 0: 9 positions are not all exact");
}

TEST(Layout, RefusesFixedTensorsOfMoreThanOneRow) {
  const CheckpointInfo good = sample_checkpoint(100);
  CheckpointInfo bad = good;
  bad.slots[2].families[0].end = 2;
  expect_refused(bad, "slot 2: conv covers positions 0 to 2, expected 0 to 1");
  bad.slots[2].families[0].end = 0;
  expect_refused(bad, "slot 2: conv covers positions 0 to 0, expected 0 to 1");
  bad.slots[2].families[0].begin = bad.slots[2].families[0].end = 1;
  expect_refused(bad, "slot 2: conv covers positions 1 to 1, expected 0 to 1");
  bad = good;
  bad.slots[2].is_fixed = false;
  expect_refused(bad, "slot 2: conv covers positions 0 to 1, expected 0 to 100");
  bad = good;
  bad.slots[2].families.push_back(bad.slots[2].families[0]);
  bad.slots[2].families[1].begin = 1;
  expect_refused(bad, "slot 2: fixed tensors in 2 forms");
  bad = good;
  bad.slots[2].window = 8;
  expect_refused(bad, "slot 2: fixed tensors in 1 forms with a window of 8");
  bad = good;
  bad.slots[2].first_kept = 50;
  expect_refused(bad, "slot 2: first kept position 50");
  bad = sample_checkpoint(0);
  bad.slots[2].families[0].end = 1;
  expect_refused(bad, "slot 2: conv covers positions 0 to 1, expected 0 to 0");
}

TEST(Layout, SizesThatNoFileHasAllocateNothing) {
  CheckpointInfo bad = sample_checkpoint(100);
  bad.slots[0].families[0].heads = bad.slots[0].families[1].heads = UINT64_MAX;
  expect_refused(bad, "heads of");
  bad = sample_checkpoint(100);
  bad.length = uint64_t{1} << 61;
  bad.tokens = bad.length;
  bad.slots[1].first_kept = bad.length - 8;
  for (CheckpointSlot& slot : bad.slots)
    for (CheckpointFamily& family : slot.families)
      if (family.end == 100) family.end = bad.length;
  expect_refused(bad, "are no file");
  for (CheckpointSlot& slot : bad.slots)
    for (CheckpointFamily& family : slot.families)
      if (family.end == bad.length) family.end = uint64_t{1} << 50;
  bad.length = bad.tokens = uint64_t{1} << 50;
  bad.slots[1].first_kept = bad.length - 8;
  expect_refused(bad, "checksums");
}

}  // namespace
}  // namespace cairn::testing
