#include "cairn/runtime/stop.h"

#include <gtest/gtest.h>

#include <random>

#include "cairn/core/error.h"

namespace cairn {
namespace {

TEST(StopStrings, ShowWhatCannotBeginAStop) {
  StopStrings stops({"User:", "\n\n"});
  EXPECT_EQ(stops.add("Hello"), "Hello");
  EXPECT_EQ(stops.add(" U"), " ");
  EXPECT_EQ(stops.add("se it\n"), "Use it");
  EXPECT_FALSE(stops.is_found());
  EXPECT_EQ(stops.rest(), "\n");
}

TEST(StopStrings, DropTheStopAndWhatFollows) {
  StopStrings stops({"User:", "\n\n"});
  EXPECT_EQ(stops.add("Yes.\nUser"), "Yes.\n");
  EXPECT_EQ(stops.add(": and"), "");
  EXPECT_TRUE(stops.is_found());
  EXPECT_EQ(stops.add("more"), "");
  EXPECT_EQ(stops.rest(), "");
}

TEST(StopStrings, FindTheEarliestOfSeveral) {
  StopStrings stops({"cd", "b"});
  EXPECT_EQ(stops.add("abcd"), "a");
  EXPECT_TRUE(stops.is_found());
}

TEST(StopStrings, GiveTheSameTextHoweverItIsCut) {
  std::mt19937 random(3);
  for (int round = 0; round < 500; ++round) {
    std::string text;
    while (text.size() < 30) text += "ab"[random() % 2];
    const std::string stop =
        text.substr(random() % 25, 1 + random() % 5) + (random() % 2 ? "a" : "bb");
    StopStrings stops({stop});
    std::string shown;
    for (size_t at = 0; at < text.size();) {
      const size_t bytes = 1 + random() % 4;
      shown += stops.add(std::string_view(text).substr(at, bytes));
      at += bytes;
    }
    shown += stops.rest();
    ASSERT_EQ(shown, text.substr(0, text.find(stop))) << "seed 3, round " << round;
  }
}

TEST(StopStrings, AreNeverEmpty) { EXPECT_THROW(StopStrings({""}), ContractError); }

}  // namespace
}  // namespace cairn
