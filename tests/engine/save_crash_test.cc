// Processes that die while they save, and processes that save at once: real ones, with SIGKILL.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <chrono>
#include <thread>

#include "cairn/engine/snapshot.h"
#include "tests/support/conversation.h"
#include "tests/support/sample_checkpoint.h"
#include "tests/support/scratch_folder.h"

namespace cairn::testing {
namespace {

using ::testing::ElementsAre;

class SaveLoop {
 public:
  SaveLoop(const std::string& path, int saves, int first, int second) {
    std::vector<std::string> words = {CAIRN_SAVE_LOOP, path, std::to_string(saves),
                                      std::to_string(first), std::to_string(second)};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    EXPECT_EQ(::posix_spawn(&pid_, CAIRN_SAVE_LOOP, nullptr, nullptr, arguments.data(), environ),
              0);
  }
  ~SaveLoop() { kill(); }

  void kill() {
    if (pid_ == 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  int wait() {  // its exit status
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = 0;
};

class SaveCrash : public ::testing::Test {
 protected:
  static constexpr int kFirst = 1, kSecond = 2;

  SaveCrash() {
    for (int seed : {kFirst, kSecond}) wholes_.push_back(saved(seed));
  }

  std::string saved(int seed) {
    Conversation conversation;
    const std::string path = folder_ / "whole";
    const SeqId seq = conversation.start(kSaveLoopLength, static_cast<uint64_t>(seed));
    must(save(conversation.session(), seq, count_tokens(kSaveLoopLength, seed), path));
    const std::string bytes = file_bytes(posix_fs(), path);
    must(posix_fs().remove(path));
    return bytes;
  }

  bool is_whole() {
    return ::testing::Matches(::testing::AnyOfArray(wholes_))(file_bytes(posix_fs(), path_));
  }

  std::vector<std::string> names() { return posix_fs().list(folder_.path()).value(); }

  template <class Condition>
  static void wait_until(Condition condition) {
    for (int i = 0; i < 20'000 && !condition(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ASSERT_TRUE(condition());
  }

  const ScratchFolder folder_;
  const std::string path_ = folder_ / "chat";
  std::vector<std::string> wholes_;
};

TEST_F(SaveCrash, AKilledWriterLeavesTheOldOrTheNewFileWhole) {
  Random random(1);
  int leftovers = 0;
  for (int round = 0; round < 50; ++round) {
    const std::vector<std::string> before = names();
    SaveLoop writer(path_, 1 << 30, kFirst, kSecond);
    wait_until([&] { return posix_fs().exists(path_) && names() != before; });  // it has begun
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(40'000)));
    writer.kill();
    ASSERT_TRUE(is_whole()) << "round " << round;
    leftovers += names().size() > 1;
    ASSERT_LE(names().size(), 2u) << "leftovers of earlier rounds are removed";
  }
  EXPECT_GT(leftovers, 0) << "no kill landed inside a save";
  EXPECT_EQ(SaveLoop(path_, 1, kFirst, kSecond).wait(), 0);
  EXPECT_THAT(names(), ElementsAre("chat"));
  EXPECT_TRUE(verify(path_).value().damage.empty());
}

TEST_F(SaveCrash, TwoWritersOfOneFileNeverMixAndAReaderSeesOnlyWholeFiles) {
  SaveLoop a(path_, 25, kFirst, kFirst), b(path_, 25, kSecond, kSecond);
  wait_until([&] { return posix_fs().exists(path_); });
  for (int i = 0; i < 20; ++i) {
    Conversation reader;
    const auto loaded = load(reader.session(), path_);
    ASSERT_TRUE(loaded) << loaded.error().message;
    ASSERT_THAT(loaded->tokens[0], ::testing::AnyOf(kFirst, kSecond));
  }
  EXPECT_EQ(a.wait(), 0);
  EXPECT_EQ(b.wait(), 0);
  EXPECT_TRUE(is_whole());
  EXPECT_THAT(names(), ElementsAre("chat"));
}

}  // namespace
}  // namespace cairn::testing
