// Real processes on one store: killed at any moment, and many at a time.
#ifndef CAIRN_TESTS_STORE_STORE_PROCESSES_H_
#define CAIRN_TESTS_STORE_STORE_PROCESSES_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <chrono>
#include <deque>
#include <set>
#include <thread>

#include "cairn/store/store.h"
#include "tests/support/must.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/stored.h"

namespace cairn::testing {

// A running store_loop (its top comment says what it does).
class StoreLoop {
 public:
  struct Work {
    std::string folder;
    uint64_t seed = 0;
    uint64_t max_bytes = 0;  // 0: nothing is ever evicted or removed
    double seconds = 1e9;
    std::string log;
  };
  explicit StoreLoop(const Work& work) {
    std::vector<std::string> words = {CAIRN_STORE_LOOP,
                                      work.folder,
                                      std::to_string(work.seed),
                                      std::to_string(work.max_bytes),
                                      std::to_string(work.seconds),
                                      work.log};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    EXPECT_EQ(::posix_spawn(&pid_, CAIRN_STORE_LOOP, nullptr, nullptr, arguments.data(), environ),
              0);
  }
  StoreLoop(StoreLoop&& other) noexcept : pid_(std::exchange(other.pid_, 0)) {}
  StoreLoop& operator=(StoreLoop&&) = delete;
  ~StoreLoop() { kill(); }

  void kill() {
    if (pid_ == 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  bool has_ended() const {
    siginfo_t info{};
    ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT);
    return info.si_pid == pid_;
  }
  int wait() {  // its exit status
    int status = 0;
    ::waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = 0;
};

class StoreProcesses : public ::testing::Test {
 protected:
  static constexpr uint64_t kSegmentBytes = 1 << 20;  // as the loop has it

  static std::unique_ptr<Store> open(const std::string& folder) {
    return must(Store::open(folder, {.max_bytes = UINT64_MAX, .segment_bytes = kSegmentBytes}));
  }

  std::set<uint32_t> logged() const {
    std::set<uint32_t> numbers;
    const auto file = posix_fs().open_read(log_);
    if (!file) return numbers;
    std::vector<uint32_t> all(must((*file)->size()) / sizeof(uint32_t));
    must((*file)->read_at(0, std::as_writable_bytes(std::span(all))));
    return {all.begin(), all.end()};
  }

  // Everything that is there is right, and once collected takes what the rows say.
  static void expect_sound(Store& store) {
    ASSERT_THAT(must(store.verify()).damage, ::testing::IsEmpty());
    must(store.gc());
    const StoreUse use = must(store.use());
    // A file with holes may take a block of the file system's own.
    ASSERT_LE(use.allocated_bytes, use.bytes + use.segments * 4096) << "space is lost";
    ASSERT_GE(use.allocated_bytes, use.bytes);
    ASSERT_EQ(use.set_aside, 0u);
  }

  void expect_all_of_the_log(Store& store) const {
    AlignedBuffer buffer;
    for (uint32_t number : logged()) {
      const auto found = must(store.find(numbered(number)));
      ASSERT_TRUE(found) << "record " << number << " was promised";
      ASSERT_TRUE(is_filled_right(numbered(number), must(store.read(*found, buffer))));
    }
  }

  // A process works on the store and is killed, `rounds` times.
  void kill_one(int rounds, uint64_t max_bytes) {
    Random random(max_bytes + 1);
    for (int round = 0; round < rounds; ++round) {
      SCOPED_TRACE(::testing::Message() << "round " << round);
      const uint64_t before = logged_bytes();
      {
        StoreLoop loop({.folder = path_,
                        .seed = static_cast<uint64_t>(round),
                        .max_bytes = max_bytes,
                        .log = log_});
        while (logged_bytes() == before && !loop.has_ended())
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        ASSERT_FALSE(loop.has_ended());
        std::this_thread::sleep_for(std::chrono::microseconds(random.below(60'000)));
      }
      auto store = open(path_);
      if (max_bytes == 0) expect_all_of_the_log(*store);
      expect_sound(*store);
      if (HasFatalFailure()) return;
    }
  }

  // Processes work side by side; with `kills` some of them die and others take their place.
  enum class Kills { none, some };
  void work_together(double seconds, Kills kills) {
    constexpr int kProcesses = 8;
    constexpr uint64_t kMaxBytes = 6 << 20;  // a fraction of the tree
    std::deque<StoreLoop> loops;
    uint64_t seed = 0;
    const auto start = [&](double left) {
      return StoreLoop(
          {.folder = path_, .seed = seed++, .max_bytes = kMaxBytes, .seconds = left, .log = log_});
    };
    for (int i = 0; i < kProcesses; ++i) loops.push_back(start(seconds));
    if (kills == Kills::some)
      for (double left = seconds - 0.3; left > 0.3; left -= 0.3) {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        ASSERT_FALSE(loops.front().has_ended());
        loops.pop_front();  // killed
        loops.push_back(start(left));
      }
    for (StoreLoop& loop : loops) EXPECT_EQ(loop.wait(), 0);
    auto store = open(path_);
    EXPECT_GT(must(store->use()).records, 0u);
    EXPECT_LE(must(store->use()).bytes, kMaxBytes + kProcesses * kSegmentBytes);
    expect_sound(*store);
  }

  uint64_t logged_bytes() const {
    const auto file = posix_fs().open_read(log_);
    return file ? must((*file)->size()) : 0;
  }

  const ScratchFolder folder_;
  const std::string path_ = folder_ / "store";
  const std::string log_ = folder_ / "log";
};

}  // namespace cairn::testing

#endif  // CAIRN_TESTS_STORE_STORE_PROCESSES_H_
