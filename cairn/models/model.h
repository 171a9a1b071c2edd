// A model that runs: weights, a network, threads, and the graph that joins them to a session's
// state.
//
//   auto model = CAIRN_TRY(load_model("smollm2.gguf", {.threads = 2}));
//   auto session = CAIRN_TRY(open_session(model->spec(), scheme, memory));
//   auto step = CAIRN_TRY(session.plan({{.seq = chat, .count = tokens.size()}}));
//   CAIRN_TRY(model->forward(step, tokens, wanted_rows, logits));
//   step.commit();
//
// A model is one customer of the session's public interface among others. One thread at a time
// calls forward.
#ifndef CAIRN_MODELS_MODEL_H_
#define CAIRN_MODELS_MODEL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cairn/models/executor.h"
#include "cairn/models/forward_pass.h"
#include "cairn/models/network.h"
#include "cairn/models/tokenizer.h"
#include "cairn/models/weights.h"
#include "cairn/session/session.h"

namespace cairn {

class Model;

struct ModelOptions {
  uint32_t threads = 1;
  // Shares the threads of this model, which outlives the new one; one thread at a time calls
  // either. Two models that run by turns need it: threads that wait for one's next graph spin in
  // the way of the other's. Null: it has its own.
  const Model* beside = nullptr;
  Expand expand = Expand::no;
  std::string cache_folder;  // for the identity, see identity.h; empty: only beside the model
};

// A model's own head for drafts (multi-token prediction). Its row i continues from the hidden state
// of position i and from token i + 1, and gives logits of token i + 2. Its state is that of a
// session of its own, opened with its spec. It shares the model's threads: one thread at a time
// calls either.
class DraftHead {
 public:
  const ModelSpec& spec() const { return spec_; }
  // As Model::forward. given: [rows, hidden_width], the model's hidden states or its own; hidden:
  // its own, null: not wanted.
  Result<void> forward(Step& step,
                       std::span<const int32_t> tokens,
                       const float* given,
                       std::span<const uint32_t> wanted,
                       float* logits,
                       float* hidden) {
    return pass_.run(step, {tokens, wanted, given}, {logits, hidden});
  }

 private:
  friend class Model;
  DraftHead(const Network& network, Executor& executor, const ModelSpec& model);

  ModelSpec spec_;
  ForwardPass pass_;
};

class Model {
 public:
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelSpec& spec() const { return spec_; }
  std::string_view architecture() const { return architecture_; }
  const Weights& weights() const { return weights_; }
  const Tokenizer* tokenizer() const {
    return tokenizer_ ? &*tokenizer_ : nullptr;
  }                                                                       // null: the file has none
  uint32_t vocabulary() const { return network_->vocabulary(); }          // logits of a row
  Pos context_length() const { return network_->context_length(); }       // positions
  uint32_t adjacent_pairs() const { return network_->adjacent_pairs(); }  // see network.h
  uint32_t threads() const { return executor_->threads(); }

  uint32_t hidden_width() const { return network_->hidden_width(); }  // 0: it gives none
  DraftHead* draft_head() { return draft_head_.get(); }               // null: none

  // Runs the model over the step's rows and writes every slot; the caller commits. `tokens` are
  // those of all runs, in batch order. Row wanted[i] of the batch gets its logits at logits + i *
  // vocabulary(), and every row its hidden state at hidden + i * hidden_width() unless that is
  // null. BadInput for a token that the vocabulary does not have, NoSpace when ggml finds no
  // memory: then the step must be dropped. REQUIRES: the step's session was opened with this
  // model's spec.
  Result<void> forward(Step& step,
                       std::span<const int32_t> tokens,
                       std::span<const uint32_t> wanted,
                       float* logits,
                       float* hidden = nullptr) {
    return pass_->run(step, {tokens, wanted}, {logits, hidden});
  }

  // Time inside Cairn's operations since the last reset.
  StateSeconds state_seconds() const { return pass_->state().seconds(); }
  void reset_state_seconds() { pass_->state().reset_seconds(); }

  // What every layer asks its state, see state_ops.h.
  void watch_queries(StateOps::QueryWatcher watcher) {
    pass_->state().watch_queries(std::move(watcher));
  }

 private:
  friend Result<std::unique_ptr<Model>> load_model(const std::string&, const ModelOptions&);
  struct Parts;
  explicit Model(Parts parts);

  Weights weights_;
  std::string_view architecture_;
  std::optional<Tokenizer> tokenizer_;
  std::unique_ptr<Network> network_;
  std::unique_ptr<Executor> own_executor_;  // null: it runs beside another model
  Executor* executor_;
  ModelSpec spec_;
  std::unique_ptr<ForwardPass> pass_;
  std::unique_ptr<DraftHead> draft_head_;
};

// NotFound, BadInput (no model, or a damaged one), Unsupported (an architecture or a tensor we do
// not know), Io, NoSpace.
Result<std::unique_ptr<Model>> load_model(const std::string& path, const ModelOptions& options);

std::span<const Architecture> architectures();

}  // namespace cairn

#endif  // CAIRN_MODELS_MODEL_H_
