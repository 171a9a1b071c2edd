// Runs the built program as a user would: arguments in, exit code and both outputs back.
#ifndef CAIRN_TESTS_APPS_PROGRAM_H_
#define CAIRN_TESTS_APPS_PROGRAM_H_

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
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

// Who sees what it says of its work: a file, or a person, for whom it draws progress.
enum class Watched { by_no_one, on_a_terminal };

// A process of the program; its outputs go to files, so that it never waits for the test.
class Process {
 public:
  explicit Process(const std::vector<std::string>& arguments,
                   const std::string& input = "",
                   Watched watched = Watched::by_no_one) {
    write_file(folder_ / "in", input);
    std::vector<std::string> words{CAIRN_PROGRAM};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);

    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    const std::string in = folder_ / "in", out = folder_ / "out";
    std::string err = folder_ / "err";
    if (watched == Watched::on_a_terminal) err = open_terminal();
    posix_spawn_file_actions_addopen(&files, 0, in.c_str(), O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, out.c_str(), O_WRONLY | O_CREAT, 0600);
    posix_spawn_file_actions_addopen(&files, 2, err.c_str(), O_WRONLY | O_CREAT | O_NOCTTY, 0600);
    const int failed = posix_spawn(&pid_, CAIRN_PROGRAM, &files, nullptr, pointers.data(), environ);
    posix_spawn_file_actions_destroy(&files);
    if (failed != 0) throw std::runtime_error(std::string(CAIRN_PROGRAM) + ": cannot be run");
  }
  ~Process() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      (void)wait();
    }
    if (terminal_ >= 0) close(terminal_);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  std::string output() const { return read_file(folder_ / "out"); }
  void send(int signal) const { kill(pid_, signal); }

  bool has_ended() const {
    siginfo_t ended{};
    return waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           ended.si_pid == pid_;
  }

  // False when it ended without.
  bool wait_for_output() const {
    while (output().empty()) {
      if (has_ended()) return !output().empty();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return true;
  }

  // On its terminal. False when it ended without.
  bool wait_for_sight_of(const std::string& text) {
    while (seen_.find(text) == std::string::npos)
      if (!read_terminal()) return false;
    return true;
  }

  Ran wait() {
    while (terminal_ >= 0 && read_terminal()) {
    }
    int status = 0;
    waitpid(std::exchange(pid_, 0), &status, 0);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    return {
        .code = code, .out = output(), .err = terminal_ >= 0 ? seen_ : read_file(folder_ / "err")};
  }

 private:
  // Its name, under which the process opens it.
  std::string open_terminal() {
    terminal_ = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (terminal_ < 0 || grantpt(terminal_) != 0 || unlockpt(terminal_) != 0)
      throw std::runtime_error("no terminal can be opened");
    return ptsname(terminal_);
  }
  // False: the process has closed it.
  bool read_terminal() {
    char bytes[4096];
    const ssize_t count = read(terminal_, bytes, sizeof bytes);
    if (count > 0) seen_.append(bytes, static_cast<size_t>(count));
    return count > 0;
  }

  ScratchFolder folder_;
  pid_t pid_ = 0;
  int terminal_ = -1;
  std::string seen_;  // on the terminal
};

inline Ran run_cairn(const std::vector<std::string>& arguments, const std::string& input = "") {
  return Process(arguments, input).wait();
}

// Until a run has written a checkpoint of each of `answers` that it makes. False when it ended
// first.
inline bool wait_for_unfinished_answers(const Process& process,
                                        const std::string& store,
                                        int answers = 1) {
  while (run_cairn({"store", "stat", store, "--json"}).json()["unfinished_answers"] < answers) {
    if (process.has_ended()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace cairn::testing

#endif  // CAIRN_TESTS_APPS_PROGRAM_H_
