// Drafts of a smaller model with the same vocabulary.
//
//   auto drafter = CAIRN_TRY(DraftModel::make(*small, *model, memory, scheme, sampler));
//   generate(*model, session, conversation, sampler, {.drafter = drafter.get(), .most_drafts = 4});
//
// A guess is what the sampler would choose from the small model's logits, by the same options and
// with the very draw that the model's own choice will get. Two models that agree on the shares of
// the tokens so agree on the token, at any temperature, and the answer stays, token for token, the
// one without drafts.
//
// The small model has a session of its own, whose one sequence follows the conversation: what it
// lacks is computed in one step (of a long text at most kStep tokens a round, so that no token
// waits for long), and guesses are made on a fork, which is dropped. So the sequence never sees a
// token that the model rejects, and neither windows nor recurrent state need a way back. Where the
// conversation was taken back and goes on otherwise, what both texts share is kept if the state can
// be cut there.
#ifndef CAIRN_RUNTIME_DRAFT_MODEL_H_
#define CAIRN_RUNTIME_DRAFT_MODEL_H_

#include <memory>
#include <span>
#include <vector>

#include "cairn/models/model.h"
#include "cairn/runtime/sampler.h"
#include "cairn/runtime/speculate.h"
#include "cairn/session/session.h"

namespace cairn {

class DraftModel final : public Drafter {
 public:
  static constexpr Pos kStep = 256;  // tokens that one proposal computes of the conversation

  // For one conversation of `model`, whose answers `sampler` chooses; all but the scheme outlive
  // the drafter. Those of several conversations can share the small model. BadInput: the two
  // vocabularies differ (the message says where), or the scheme does not fit the small model.
  static Result<std::unique_ptr<DraftModel>> make(Model& small,
                                                  const Model& model,
                                                  Memory& memory,
                                                  const Scheme& scheme,
                                                  const Sampler& sampler);

  std::vector<int32_t> propose(const Conversation& conversation, uint32_t most) override;
  void give_way() override;

  // The small model's state of the conversation.
  const Session& session() const { return session_; }
  SeqId seq() const { return seq_; }

 private:
  using Tokens = std::span<const int32_t>;
  DraftModel(Model& small, Session session, const Sampler& sampler);
  Result<void> compute(SeqId seq, Tokens tokens);
  Result<void> go_back(Pos length);
  Result<void> catch_up(Tokens tokens);
  Result<void> guess(SeqId branch, uint32_t most, std::vector<int32_t>& drafts);

  Model& small_;
  Session session_;
  SeqId seq_;
  const Sampler& sampler_;     // the model's
  Sampler guesser_;            // with its options
  std::vector<int32_t> text_;  // the tokens of seq_, and guesses while they are made
  std::vector<float> logits_;  // of the newest computed token
};

}  // namespace cairn

#endif  // CAIRN_RUNTIME_DRAFT_MODEL_H_
