// A network run over the steps of sessions: its graph, joined to the step's state.
//
// The graph of a pass depends only on how many rows there are and on what is wanted of them, so the
// last one is kept: a decode loop builds it once, and then a token costs no allocation, no planning
// and no graph. What changes from pass to pass goes in through the input tensors and through
// StateOps (the step at hand).
#ifndef CAIRN_MODELS_FORWARD_PASS_H_
#define CAIRN_MODELS_FORWARD_PASS_H_

#include <cstdint>
#include <memory>
#include <span>

#include "cairn/models/executor.h"
#include "cairn/models/network.h"
#include "cairn/session/session.h"

namespace cairn {

struct PassInput {
  std::span<const int32_t> tokens;   // of all runs, in batch order
  std::span<const uint32_t> wanted;  // rows of the batch whose logits are wanted
  const float* given = nullptr;      // [rows, hidden_width], for networks that take them
};

// What a pass fills in, dense.
struct PassOutput {
  float* logits = nullptr;  // [wanted, vocabulary]
  float* hidden = nullptr;  // [rows, hidden_width]; null: not wanted
};

class ForwardPass {
 public:
  // Both outlive it.
  ForwardPass(const Network& network, Executor& executor);
  ~ForwardPass();
  ForwardPass(const ForwardPass&) = delete;
  ForwardPass& operator=(const ForwardPass&) = delete;

  // Writes every slot of the step; the caller commits. BadInput for a token that the vocabulary
  // does not have, NoSpace when ggml finds no memory: then the step must be dropped. REQUIRES: the
  // step's session has the network's slots.
  Result<void> run(Step& step, const PassInput& input, const PassOutput& output);

  StateOps& state() { return state_; }
  const StateOps& state() const { return state_; }

 private:
  struct Graph;
  Result<void> prepare(size_t rows, size_t wanted, bool keeps_hidden);
  void fill_inputs(const View& view, const PassInput& input);

  const Network& network_;
  Executor& executor_;
  StateOps state_;
  std::unique_ptr<Graph> graph_;
};

}  // namespace cairn

#endif  // CAIRN_MODELS_FORWARD_PASS_H_
