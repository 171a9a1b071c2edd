// A model, its session and one conversation, made ready by the options of cairn run.
#ifndef CAIRN_APPS_CLI_TALK_H_
#define CAIRN_APPS_CLI_TALK_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli/line.h"
#include "apps/cli/run.h"
#include "apps/cli/state_file.h"
#include "apps/cli/tiered.h"
#include "cairn/models/model.h"
#include "cairn/runtime/chat_template.h"
#include "cairn/runtime/speculate.h"

namespace cairn::cli {

// Seconds of the time to the first token, part by part.
struct Parts {
  double process = 0;      // from the kernel's start of the process to main()
  double model = 0;        // map, network, identity, vocabulary
  double state = 0;        // read, verify, place
  double first_token = 0;  // all, from the start of the process; 0: there was none
};

class Talk {
 public:
  static Result<std::unique_ptr<Talk>> open(const RunOptions& options,
                                            const Config& config,
                                            Clock::time_point start);

  // The conversation is this text, or goes on with it, as the options say.
  Result<Answer> complete(const std::string& text);
  // The user's next message; none: the answer to the last one is still due.
  Result<Answer> reply(const std::optional<std::string>& message);
  // An answer to each of several texts, which are conversations of their own; with --chat each is
  // the first message of one.
  struct Audience {
    std::function<bool(size_t index, const std::string& text)> hear;  // false: nobody does any more
    std::function<void(size_t index)> end;                            // the answer has ended
  };
  Result<std::vector<Answer>> answer_all(const std::vector<std::string>& texts,
                                         const Audience& audience);
  bool is_reply_due() const;  // the state was saved while the model was reading a message
  Result<void> check_chat();  // Unsupported: no way is known to write a chat for this model

  const Model& model() const { return *model_; }
  const Parts& parts() const { return parts_; }
  const StateFile& file() const { return file_; }
  Pos context() const;  // positions that may be used
  Pos held_tokens() const { return conversation_.tokens.size(); }

 private:
  Talk(const RunOptions& options, Clock::time_point start);
  Result<void> prepare(const Config& config);
  Result<void> prepare_drafts(const Config& config);
  Result<Answer> answer(uint64_t max_tokens, size_t tokens_before);
  Result<Answer> generate_shown(uint64_t max_tokens);
  Result<std::unique_ptr<Drafter>> make_drafter(const Sampler& sampler);
  Result<std::vector<int32_t>> message_tokens(const std::string& message,
                                              std::optional<std::string> ending);
  void save_state(Answer& answer);
  void take_back(size_t tokens_before);
  std::vector<int32_t> encode(const std::string& text, Specials specials) const;

  const RunOptions& options_;
  const Clock::time_point start_;
  StateFile file_;
  struct SavedMark {
    Pos length = 0;
    std::vector<int32_t> tokens;
    bool operator==(const SavedMark&) const = default;
  };
  std::optional<SavedMark>
      saved_;  // what the file holds; none: there is no file, or it is of no use
  Memory memory_;
  std::unique_ptr<Model> model_;
  std::optional<Session> session_;
  std::optional<Sampler> sampler_;
  std::optional<ChatTemplate> chat_;
  Conversation conversation_;
  std::unique_ptr<Model> small_;      // of --draft; null: none
  std::unique_ptr<Drafter> drafter_;  // of the conversation; null: at most look-up
  std::unique_ptr<Tiered> tiered_;    // null: no --store, or one of no use
  std::unique_ptr<Recall> recall_;    // of the conversation; null: as tiered_
  Parts parts_;
};

}  // namespace cairn::cli

#endif  // CAIRN_APPS_CLI_TALK_H_
