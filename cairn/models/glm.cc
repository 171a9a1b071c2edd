#include "cairn/models/glm.h"

#include <algorithm>

#include "cairn/models/experts.h"
#include "cairn/models/latent_attention.h"

namespace cairn {
namespace {

struct Shape {
  std::string architecture;  // what its keys begin with
  LatentAttentionShape attention;
  Routing routing;
  uint32_t layers = 0;
  uint32_t dense_layers = 0;    // the first ones, which have no experts
  uint32_t hidden = 0;          // of the feed-forward network of a dense layer
  uint32_t expert_hidden = 0;   // of one expert
  uint32_t shared_experts = 0;  // every row goes to all of them
  uint32_t vocabulary = 0;

  std::string key(std::string_view name) const { return fmt::format("{}.{}", architecture, name); }
};

// The gated network that every row goes through.
struct Dense {
  ggml_tensor *gate, *up, *down;
};

struct Layer {
  ggml_tensor *attention_norm, *hidden_norm;
  LatentAttention attention;
  std::optional<Dense> dense;  // in a layer of experts: the shared ones
  std::optional<Experts> experts;
};

Result<uint32_t> vocabulary_of(const Metadata& data, const Shape& shape) {
  return data.has(shape.key("vocab_size")) ? data.u32(shape.key("vocab_size"))
                                           : data.count("tokenizer.ggml.tokens");
}

Result<Shape> read_shape(const Metadata& data) {
  Shape shape;
  shape.architecture = CAIRN_TRY(data.text("general.architecture"));
  shape.attention = CAIRN_TRY(read_latent_attention_shape(data, shape.architecture));
  const uint32_t blocks = CAIRN_TRY(data.u32(shape.key("block_count")));
  const uint32_t heads = CAIRN_TRY(data.u32_or(shape.key("nextn_predict_layers"), 0));
  shape.layers = blocks - std::min(blocks, heads);
  shape.dense_layers = CAIRN_TRY(data.u32_or(shape.key("leading_dense_block_count"), 0));
  shape.hidden = CAIRN_TRY(data.u32(shape.key("feed_forward_length")));
  shape.vocabulary = CAIRN_TRY(vocabulary_of(data, shape));
  if (shape.layers == 0 || shape.hidden == 0 || shape.vocabulary == 0)
    return fail(Code::BadInput,
                "{}: a model of {} layers, hidden width {}, {} tokens, expected none to be 0",
                data.path(), shape.layers, shape.hidden, shape.vocabulary);
  if (shape.dense_layers >= shape.layers) return shape;
  shape.routing = CAIRN_TRY(read_routing(data, shape.architecture));
  shape.expert_hidden = CAIRN_TRY(data.u32(shape.key("expert_feed_forward_length")));
  shape.shared_experts = CAIRN_TRY(data.u32_or(shape.key("expert_shared_count"), 0));
  if (shape.expert_hidden == 0)
    return fail(Code::BadInput, "{}: {} is 0, expected a width", data.path(),
                shape.key("expert_feed_forward_length"));
  return shape;
}

std::string name_of(uint32_t layer, std::string_view part) {
  return fmt::format("blk.{}.{}.weight", layer, part);
}

// `suffix` is what the names of its tensors end with.
Result<Dense> read_dense(
    Weights& weights, uint32_t layer, std::string_view suffix, int64_t width, int64_t hidden) {
  const auto named = [&](std::string_view part) {
    return name_of(layer, fmt::format("{}{}", part, suffix));
  };
  Dense dense{};
  dense.gate = CAIRN_TRY(weights.matrix(named("ffn_gate"), width, hidden));
  dense.up = CAIRN_TRY(weights.matrix(named("ffn_up"), width, hidden));
  dense.down = CAIRN_TRY(weights.matrix(named("ffn_down"), hidden, width));
  return dense;
}

Result<Layer> read_layer(Weights& weights,
                         const Shape& shape,
                         uint32_t index,
                         HasIndexer has_indexer) {
  const int64_t width = shape.attention.width;
  Layer layer{};
  layer.attention_norm = CAIRN_TRY(weights.vector(name_of(index, "attn_norm"), width));
  layer.hidden_norm = CAIRN_TRY(weights.vector(name_of(index, "ffn_norm"), width));
  layer.attention = CAIRN_TRY(read_latent_attention(weights, shape.attention, index, has_indexer));
  if (index < shape.dense_layers) {
    layer.dense = CAIRN_TRY(read_dense(weights, index, "", width, shape.hidden));
    return layer;
  }
  layer.experts =
      CAIRN_TRY(read_experts(weights, shape.routing, index, width, shape.expert_hidden));
  if (shape.shared_experts > 0)
    layer.dense = CAIRN_TRY(read_dense(weights, index, "_shexp", width,
                                       int64_t{shape.shared_experts} * shape.expert_hidden));
  return layer;
}

// Which layers have no indexer and attend to what the last one before with one chose. Empty: the
// file does not say it, and has tensors where there is one.
Result<std::vector<bool>> shared_indexers(const Metadata& data, const Shape& shape) {
  const std::string key = shape.key("attention.indexer.shared");
  std::vector<bool> shared;
  if (!shape.attention.indexer || !data.has(key)) return shared;
  shared = CAIRN_TRY(data.flags(key));
  if (shared.size() != shape.layers)
    return fail(Code::BadInput, "{}: {} has {} elements, expected one for each of {} layers",
                data.path(), key, shared.size(), shape.layers);
  return shared;
}

Result<HasIndexer> has_indexer(const Weights& weights,
                               const Shape& shape,
                               const std::vector<bool>& shared,
                               uint32_t layer) {
  if (!shape.attention.indexer) return HasIndexer::no;
  const bool has = shared.empty() ? weights.has(name_of(layer, "indexer.attn_k")) : !shared[layer];
  if (!has && layer == 0)
    return fail(Code::BadInput, "{}: layer 0 has no indexer, and there is none before it to share",
                weights.path());
  return has ? HasIndexer::yes : HasIndexer::no;
}

ggml_tensor* feed_forward(GraphBuilder& b, const Dense& w, ggml_tensor* x) {
  ggml_tensor* gate = ggml_mul_mat(b.context, w.gate, x);
  ggml_tensor* up = ggml_mul_mat(b.context, w.up, x);
  return ggml_mul_mat(b.context, w.down, ggml_swiglu_split(b.context, gate, up));
}

// Null when no row leaves it. `chosen`: see attend_latents.
ggml_tensor* run_layer(GraphBuilder& b,
                       const LatentAttentionShape& shape,
                       const Layer& w,
                       SlotId slot,
                       ggml_tensor* x,
                       Rows rows,
                       ggml_tensor*& chosen) {
  ggml_tensor* normed = b.rms_norm(x, w.attention_norm, shape.epsilon);
  x = attend_latents(b, shape, w.attention, slot, normed, x, rows, chosen);
  if (x == nullptr) return nullptr;
  normed = b.rms_norm(x, w.hidden_norm, shape.epsilon);
  if (w.experts) x = ggml_add(b.context, x, route(b.context, *w.experts, normed));
  if (w.dense) x = ggml_add(b.context, x, feed_forward(b, *w.dense, normed));
  return x;
}

size_t most_nodes(const Shape& shape, size_t layers) {
  return (96 + kMostRoutingNodes + 2 * size_t{shape.routing.used}) * (layers + 1);
}

// What multi-token prediction adds: a layer that continues from a position's hidden state and the
// token that follows it. Its attention sees all positions, whatever the model's does; embedding and
// output are the model's, unless the file has copies of them for it.
class Head final : public Network {
 public:
  // `layer` is the index of its layer, the first one after the model's.
  static Result<std::unique_ptr<Head>> make(Weights& weights,
                                            const Shape& shape,
                                            uint32_t layer,
                                            ggml_tensor* embedding,
                                            ggml_tensor* output) {
    const int64_t width = shape.attention.width;
    auto head = std::make_unique<Head>();
    head->shape_ = shape;
    head->shape_.attention.indexer.reset();
    const auto own_or = [&](const std::string& name, ggml_tensor* shared) {
      return weights.has(name) ? weights.matrix(name, width, shape.vocabulary)
                               : Result<ggml_tensor*>(shared);
    };
    head->embedding_ = CAIRN_TRY(own_or(name_of(layer, "nextn.embed_tokens"), embedding));
    head->output_ = CAIRN_TRY(own_or(name_of(layer, "nextn.shared_head_head"), output));
    head->token_norm_ = CAIRN_TRY(weights.vector(name_of(layer, "nextn.enorm"), width));
    head->hidden_norm_ = CAIRN_TRY(weights.vector(name_of(layer, "nextn.hnorm"), width));
    head->join_ = CAIRN_TRY(weights.matrix(name_of(layer, "nextn.eh_proj"), 2 * width, width));
    head->layer_ = CAIRN_TRY(read_layer(weights, head->shape_, layer, HasIndexer::no));
    head->norm_ = CAIRN_TRY(weights.vector(name_of(layer, "nextn.shared_head_norm"), width));
    return head;
  }

  uint32_t vocabulary() const override { return shape_.vocabulary; }
  Pos context_length() const override { return shape_.attention.context; }
  std::vector<SlotSpec> slots() const override {
    return {latent_draft({.latent_dim = shape_.attention.latent_dim,
                          .rope_dim = shape_.attention.rope_dim,
                          .max_positions = shape_.attention.context})};
  }
  size_t max_nodes() const override { return most_nodes(shape_, 1); }
  uint32_t hidden_width() const override { return shape_.attention.width; }
  bool takes_hidden() const override { return true; }

  // What it gives on, to be continued from in turn, is its layer's output as it is.
  ggml_tensor* build(GraphBuilder& b) const override {
    const float epsilon = shape_.attention.epsilon;
    ggml_tensor* tokens =
        b.rms_norm(ggml_get_rows(b.context, embedding_, b.tokens), token_norm_, epsilon);
    ggml_tensor* given = b.rms_norm(b.given, hidden_norm_, epsilon);
    ggml_tensor* x = ggml_mul_mat(b.context, join_, ggml_concat(b.context, tokens, given, 0));
    ggml_tensor* chosen = nullptr;
    const Rows rows = b.keeps_hidden ? Rows::all : Rows::wanted;
    x = run_layer(b, shape_.attention, layer_, SlotId{0}, x, rows, chosen);
    if (b.keeps_hidden) b.hidden = x;
    if (b.wanted == nullptr) return nullptr;
    if (b.keeps_hidden) x = ggml_get_rows(b.context, x, b.wanted);
    return ggml_mul_mat(b.context, output_, b.rms_norm(x, norm_, epsilon));
  }

 private:
  Shape shape_;
  Layer layer_{};
  ggml_tensor* embedding_ = nullptr;
  ggml_tensor* output_ = nullptr;
  ggml_tensor* token_norm_ = nullptr;
  ggml_tensor* hidden_norm_ = nullptr;
  ggml_tensor* join_ = nullptr;  // [token, hidden] to one
  ggml_tensor* norm_ = nullptr;
};

class Glm final : public Network {
 public:
  static Result<std::unique_ptr<Network>> make(Weights& weights) {
    auto model = std::make_unique<Glm>();
    model->shape_ = CAIRN_TRY(read_shape(weights.metadata()));
    const Shape& shape = model->shape_;
    const int64_t width = shape.attention.width;
    model->embedding_ = CAIRN_TRY(weights.matrix("token_embd.weight", width, shape.vocabulary));
    const std::vector<bool> shared = CAIRN_TRY(shared_indexers(weights.metadata(), shape));
    for (uint32_t i = 0; i < shape.layers; ++i) {
      const HasIndexer has = CAIRN_TRY(has_indexer(weights, shape, shared, i));
      model->layers_.push_back(CAIRN_TRY(read_layer(weights, shape, i, has)));
    }
    model->norm_ = CAIRN_TRY(weights.vector("output_norm.weight", width));
    model->output_ = model->embedding_;  // tied, unless the file has an own one
    if (weights.has("output.weight"))
      model->output_ = CAIRN_TRY(weights.matrix("output.weight", width, shape.vocabulary));
    if (weights.has(name_of(shape.layers, "nextn.eh_proj")))
      model->head_ =
          CAIRN_TRY(Head::make(weights, shape, shape.layers, model->embedding_, model->output_));
    return std::unique_ptr<Network>(std::move(model));
  }

  uint32_t vocabulary() const override { return shape_.vocabulary; }
  Pos context_length() const override { return shape_.attention.context; }
  std::vector<SlotSpec> slots() const override {
    std::vector<SlotSpec> slots;
    for (const Layer& layer : layers_)
      slots.push_back(latent_slot(shape_.attention,
                                  layer.attention.indexer ? HasIndexer::yes : HasIndexer::no));
    return slots;
  }
  size_t max_nodes() const override { return most_nodes(shape_, layers_.size()); }
  uint32_t hidden_width() const override { return shape_.attention.width; }
  const Network* draft_head() const override { return head_.get(); }

  // A hidden state is what the output sees.
  ggml_tensor* build(GraphBuilder& b) const override {
    ggml_tensor* x = ggml_get_rows(b.context, embedding_, b.tokens);
    ggml_tensor* chosen = nullptr;
    for (uint32_t i = 0; i < shape_.layers; ++i) {
      const bool is_last = i + 1 == shape_.layers && !b.keeps_hidden;
      x = run_layer(b, shape_.attention, layers_[i], SlotId{i}, x,
                    is_last ? Rows::wanted : Rows::all, chosen);
      if (x == nullptr) return nullptr;
    }
    x = b.rms_norm(x, norm_, shape_.attention.epsilon);
    if (b.keeps_hidden) b.hidden = x;
    if (b.wanted == nullptr) return nullptr;
    if (b.keeps_hidden) x = ggml_get_rows(b.context, x, b.wanted);
    return ggml_mul_mat(b.context, output_, x);
  }

 private:
  Shape shape_;
  std::vector<Layer> layers_;
  ggml_tensor* embedding_ = nullptr;
  ggml_tensor* norm_ = nullptr;
  ggml_tensor* output_ = nullptr;
  std::unique_ptr<Head> head_;  // null: none
};

}  // namespace

Result<std::unique_ptr<Network>> make_glm(Weights& weights) { return Glm::make(weights); }

}  // namespace cairn
