#include "cairn/models/identity.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/models/gguf_file.h"
#include "tests/support/must.h"
#include "tests/support/scratch_folder.h"

namespace cairn {
namespace {

using testing::must;
using testing::read_bytes;
using testing::ScratchFolder;
using testing::write_bytes;

class Identity : public ::testing::Test {
 protected:
  Identity() { write_bytes(path_, "weights"); }
  Digest identity() {
    return file_identity(path_, must(MappedFile::open(path_)),
                         {posix_fs(), cache_folder_, min_bytes_});
  }
  // Puts another digest into the cache, to see whether it is believed.
  void forge(const std::string& cache) {
    std::string text = read_bytes(cache);
    text.replace(text.size() - 65, 64, hex(sha256("forged")));
    write_bytes(cache, text);
  }

  ScratchFolder folder_;
  std::string path_ = folder_ / "model.gguf";
  uint64_t min_bytes_ = 0;
  std::string beside_ = path_ + ".identity";
  std::string cache_folder_ = folder_ / "cache/cairn";
};

TEST_F(Identity, IsTheHashOfTheFileAndIsKeptBesideIt) {
  EXPECT_EQ(identity(), sha256("weights"));
  EXPECT_TRUE(std::filesystem::exists(beside_));
  EXPECT_EQ(identity(), sha256("weights"));
  forge(beside_);
  EXPECT_EQ(identity(), sha256("forged")) << "an unchanged file is not read again";
}

TEST_F(Identity, OfASmallFileIsNotKept) {
  min_bytes_ = 8;
  EXPECT_EQ(identity(), sha256("weights"));
  EXPECT_FALSE(std::filesystem::exists(beside_));
}

TEST_F(Identity, AChangedFileIsHashedAgain) {
  identity();
  write_bytes(path_, "other weights");
  EXPECT_EQ(identity(), sha256("other weights"));
}

TEST_F(Identity, AFileThatWasReplacedByOneOfTheSameSizeIsHashedAgain) {
  identity();
  write_bytes(folder_ / "new", "wEIGHTS");
  std::filesystem::rename(folder_ / "new", path_);
  EXPECT_EQ(identity(), sha256("wEIGHTS"));
}

TEST_F(Identity, ADamagedCacheIsIgnored) {
  identity();
  const std::string sound = read_bytes(beside_);
  for (size_t length = 0; length < sound.size(); ++length) {
    write_bytes(beside_, sound.substr(0, length));
    ASSERT_EQ(identity(), sha256("weights")) << "cut at " << length;
  }
}

TEST_F(Identity, GoesToTheOtherFolderWhereTheModelsOwnCannotBeWritten) {
  std::filesystem::create_directory(beside_);  // nothing can be renamed onto it
  EXPECT_EQ(identity(), sha256("weights"));
  const auto kept = must(posix_fs().list(cache_folder_));
  ASSERT_EQ(kept.size(), 1u);
  forge(cache_folder_ + "/" + kept.front());
  EXPECT_EQ(identity(), sha256("forged"));
}

TEST_F(Identity, DoesNotNeedACache) {
  std::filesystem::create_directory(beside_);
  cache_folder_.clear();
  EXPECT_EQ(identity(), sha256("weights"));
}

}  // namespace
}  // namespace cairn
