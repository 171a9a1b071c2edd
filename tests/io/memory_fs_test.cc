#include "cairn/io/memory_fs.h"

#include <gtest/gtest.h>

#include <random>

namespace cairn::testing {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::string text_of(File& file) {
  std::string text(file.size().value(), '\0');
  EXPECT_EQ(file.read_at(0, std::as_writable_bytes(std::span(text))).value(), text.size());
  return text;
}

std::string text_of(MemoryFs& fs, const std::string& path) {
  return text_of(*fs.open_read(path).value());
}

void save(MemoryFs& fs, const std::string& path, std::string_view text) {
  auto file = fs.create(path).value();
  ASSERT_TRUE(file->write_at(0, bytes_of(text)));
  ASSERT_TRUE(file->sync());
  ASSERT_TRUE(fs.sync_folder(folder_of(path)));
}

TEST(MemoryFs, APowerCutDropsUnsyncedBytes) {
  MemoryFs fs;
  save(fs, "d/a", "synced");
  auto file = fs.create("d/b").value();
  ASSERT_TRUE(file->write_at(0, bytes_of("not synced")));
  ASSERT_TRUE(fs.sync_folder("d"));
  fs.power_cut();
  EXPECT_EQ(text_of(fs, "d/a"), "synced");
  EXPECT_EQ(text_of(fs, "d/b"), "");
}

TEST(MemoryFs, APowerCutDropsUnsyncedNames) {
  MemoryFs fs;
  save(fs, "d/a", "old");
  auto file = fs.create("d/b").value();
  ASSERT_TRUE(file->write_at(0, bytes_of("new")));
  ASSERT_TRUE(file->sync());
  ASSERT_TRUE(fs.rename("d/b", "d/a"));
  EXPECT_EQ(text_of(fs, "d/a"), "new");
  ASSERT_TRUE(fs.sync_folder("e"));  // another folder
  fs.power_cut();
  EXPECT_EQ(text_of(fs, "d/a"), "old");
  EXPECT_FALSE(fs.exists("d/b"));
}

TEST(MemoryFs, ANameMaySurviveWithoutItsBytes) {
  MemoryFs fs;
  save(fs, "a", "old");
  auto file = fs.create("b").value();
  ASSERT_TRUE(file->write_at(0, bytes_of("new")));
  ASSERT_TRUE(fs.rename("b", "a"));
  fs.power_cut(UnsyncedNames::kept);
  EXPECT_EQ(text_of(fs, "a"), "");
}

TEST(MemoryFs, ARemovedFileReturnsUnlessTheFolderWasSynced) {
  MemoryFs fs;
  save(fs, "a", "x");
  ASSERT_TRUE(fs.remove("a"));
  fs.power_cut();
  EXPECT_EQ(text_of(fs, "a"), "x");
  ASSERT_TRUE(fs.remove("a"));
  ASSERT_TRUE(fs.sync_folder("."));
  fs.power_cut();
  EXPECT_FALSE(fs.exists("a"));
}

TEST(MemoryFs, AnOpenFileOutlivesItsName) {
  MemoryFs fs;
  save(fs, "a", "x");
  auto file = fs.open_read("a").value();
  ASSERT_TRUE(fs.remove("a"));
  EXPECT_EQ(text_of(*file), "x");
  EXPECT_EQ(fs.open_read("a").error().code, Code::NotFound);
}

TEST(MemoryFs, AFileIsAbandonedOnceItsMakerIsGone) {
  MemoryFs fs;
  auto file = fs.create("a").value();
  EXPECT_FALSE(fs.remove_abandoned("a"));
  EXPECT_FALSE(fs.is_abandoned("a"));
  file.reset();
  EXPECT_TRUE(fs.is_abandoned("a"));
  EXPECT_TRUE(fs.remove_abandoned("a"));
  EXPECT_FALSE(fs.exists("a"));
}

TEST(MemoryFs, MakesRoomPunchesHolesAndChangesSizesWithoutTouchingTheRest) {
  constexpr uint64_t kBlock = 4096;
  MemoryFs fs;
  save(fs, "a", std::string(4 * kBlock, 'x'));
  auto file = fs.open_update("a").value();
  ASSERT_TRUE(file->allocate(kBlock, 7 * kBlock));
  EXPECT_EQ(file->size().value(), 8 * kBlock);
  EXPECT_EQ(file->allocated_bytes().value(), 8 * kBlock);
  ASSERT_TRUE(file->punch_hole(kBlock, 2 * kBlock));
  EXPECT_EQ(file->allocated_bytes().value(), 6 * kBlock);
  ASSERT_TRUE(file->set_size(5 * kBlock));
  EXPECT_EQ(file->allocated_bytes().value(), 3 * kBlock);
  ASSERT_TRUE(file->write_at(2 * kBlock, bytes_of("y")));
  EXPECT_EQ(file->allocated_bytes().value(), 4 * kBlock);
  EXPECT_EQ(text_of(*file), std::string(kBlock, 'x') + std::string(kBlock, '\0') + "y" +
                                std::string(kBlock - 1, '\0') + std::string(kBlock, 'x') +
                                std::string(kBlock, '\0'));
}

TEST(MemoryFs, APowerCutUndoesHolesThatWereNotSynced) {
  MemoryFs fs;
  save(fs, "a", std::string(8192, 'x'));
  ASSERT_TRUE(fs.open_update("a").value()->punch_hole(0, 4096));
  fs.power_cut();
  EXPECT_EQ(text_of(fs, "a"), std::string(8192, 'x'));
  EXPECT_EQ(fs.open_read("a").value()->allocated_bytes().value(), 8192u);
}

// The obvious model: every path's contents now and after a power cut, with no sharing between the
// two.
struct Model {
  struct Contents {
    std::string now, synced;
  };
  std::map<std::string, int> names, synced_names;
  std::map<int, Contents> files;
  int next = 0;

  void power_cut() {
    for (auto& [id, file] : files) file.now = file.synced;
    names = synced_names;
  }
};

class Story {
 public:
  explicit Story(uint64_t seed) : random_(seed) {}

  void step() {
    const std::string path = any_path();
    switch (random_() % 8) {
      case 0:
        return create(path);
      case 1:
      case 2:
        return write(path);
      case 3:
        return sync(path);
      case 4:
        return rename(path, any_path());
      case 5:
        return remove(path);
      case 6:
        return sync_folder(folder_of(path));
      case 7:
        if (random_() % 4 == 0) power_cut();
    }
  }

  void expect_agreement() {
    for (const std::string folder : {"d", "e"}) {
      std::vector<std::string> expected;
      for (const auto& [path, id] : model_.names)
        if (folder_of(path) == folder) expected.push_back(file_name_of(path));
      ASSERT_EQ(fs_.list(folder).value(), expected);
    }
    for (const auto& [path, id] : model_.names)
      ASSERT_EQ(text_of(fs_, path), model_.files[id].now) << path;
  }

 private:
  std::string any_path() {
    static const std::array<std::string, 5> paths = {"d/a", "d/b", "d/c", "e/a", "e/b"};
    return paths[random_() % paths.size()];
  }
  void create(const std::string& path) {
    auto file = fs_.create(path);
    ASSERT_EQ(file.has_value(), !model_.names.contains(path));
    if (!file) return;
    model_.names[path] = model_.next++;
    makers_[path] = std::move(*file);
  }
  // Through the handle that made the file, as long as that is the file of this name.
  void write(const std::string& path) {
    if (!makers_.contains(path)) return;
    const uint64_t offset = random_() % 20;
    const std::string text(random_() % 10, static_cast<char>('a' + random_() % 26));
    ASSERT_TRUE(makers_[path]->write_at(offset, bytes_of(text)));
    std::string& now = model_.files[model_.names[path]].now;
    now.resize(std::max(now.size(), offset + text.size()), '\0');
    now.replace(offset, text.size(), text);
  }
  void sync(const std::string& path) {
    if (!makers_.contains(path)) return;
    ASSERT_TRUE(makers_[path]->sync());
    auto& file = model_.files[model_.names[path]];
    file.synced = file.now;
  }
  void rename(const std::string& from, const std::string& to) {
    if (from == to) return;
    ASSERT_EQ(fs_.rename(from, to).has_value(), model_.names.contains(from));
    if (!model_.names.contains(from)) return;
    model_.names[to] = model_.names[from];
    model_.names.erase(from);
    makers_.erase(to);
    if (auto maker = makers_.extract(from)) {
      maker.key() = to;
      makers_.insert(std::move(maker));
    }
  }
  void remove(const std::string& path) {
    ASSERT_EQ(fs_.remove(path).has_value(), model_.names.erase(path) == 1);
    makers_.erase(path);
  }
  void sync_folder(const std::string& folder) {
    ASSERT_TRUE(fs_.sync_folder(folder));
    std::erase_if(model_.synced_names,
                  [&](const auto& name) { return folder_of(name.first) == folder; });
    for (const auto& name : model_.names)
      if (folder_of(name.first) == folder) model_.synced_names.insert(name);
  }
  void power_cut() {
    fs_.power_cut();
    model_.power_cut();
    makers_.clear();
  }

  std::mt19937_64 random_;
  MemoryFs fs_;
  Model model_;
  std::map<std::string, std::unique_ptr<File>> makers_;  // by the name the file has now
};

TEST(MemoryFs, AgreesWithAPlainModelUnderRandomCalls) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Story story(seed);
    for (int i = 0; i < 150; ++i) {
      story.step();
      if (::testing::Test::HasFatalFailure()) return;
    }
    story.expect_agreement();
    if (::testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace cairn::testing
