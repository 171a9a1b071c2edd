// Runs the built program as a user would: arguments in, exit code and both outputs back.
#ifndef CAIRN_TESTS_APPS_PROGRAM_H_
#define CAIRN_TESTS_APPS_PROGRAM_H_

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/scratch_folder.h"

namespace cairn::testing {

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

struct Ran {
  int code = 0;  // of the exit; minus the signal that ended it
  std::string out, err;
  nlohmann::json json() const { return nlohmann::json::parse(out); }  // and nothing else
};

// A process of the program; its outputs go to files, so that it never waits for the test.
class Process {
 public:
  explicit Process(const std::vector<std::string>& arguments, const std::string& input = "") {
    write_file(folder_ / "in", input);
    std::vector<std::string> words{CAIRN_PROGRAM};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);

    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    const std::string in = folder_ / "in", out = folder_ / "out", err = folder_ / "err";
    posix_spawn_file_actions_addopen(&files, 0, in.c_str(), O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, out.c_str(), O_WRONLY | O_CREAT, 0600);
    posix_spawn_file_actions_addopen(&files, 2, err.c_str(), O_WRONLY | O_CREAT, 0600);
    const int failed = posix_spawn(&pid_, CAIRN_PROGRAM, &files, nullptr, pointers.data(), environ);
    posix_spawn_file_actions_destroy(&files);
    if (failed != 0) throw std::runtime_error(std::string(CAIRN_PROGRAM) + ": cannot be run");
  }
  ~Process() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    (void)wait();
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  std::string output() const { return read_file(folder_ / "out"); }
  void send(int signal) const { kill(pid_, signal); }

  // False when it ended without.
  bool wait_for_output() const {
    for (siginfo_t ended{}; output().empty();) {
      if (waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
          ended.si_pid == pid_)
        return !output().empty();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return true;
  }

  Ran wait() {
    int status = 0;
    waitpid(std::exchange(pid_, 0), &status, 0);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    return {.code = code, .out = output(), .err = read_file(folder_ / "err")};
  }

 private:
  ScratchFolder folder_;
  pid_t pid_ = 0;
};

inline Ran run_cairn(const std::vector<std::string>& arguments, const std::string& input = "") {
  return Process(arguments, input).wait();
}

}  // namespace cairn::testing

#endif  // CAIRN_TESTS_APPS_PROGRAM_H_
