#include "cairn/store/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "cairn/io/memory_fs.h"
#include "tests/support/must.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/stored.h"

namespace cairn::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kKiB = 1024;

class StoreFolder : public ::testing::Test {
 protected:
  std::unique_ptr<Store> open(uint64_t max_bytes = uint64_t{1} << 30) {
    return must(Store::open(path_, {.max_bytes = max_bytes, .segment_bytes = 256 * kKiB}));
  }

  static void write(Store& store, const std::vector<NewRecord>& records) {
    must(store.write(records));
  }

  // "right", "gone", "wrong", or what the error says.
  static std::string state_of(Store& store, const RecordKey& key) {
    const auto found = must(store.find(key));
    if (!found) return "gone";
    AlignedBuffer buffer;
    const auto bytes = store.read(*found, buffer);
    if (!bytes) return std::string(name_of(bytes.error().code));
    return is_filled_right(key, *bytes) ? "right" : "wrong";
  }

  std::vector<uint64_t> found(Store& store, uint64_t end) {
    std::vector<uint64_t> numbers;
    for (uint64_t number = 0; number < end; ++number)
      if (must(store.contains(numbered(number)))) numbers.push_back(number);
    return numbers;
  }

  std::vector<std::string> segments() { return must(posix_fs().list(path_ + "/segments")); }
  std::string segment(size_t at = 0) { return path_ + "/segments/" + segments().at(at); }

  static void expect_sound(Store& store) {
    const StoreReport report = must(store.verify());
    EXPECT_THAT(report.damage, IsEmpty());
    EXPECT_EQ(report.orphaned_bytes, 0u);
  }

  const ScratchFolder folder_;
  const std::string path_ = folder_ / "store";
};

TEST_F(StoreFolder, FindsWhatWasWrittenAfterReopeningToo) {
  std::vector<NewRecord> records;
  for (uint64_t number = 0; number < 50; ++number)
    for (uint32_t part = 0; part < 1 + number % 3; ++part) records.push_back(record(number, part));
  {
    auto store = open();
    write(*store, records);
    for (const NewRecord& each : records) ASSERT_EQ(state_of(*store, each.info.key), "right");
  }
  auto store = open();
  for (const NewRecord& each : records) {
    const auto found = must(store->find(each.info.key));
    ASSERT_TRUE(found);
    EXPECT_EQ(found->info, each.info);
    EXPECT_EQ(state_of(*store, each.info.key), "right");
  }
  EXPECT_EQ(state_of(*store, numbered(50)), "gone");
  EXPECT_EQ(state_of(*store, numbered(0, 1)), "gone") << "another part";
  EXPECT_EQ(must(store->use()).records, records.size());
  expect_sound(*store);
}

TEST_F(StoreFolder, KeepsEveryFieldOfEveryKind) {
  auto store = open();
  for (RecordKind kind :
       {RecordKind::Span, RecordKind::Mark, RecordKind::Generation, RecordKind::Object}) {
    RecordInfo info{.key = numbered(static_cast<uint64_t>(kind), UINT32_MAX),
                    .kind = kind,
                    .parent = numbered_name(100),
                    .owner = numbered_name(200),
                    .tokens = {-1, 0, INT32_MAX},
                    .length = uint64_t{1} << 40,
                    .payload_bytes = 1};
    write(*store, {filled(info)});
    const auto found = must(store->find(info.key));
    ASSERT_TRUE(found);
    EXPECT_EQ(found->info, info);
    EXPECT_EQ(state_of(*store, info.key), "right");
  }
}

TEST_F(StoreFolder, TakesRecordsOfNothingAndOfMoreThanASegment) {
  auto store = open();
  RecordInfo many_tokens = numbered_info(3);
  many_tokens.tokens.assign(10'000, 7);
  write(*store, {record_of(0, 0), record_of(1, 1), record_of(2, 5 * 1024 * kKiB + 17),
                 filled(many_tokens), record_of(4, 4096)});
  for (uint64_t number = 0; number < 5; ++number)
    EXPECT_EQ(state_of(*store, numbered(number)), "right") << number;
  EXPECT_EQ(must(store->find(numbered(2)))->stored_bytes, 4096 + 5 * 1024 * kKiB + 4096);
  expect_sound(*store);
}

TEST_F(StoreFolder, IsForItsOwnerOnly) {
  ASSERT_EQ(::mkdir(path_.c_str(), 0755), 0);
  auto store = open();
  write(*store, {record(1)});
  const auto mode = [](const std::string& path) {
    struct stat status;
    EXPECT_EQ(::stat(path.c_str(), &status), 0) << path;
    return status.st_mode & 07777;
  };
  EXPECT_EQ(mode(path_), 0700u);
  EXPECT_EQ(mode(path_ + "/segments"), 0700u);
  EXPECT_EQ(mode(segment()), 0600u);
  for (const char* name : {"/index.sqlite", "/index.sqlite-wal", "/index.sqlite-shm"})
    EXPECT_EQ(mode(path_ + name), 0600u) << name;
}

TEST_F(StoreFolder, WritesARecordOnceHoweverOftenItIsGiven) {
  auto store = open();
  write(*store, {record(1), record(2), record(1)});
  const uint64_t bytes = must(store->use()).bytes;
  int fills = 0;
  NewRecord again = record(1);
  again.fill = [&](std::span<std::byte>) { ++fills; };
  write(*store, {again, record(2)});
  EXPECT_EQ(fills, 0);
  EXPECT_EQ(must(store->use()).bytes, bytes);
  EXPECT_EQ(must(store->use()).records, 2u);
  expect_sound(*store);
}

TEST_F(StoreFolder, FindsTheLongestPrefixOfKeys) {
  auto store = open();
  std::vector<RecordKey> keys;
  for (uint64_t number = 0; number < 70; ++number) keys.push_back(numbered(number));
  EXPECT_EQ(must(store->longest_prefix(keys)), 0u);
  EXPECT_EQ(must(store->longest_prefix({})), 0u);
  for (uint64_t number = 0; number < 66; ++number) {
    write(*store, {record_of(number, 10)});
    ASSERT_EQ(must(store->longest_prefix(keys)), number + 1);
  }
  EXPECT_EQ(must(store->longest_prefix(std::span(keys).first(20))), 20u);
}

TEST_F(StoreFolder, FindsChildrenAndWhatAnOwnerHas) {
  auto store = open();
  for (uint64_t number = 1; number <= 6; ++number) {
    RecordInfo info = numbered_info(number, number == 6 ? 1 : 0, numbered_name(100 + number % 2));
    info.kind = number <= 4 ? RecordKind::Mark : RecordKind::Span;
    info.owner = numbered_name(200 + number / 4);
    write(*store, {filled(info)});
  }
  const auto numbers_of = [&](const std::vector<StoredRecord>& records) {
    std::vector<uint64_t> numbers;
    for (const StoredRecord& record : records)
      for (uint64_t number = 1; number <= 6; ++number)
        if (record.info.key.name == numbered_name(number)) numbers.push_back(number);
    return numbers;
  };
  EXPECT_THAT(numbers_of(must(store->children(numbered_name(101), RecordKind::Mark))),
              ElementsAre(3, 1));
  EXPECT_THAT(numbers_of(must(store->children(numbered_name(100), RecordKind::Mark))),
              ElementsAre(4, 2));
  EXPECT_THAT(numbers_of(must(store->children(numbered_name(100), RecordKind::Span))), IsEmpty())
      << "part 1 is no child of its own";
  EXPECT_THAT(numbers_of(must(store->owned_by(numbered_name(200), RecordKind::Mark))),
              ElementsAre(3, 2, 1));
  EXPECT_THAT(numbers_of(must(store->owned_by(numbered_name(201), RecordKind::Span))),
              ElementsAre(6, 5));
  const RecordKey used[] = {numbered(1)};
  must(store->touch(used));
  EXPECT_THAT(numbers_of(must(store->owned_by(numbered_name(200), RecordKind::Mark))),
              ElementsAre(1, 3, 2));
}

TEST_F(StoreFolder, WalksAllRecordsFromTheLastUsedOn) {
  auto store = open();
  for (uint64_t number = 0; number < 5; ++number) write(*store, {record_of(number, 10)});
  const RecordKey used[] = {numbered(2)};
  must(store->touch(used));
  std::vector<RecordKey> seen;
  must(store->for_each([&](const StoredRecord& record) {
    seen.push_back(record.info.key);
    const RecordKey gone[] = {numbered(1)};
    must(store->remove(gone));  // no lock is held here
    return seen.size() < 4;
  }));
  EXPECT_THAT(seen, ElementsAre(numbered(2), numbered(4), numbered(3), numbered(0)));
  seen.clear();
  must(store->for_each([&](const StoredRecord& record) {
    seen.push_back(record.info.key);
    return false;
  }));
  EXPECT_THAT(seen, SizeIs(1));
}

// --- the budget

constexpr uint64_t kSize = 4096 + 8192;  // of what follows, on the disk

NewRecord unit(uint64_t number, const Digest& parent = {}) {
  NewRecord unit = record_of(number, 8192, parent);
  unit.info.tokens.resize(3);
  return unit;
}

TEST_F(StoreFolder, EvictsTheLeastRecentlyUsedFirst) {
  auto store = open(4 * kSize);
  for (uint64_t number = 0; number < 4; ++number) write(*store, {unit(number)});
  const RecordKey used[] = {numbered(0)};
  must(store->touch(used));
  write(*store, {unit(4)});
  EXPECT_THAT(found(*store, 10), ElementsAre(0, 2, 3, 4));
  write(*store, {unit(5), unit(6)});
  EXPECT_THAT(found(*store, 10), ElementsAre(0, 4, 5, 6));
  EXPECT_EQ(must(store->use()).bytes, 4 * kSize);
  EXPECT_EQ(must(store->use()).evicted, 3u);
  expect_sound(*store);
}

TEST_F(StoreFolder, EvictsChainsFromTheirEnds) {
  auto store = open(6 * kSize);
  // 0 - 1 - 2 - 3 and 1 - 4 - 5
  for (auto [number, parent] : {std::pair{0, 99}, {1, 0}, {2, 1}, {3, 2}, {4, 1}, {5, 4}})
    write(*store,
          {unit(static_cast<uint64_t>(number), numbered_name(static_cast<uint64_t>(parent)))});
  const RecordKey used[] = {numbered(3)};
  must(store->touch(used));
  write(*store, {unit(10)});
  EXPECT_THAT(found(*store, 12), ElementsAre(0, 1, 2, 3, 4, 10)) << "5 is the oldest leaf";
  write(*store, {unit(11)});
  EXPECT_THAT(found(*store, 12), ElementsAre(0, 1, 2, 3, 10, 11)) << "4 became one";
  write(*store, {unit(12)});
  EXPECT_THAT(found(*store, 13), ElementsAre(0, 1, 2, 10, 11, 12))
      << "3 was used before 10: the whole chain was";
  write(*store, {unit(13)});
  EXPECT_THAT(found(*store, 14), ElementsAre(0, 1, 10, 11, 12, 13)) << "2 as recent as 3 was";
}

TEST_F(StoreFolder, ARemovedChildLeavesItsTimeOfUseToItsParent) {
  auto store = open(4 * kSize);
  write(*store, {unit(0)});
  write(*store, {unit(1, numbered_name(0))});
  write(*store, {unit(2)});
  const RecordKey child[] = {numbered(1)};
  must(store->touch(child));
  must(store->remove(child));
  write(*store, {unit(3), unit(4), unit(5)});
  EXPECT_THAT(found(*store, 10), ElementsAre(0, 3, 4, 5));
}

TEST_F(StoreFolder, EvictsAllPartsOfANameTogether) {
  auto store = open(1 << 20);
  for (uint64_t number = 0; number < 3; ++number)
    write(*store, {record(number, 0), record(number, 1), record(number, 2)});
  const RecordKey used[] = {numbered(0, 1)};
  must(store->touch(used));
  must(store->set_max_bytes(must(store->use()).bytes - 1));
  must(store->gc());
  for (uint32_t part = 0; part < 3; ++part) {
    EXPECT_EQ(state_of(*store, numbered(0, part)), "right");
    EXPECT_EQ(state_of(*store, numbered(1, part)), "gone");
    EXPECT_EQ(state_of(*store, numbered(2, part)), "right");
  }
}

TEST_F(StoreFolder, NeverEvictsWhatTheCallWroteOrFoundThere) {
  auto store = open(4 * kSize);
  for (uint64_t number = 0; number < 4; ++number) write(*store, {unit(number)});
  write(*store, {unit(0), unit(7), unit(8), unit(1)});
  EXPECT_THAT(found(*store, 10), ElementsAre(0, 1, 7, 8));
}

TEST_F(StoreFolder, RefusesMoreThanItMayHold) {
  auto store = open(4 * kSize);
  write(*store, {unit(0)});
  const auto refused = store->write(std::vector{record_of(1, 5 * kSize)});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::NoSpace);
  EXPECT_THAT(refused.error().message, HasSubstr("at most 49152"));
  EXPECT_EQ(store->write(std::vector{unit(1), unit(2), unit(3), unit(4), unit(5)}).error().code,
            Code::NoSpace);
  EXPECT_THAT(found(*store, 10), ElementsAre(0));
}

TEST_F(StoreFolder, RemembersTheBudgetItWasGiven) {
  {
    const auto fresh = must(Store::open(path_));
    EXPECT_EQ(must(fresh->use()).max_bytes, uint64_t{20} << 30);
  }
  { const auto given = open(123456); }
  auto store = must(Store::open(path_));
  EXPECT_EQ(must(store->use()).max_bytes, 123456u);
  must(store->set_max_bytes(654321));
  store = must(Store::open(path_));
  EXPECT_EQ(must(store->use()).max_bytes, 654321u);
}

TEST_F(StoreFolder, ASmallerBudgetHoldsFromTheNextWriteOrGcOn) {
  auto store = open();
  for (uint64_t number = 0; number < 40; ++number) write(*store, {unit(number)});
  must(store->set_max_bytes(10 * kSize));
  EXPECT_EQ(must(store->use()).records, 40u);
  write(*store, {unit(40)});
  EXPECT_EQ(must(store->use()).records, 10u);
  must(store->set_max_bytes(3 * kSize));
  EXPECT_EQ(must(store->gc()), 7 * kSize + 0u) << "what was evicted is given back";
  EXPECT_THAT(found(*store, 50), ElementsAre(38, 39, 40));
  must(store->set_max_bytes(0));
  must(store->gc());
  EXPECT_EQ(must(store->use()).records, 0u);
}

TEST_F(StoreFolder, GivesTheBytesOfWhatIsGoneBackToTheDisk) {
  auto store = open(20 * kSize);
  for (uint64_t number = 0; number < 120; ++number) write(*store, {unit(number)});
  const StoreUse use = must(store->use());
  EXPECT_EQ(use.records, 20u);
  EXPECT_LE(use.allocated_bytes, 20 * kSize + 256 * kKiB) << "and one open segment";
  EXPECT_LE(use.segments, 3u);
  store.reset();
  EXPECT_EQ(must(open()->use()).allocated_bytes, 20 * kSize) << "closed: not even that";
}

TEST_F(StoreFolder, RemovesNamesWithAllThatHangsBelow) {
  auto store = open();
  for (auto [number, parent] : {std::pair{0, 99}, {1, 0}, {2, 1}, {3, 2}, {4, 1}, {5, 99}})
    write(*store,
          {unit(static_cast<uint64_t>(number), numbered_name(static_cast<uint64_t>(parent)))});
  const RecordKey gone[] = {numbered(1), numbered(77)};
  EXPECT_EQ(must(store->remove(gone)), 4 * kSize);
  EXPECT_THAT(found(*store, 10), ElementsAre(0, 5));
  EXPECT_EQ(must(store->remove(gone)), 0u);
  expect_sound(*store);
  write(*store, {unit(1, numbered_name(0))});
  EXPECT_EQ(state_of(*store, numbered(1)), "right") << "written again";
}

TEST_F(StoreFolder, GcRemovesWhatADeadProcessLeftWithoutARow) {
  {
    auto store = open();
    write(*store, {unit(0), unit(1)});
  }
  const std::string path = segment();
  {
    auto file = must(posix_fs().open_update(path));  // bytes behind the last row
    must(file->write_at(must(file->size()), std::vector<std::byte>(100'000, std::byte{7})));
    auto other = must(posix_fs().create(path_ + "/segments/0123456789abcdef.segment"));
    must(other->allocate(0, 1 << 20));
    auto half = must(posix_fs().create(path_ + "/segments/0123456789abcde0.segment.new"));
    auto foreign = must(posix_fs().create(path_ + "/segments/README"));
  }
  ASSERT_TRUE(posix_fs().exists(path));
  auto store = open();
  must(store->gc());
  EXPECT_THAT(segments(), ElementsAre(file_name_of(path), "README"));
  EXPECT_EQ(must(store->use()).segments, 1u);
  EXPECT_THAT(found(*store, 10), ElementsAre(0, 1));
  expect_sound(*store);
}

// --- several on one folder

TEST_F(StoreFolder, TwoOfOneProcessShareEverything) {
  auto a = open(10 * kSize), b = open(10 * kSize);
  for (uint64_t number = 0; number < 10; ++number) write(number % 2 ? *a : *b, {unit(number)});
  EXPECT_EQ(found(*a, 10).size(), 10u);
  EXPECT_EQ(found(*b, 10).size(), 10u);
  for (uint64_t number = 0; number < 10; ++number)
    EXPECT_EQ(state_of(number % 2 ? *b : *a, numbered(number)), "right");
  const StoredRecord stale = *must(b->find(numbered(0)));
  write(*a, {unit(10)});
  AlignedBuffer buffer;
  EXPECT_EQ(b->read(stale, buffer).error().code, Code::NotFound) << "evicted by the other one";
  must(a->gc());
  must(b->gc());
  EXPECT_EQ(segments().size(), 2u) << "nobody takes the open segment of another";
  expect_sound(*a);
  expect_sound(*b);
}

TEST_F(StoreFolder, AStaleRecordIsAMissWhenItsNameWasWrittenAgain) {
  auto store = open();
  write(*store, {unit(0)});
  const StoredRecord stale = *must(store->find(numbered(0)));
  const RecordKey gone[] = {numbered(0)};
  must(store->remove(gone));
  write(*store, {unit(0)});
  AlignedBuffer buffer;
  EXPECT_EQ(store->read(stale, buffer).error().code, Code::NotFound);
  EXPECT_EQ(state_of(*store, numbered(0)), "right");
}

// --- what must not be believed

TEST_F(StoreFolder, SetsARecordWithWrongBytesAsideAndTakesItAgain) {
  auto store = open();
  write(*store, {unit(0), unit(1)});
  must(must(posix_fs().open_update(segment()))->write_at(5000, std::as_bytes(std::span("damage"))));
  const StoredRecord damaged = *must(store->find(numbered(0)));
  AlignedBuffer buffer;
  const auto read = store->read(damaged, buffer);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, Code::Corrupt);
  EXPECT_THAT(read.error().message, AllOf(HasSubstr(segment()), HasSubstr("checksum")));
  EXPECT_EQ(store->read(damaged, buffer).error().code, Code::NotFound) << "never served again";
  EXPECT_EQ(state_of(*store, numbered(1)), "right");
  EXPECT_EQ(must(store->use()).set_aside, 1u);
  write(*store, {unit(0)});
  EXPECT_EQ(state_of(*store, numbered(0)), "right");
  EXPECT_EQ(must(store->gc()), kSize);
  EXPECT_EQ(must(store->use()).set_aside, 0u);
  expect_sound(*store);
}

TEST_F(StoreFolder, WhatIsSetAsideCountsAndGoesFirst) {
  auto store = open(3 * kSize);
  write(*store, {unit(0), unit(1), unit(2)});
  must(must(posix_fs().open_update(segment()))
           ->write_at(kSize + 5000, std::as_bytes(std::span("damage"))));
  EXPECT_EQ(state_of(*store, numbered(1)), "corrupt");
  EXPECT_EQ(must(store->use()).allocated_bytes, 256 * kKiB);
  write(*store, {unit(3)});
  EXPECT_THAT(found(*store, 10), ElementsAre(0, 2, 3));
  EXPECT_EQ(must(store->use()).set_aside, 0u);
}

TEST_F(StoreFolder, VanishedCutAndReplacedSegmentsAreMisses) {
  for (const std::string what : {"removed", "empty", "short", "folder"}) {
    SCOPED_TRACE(what);
    const std::string path = folder_ / what;
    auto store = must(Store::open(path, {.segment_bytes = 256 * kKiB}));
    write(*store, {unit(0)});
    const std::string file = path + "/segments/" + must(posix_fs().list(path + "/segments"))[0];
    if (what == "removed" || what == "folder") must(posix_fs().remove(file));
    if (what == "folder") must(posix_fs().make_folder(file));
    if (what == "empty") must(must(posix_fs().open_update(file))->set_size(0));
    if (what == "short") must(must(posix_fs().open_update(file))->set_size(kSize - 1));
    EXPECT_EQ(state_of(*store, numbered(0)), "corrupt");
    EXPECT_EQ(state_of(*store, numbered(0)), "gone");
    write(*store, {unit(0), unit(1)});
    if (what == "empty" || what == "short") {
      EXPECT_EQ(state_of(*store, numbered(0)), "right");
    }
  }
}

TEST_F(StoreFolder, RefusesANewerIndexAndWhatIsNone) {
  { auto store = open(); }
  const std::string index = path_ + "/index.sqlite";
  const auto change = [&](uint64_t at, std::string_view bytes) {
    must(must(posix_fs().open_update(index))->write_at(at, std::as_bytes(std::span(bytes))));
  };
  change(60, std::string_view("\0\0\0\2", 4));  // the version, as SQLite keeps it
  EXPECT_EQ(Store::open(path_).error().code, Code::Unsupported);
  change(60, std::string_view("\0\0\0\1", 4));
  { auto store = open(); }
  change(0, "not a database");
  const auto opened = Store::open(path_);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::Corrupt);
  EXPECT_THAT(opened.error().message, HasSubstr(index));
}

TEST_F(StoreFolder, RefusesRecordsWithoutANameOrBelowThemselves) {
  auto store = open();
  RecordInfo nameless = numbered_info(0), looped = numbered_info(0, 0, numbered_name(0));
  nameless.key.name = {};
  EXPECT_THROW((void)store->write(std::vector{filled(nameless)}), ContractError);
  EXPECT_THROW((void)store->write(std::vector{filled(looped)}), ContractError);
}

TEST_F(StoreFolder, AFillThatThrowsLeavesNothing) {
  auto store = open();
  NewRecord throwing = record(1);
  throwing.fill = [](std::span<std::byte>) { throw std::runtime_error("no bytes"); };
  EXPECT_THROW((void)store->write(std::vector{record(0), throwing}), std::runtime_error);
  EXPECT_THAT(found(*store, 3), IsEmpty());
  EXPECT_THAT(segments(), IsEmpty());
  write(*store, {record(0)});
  EXPECT_EQ(state_of(*store, numbered(0)), "right");
  expect_sound(*store);
}

// --- rebuilding

TEST_F(StoreFolder, IsRebuiltFromItsSegmentsAlone) {
  std::vector<NewRecord> records;
  {
    auto store = open();
    for (uint64_t number = 0; number < 60; ++number) {
      records.push_back(record(number, number % 2 ? 1 : 0, numbered_name(number / 2 + 1000)));
      records.back().info.owner = numbered_name(number % 5);
      write(*store, {records.back()});
    }
    const RecordKey gone[] = {records[7].info.key, records[30].info.key};
    must(store->remove(gone));
  }
  for (const char* name : {"", "-wal", "-shm"})
    (void)posix_fs().remove(path_ + "/index.sqlite" + name);
  uint64_t last_done = 0, last_total = 0;
  const StoreReport report = must(Store::rebuild(path_, {}, [&](uint64_t done, uint64_t total) {
    EXPECT_LE(last_done, done);
    last_done = done;
    last_total = total;
  }));
  EXPECT_EQ(report.records, 58u);
  EXPECT_THAT(report.damage, IsEmpty());
  EXPECT_EQ(last_done, last_total);
  auto store = open();
  for (size_t i = 0; i < records.size(); ++i) {
    if (i == 7 || i == 30) {
      EXPECT_EQ(state_of(*store, records[i].info.key), "gone") << i;
      continue;
    }
    const auto found = must(store->find(records[i].info.key));
    ASSERT_TRUE(found) << i;
    EXPECT_EQ(found->info, records[i].info);
    EXPECT_EQ(state_of(*store, records[i].info.key), "right") << i;
  }
  expect_sound(*store);
  must(store->set_max_bytes(0));
  must(store->gc());
  EXPECT_EQ(must(store->use()).allocated_bytes, 0u);
}

TEST_F(StoreFolder, RebuildingReportsDamageAndIsRefusedWhileItIsInUse) {
  auto store = open();
  write(*store, {unit(0), unit(1), unit(2)});
  const auto refused = Store::rebuild(path_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::BadInput);
  store.reset();
  auto file = must(posix_fs().open_update(segment()));
  must(file->write_at(5000, std::as_bytes(std::span("damage"))));        // a payload
  must(file->write_at(kSize + 40, std::as_bytes(std::span("damage"))));  // a header
  const StoreReport report = must(Store::rebuild(path_));
  EXPECT_EQ(report.records, 1u);
  EXPECT_THAT(report.damage, ElementsAre(HasSubstr("at byte 0")));
  EXPECT_EQ(report.orphaned_bytes, 2 * kSize);
  store = open();
  EXPECT_THAT(found(*store, 3), ElementsAre(2));
  expect_sound(*store);
}

// A payload may be anything, a segment too.
TEST_F(StoreFolder, RebuildingTakesNoRecordOutOfAPayload) {
  auto store = open();
  write(*store, {unit(0)});
  std::vector<std::byte> copy(2 * kSize);
  must(must(posix_fs().open_read(segment()))->read_at(0, copy));
  RecordInfo info = numbered_info(1);
  info.payload_bytes = copy.size();
  write(*store, {{.info = info, .fill = [&](std::span<std::byte> out) {
                    std::ranges::copy(copy, out.begin());
                  }}});
  const RecordKey gone[] = {numbered(0)};
  must(store->remove(gone));
  store.reset();
  auto file = must(posix_fs().open_update(segment()));
  must(
      file->write_at(kSize + 40, std::as_bytes(std::span("damage"))));  // so that it is looked into
  EXPECT_EQ(must(Store::rebuild(path_)).records, 0u);
}

// Segments that keep only what was synced; the index keeps everything it was told.
TEST_F(StoreFolder, ARowIsTheProofThatBytesAndNamesAreSynced) {
  must(posix_fs().make_folder(path_));
  MemoryFs disk;
  {
    auto store = must(Store::open(path_, {.fs = &disk, .segment_bytes = 256 * kKiB}));
    for (uint64_t number = 0; number < 60; ++number) write(*store, {record(number)});
    disk.power_cut();
  }
  auto store = must(Store::open(path_, {.fs = &disk, .segment_bytes = 256 * kKiB}));
  for (uint64_t number = 0; number < 60; ++number)
    EXPECT_EQ(state_of(*store, numbered(number)), "right") << number;
  EXPECT_THAT(must(store->verify()).damage, IsEmpty());
}

}  // namespace
}  // namespace cairn::testing
