// Ctrl-C and its relatives: asked politely, a run finishes its token and saves; asked twice, it
// ends at once.
#ifndef CAIRN_APPS_CLI_INTERRUPT_H_
#define CAIRN_APPS_CLI_INTERRUPT_H_

#include <atomic>

namespace cairn::cli {

// SIGINT, SIGTERM and SIGHUP are counted instead of ending the process, once each; reads that wait
// for input return. Also lets writes to a closed pipe fail instead of ending the process.
void catch_interrupts();

extern std::atomic<bool> is_interrupted;
int interrupt_signal();  // the first one caught; 0: none

}  // namespace cairn::cli

#endif  // CAIRN_APPS_CLI_INTERRUPT_H_
