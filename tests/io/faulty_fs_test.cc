#include "cairn/io/faulty_fs.h"

#include <gtest/gtest.h>

#include "cairn/io/memory_fs.h"

namespace cairn::testing {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// Five calls.
Result<void> write_two_parts(FileSystem& fs) {
  auto file = CAIRN_TRY(fs.create("a"));
  CAIRN_TRY(file->write_at(0, bytes_of("0123")));
  CAIRN_TRY(file->write_at(4, bytes_of("4567")));
  CAIRN_TRY(file->sync());
  return fs.sync_folder(".");
}

uint64_t size_of(FileSystem& fs, const std::string& path) {
  return fs.open_read(path).value()->size().value();
}

TEST(FaultyFs, CountsCallsAndChangesNothingByItself) {
  MemoryFs disk;
  FaultyFs fs(disk);
  ASSERT_TRUE(write_two_parts(fs));
  EXPECT_EQ(fs.calls(), 5u);
  EXPECT_EQ(size_of(disk, "a"), 8u);
}

TEST(FaultyFs, FailsTheChosenCallAndTearsItsWrite) {
  for (uint64_t call = 1; call <= 5; ++call) {
    MemoryFs disk;
    FaultyFs fs(disk);
    fs.fail_call(call, Fault::once, Code::NoSpace);
    const auto result = write_two_parts(fs);
    ASSERT_FALSE(result) << call;
    EXPECT_EQ(result.error().code, Code::NoSpace);
    EXPECT_EQ(fs.calls(), call);
    if (call == 3) {
      EXPECT_EQ(size_of(disk, "a"), 6u);
    }
  }
}

TEST(FaultyFs, AfterOneFaultTheNextCallWorksUnlessTheMachineIsGone) {
  MemoryFs disk;
  FaultyFs once(disk), gone(disk);
  once.fail_call(1, Fault::once);
  gone.fail_call(1, Fault::from_then_on);
  EXPECT_FALSE(once.sync_folder("."));
  EXPECT_TRUE(once.sync_folder("."));
  EXPECT_FALSE(gone.sync_folder("."));
  EXPECT_FALSE(gone.sync_folder("."));
}

// Nine calls.
Result<void> change_by_every_call(FileSystem& fs) {
  CAIRN_TRY(fs.make_folder("d"));
  auto file = CAIRN_TRY(fs.create("d/a", Access::direct));
  CAIRN_TRY(file->allocate(0, 8192));
  auto again = CAIRN_TRY(fs.open_update("d/a"));
  CAIRN_TRY(again->punch_hole(0, 4096));
  CAIRN_TRY(again->allocated_bytes());
  CAIRN_TRY(again->set_size(10));
  CAIRN_TRY(again->size());
  return again->sync();
}

TEST(FaultyFs, FailsEveryKindOfCall) {
  MemoryFs sound;
  ASSERT_TRUE(change_by_every_call(sound));
  for (uint64_t call = 1; call <= 9; ++call) {
    MemoryFs disk;
    FaultyFs fs(disk);
    fs.fail_call(call, Fault::from_then_on);
    EXPECT_FALSE(change_by_every_call(fs)) << call;
    EXPECT_EQ(fs.calls(), call);
    EXPECT_FALSE(fs.is_abandoned("d/a")) << "once the machine is gone";
    EXPECT_EQ(disk.is_abandoned("d/a"), call > 2);
  }
}

TEST(FaultyFs, MayHaveNoHoles) {
  MemoryFs disk;
  FaultyFs fs(disk);
  fs.refuse_holes();
  auto file = fs.create("a").value();
  EXPECT_EQ(file->allocate(0, 1).error().code, Code::Unsupported);
  EXPECT_EQ(file->punch_hole(0, 1).error().code, Code::Unsupported);
  EXPECT_TRUE(file->set_size(1));
}

TEST(FaultyFs, AFullDiskTakesWhatFits) {
  MemoryFs disk;
  FaultyFs fs(disk);
  fs.limit_bytes(5);
  const auto result = write_two_parts(fs);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, Code::NoSpace);
  EXPECT_EQ(size_of(disk, "a"), 5u);
}

}  // namespace
}  // namespace cairn::testing
