// One conversation on its way through generate(): what it wants computed next, and what it makes of
// the logits. It runs nothing itself, so that any number of them can share the model's steps.
#ifndef CAIRN_RUNTIME_ANSWERING_H_
#define CAIRN_RUNTIME_ANSWERING_H_

#include <optional>
#include <span>
#include <vector>

#include "cairn/runtime/generate.h"
#include "cairn/runtime/speculate.h"

namespace cairn {

class Answering {
 public:
  // All outlive it.
  Answering(const Model& model, Session& session, const Asked& asked);

  // Before anything is computed. BadInput: no tokens, or more than the context holds.
  Result<void> check() const;
  // At least one token is left to compute where logits are needed.
  Result<void> leave_one_to_compute();
  void start();  // to read; the state may be longer than it was until here

  enum class Phase {
    reading,    // tokens of the prompt are to be computed
    choosing,   // every token but the last is computed
    finishing,  // as choosing, and nothing is chosen any more
    done,
  };
  Phase phase() const { return phase_; }
  Pos length() const { return session_.length(conversation_.seq); }
  const Conversation& conversation() const { return conversation_; }

  // How many tokens its next step may compute of the prompt, at most `room`; 0: it was cancelled.
  Pos next_part(Pos room);
  bool ends_with(Pos count) const;  // the logits of the last of them are needed
  // They are computed and committed. `logits`: of the last one, where they are needed.
  Result<void> read(std::span<const float> logits);
  // The clock of decoding begins, which may be later than the first token.
  void start_decoding();

  // The tokens of its next step, the last chosen one and drafts after it; only the former when it
  // finishes.
  std::span<const int32_t> next_round();
  void leave_out_drafts() { round_.resize(1); }  // there is no room for them
  // Chooses from the logits of the round, [tokens, vocabulary], as long as drafts are right.
  // Returns how many positions to keep.
  Result<Pos> choose_all(std::span<const float> logits);
  void end_round(Pos kept);  // it is committed
  void after_step() const {  // more tokens of the prompt are committed
    if (asked_.options.after_step) asked_.options.after_step();
  }

  // Where the hidden states of the next `count` positions go; null: nobody wants them.
  float* hidden_for(Pos count);
  bool give_way();  // its drafter makes room; false: there is none (any more)

  Generated take_result();

 private:
  bool is_cancelled() const {
    const auto* cancel = asked_.options.cancel;
    return cancel != nullptr && cancel->load(std::memory_order_relaxed);
  }
  void report_progress() const;
  void end(Finish finish);
  std::vector<int32_t> draft();
  Result<void> choose(std::span<const float> logits);
  std::optional<Finish> say(int32_t token);
  void learn(uint32_t drafted, uint32_t accepted);

  using Clock = std::chrono::steady_clock;
  const Model& model_;
  Session& session_;
  const Asked& asked_;
  Conversation& conversation_;
  const Pos context_;
  Phase phase_ = Phase::reading;
  Pos end_ = 0;  // of the prompt
  Clock::time_point start_, decode_start_;
  std::vector<int32_t> round_;    // tokens of the step at hand
  std::optional<Finish> finish_;  // once the answer has ended
  Drafter* drafter_;              // null: none, or it gave way
  DraftLength draft_length_;
  Generated result_;
};

}  // namespace cairn

#endif  // CAIRN_RUNTIME_ANSWERING_H_
