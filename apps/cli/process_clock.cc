#include "apps/cli/process_clock.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

namespace cairn::cli {
namespace {

using Seconds = std::chrono::duration<double>;

Seconds read_clock(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return Seconds(static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec));
}

// Since the machine's start, in whole ticks: field 22 of /proc/self/stat. The second field is a
// name in brackets and may hold anything.
std::optional<double> start_ticks() {
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  double ticks = 0;
  if (!(fields >> ticks)) return std::nullopt;
  return ticks;
}

}  // namespace

Clock::time_point process_start() {
  const Clock::time_point now = Clock::now();
  Seconds age = read_clock(CLOCK_PROCESS_CPUTIME_ID);
  if (const auto ticks = start_ticks()) {
    const double per_second = static_cast<double>(sysconf(_SC_CLK_TCK));
    const Seconds at_most = read_clock(CLOCK_BOOTTIME) - Seconds(*ticks / per_second);
    const Seconds at_least = at_most - Seconds(1 / per_second);
    if (at_most.count() < 60) age = std::max(age, at_least);
  }
  return now - std::chrono::duration_cast<Clock::duration>(age);
}

}  // namespace cairn::cli
