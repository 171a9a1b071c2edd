#include "cairn/io/posix_fs.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "cairn/io/aligned.h"
#include "tests/support/scratch_folder.h"

namespace cairn::testing {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

void write_file(const std::string& path, std::string_view text) {
  auto file = posix_fs().create(path).value();
  ASSERT_TRUE(file->write_at(0, bytes_of(text)));
}

std::string read_file(const std::string& path) {
  auto file = posix_fs().open_read(path).value();
  std::string text(file->size().value(), '\0');
  EXPECT_EQ(file->read_at(0, std::as_writable_bytes(std::span(text))).value(), text.size());
  return text;
}

Code code_of(const auto& result) { return result.error().code; }

TEST(PosixFs, ReadsBackWhatWasWrittenAtOffsets) {
  const ScratchFolder folder;
  auto file = posix_fs().create(folder / "a").value();
  ASSERT_TRUE(file->write_at(3, bytes_of("def")));
  ASSERT_TRUE(file->write_at(0, bytes_of("abc")));
  ASSERT_TRUE(file->sync());
  EXPECT_EQ(file->size().value(), 6u);
  EXPECT_EQ(read_file(folder / "a"), "abcdef");
}

TEST(PosixFs, ReadsFewerBytesOnlyAtTheEnd) {
  const ScratchFolder folder;
  write_file(folder / "a", "abcdef");
  auto file = posix_fs().open_read(folder / "a").value();
  std::array<std::byte, 4> out;
  EXPECT_EQ(file->read_at(0, out).value(), 4u);
  EXPECT_EQ(file->read_at(4, out).value(), 2u);
  EXPECT_EQ(file->read_at(6, out).value(), 0u);
  EXPECT_EQ(file->read_at(60, out).value(), 0u);
}

TEST(PosixFs, DirectReadsEndAtAnUnalignedEnd) {
  const ScratchFolder folder;
  std::string text(3 * kDirectAlignment + 17, 'x');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 31 + i / 4096);
  write_file(folder / "a", text);
  auto file = posix_fs().open_read(folder / "a", Access::direct).value();
  auto* raw = static_cast<std::byte*>(std::aligned_alloc(kDirectAlignment, 4 * kDirectAlignment));
  const std::span<std::byte> out(raw, 4 * kDirectAlignment);
  ASSERT_EQ(file->read_at(0, out).value(), text.size());
  EXPECT_EQ(std::memcmp(raw, text.data(), text.size()), 0);
  ASSERT_EQ(file->read_at(kDirectAlignment, out.first(kDirectAlignment)).value(), kDirectAlignment);
  EXPECT_EQ(std::memcmp(raw, text.data() + kDirectAlignment, kDirectAlignment), 0);
  std::free(raw);
}

TEST(PosixFs, DirectWritesReadBackLikeOthers) {
  const ScratchFolder folder;
  auto file = posix_fs().create(folder / "a", Access::direct).value();
  auto* raw = static_cast<std::byte*>(std::aligned_alloc(kDirectAlignment, 2 * kDirectAlignment));
  std::memset(raw, 'x', kDirectAlignment);
  std::memset(raw + kDirectAlignment, 'y', kDirectAlignment);
  ASSERT_TRUE(file->write_at(kDirectAlignment, {raw, 2 * kDirectAlignment}));
  ASSERT_TRUE(file->write_at(0, {raw, kDirectAlignment}));
  if (file->is_direct()) {
    EXPECT_THROW((void)file->write_at(0, {raw, 5}), ContractError);
  }
  std::free(raw);
  EXPECT_EQ(read_file(folder / "a"),
            std::string(2 * kDirectAlignment, 'x') + std::string(kDirectAlignment, 'y'));
}

TEST(PosixFs, MakesRoomPunchesHolesAndChangesSizesWithoutTouchingTheRest) {
  const ScratchFolder folder;
  constexpr uint64_t kBlock = kDirectAlignment;
  write_file(folder / "a", std::string(4 * kBlock, 'x'));
  auto file = posix_fs().open_update(folder / "a").value();
  ASSERT_TRUE(file->allocate(kBlock, 7 * kBlock));
  EXPECT_EQ(file->size().value(), 8 * kBlock);
  EXPECT_EQ(file->allocated_bytes().value(), 8 * kBlock);
  const auto punched = file->punch_hole(kBlock, 2 * kBlock);
  if (!punched && code_of(punched) == Code::Unsupported) GTEST_SKIP() << punched.error().message;
  ASSERT_TRUE(punched) << punched.error().message;
  EXPECT_EQ(file->size().value(), 8 * kBlock);
  EXPECT_EQ(file->allocated_bytes().value(), 6 * kBlock);
  ASSERT_TRUE(file->set_size(5 * kBlock));
  EXPECT_EQ(file->allocated_bytes().value(), 3 * kBlock);
  ASSERT_TRUE(file->write_at(2 * kBlock, bytes_of("y")));
  EXPECT_EQ(read_file(folder / "a"), std::string(kBlock, 'x') + std::string(kBlock, '\0') + "y" +
                                         std::string(kBlock - 1, '\0') + std::string(kBlock, 'x') +
                                         std::string(kBlock, '\0'));
  EXPECT_EQ(code_of(posix_fs().open_update(folder / "none")), Code::NotFound);
  EXPECT_EQ(code_of(posix_fs().open_update(folder.path())), Code::BadInput);
}

TEST(PosixFs, MakesFoldersPrivateAndNarrowsThoseThatAreThere) {
  const ScratchFolder folder;
  const auto mode = [&](const std::string& name) {
    struct stat status;
    EXPECT_EQ(::stat((folder / name).c_str(), &status), 0);
    return status.st_mode & 07777;
  };
  ASSERT_TRUE(posix_fs().make_folder(folder / "new"));
  EXPECT_EQ(mode("new"), 0700u);
  ASSERT_EQ(::mkdir((folder / "open").c_str(), 0777), 0);
  ASSERT_EQ(::chmod((folder / "open").c_str(), 0777), 0);
  ASSERT_TRUE(posix_fs().make_folder(folder / "open"));
  EXPECT_EQ(mode("open"), 0700u);
  write_file(folder / "a", "x");
  EXPECT_EQ(code_of(posix_fs().make_folder(folder / "a")), Code::BadInput);
  EXPECT_EQ(code_of(posix_fs().make_folder(folder / "no/b")), Code::NotFound);
}

TEST(PosixFs, CreatesPrivateFilesAndOnlyNewOnes) {
  const ScratchFolder folder;
  write_file(folder / "a", "x");
  struct stat status;
  ASSERT_EQ(::stat((folder / "a").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_EQ(code_of(posix_fs().create(folder / "a")), Code::BadInput);
}

TEST(PosixFs, SaysWhatIsWrongWithAPathAndNamesItFirst) {
  const ScratchFolder folder;
  const auto missing = posix_fs().open_read(folder / "none");
  EXPECT_EQ(code_of(missing), Code::NotFound);
  EXPECT_TRUE(missing.error().message.starts_with((folder / "none") + ": "))
      << missing.error().message;

  EXPECT_EQ(code_of(posix_fs().open_read(folder.path())), Code::BadInput);
  EXPECT_EQ(code_of(posix_fs().open_read(folder.path(), Access::direct)), Code::BadInput);
  EXPECT_EQ(code_of(posix_fs().open_read("/dev/null")), Code::BadInput);
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(code_of(posix_fs().open_read(folder / "pipe")), Code::BadInput);
  write_file(folder / "a", "x");
  EXPECT_EQ(code_of(posix_fs().create(folder / "a/b")), Code::BadInput);
  EXPECT_EQ(code_of(posix_fs().create(folder / "no/b")), Code::NotFound);
  EXPECT_EQ(code_of(posix_fs().rename(folder / "none", folder / "b")), Code::NotFound);
  ASSERT_EQ(::mkdir((folder / "inner").c_str(), 0700), 0);
  EXPECT_EQ(code_of(posix_fs().rename(folder / "a", folder / "inner")), Code::BadInput);
  EXPECT_EQ(code_of(posix_fs().remove(folder / "none")), Code::NotFound);
  EXPECT_EQ(code_of(posix_fs().sync_folder(folder / "a")), Code::BadInput);
  EXPECT_EQ(code_of(posix_fs().list(folder / "none")), Code::NotFound);
}

TEST(PosixFs, MapsEveryWayOfBeingFullToNoSpace) {
  for (int full : {ENOSPC, EDQUOT, EFBIG})
    EXPECT_EQ(posix_error("a", "cannot be written", full).code, Code::NoSpace);
  EXPECT_EQ(posix_error("a", "cannot be written", EIO).code, Code::Io);
  EXPECT_EQ(posix_error("a", "cannot be opened", EACCES).code, Code::Io);
  EXPECT_EQ(posix_error("a", "cannot give up", EOPNOTSUPP).code, Code::Unsupported);
}

TEST(PosixFs, AWritePastTheFileSizeLimitIsNoSpace) {
  const ScratchFolder folder;
  auto file = posix_fs().create(folder / "a").value();
  rlimit old;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 1000, .rlim_max = old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto written =
      file->write_at(0, bytes_of(std::string(2000, 'x')));  // 1,000 go in, then it stops
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  ::signal(SIGXFSZ, handler);
  ASSERT_FALSE(written);
  EXPECT_EQ(code_of(written), Code::NoSpace);
}

TEST(PosixFs, RenameReplacesAndListSorts) {
  const ScratchFolder folder;
  write_file(folder / "b", "old");
  write_file(folder / "a", "new");
  write_file(folder / "c", "other");
  ASSERT_TRUE(posix_fs().rename(folder / "a", folder / "b"));
  ASSERT_TRUE(posix_fs().sync_folder(folder.path()));
  EXPECT_EQ(read_file(folder / "b"), "new");
  EXPECT_EQ(posix_fs().list(folder.path()).value(), (std::vector<std::string>{"b", "c"}));
  ASSERT_TRUE(posix_fs().remove(folder / "b"));
  EXPECT_FALSE(posix_fs().exists(folder / "b"));
  EXPECT_TRUE(posix_fs().exists(folder / "c"));
}

TEST(PosixFs, AFileIsAbandonedOnceItsMakerIsGone) {
  const ScratchFolder folder;
  auto file = posix_fs().create(folder / "a").value();
  EXPECT_FALSE(posix_fs().is_abandoned(folder / "a"));
  EXPECT_FALSE(posix_fs().remove_abandoned(folder / "a"));
  ASSERT_TRUE(posix_fs().rename(folder / "a", folder / "b"));
  EXPECT_FALSE(posix_fs().is_abandoned(folder / "b")) << "under any name";
  ASSERT_TRUE(posix_fs().rename(folder / "b", folder / "a"));
  file.reset();
  EXPECT_TRUE(posix_fs().is_abandoned(folder / "a"));
  EXPECT_TRUE(posix_fs().exists(folder / "a"));
  EXPECT_TRUE(posix_fs().remove_abandoned(folder / "a"));
  EXPECT_FALSE(posix_fs().exists(folder / "a"));
  EXPECT_FALSE(posix_fs().remove_abandoned(folder / "a"));
  EXPECT_FALSE(posix_fs().remove_abandoned(folder.path()));
}

TEST(PosixFs, AKilledMakerLeavesAnAbandonedFile) {
  const ScratchFolder folder;
  const std::string path = folder / "a";
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    auto file = posix_fs().create(path);
    (void)!::write(ready[1], "x", 1);
    for (;;) ::pause();
  }
  char byte;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_FALSE(posix_fs().remove_abandoned(path));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(posix_fs().remove_abandoned(path));
}

TEST(Paths, SplitAtTheLastSlash) {
  EXPECT_EQ(folder_of("a/b/c"), "a/b");
  EXPECT_EQ(folder_of("c"), ".");
  EXPECT_EQ(folder_of("/c"), "/");
  EXPECT_EQ(file_name_of("a/b/c"), "c");
  EXPECT_EQ(file_name_of("c"), "c");
}

}  // namespace
}  // namespace cairn::testing
