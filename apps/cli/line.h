// One conversation while it is answered: what the store has of it, and where its words go.
#ifndef CAIRN_APPS_CLI_LINE_H_
#define CAIRN_APPS_CLI_LINE_H_

#include <functional>
#include <optional>
#include <string>

#include "apps/cli/run.h"
#include "apps/cli/tiered.h"
#include "cairn/runtime/generate.h"

namespace cairn::cli {

struct Answer {
  std::string text;
  Generated generated;      // its tokens are those after the recalled ones
  Recalled recalled;        // from --store
  Pos prompt_tokens = 0;    // of the whole conversation, before the answer
  Pos length = 0;           // positions now in the state
  double save_seconds = 0;  // 0: nothing was saved
  std::optional<Error> save_error;
  bool is_output_lost = false;  // stdout failed; generating stopped there

  std::vector<int32_t> tokens() const;  // the whole answer's
};

class Line {
 public:
  using Show = std::function<bool(const std::string& text)>;  // false: nobody reads any more
  // All outlive it. `tiered` and `recall`: null, where there is no store.
  Line(const RunOptions& options,
       const Tokenizer& tokenizer,
       Conversation& conversation,
       Sampler& sampler,
       Tiered* tiered,
       Recall* recall,
       Show show);
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  // Takes what the store has of the conversation. Returns how the rest is generated.
  GenerateOptions begin(uint64_t max_tokens, Drafter* drafter, Clock::time_point start);
  Answer answer;  // all but what generate() returns and what is saved

 private:
  void say(const std::string& text);
  void end(Finish finish);
  void recall_answer(uint64_t max_tokens, GenerateOptions& how);

  const RunOptions& options_;
  const Tokenizer& tokenizer_;
  Conversation& conversation_;
  Sampler& sampler_;
  Tiered* tiered_;
  Recall* recall_;
  Show show_;
  TextStream stream_;
};

}  // namespace cairn::cli

#endif  // CAIRN_APPS_CLI_LINE_H_
