#include "tests/store/store_processes.h"

namespace cairn::testing {
namespace {

constexpr uint64_t kSmall = 3 << 20;

TEST_F(StoreProcesses, WhatAKilledOneWroteIsThereAndNothingElse) { kill_one(15, 0); }
TEST_F(StoreProcesses, OneKilledWhileItEvictsLosesNoSpace) { kill_one(15, kSmall); }
TEST_F(StoreProcesses, EightShareAFolderAndItsBudget) { work_together(4, Kills::none); }
TEST_F(StoreProcesses, EightGoOnWhileSomeAreKilled) { work_together(3, Kills::some); }

}  // namespace
}  // namespace cairn::testing
