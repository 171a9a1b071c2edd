// Speculation: tokens are guessed, and one step of the model checks all guesses at once.
//
//   PromptLookup drafter;
//   generate(model, session, conversation, sampler, {.drafter = &drafter, .most_drafts = 8});
//
// A round computes the last token and the drafts after it in one step. From the logits of each row
// the sampler chooses as it would have without drafts: with the same logits (one arithmetic: a
// batch changes no bit), the same history and the draw of the same number. While its choice is the
// next draft, the logits of the next row are those it needs; the first other choice ends the round,
// and the step's commit keeps what was right. So a speculated answer is token for token the one
// that plain decoding gives, sampled ones included, whatever a drafter proposes. Rejection sampling
// would promise no more than the same distribution.
#ifndef CAIRN_RUNTIME_SPECULATE_H_
#define CAIRN_RUNTIME_SPECULATE_H_

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "cairn/runtime/generate.h"

namespace cairn {

// Guesses what comes next in one conversation. A guess can cost time and nothing else; a drafter
// that cannot help proposes nothing.
class Drafter {
 public:
  virtual ~Drafter() = default;

  // At most `most` tokens that may follow the conversation's. Its state lacks the last token, and
  // no step of it is open: a drafter that needs state of its own brings it up to the conversation's
  // tokens first, which have only grown since the last call, and drafts on a fork.
  virtual std::vector<int32_t> propose(const Conversation& conversation, uint32_t most) = 0;

  // The model is about to compute positions [first, first + count) of the conversation, whose state
  // has `first` positions and whose tokens reach at least to token `first`. Returns where the
  // hidden states of these positions go, dense [count, hidden width]; null: they are not wanted.
  // Some of the positions may be rejected: they are computed again, with other tokens, in the next
  // step.
  virtual float* hidden_for(const Conversation& conversation, Pos first, Pos count) {
    (void)conversation, (void)first, (void)count;
    return nullptr;
  }

  // The first `count` tokens of the last proposal are the conversation's now, and computed; one
  // token that the model chose follows them.
  virtual void accepted(uint32_t count) { (void)count; }

  // There is no memory for the model's next step: what this drafter's own state takes goes. It is
  // not asked again in this answer.
  virtual void give_way() {}
};

// What followed the newest of the places that agree longest with the end of the text, for texts
// that repeat themselves. Looks at the newest kPlaces places where the last kShortest tokens occur,
// and compares at most kLongest tokens; so a token costs the same in a text of any length.
class PromptLookup final : public Drafter {
 public:
  static constexpr size_t kShortest = 3;
  static constexpr size_t kLongest = 32;
  static constexpr size_t kPlaces = 64;

  std::vector<int32_t> propose(const Conversation& conversation, uint32_t most) override;

 private:
  using Tokens = std::span<const int32_t>;
  void index(Tokens tokens);
  size_t best_place(Tokens tokens) const;

  // A place is the index of the token after kShortest tokens; 0: none.
  std::unordered_map<uint64_t, uint32_t> newest_;  // by what these tokens are
  std::vector<uint32_t> older_;                    // by place: the one before, of the same tokens
};

// How many tokens to draft in the next round. A rejected draft costs nearly what a token does, so
// an accepted proposal doubles the length, another one sets it to what was right and one more, and
// after proposals of which nothing was right, ever longer pauses follow.
class DraftLength {
 public:
  explicit DraftLength(uint32_t most) : most_(most), length_(most < kFirst ? most : kFirst) {}

  uint32_t next();  // 0: none in this round
  void learn(uint32_t drafted, uint32_t accepted);

 private:
  static constexpr uint32_t kFirst = 4;
  static constexpr uint32_t kLongestPause = 15;  // rounds

  uint32_t most_;
  uint32_t length_;
  uint32_t pause_ = 0;       // rounds, the last one
  uint32_t pause_left_ = 0;  // of it
};

}  // namespace cairn

#endif  // CAIRN_RUNTIME_SPECULATE_H_
