// generate() with a memory: a conversation reuses the longest prefix that any earlier run computed,
// publishes what it computes, and an answer that was interrupted goes on where it was.
//
//   Recall recall(prefixes, session, conversation, {});
//   const Recalled found = recall.begin(request);   // the state of as many tokens as can be reused
//   generate(model, session, conversation, sampler, {
//       .cuts = recall.cuts(),
//       .after_step = [&] { recall.after_step(sampler); }, ...});
//   recall.end(generated.finish);
//
// Nothing here can fail an answer: a tier that cannot help is one that has nothing.
#ifndef CAIRN_RUNTIME_RECALL_H_
#define CAIRN_RUNTIME_RECALL_H_

#include <optional>
#include <string>
#include <vector>

#include "cairn/engine/prefix.h"
#include "cairn/runtime/generate.h"
#include "cairn/runtime/sampler.h"

namespace cairn {

struct RecallOptions {
  uint32_t checkpoint_every = 32;  // tokens of an answer; 0: never
  Pos boundary_every =
      1024;  // positions between marks of a prefill, for models with recurrent slots
};

// All that decides an answer beside the model, the scheme and the conversation's tokens. The same
// request finds its interrupted answer again (state-spec.md GEN-4).
struct Request {
  uint64_t max_tokens = UINT64_MAX;
  SamplingOptions sampling;
  bool has_seed = false;           // the caller chose the seed; else it is no part of the request
  std::vector<std::string> stops;  // texts that end the answer
};

struct Recalled {
  Pos reused = 0;  // positions: from_ram + from_disk + what the session had
  Pos from_ram = 0;
  Pos from_disk = 0;
  // Of an interrupted answer: the tokens it had, all but the last computed. They are in the
  // conversation now.
  std::vector<int32_t> answered;
  std::optional<SamplerState> sampler;  // as it was then
};

class Recall {
 public:
  // All outlive this. Serves one conversation, turn after turn.
  Recall(Prefixes& prefixes,
         Session& session,
         Conversation& conversation,
         RecallOptions options = {});

  // Before generate(): the conversation has the tokens of its prompt. Its sequence is replaced
  // where the tiers have more of it than the session.
  Recalled begin(const Request& request);
  // Positions at which a step of the prefill should end, for GenerateOptions::cuts.
  std::vector<Pos> cuts() const;
  // A step was committed; the sampler has chosen the conversation's tokens.
  void after_step(const Sampler& sampler);
  void end(Finish finish);

 private:
  Digest name_of(const Request& request) const;
  bool resume_answer(Recalled& recalled);
  void checkpoint(const Sampler& sampler);

  Prefixes& prefixes_;
  Session& session_;
  Conversation& conversation_;
  const RecallOptions options_;
  Published published_;
  Digest generation_;         // of the request at hand
  size_t prompt_tokens_ = 0;  // of it
  size_t checkpointed_ = 0;   // tokens of the conversation in the newest checkpoint
};

}  // namespace cairn

#endif  // CAIRN_RUNTIME_RECALL_H_
