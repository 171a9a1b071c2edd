// What an encoding of the state costs on a text of the user's: every token is predicted from a
// state in f32 and, with the same weights, from one under each scheme, and the predictions are
// compared. docs/fidelity.md tells what the figures mean.
//
//   const Fidelity measured = CAIRN_TRY(measure_fidelity(model, tokens, {"f16", "affine4"}, {}));
//   if (const auto best = recommend(measured.schemes, 0.01)) use(measured.schemes[*best].scheme);
//
// Nothing in it is noisy: a state under f32 gives the same logits bit for bit however the tokens
// are divided into steps, so a scheme that changes nothing measures exactly 0.
#ifndef CAIRN_RUNTIME_FIDELITY_H_
#define CAIRN_RUNTIME_FIDELITY_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cairn/models/model.h"
#include "cairn/runtime/drift.h"

namespace cairn {

struct FidelityOptions {
  Pos context = 1024;          // tokens of one sequence, the text is cut into as many as it needs;
                               // from 2 to the model's context
  std::optional<int32_t> bos;  // begins every sequence; none: the model wants no such token
  uint32_t step = 256;         // tokens computed at once, fewer if logits are many: changes no bit
  uint64_t seed = 0;           // of the resampling
  uint32_t prompts = 16;       // pieces of the text that are answered greedily, to measure drift
  Pos prompt_tokens = 64;      // of one of them
  uint32_t drift_tokens = 64;  // of an answer, at most; 0: drift is not measured
  std::function<bool(int32_t token)> ends;  // tokens that end an answer; empty: none
  std::function<void(uint64_t done, uint64_t total)>
      on_progress;  // tokens computed, those of all states together; may be empty
};

// All means are over the predictions of the text: each sequence predicts its tokens but the first.
struct SchemeFidelity {
  std::string scheme;  // as it was given
  uint64_t tokens = 0;
  double kl_mean = 0;              // KL(f32 || scheme) of a prediction, in nats
  double kl_low = 0, kl_high = 0;  // 95 % interval of kl_mean
  double kl_p999 = 0;              // of 1,000 predictions one is worse
  double top1 = 0;                 // share of predictions whose likeliest token stays the same
  double perplexity = 0;           // of the text, under this scheme
  double bits_per_number = 0;      // the whole state's at a sequence's end, exact parts included
  double seconds = 0;              // the model's over the text, no comparison's
  double attention_error = 0;      // see attention_error.h: of the last kProbed rows of a sequence
  std::optional<Drift> drift;      // none: not measured
};

struct Fidelity {
  double perplexity = 0;                // of the text, from the state in f32
  double seconds = 0;                   // the model's, with that state
  std::vector<SchemeFidelity> schemes;  // in the order given
};

// Predictions in a row that are resampled together, because neighbours fail together.
inline constexpr uint32_t kStretch = 256;

// Attention's answers are compared at the end of a sequence, where the state is longest.
inline constexpr Pos kProbed = 32;

// BadInput: no scheme, one that does not fit the model, a context that does not, a text of less
// than two stretches (one has no interval), a token that the vocabulary does not have, answers that
// its context does not hold; NoSpace.
// Memory: the states of one sequence, and the logits of two steps.
Result<Fidelity> measure_fidelity(Model& model,
                                  std::span<const int32_t> tokens,
                                  std::span<const std::string> schemes,
                                  const FidelityOptions& options);

// The scheme of the fewest bits whose interval ends below `kl`, of equals the nearer one; none: no
// scheme is that near.
std::optional<size_t> recommend(std::span<const SchemeFidelity> schemes, double kl);

}  // namespace cairn

#endif  // CAIRN_RUNTIME_FIDELITY_H_
