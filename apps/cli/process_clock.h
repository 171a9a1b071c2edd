// When this process began, as the kernel saw it: what a user waits for starts there, not at main().
#ifndef CAIRN_APPS_CLI_PROCESS_CLOCK_H_
#define CAIRN_APPS_CLI_PROCESS_CLOCK_H_

#include <chrono>

namespace cairn::cli {

using Clock = std::chrono::steady_clock;

inline double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// To 10 ms by the kernel's record, and finer by the processor time that was used since, which can
// only be less than the time that passed. Call it first thing in main().
Clock::time_point process_start();

}  // namespace cairn::cli

#endif  // CAIRN_APPS_CLI_PROCESS_CLOCK_H_
