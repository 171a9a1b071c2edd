// Random programs against a plain model of a store, which knows exactly what must be found:
// eviction is a rule, not a guess.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "cairn/core/bytes.h"
#include "cairn/store/store.h"
#include "tests/support/must.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/stored.h"

namespace cairn::testing {
namespace {

using ::testing::IsEmpty;

constexpr uint64_t kNames = 60;  // the parent of n is n / 2: name 0 is nowhere
constexpr uint32_t kParts = 3;

RecordInfo info_of(uint64_t number, uint32_t part) {
  RecordInfo info = numbered_info(number, part, numbered_name(number / 2));
  info.kind = number % 7 == 0 ? RecordKind::Mark : RecordKind::Span;
  info.owner = numbered_name(1000 + number % 3);
  info.payload_bytes = (number * 977 + part * 4096) % 20'000;
  return info;
}

uint64_t bytes_of(uint64_t number, uint32_t part) {
  const RecordInfo info = info_of(number, part);
  return round_up(168 + 4 * info.tokens.size() + 8, 4096) + round_up(info.payload_bytes, 4096);
}

class Model {
 public:
  struct Name {
    std::map<uint32_t, uint64_t> parts;  // and when each was inserted
    uint64_t last_used = 0;
  };

  bool has(uint64_t number, uint32_t part) const {
    return names.contains(number) && names.at(number).parts.contains(part);
  }
  uint64_t bytes() const {
    uint64_t bytes = 0;
    for (const auto& [number, name] : names)
      for (const auto& part : name.parts) bytes += bytes_of(number, part.first);
    return bytes;
  }
  void write(const std::vector<std::pair<uint64_t, uint32_t>>& keys, uint64_t max_bytes) {
    ++clock;
    for (const auto& [number, part] : keys) {
      names[number].last_used = clock;
      if (!has(number, part)) names[number].parts[part] = ++row;
    }
    evict(max_bytes, clock);
  }
  void touch(uint64_t number) {
    ++clock;
    if (names.contains(number)) names[number].last_used = clock;
  }
  void remove(uint64_t number) {
    for (uint64_t child : {2 * number, 2 * number + 1})
      if (child > 0 && child < 2 * kNames) remove_below(child);
    erase(number);
  }
  void evict(uint64_t max_bytes, uint64_t before) {
    while (bytes() > max_bytes) {
      const auto victim = oldest_leaf(before);
      if (!victim) return;
      erase(*victim);
    }
  }

  std::map<uint64_t, Name> names;
  uint64_t clock = 0, row = 0;

 private:
  bool is_leaf(uint64_t number) const {
    return !names.contains(2 * number) && !names.contains(2 * number + 1);
  }
  std::optional<uint64_t> oldest_leaf(uint64_t before) const {
    std::optional<uint64_t> oldest;
    std::pair<uint64_t, uint64_t> oldest_age;
    for (const auto& [number, name] : names) {
      if (!is_leaf(number) || name.last_used >= before) continue;
      uint64_t first_row = UINT64_MAX;
      for (const auto& [part, inserted] : name.parts) first_row = std::min(first_row, inserted);
      const std::pair age(name.last_used, first_row);
      if (!oldest || age < oldest_age) oldest = number, oldest_age = age;
    }
    return oldest;
  }
  void remove_below(uint64_t number) {
    if (!names.contains(number)) return;  // what hangs below a name that is gone stays
    remove_below(2 * number);
    remove_below(2 * number + 1);
    erase(number);
  }
  void erase(uint64_t number) {
    const auto name = names.find(number);
    if (name == names.end()) return;
    const auto parent = names.find(number / 2);
    if (parent != names.end())
      parent->second.last_used = std::max(parent->second.last_used, name->second.last_used);
    names.erase(name);
  }
};

class StoreProgram {
 public:
  StoreProgram(uint64_t seed, const std::string& folder) : random_(seed), folder_(folder) {
    reopen();
  }

  void step() {
    switch (random_.below(12)) {
      case 0:
      case 1:
      case 2:
      case 3:
        return write();
      case 4:
      case 5:
      case 6:
        return read();
      case 7:
        return touch();
      case 8:
        return random_.one_in(3) ? remove() : ask();
      case 9:
        return random_.one_in(3) ? change_budget() : ask();
      case 10:
        return random_.one_in(4) ? reopen() : ask();
      default:
        return random_.one_in(5) ? collect() : ask();
    }
  }

  void expect_agreement() {
    uint64_t records = 0;
    for (uint64_t number = 1; number < kNames; ++number)
      for (uint32_t part = 0; part < kParts; ++part) {
        ASSERT_EQ(must(store_->contains(numbered(number, part))), model_.has(number, part))
            << "name " << number << ", part " << part;
        records += model_.has(number, part);
      }
    const StoreUse use = must(store_->use());
    ASSERT_EQ(use.records, records);
    ASSERT_EQ(use.bytes, model_.bytes());
    ASSERT_EQ(use.set_aside, 0u);
  }

  // And what a new index says, from the segments alone.
  void end() {
    expect_agreement();
    const StoreReport report = must(store_->verify());
    ASSERT_THAT(report.damage, IsEmpty());
    must(store_->gc());
    ASSERT_EQ(must(store_->verify()).orphaned_bytes, 0u);
    store_.reset();
    ASSERT_THAT(must(Store::rebuild(folder_)).damage, IsEmpty());
    reopen();
    expect_agreement();
  }

 private:
  uint64_t any() { return 1 + random_.below(kNames - 1); }

  void write() {
    std::vector<std::pair<uint64_t, uint32_t>> keys;
    std::vector<NewRecord> records;
    uint64_t bytes = 0;
    for (uint64_t count = 1 + random_.below(6); count > 0; --count) {
      keys.emplace_back(any(), random_.one_in(3) ? random_.below(kParts) : 0);
      records.push_back(filled(info_of(keys.back().first, keys.back().second)));
      bytes += bytes_of(keys.back().first, keys.back().second);
    }
    const auto written = store_->write(records);
    ASSERT_EQ(written.has_value(), bytes <= max_bytes_);
    if (written) model_.write(keys, max_bytes_);
  }
  void read() {
    const uint64_t number = any();
    const auto part = static_cast<uint32_t>(random_.below(kParts));
    const auto found = must(store_->find(numbered(number, part)));
    ASSERT_EQ(found.has_value(), model_.has(number, part));
    if (!found) return;
    ASSERT_EQ(found->info, info_of(number, part));
    ASSERT_EQ(found->stored_bytes, bytes_of(number, part));
    ASSERT_TRUE(is_filled_right(numbered(number, part), must(store_->read(*found, buffer_))));
  }
  void touch() {
    const uint64_t number = any();
    const RecordKey used[] = {numbered(number)};
    must(store_->touch(used));
    model_.touch(number);
  }
  void remove() {
    const uint64_t number = any();
    const RecordKey gone[] = {numbered(number)};
    const uint64_t before = model_.bytes();
    model_.remove(number);
    ASSERT_EQ(must(store_->remove(gone)), before - model_.bytes());
  }
  void change_budget() {
    max_bytes_ = 20'000 + random_.below(1'200'000);
    must(store_->set_max_bytes(max_bytes_));
  }
  void collect() {
    must(store_->gc());
    model_.evict(max_bytes_, UINT64_MAX);
  }
  void reopen() {
    store_.reset();
    store_ = must(Store::open(folder_, {.max_bytes = max_bytes_, .segment_bytes = 128 << 10}));
  }
  void ask() {
    const uint64_t parent = random_.below(kNames / 2);
    size_t expected = 0;
    for (uint64_t child : {2 * parent, 2 * parent + 1})
      expected += child > 0 && child % 7 != 0 && model_.has(child, 0);
    ASSERT_EQ(must(store_->children(numbered_name(parent), RecordKind::Span)).size(), expected);
    std::vector<RecordKey> path;
    for (uint64_t number = any(); number > 0; number /= 2)
      path.insert(path.begin(), numbered(number));
    const size_t prefix = must(store_->longest_prefix(path));
    ASSERT_TRUE(prefix == 0 || must(store_->contains(path[prefix - 1])));
    ASSERT_TRUE(prefix == path.size() || !must(store_->contains(path[prefix])));
  }

  Random random_;
  const std::string folder_;
  uint64_t max_bytes_ = 600'000;
  std::unique_ptr<Store> store_;
  Model model_;
  AlignedBuffer buffer_;
};

TEST(StorePrograms, AgreeWithAPlainModelOfEveryEviction) {
  const std::filesystem::path memory = "/dev/shm";  // where syncing costs nothing
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const ScratchFolder folder(
        std::filesystem::is_directory(memory) ? memory : std::filesystem::temp_directory_path());
    StoreProgram program(seed, folder / "store");
    for (int step = 0; step < 1000; ++step) {
      SCOPED_TRACE(::testing::Message() << "step " << step);
      program.step();
      if (step % 20 == 0) program.expect_agreement();
      if (::testing::Test::HasFatalFailure()) return;
    }
    program.end();
    if (::testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace cairn::testing
