// Drafts of a model's own draft head (multi-token prediction): the head continues from the hidden
// states that the model computes anyway, so its first guess costs one layer, and each further one
// another.
//
//   auto drafter = CAIRN_TRY(HeadDrafter::make(model, memory, scheme));
//   generate(model, session, conversation, sampler, {.drafter = drafter.get(), .most_drafts = 3});
//
// The head has state of its own: for every position the latent of its hidden state and the token
// after it. It is kept in a session beside the model's and follows the conversation: what the model
// rejects never enters it, further guesses are made on a fork. Where the conversation's state came
// from elsewhere (a file, a cache), its hidden states are unknown, and the head's state begins
// there. Guesses are then worse, and like all guesses change no token.
#ifndef CAIRN_RUNTIME_HEAD_DRAFTER_H_
#define CAIRN_RUNTIME_HEAD_DRAFTER_H_

#include <memory>
#include <span>
#include <vector>

#include "cairn/models/model.h"
#include "cairn/runtime/speculate.h"
#include "cairn/session/session.h"

namespace cairn {

class HeadDrafter final : public Drafter {
 public:
  // For one conversation. `model` and `memory` outlive it. Unsupported: the model has no draft
  // head; BadInput: the scheme does not fit it.
  static Result<std::unique_ptr<HeadDrafter>> make(Model& model,
                                                   Memory& memory,
                                                   const Scheme& scheme);

  std::vector<int32_t> propose(const Conversation& conversation, uint32_t most) override;
  float* hidden_for(const Conversation& conversation, Pos first, Pos count) override;
  void give_way() override { restart(0); }

  // The head's state.
  const Session& session() const { return session_; }
  SeqId seq() const { return seq_; }

 private:
  using Tokens = std::span<const int32_t>;
  HeadDrafter(Model& model, Session session);
  Pos done() const { return first_ + session_.length(seq_); }
  void restart(Pos first);
  void forget_from(Pos position);
  enum class Logits { none, of_last };
  Result<void> catch_up(Tokens tokens, Pos end, Logits wanted);
  Result<void> guess(uint32_t most, std::vector<int32_t>& drafts);

  Model& model_;
  DraftHead& head_;
  Session session_;
  SeqId seq_;
  Pos first_ = 0;              // the conversation's position that is the head's position 0
  Pos known_ = 0;              // hidden states are known of the conversation's positions before it
  std::vector<float> given_;   // of these, those of [done(), known_)
  std::vector<float> hidden_;  // the head's own, of its last step
  std::vector<float> logits_;  // of the last row of it
};

}  // namespace cairn

#endif  // CAIRN_RUNTIME_HEAD_DRAFTER_H_
