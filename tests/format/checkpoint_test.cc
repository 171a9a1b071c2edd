#include "cairn/format/checkpoint.h"

#include <gtest/gtest.h>

#include "tests/support/random.h"
#include "tests/support/sample_checkpoint.h"

namespace cairn::testing {
namespace {

TEST(Checkpoint, AWindowStoresItsSinksAndWhatItKeeps) {
  const CheckpointSlot slot{
      .kind = "window", .window = 8, .sinks = 2, .rewind = 4, .first_kept = 88, .families = {}};
  EXPECT_EQ(stored_rows(slot, 100), 14u);
  const auto both = positions_of(slot, 1, 3);
  EXPECT_EQ(both[0].first, 1u);
  EXPECT_EQ(both[0].count, 1u);
  EXPECT_EQ(both[1].first, 88u);
  EXPECT_EQ(both[1].count, 2u);
  EXPECT_EQ(positions_of(slot, 0, 2)[1].count, 0u);
  EXPECT_EQ(positions_of(slot, 5, 4)[0].count, 0u);
  EXPECT_EQ(positions_of(slot, 5, 4)[1].first, 91u);
}

TEST(Checkpoint, AFormStoresWhatTheSlotStoresInItsRange) {
  CheckpointSlot slot{
      .kind = "window", .window = 8, .sinks = 4, .rewind = 4, .first_kept = 88, .families = {}};
  const CheckpointFamily exact{
      .name = "key", .encoding = "f32", .begin = 0, .end = 90, .planes = {}};
  const CheckpointFamily encoded{
      .name = "key", .encoding = "f16", .begin = 90, .end = 100, .planes = {}};
  EXPECT_EQ(stored_rows(slot, exact), 6u);
  EXPECT_EQ(stored_rows(slot, encoded), 10u);
  EXPECT_EQ(positions_of(slot, exact, 3, 3)[0].first, 3u);
  EXPECT_EQ(positions_of(slot, exact, 3, 3)[1].first, 88u);
  EXPECT_EQ(positions_of(slot, exact, 3, 3)[1].count, 2u);
  EXPECT_EQ(positions_of(slot, encoded, 3, 3)[0].count, 0u);
  EXPECT_EQ(positions_of(slot, encoded, 3, 3)[1].first, 93u);
  slot.first_kept = 0;
  EXPECT_EQ(stored_rows(slot, exact), 90u);
  EXPECT_EQ(positions_of(slot, encoded, 3, 3)[0].first, 93u);
}

TEST(Checkpoint, ItsSlotsHaveOneFormOrTwo) {
  const CheckpointInfo info = sample_checkpoint(100);
  EXPECT_EQ(forms_of(info.slots[0]), 2u);
  EXPECT_EQ(forms_of(info.slots[1]), 2u);
  EXPECT_EQ(forms_of(info.slots[2]), 1u);
  EXPECT_EQ(stored_rows(info.slots[2], info.length), 1u);
  EXPECT_EQ(stored_rows(info.slots[2], 0), 0u);
}

TEST(Checkpoint, FixedTensorsResumeAtTheEndsAlone) {
  const CheckpointInfo info = sample_checkpoint(100);
  for (Pos position = 0; position <= 101; ++position)
    EXPECT_EQ(can_resume_at(info, position), position == 0 || position == 100) << position;
}

TEST(Checkpoint, WhatIsEncodedDoesNotResumeWhereItWouldBeExact) {
  for (Pos length : {5, 9, 10, 11, 13}) {
    CheckpointInfo info = sample_checkpoint(length);
    info.slots.pop_back();
    for (Pos position = 0; position <= length; ++position)
      EXPECT_EQ(can_resume_at(info, position),
                position == 0 || length < kSampleEncodedAfter || position >= kSampleEncodedAfter)
          << position << " of " << length;
  }
}

TEST(Checkpoint, CanResumeWhereEverySlotHoldsWhatAQuerySees) {
  CheckpointInfo info = sample_checkpoint(100);  // window 8, sinks 2, holds [0, 2) and [88, 100)
  info.slots.pop_back();
  info.encoded_after = 0;
  const auto can = [&](Pos position) { return can_resume_at(info, position); };
  EXPECT_TRUE(can(100));
  EXPECT_FALSE(can(101));
  EXPECT_TRUE(can(95));   // sees [88, 95)
  EXPECT_FALSE(can(94));  // would see 87
  EXPECT_FALSE(can(3));
  EXPECT_TRUE(can(2));  // only sinks
  EXPECT_TRUE(can(0));
}

TEST(Checkpoint, ListsThePositionsWhereItResumes) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Random random(seed);
    CheckpointInfo info;
    info.length = random.below(40);
    info.encoded_after = random.below(2) * random.below(50);
    for (uint64_t slots = random.below(4); slots > 0; --slots) {
      CheckpointSlot slot{.is_fixed = random.one_in(8)};
      if (!slot.is_fixed && random.below(2) != 0) {
        slot.window = 1 + random.below(20);
        slot.sinks = random.below(6);
        slot.first_kept = random.below(2) * (slot.sinks + 1 + random.below(20));
      }
      info.slots.push_back(slot);
    }
    std::vector<bool> listed(info.length + 1);
    Pos free_from = 0;
    for (const PositionRun& run : resume_positions(info)) {
      ASSERT_GT(run.count, 0u);
      ASSERT_GE(run.first, free_from) << "seed " << seed;
      free_from = run.first + run.count + 1;
      for (Pos i = 0; i < run.count; ++i) listed.at(run.first + i) = true;
    }
    for (Pos position = 0; position <= info.length; ++position)
      ASSERT_EQ(listed[position], can_resume_at(info, position))
          << position << " of " << info.length << ", seed " << seed;
  }
}

TEST(Checkpoint, ListsWhereItResumesHoweverLongItSaysItIs) {
  CheckpointInfo info;
  info.length = UINT64_MAX - 1;
  info.slots = {{.window = UINT64_MAX, .sinks = UINT64_MAX, .first_kept = UINT64_MAX}};
  const std::vector<PositionRun> all = resume_positions(info);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].count, UINT64_MAX);
}

TEST(Checkpoint, TheFingerprintIsOfTheReaderNotOfTheConversation) {
  const CheckpointInfo info = sample_checkpoint(100);
  CheckpointInfo other = sample_checkpoint(7);
  other.name_space = "another";
  other.is_derived = true;
  EXPECT_EQ(fingerprint_of(other), fingerprint_of(info));
  other.slots[0].families[0].heads = 3;
  EXPECT_NE(fingerprint_of(other), fingerprint_of(info));
  other = info;
  other.encoded_after = 11;
  EXPECT_NE(fingerprint_of(other), fingerprint_of(info));
  other = info;
  other.slots[2].is_fixed = false;
  EXPECT_NE(fingerprint_of(other), fingerprint_of(info));
  other = info;
  other.arithmetic += "x";
  EXPECT_NE(fingerprint_of(other), fingerprint_of(info));
}

}  // namespace
}  // namespace cairn::testing
