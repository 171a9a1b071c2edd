// What an architecture is: the slots its layers need, and a function that builds its graph.
// models/model.h runs it.
#ifndef CAIRN_MODELS_NETWORK_H_
#define CAIRN_MODELS_NETWORK_H_

#include <ggml.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string_view>
#include <vector>

#include "cairn/models/state_ops.h"
#include "cairn/models/weights.h"

namespace cairn {

// A forward pass in the making: the graph, its inputs, and the steps that architectures share.
struct GraphBuilder {
  ggml_context* context;
  ggml_cgraph* graph;
  StateOps& state;
  ggml_tensor* tokens;            // i32 [rows]
  ggml_tensor* positions;         // i32 [rows], each row's place in its own sequence
  ggml_tensor* wanted;            // i32: the rows whose logits are wanted; null: none
  ggml_tensor* given = nullptr;   // f32 [hidden width, rows]: what a draft head continues from
  bool keeps_hidden = false;      // the hidden states of all rows are wanted
  ggml_tensor* hidden = nullptr;  // where they are, once the graph is built

  ggml_tensor* rms_norm(ggml_tensor* x, ggml_tensor* weight, float epsilon);
  // [heads * width, rows] as [width, heads, rows]
  ggml_tensor* as_heads(ggml_tensor* x, int64_t width, int64_t heads);
  // Writes a slot's new records, one tensor for each of its families; added to the graph even where
  // nobody attends.
  ggml_tensor* write(SlotId slot, std::initializer_list<ggml_tensor*> numbers);
  ggml_tensor* write(SlotId slot, ggml_tensor* key, ggml_tensor* value) {
    return write(slot, {key, value});
  }
  ggml_tensor* attend(SlotId slot,
                      ggml_tensor* query,
                      ggml_tensor* written,
                      float scale = 0,
                      ggml_tensor* chosen = nullptr);
  // Advances a recurrent slot; added to the graph even where nobody reads its answers.
  ggml_tensor* advance(SlotId slot, const DeltaNet& net, ggml_tensor* mixed, ggml_tensor* gates);
};

class Network {
 public:
  virtual ~Network() = default;
  virtual uint32_t vocabulary() const = 0;  // logits of a row
  virtual Pos context_length() const = 0;   // positions the model was trained for
  virtual std::vector<SlotSpec> slots() const = 0;
  virtual size_t max_nodes() const = 0;  // of a graph, generously
  // How many numbers of a key are rotated in pairs that lie side by side; 0: the two of a pair are
  // half of the rotated numbers apart, as in the frameworks that models come from.
  virtual uint32_t adjacent_pairs() const { return 0; }
  // Numbers of a row's hidden state, which a draft head continues from; 0: the network gives none.
  virtual uint32_t hidden_width() const { return 0; }
  virtual bool takes_hidden() const { return false; }  // a draft head
  // Guesses the token after the next from a hidden state and the next token; its slots are of a
  // session of their own. Null: none.
  virtual const Network* draft_head() const { return nullptr; }
  // Writes every slot. Returns logits [vocabulary, wanted], or null when none are wanted.
  virtual ggml_tensor* build(GraphBuilder& builder) const = 0;
};

struct Architecture {
  std::string_view name;  // as "general.architecture" spells it
  // Reads hyperparameters and tensors; the network refers to `weights`, which outlives it.
  Result<std::unique_ptr<Network>> (*make)(Weights& weights);
};

}  // namespace cairn

#endif  // CAIRN_MODELS_NETWORK_H_
