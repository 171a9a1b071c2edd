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

#include <ggml-alloc.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cairn/models/executor.h"
#include "cairn/models/network.h"
#include "cairn/models/tokenizer.h"
#include "cairn/models/weights.h"
#include "cairn/session/session.h"

namespace cairn {

struct ModelOptions {
  uint32_t threads = 1;
  Expand expand = Expand::no;
  std::string cache_folder;  // for the identity, see identity.h; empty: only beside the model
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

  // Runs the model over the step's rows and writes every slot; the caller commits. `tokens` are
  // those of all runs, in batch order. Row wanted[i] of the batch gets its logits at logits + i *
  // vocabulary(). BadInput for a token that the vocabulary does not have, NoSpace when ggml finds
  // no memory: then the step must be dropped. REQUIRES: the step's session was opened with this
  // model's spec.
  Result<void> forward(Step& step,
                       std::span<const int32_t> tokens,
                       std::span<const uint32_t> wanted,
                       float* logits);

  // Time inside Cairn's operations since the last reset.
  StateSeconds state_seconds() const { return state_.seconds(); }
  void reset_state_seconds() { state_.reset_seconds(); }

  // Which positions the layers with a sparse indexer attend to, see state_ops.h.
  void watch_choices(StateOps::ChoiceWatcher watcher) { state_.watch_choices(std::move(watcher)); }

 private:
  friend Result<std::unique_ptr<Model>> load_model(const std::string&, const ModelOptions&);
  struct Graph;
  struct Parts;
  explicit Model(Parts parts);
  Result<void> prepare(size_t rows,
                       size_t wanted);  // a graph for these counts; the last one is kept
  void fill_inputs(const View& view,
                   std::span<const int32_t> tokens,
                   std::span<const uint32_t> wanted);

  Weights weights_;
  std::string_view architecture_;
  std::optional<Tokenizer> tokenizer_;
  std::unique_ptr<Network> network_;
  std::unique_ptr<Executor> executor_;
  ModelSpec spec_;
  StateOps state_;
  std::unique_ptr<Graph> graph_;
};

// NotFound, BadInput (no model, or a damaged one), Unsupported (an architecture or a tensor we do
// not know), Io, NoSpace.
Result<std::unique_ptr<Model>> load_model(const std::string& path, const ModelOptions& options);

std::span<const Architecture> architectures();

}  // namespace cairn

#endif  // CAIRN_MODELS_MODEL_H_
