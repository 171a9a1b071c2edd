// From a prompt to an answer: prefill in chunks, then one sampled token after the other.
//
// A conversation is all of its tokens; its session holds the state of the first length(seq) of
// them, and the rest is what generate() computes first. When it returns, the state holds every
// token, the last generated one included, so that the conversation can be saved or gone on with as
// it is. (Only a prefill that was cancelled leaves tokens to be computed.)
#ifndef CAIRN_RUNTIME_GENERATE_H_
#define CAIRN_RUNTIME_GENERATE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "cairn/models/model.h"
#include "cairn/runtime/sampler.h"
#include "cairn/session/session.h"

namespace cairn {

class Drafter;

struct Conversation {
  SeqId seq;
  std::vector<int32_t> tokens;
};

enum class Flow { go_on, stop };

enum class Finish { length, end_token, stopped, cancelled, context_full };

struct GenerateOptions {
  uint64_t max_tokens = UINT64_MAX;  // 0: only the prefill
  Pos context = 0;                   // positions that may be used; 0: as many as the model has
  uint32_t chunk = 512;              // tokens of one step of the prefill
  std::vector<Pos> cuts;             // lengths at which a step of the prefill ends, ascending
  std::function<bool(int32_t token)> ends;  // tokens that end the answer; empty: none
  std::function<void(Pos done, Pos total)>
      on_progress;  // of the prefill: at its start and after each chunk; may be empty
  // Each token but one that ends the answer; may be empty. The session may have a step open: to be
  // looked at in after_step.
  std::function<Flow(int32_t token)> on_token;
  // The state of more tokens was committed; may be empty. While an answer goes on, that is all of
  // the conversation's tokens but the last.
  std::function<void()> after_step;
  // The answer has ended, and the state holds all of it (of a cancelled prefill as much as there
  // is); may be empty. Others of generate_together may go on.
  std::function<void(Finish)> on_end;
  Drafter* drafter = nullptr;  // see speculate.h; changes no token; null: no speculation
  uint32_t most_drafts = 8;    // tokens that it may propose at once
  const std::atomic<bool>* cancel =
      nullptr;  // once true: the token or chunk at hand is the last; null: never
  std::chrono::steady_clock::time_point start =
      std::chrono::steady_clock::now();  // of the time to the first token
};

struct GenerateStats {
  Pos reused = 0;    // tokens of the prompt whose state was there
  Pos computed = 0;  // tokens of the prompt that were computed
  double prefill_seconds = 0;
  double first_token_seconds = 0;  // since options.start; 0: there was none
  double decode_seconds = 0;       // from the first token to the last
  uint64_t decoded = 0;            // tokens in that time
  uint64_t rounds = 0;             // steps that checked drafts
  uint64_t drafted = 0;            // tokens in them
  uint64_t accepted = 0;           // of those, what the sampler chose, too
  uint64_t state_bytes = 0;        // of this conversation, as if nothing were shared
  double decode_tokens_per_second() const {
    return decode_seconds > 0 ? static_cast<double>(decoded) / decode_seconds : 0;
  }
};

struct Generated {
  std::vector<int32_t> tokens;  // without the one that ended it, which the conversation has
  Finish finish = Finish::length;
  GenerateStats stats;
};

// BadInput: no tokens, or more than the context holds (the message says what to do); NoSpace: the
// memory is used up. After an error the conversation and its state agree, and can be gone on with.
Result<Generated> generate(Model& model,
                           Session& session,
                           Conversation& conversation,
                           Sampler& sampler,
                           const GenerateOptions& options);

// One of several conversations that are answered together.
struct Asked {
  Conversation* conversation;
  Sampler* sampler;  // its own
  GenerateOptions options;
};

// The same for several conversations of one session, no two of one sequence: each step computes
// tokens of all, so that the model's weights are read once for them. Each says what it would alone,
// to the last bit, and accepts as many of its own drafts as are right. First all prompts are read,
// options.chunk tokens of the first one's a step; what all of them begin with is computed once,
// unless there is state already. An error ends all of them.
Result<std::vector<Generated>> generate_together(Model& model,
                                                 Session& session,
                                                 std::span<const Asked> asked);

}  // namespace cairn

#endif  // CAIRN_RUNTIME_GENERATE_H_
