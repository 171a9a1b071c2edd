// What goes wrong below a store: calls that fail, a full disk, damaged files, hostile rows. Never a
// wrong byte, and nothing lost for good.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <thread>

#include "cairn/io/faulty_fs.h"
#include "cairn/store/sqlite.h"
#include "cairn/store/store.h"
#include "tests/support/must.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/stored.h"

namespace cairn::testing {
namespace {

using ::testing::AnyOf;
using ::testing::IsEmpty;

constexpr uint64_t kSegmentBytes = 128 << 10;

// Where syncing costs nothing, for the many stores of these tests.
std::filesystem::path fast_folder() {
  const std::filesystem::path memory = "/dev/shm";
  return std::filesystem::is_directory(memory) ? memory : std::filesystem::temp_directory_path();
}

std::string state_of(Store& store, const RecordInfo& info) {
  const auto found = store.find(info.key);
  if (!found) return std::string(name_of(found.error().code));
  if (!*found) return "gone";
  AlignedBuffer buffer;
  const auto bytes = store.read(**found, buffer);
  if (!bytes) return std::string(name_of(bytes.error().code));
  return (*found)->info == info && is_filled_right(info.key, *bytes) ? "right" : "wrong";
}

class StoreFaults : public ::testing::Test {
 protected:
  std::unique_ptr<Store> open(FileSystem& fs = posix_fs(), uint64_t max_bytes = UINT64_MAX) {
    return must(
        Store::open(path_, {.fs = &fs, .max_bytes = max_bytes, .segment_bytes = kSegmentBytes}));
  }
  std::string segment() const {
    return path_ + "/segments/" + must(posix_fs().list(path_ + "/segments")).at(0);
  }

  const ScratchFolder folder_{fast_folder()};
  const std::string path_ = folder_ / "store";
};

// --- calls that fail

// What a process does in a day: old records from before, new ones over several segments, eviction,
// removal, collection. Every outcome is checked at once.
class Day {
 public:
  static constexpr uint64_t kOld = 6, kAll = 22;
  static constexpr uint64_t kMaxBytes = 300 << 10;

  static RecordInfo info(uint64_t number) {
    RecordInfo info = numbered_info(number, 0, numbered_name(number - 1));
    info.payload_bytes = 20'000 + number;
    if (number % 5 == 0) info.parent = numbered_name(1000);
    return info;
  }

  static void before(Store& store) {
    for (uint64_t number = 1; number <= kOld; ++number)
      must(store.write(std::vector{filled(info(number))}));
  }

  static void happens(Store& store) {
    for (uint64_t first = kOld + 1; first < kAll; first += 4) {
      std::vector<NewRecord> records;
      for (uint64_t number = first; number < first + 4; ++number)
        records.push_back(filled(info(number)));
      const bool is_written = store.write(records).has_value();
      for (const NewRecord& record : records)
        ASSERT_EQ(must(store.contains(record.info.key)), is_written);
    }
    const RecordKey gone[] = {numbered(2)};
    (void)store.remove(gone);
    ASSERT_FALSE(must(store.contains(numbered(2))))
        << "whether its bytes could be given back or not";
    for (uint64_t number = 1; number < kAll; ++number)
      ASSERT_THAT(state_of(store, info(number)),
                  AnyOf("right", "gone", "i/o error", "no space", "unsupported"));
    (void)store.gc();
    (void)store.sync();
    (void)store.verify();
  }
};

TEST_F(StoreFaults, NoFailingCallLosesARecordOrSpace) {
  Day::before(*open());
  FaultyFs sound(posix_fs());
  {
    const auto store = open(sound, Day::kMaxBytes);
    Day::happens(*store);
  }
  ASSERT_GT(sound.calls(), 60u);
  for (uint64_t call = 1; call <= sound.calls(); ++call)
    for (const auto& [fault, code] : {std::pair{Fault::once, Code::Io},
                                      {Fault::once, Code::NoSpace},
                                      {Fault::once, Code::Unsupported},
                                      {Fault::from_then_on, Code::Io}}) {
      SCOPED_TRACE(::testing::Message() << "call " << call << ", " << name_of(code)
                                        << (fault == Fault::once ? "" : ", from then on"));
      std::filesystem::remove_all(path_);
      Day::before(*open());
      {
        FaultyFs fs(posix_fs());
        fs.fail_call(call, fault, code);
        const auto store = Store::open(
            path_, {.fs = &fs, .max_bytes = Day::kMaxBytes, .segment_bytes = kSegmentBytes});
        if (store) Day::happens(**store);
        if (HasFatalFailure()) return;
      }
      const auto store = open();
      ASSERT_THAT(must(store->verify()).damage, IsEmpty());
      for (uint64_t number = 1; number < Day::kAll; ++number)
        ASSERT_THAT(state_of(*store, Day::info(number)), AnyOf("right", "gone"));
      must(store->gc());
      const StoreUse use = must(store->use());
      ASSERT_EQ(use.allocated_bytes, use.bytes) << "space is lost";
      ASSERT_TRUE(store->write(std::vector{filled(Day::info(90))}));
    }
}

TEST_F(StoreFaults, ADiskThatTakesNoMoreIsNoSpaceAndChangesNothing) {
  for (uint64_t limit = 0; limit < 200'000; limit += 10'007) {
    SCOPED_TRACE(limit);
    std::filesystem::remove_all(path_);
    Day::before(*open());
    FaultyFs fs(posix_fs());
    fs.limit_bytes(limit);
    const auto store = open(fs);
    const uint64_t bytes = must(store->use()).bytes;
    std::vector<NewRecord> records;
    for (uint64_t number = 10; number < 19; ++number) records.push_back(filled(Day::info(number)));
    const auto written = store->write(records);
    ASSERT_FALSE(written);
    EXPECT_EQ(written.error().code, Code::NoSpace);
    EXPECT_EQ(must(store->use()).bytes, bytes);
    EXPECT_EQ(must(store->use()).allocated_bytes, bytes)
        << "half-written segments are gone at once";
    fs.limit_bytes(UINT64_MAX);
    ASSERT_TRUE(store->write(records));
    for (const NewRecord& record : records) EXPECT_EQ(state_of(*store, record.info), "right");
  }
}

TEST_F(StoreFaults, WithoutHolesTheBytesComeBackWithTheirSegmentAndNoRebuildRaisesTheDead) {
  FaultyFs fs(posix_fs());
  fs.refuse_holes();
  auto store = open(fs);
  for (uint64_t number = 1; number < 20; ++number)
    must(store->write(std::vector{filled(Day::info(number))}));
  const StoreUse full = must(store->use());
  ASSERT_GT(full.segments, 2u);
  EXPECT_LT(full.allocated_bytes, full.bytes + kSegmentBytes);
  const RecordKey gone[] = {numbered(19)};
  must(store->remove(gone));
  EXPECT_EQ(must(store->use()).allocated_bytes, full.allocated_bytes);
  store.reset();
  must(Store::rebuild(path_, {.fs = &fs}));
  store = open(fs);
  EXPECT_FALSE(must(store->contains(numbered(19))));
  for (uint64_t number = 1; number < 19; ++number)
    EXPECT_EQ(state_of(*store, Day::info(number)), "right");
  must(store->set_max_bytes(0));
  must(store->gc());
  EXPECT_EQ(must(store->use()).allocated_bytes, 0u);
}

// A real file system of 4 MiB, and something else that fills it more or less.
class FullDisk : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::mount("cairn-test", disk_.c_str(), "tmpfs", 0, "size=4m,mode=0700") != 0)
      GTEST_SKIP() << "a small file system cannot be mounted here (root is needed): "
                   << std::generic_category().message(errno);
    is_mounted_ = true;
  }
  void TearDown() override {
    if (!is_mounted_) return;
    EXPECT_EQ(::umount2(disk_.c_str(), MNT_DETACH), 0);
  }

  // Takes all but `left` bytes of the disk.
  std::unique_ptr<File> hog(uint64_t left) {
    const auto space = std::filesystem::space(disk_);
    auto file = must(posix_fs().create(disk_ + "/hog"));
    if (space.available > left) must(file->allocate(0, space.available - left));
    return file;
  }

  const ScratchFolder folder_;
  const std::string disk_ = folder_.path();
  bool is_mounted_ = false;
};

TEST_F(FullDisk, RefusesWritesKeepsWhatItHasAndGoesOnWhenThereIsSpace) {
  auto store = must(Store::open(disk_ + "/store", {.segment_bytes = 256 << 10}));
  std::vector<RecordInfo> written;
  uint64_t number = 0, refusals = 0;
  for (uint64_t left = 0; left < 200'000; left += 4096) {
    SCOPED_TRACE(left);
    std::unique_ptr<File> rest = hog(left);
    for (int i = 0; i < 3; ++i) {
      const std::vector<NewRecord> records = {record_of(++number, 9000), record_of(++number, 3000)};
      const auto result = store->write(records);
      refusals += !result;
      if (result)
        for (const NewRecord& record : records) written.push_back(record.info);
      else
        ASSERT_EQ(result.error().code, Code::NoSpace) << result.error().message;
      for (const NewRecord& record : records)
        ASSERT_EQ(must(store->contains(record.info.key)), result.has_value());
    }
    rest.reset();
    must(posix_fs().remove(disk_ + "/hog"));
    if (written.size() > 40) {  // make room
      std::vector<RecordKey> keys;
      for (const RecordInfo& info : written) {
        ASSERT_EQ(state_of(*store, info), "right");
        keys.push_back(info.key);
      }
      must(store->remove(keys));
      written.clear();
    }
    const std::vector<NewRecord> more = {record_of(++number, 9000)};
    const auto result = store->write(more);
    ASSERT_TRUE(result) << "space is back, but " << result.error().message;
    written.push_back(more[0].info);
  }
  EXPECT_GT(refusals, 30u);
  must(store->sync());
  EXPECT_THAT(must(store->verify()).damage, IsEmpty());
  store = must(Store::open(disk_ + "/store"));
  for (const RecordInfo& info : written) EXPECT_EQ(state_of(*store, info), "right");
}

// --- bits that flip

class FlippedBits : public StoreFaults {
 protected:
  FlippedBits() {
    const auto store = open();
    for (uint64_t number = 1; number <= 3; ++number) {
      RecordInfo info = numbered_info(number, 0, numbered_name(number - 1));
      info.payload_bytes = 100 * number;
      info.owner = numbered_name(50);
      must(store->write(std::vector{filled(info)}));
      infos_.push_back(info);
    }
    must(store->sync());
  }

  void flip(const std::string& path, uint64_t byte, int bit) {
    auto file = must(posix_fs().open_update(path));
    std::byte value[1];
    must(file->read_at(byte, value));
    value[0] ^= std::byte{1} << bit;
    must(file->write_at(byte, value));
  }

  std::vector<RecordInfo> infos_;
};

TEST_F(FlippedBits, OfARecordAreFoundWhereverTheyAre) {
  const std::string file = segment();
  const uint64_t size = must(must(posix_fs().open_read(file))->size());
  const std::string sound = folder_ / "sound";
  std::filesystem::copy(path_, sound, std::filesystem::copy_options::recursive);
  for (uint64_t byte = 0; byte < size; byte += byte < 200 ? 1 : 53) {
    SCOPED_TRACE(byte);
    std::filesystem::remove_all(path_);
    std::filesystem::copy(sound, path_, std::filesystem::copy_options::recursive);
    flip(file, byte, static_cast<int>(byte % 8));
    const auto store = open();
    for (uint64_t i = 0; i < infos_.size(); ++i)
      ASSERT_EQ(state_of(*store, infos_[i]), byte / 8192 == i ? "corrupt" : "right");
    ASSERT_EQ(state_of(*store, infos_[byte / 8192]), "gone");
    ASSERT_TRUE(store->write(std::vector{filled(infos_[byte / 8192])}));
    ASSERT_EQ(state_of(*store, infos_[byte / 8192]), "right");
  }
}

TEST_F(FlippedBits, OfARecordAreFoundByVerifyingAndByRebuilding) {
  const std::string file = segment();
  for (uint64_t byte = 0; byte < 2 * 4096; byte += 101) {
    SCOPED_TRACE(byte);
    flip(file, byte, 3);
    const StoreReport rebuilt = must(Store::rebuild(path_));
    ASSERT_EQ(rebuilt.records, 2u);
    ASSERT_EQ(rebuilt.damage.size(), byte < 4096 ? 0u : 1u);
    flip(file, byte, 3);
    ASSERT_EQ(must(Store::rebuild(path_)).records, 3u);
    flip(file, byte, 3);
    {
      const auto store = open();
      ASSERT_EQ(must(store->verify()).damage.size(), 1u);
      ASSERT_EQ(must(store->verify()).damage.size(), 0u) << "set aside";
    }
    flip(file, byte, 3);
    ASSERT_EQ(must(Store::rebuild(path_)).records, 3u) << "its bytes were kept";
  }
}

TEST_F(FlippedBits, OfTheIndexNeverMakeAWrongByte) {
  const std::string index = path_ + "/index.sqlite", sound = folder_ / "sound";
  std::filesystem::copy(path_, sound, std::filesystem::copy_options::recursive);
  const uint64_t size = must(must(posix_fs().open_read(index))->size());
  std::map<std::string, int> seen;
  for (uint64_t byte = 0; byte < size; byte += byte < 100 ? 1 : 41) {
    SCOPED_TRACE(byte);
    std::filesystem::remove_all(path_);
    std::filesystem::copy(sound, path_, std::filesystem::copy_options::recursive);
    flip(index, byte, static_cast<int>(byte / 41 % 8));
    {
      const auto store = Store::open(path_, {.segment_bytes = kSegmentBytes});
      if (!store) {
        ASSERT_THAT(store.error().code, AnyOf(Code::Corrupt, Code::Unsupported, Code::Io));
        ++seen["not opened"];
      } else {
        for (const RecordInfo& info : infos_) {
          const std::string state = state_of(**store, info);
          ++seen[state];
          ASSERT_NE(state, "wrong");
        }
        (void)(*store)->verify();
        (void)(*store)->write(std::vector{filled(infos_[0])});
        (void)(*store)->gc();
        for (const RecordInfo& info : infos_) ASSERT_NE(state_of(**store, info), "wrong");
      }
    }
    ASSERT_TRUE(Store::rebuild(path_)) << "whatever the index was";
    ASSERT_THAT(must(open()->verify()).damage, IsEmpty());
  }
  EXPECT_GT(seen["not opened"], 0);
  EXPECT_GT(seen["right"], 0);
  EXPECT_GT(seen["gone"] + seen["corrupt"], 0);
}

// --- rows that nobody wrote

TEST_F(StoreFaults, HostileRowsAreMisses) {
  const RecordInfo info = numbered_info(1);
  for (const std::string change : {"offset = 1",
                                   "offset = 4096",
                                   "offset = -4096",
                                   "offset = 1 << 40",
                                   "offset = 9223372036854771712",
                                   "segment = 5",
                                   "segment = -1",
                                   "stored_bytes = 0",
                                   "stored_bytes = -1",
                                   "stored_bytes = 1 << 60",
                                   "payload_bytes = payload_bytes + 1",
                                   "payload_bytes = 0",
                                   "payload_bytes = -1",
                                   "payload_bytes = 1 << 50, stored_bytes = (1 << 50) + 4096",
                                   "payload_bytes = 1 << 39, stored_bytes = (1 << 39) + 4096",
                                   "tokens = x'0102'",
                                   "tokens = x''",
                                   "tokens = zeroblob(4000)",
                                   "kind = 0",
                                   "kind = 77",
                                   "kind = 2",
                                   "part = -1",
                                   "part = 1 << 33",
                                   "name = x'00'",
                                   "name = zeroblob(32)",
                                   "parent = x'01'",
                                   "parent = zeroblob(31)",
                                   "owner = randomblob(32)",
                                   "length = length + 1",
                                   "length = -1"}) {
    SCOPED_TRACE(change);
    std::filesystem::remove_all(path_);
    const auto store = open();
    ASSERT_TRUE(store->write(std::vector{filled(info)}));
    {
      Database database = must(Database::open(path_ + "/index.sqlite"));
      must(database.execute("UPDATE records SET " + change));
    }
    std::vector<StoredRecord> seen;
    must(store->for_each([&](const StoredRecord& record) {
      seen.push_back(record);
      return true;
    }));
    AlignedBuffer buffer;
    for (const StoredRecord& record : seen) {
      const auto read = store->read(record, buffer);
      if (change.starts_with("parent")) continue;  // no name of 32 bytes: none, as it was
      ASSERT_FALSE(read);
      ASSERT_THAT(read.error().code, AnyOf(Code::Corrupt, Code::NotFound, Code::NoSpace));
    }
    (void)store->verify();
    must(store->gc());
    ASSERT_TRUE(store->write(std::vector{filled(info), record(2)}));
    ASSERT_EQ(state_of(*store, info), "right");
    ASSERT_EQ(state_of(*store, record(2).info), "right");
  }
}

// Between a reader's question and its read the record may go, row first, then bytes.
TEST_F(StoreFaults, AReaderThatLosesARaceWithEvictionHasAMiss) {
  const auto store = open(posix_fs(), 60'000);
  std::atomic<bool> is_over = false;
  std::atomic<uint64_t> hits = 0, misses = 0, others = 0;
  std::vector<std::thread> readers;
  for (uint64_t seed : {1, 2})
    readers.emplace_back([&, seed] {
      Random random(seed);
      while (!is_over) {
        const std::string state = state_of(*store, record_of(random.below(8), 9000).info);
        ++(state == "right" ? hits : state == "gone" || state == "not found" ? misses : others);
      }
    });
  for (uint64_t i = 0; i < 600; ++i)
    ASSERT_TRUE(store->write(std::vector{record_of(i * 5 % 8, 9000)}));
  is_over = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(others, 0u);
  EXPECT_EQ(must(store->use()).set_aside, 0u);
  EXPECT_GT(hits, 0u);
  EXPECT_GT(misses, 0u);
}

// A row that points at the bytes of another does not take them along when it goes.
TEST_F(StoreFaults, BytesThatTwoRowsClaimStayAsLongAsOneDoes) {
  const auto store = open();
  ASSERT_TRUE(store->write(std::vector{record_of(1, 5000), record_of(2, 5000)}));
  {
    Database database = must(Database::open(path_ + "/index.sqlite"));
    must(database.execute("UPDATE records SET offset = (SELECT min(offset) FROM records)"));
  }
  EXPECT_EQ(state_of(*store, record_of(2, 5000).info), "corrupt");
  must(store->gc());
  EXPECT_EQ(state_of(*store, record_of(1, 5000).info), "right");
}

}  // namespace
}  // namespace cairn::testing
