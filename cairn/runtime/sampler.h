// Chooses the next token from the logits of a step.
//
// The filters work in this order, each on what the one before it has left; the first four look at
// the model's own probabilities, so that what is cut off does not depend on the temperature:
//   1. repetition penalty: logits of tokens among the newest `repetition_window` of the history are
//   divided by it when
//      positive and multiplied by it when not, once per token however often it occurs;
//   2. top_k: the k most probable tokens (among equals the lower id);
//   3. top_p: the fewest most probable tokens whose probabilities sum to at least p of what is
//   left; at least one;
//   4. min_p: tokens at least min_p times as probable as the most probable one;
//   5. temperature: logits are divided by it, and one token is drawn.
// Temperature 0 is greedy: the largest logit after the penalty, among equals the lower id.
//
// The same logits, history, options and state give the same token on every machine: nothing here
// rests on a library's distributions, exponential or sorting of equals.
#ifndef CAIRN_RUNTIME_SAMPLER_H_
#define CAIRN_RUNTIME_SAMPLER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "cairn/core/error.h"

namespace cairn {

struct SamplingOptions {
  float temperature = 0;            // from 0; 0: greedy
  uint32_t top_k = 0;               // 0: off
  float top_p = 1;                  // from 0 to 1; 1: off
  float min_p = 0;                  // from 0 to 1; 0: off
  float repetition_penalty = 1;     // above 0; 1: off
  uint32_t repetition_window = 64;  // tokens
  uint64_t seed = 0;
};

// All that a sampler remembers. Draw i of a seed is a function of both, so a restored sampler goes
// on where it was.
struct SamplerState {
  uint64_t seed = 0;
  uint64_t draws = 0;  // greedy choices are none
  bool operator==(const SamplerState&) const = default;
};

// Draw `index` of the stream of `seed`: a number from 0 to below 1, a multiple of 2^-53.
double uniform_draw(uint64_t seed, uint64_t index);

class Sampler {
 public:
  // Logits by token id; `history`: the tokens so far, newest last. BadInput, and nothing is drawn:
  // a logit is NaN or plus infinity, or all are minus infinity. REQUIRES: there are logits; the
  // history's tokens have one.
  Result<int32_t> sample(std::span<const float> logits, std::span<const int32_t> history);

  const SamplerState& state() const { return state_; }
  void resume(const SamplerState& state) { state_ = state; }

 private:
  friend Result<Sampler> make_sampler(const SamplingOptions& options);
  explicit Sampler(const SamplingOptions& options) : options_(options), state_{options.seed, 0} {}

  struct Candidate {
    int32_t token;
    float logit;
    double weight;  // once weighed: probability over that of the most probable token
  };
  void penalize(std::span<const int32_t> history);
  Result<int32_t> best() const;
  void collect_candidates();
  void weigh(float best_logit, float temperature);
  void keep_top_k();
  void keep_top_p();
  void keep_min_p();
  int32_t draw(float best_logit);

  SamplingOptions options_;
  SamplerState state_;
  std::vector<float> logits_;          // of this call, penalized
  std::vector<Candidate> candidates_;  // of this call, by id between the filters
};

// BadInput: an option is out of its range.
Result<Sampler> make_sampler(const SamplingOptions& options);

}  // namespace cairn

#endif  // CAIRN_RUNTIME_SAMPLER_H_
