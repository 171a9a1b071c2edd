#include "apps/cli/chat.h"

#include <unistd.h>

#include <iostream>

#include "apps/cli/exit_code.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/output.h"

namespace cairn::cli {
namespace {

bool is_watched() { return isatty(STDIN_FILENO) == 1 && isatty(STDERR_FILENO) == 1; }

void greet(const Talk& talk) {
  if (!is_watched()) return;
  const Pos held = talk.held_tokens();
  if (!talk.file().path.empty())
    fmt::print(
        stderr, "  {}: {}\n", talk.file().path,
        held == 0 ? "a new conversation" : fmt::format("{} tokens remembered", with_commas(held)));
  fmt::print(stderr, "  One line is one message. Ctrl-D ends, Ctrl-C stops an answer{}.\n\n",
             talk.file().path.empty() ? " and ends" : ", saves and ends");
}

// The next line that is not empty; none: the input ended, or Ctrl-C.
std::optional<std::string> next_message() {
  for (std::string line;;) {
    if (is_watched()) fmt::print(stderr, "> ");
    if (is_interrupted || !std::getline(std::cin, line)) {
      if (is_watched()) fmt::print(stderr, "\n");
      return std::nullopt;
    }
    if (line.find_first_not_of(" \t\r") != std::string::npos) return line;
  }
}

int show_reply(Talk& talk, const RunOptions& options, const std::optional<std::string>& message) {
  const Result<Answer> answer = talk.reply(message);
  if (!answer) return report(answer.error());
  if (options.wants_stats) show_stats(talk, *answer);
  if (is_watched()) fmt::print(stderr, "\n");
  return finish_answer(*answer, talk);
}

}  // namespace

Result<int> chat(Talk& talk, const RunOptions& options) {
  greet(talk);
  int code = kDone;
  if (talk.is_reply_due()) code = show_reply(talk, options, std::nullopt);
  while (!is_interrupted) {
    const std::optional<std::string> message = next_message();
    if (!message) break;
    if (const int trouble = show_reply(talk, options, message); trouble != kDone) code = trouble;
  }
  return is_interrupted ? kBySignal + interrupt_signal() : code;
}

}  // namespace cairn::cli
