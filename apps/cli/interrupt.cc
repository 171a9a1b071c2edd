#include "apps/cli/interrupt.h"

#include <csignal>

namespace cairn::cli {

std::atomic<bool> is_interrupted = false;

namespace {

std::atomic<int> first_signal = 0;
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

void on_signal(int number) {
  int none = 0;
  first_signal.compare_exchange_strong(none, number);
  is_interrupted = true;
}

}  // namespace

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESETHAND;  // the second one ends the process; no SA_RESTART: reads return
  sigemptyset(&action.sa_mask);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaction(number, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

int interrupt_signal() { return first_signal; }

}  // namespace cairn::cli
