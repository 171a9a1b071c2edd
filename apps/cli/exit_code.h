// How the program ends. The numbers are part of its interface: --help and README.md list them.
#ifndef CAIRN_APPS_CLI_EXIT_CODE_H_
#define CAIRN_APPS_CLI_EXIT_CODE_H_

#include "cairn/core/error.h"

namespace cairn::cli {

enum ExitCode {
  kDone = 0,
  kFailed = 1,      // the system refused: reading, writing, memory, an unsupported file
  kWrongUse = 2,    // an option, a text or a file that cannot be meant; nothing was changed
  kMismatch = 3,    // a sound state of another model or scheme
  kDamaged = 4,     // bytes that are not those that were written
  kBySignal = 128,  // plus its number: 130 after Ctrl-C; the state is saved
};

inline constexpr const char* kExitCodesHelp =
    "Exit codes: 0 done; 1 the system refused (reading, writing, memory, a format too new);\n"
    "  2 wrong use (an option, a text too long, a file that is missing or no model);\n"
    "  3 a state of another model or --kv; 4 damaged bytes;\n"
    "  130 interrupted by Ctrl-C after saving (143 by SIGTERM, 129 by SIGHUP).";

int exit_code(Code code);

// Says on stderr what went wrong, in one line, and returns the code to exit with.
int report(const Error& error);
void warn(std::string_view message);

}  // namespace cairn::cli

#endif  // CAIRN_APPS_CLI_EXIT_CODE_H_
