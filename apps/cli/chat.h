// cairn run --chat: a conversation, line by line.
#ifndef CAIRN_APPS_CLI_CHAT_H_
#define CAIRN_APPS_CLI_CHAT_H_

#include "apps/cli/talk.h"

namespace cairn::cli {

// Until the input ends or Ctrl-C. A message that cannot be answered, or an answer that cannot be
// saved, is told of and the conversation goes on; the code of the last such trouble is returned.
Result<int> chat(Talk& talk, const RunOptions& options);

// What run and chat do once an answer is there.
void show_stats(const Talk& talk, const Answer& answer);
int finish_answer(const Answer& answer, const Talk& talk);  // says what went wrong; the exit code

}  // namespace cairn::cli

#endif  // CAIRN_APPS_CLI_CHAT_H_
