#include "cairn/format/checkpoint.h"

#include <gtest/gtest.h>

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

TEST(Checkpoint, CanResumeWhereEverySlotHoldsWhatAQuerySees) {
  const CheckpointInfo info =
      sample_checkpoint(100);  // window 8, sinks 2, holds [0, 2) and [88, 100)
  const auto can = [&](Pos position) { return can_resume_at(info, position); };
  EXPECT_TRUE(can(100));
  EXPECT_FALSE(can(101));
  EXPECT_TRUE(can(95));   // sees [88, 95)
  EXPECT_FALSE(can(94));  // would see 87
  EXPECT_FALSE(can(3));
  EXPECT_TRUE(can(2));  // only sinks
  EXPECT_TRUE(can(0));
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
  other.arithmetic += "x";
  EXPECT_NE(fingerprint_of(other), fingerprint_of(info));
}

}  // namespace
}  // namespace cairn::testing
