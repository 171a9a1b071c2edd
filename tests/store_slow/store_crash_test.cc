// tests/store/store_crash_test.cc, for longer.
#include "tests/store/store_processes.h"

namespace cairn::testing {
namespace {

constexpr uint64_t kSmall = 3 << 20;

TEST_F(StoreProcesses, WhatAKilledOneWroteIsThereAndNothingElse200Times) { kill_one(200, 0); }
TEST_F(StoreProcesses, OneKilledWhileItEvictsLosesNoSpace200Times) { kill_one(200, kSmall); }
TEST_F(StoreProcesses, EightShareAFolderAndItsBudgetForAMinute) { work_together(60, Kills::none); }
TEST_F(StoreProcesses, EightGoOnWhileSomeAreKilledForAMinute) { work_together(60, Kills::some); }

}  // namespace
}  // namespace cairn::testing
