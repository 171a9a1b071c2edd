#include "cairn/models/llama.h"

#include "cairn/models/rotary.h"

namespace cairn {
namespace {

struct Shape {
  uint32_t width = 0;  // of the residual stream
  uint32_t layers = 0;
  uint32_t hidden = 0;  // of the feed-forward network
  uint32_t query_heads = 0;
  uint32_t heads = 0;  // key-value heads
  uint32_t head_dim = 0;
  uint32_t rotary_dim = 0;  // the first numbers of a head, which are rotated
  uint32_t context = 0;     // positions
  uint32_t vocabulary = 0;
  float epsilon = 0;  // of the norms
  Rotary rotary;
};

struct Layer {
  ggml_tensor *attention_norm, *query, *key, *value, *output;
  ggml_tensor *hidden_norm, *gate, *up, *down;
};

Result<uint32_t> vocabulary_of(const Weights& weights) {
  const Metadata& data = weights.metadata();
  return data.has("llama.vocab_size") ? data.u32("llama.vocab_size")
                                      : data.count("tokenizer.ggml.tokens");
}

// What ggml would end the process for, and what would give silently wrong numbers.
Result<void> check(const Shape& shape, const Weights& weights) {
  const std::string& path = weights.path();
  if (shape.heads == 0 || shape.query_heads == 0 || shape.query_heads % shape.heads != 0)
    return fail(Code::BadInput, "{}: {} query heads over {} key-value heads, expected a multiple",
                path, shape.query_heads, shape.heads);
  if (shape.rotary_dim == 0 || shape.rotary_dim % 2 != 0 || shape.rotary_dim > shape.head_dim)
    return fail(Code::BadInput,
                "{}: llama.rope.dimension_count is {}, expected an even number up to the head's {}",
                path, shape.rotary_dim, shape.head_dim);
  if (shape.context == 0 || shape.vocabulary == 0 || shape.layers == 0 || shape.width == 0 ||
      shape.hidden == 0)
    return fail(Code::BadInput,
                "{}: a model of {} layers, width {}, hidden width {}, {} tokens, context {}, "
                "expected none to be 0",
                path, shape.layers, shape.width, shape.hidden, shape.vocabulary, shape.context);
  if (shape.context > INT32_MAX)
    return fail(Code::Unsupported, "{}: llama.context_length is {}, expected at most 2^31 - 1",
                path, shape.context);
  if (!(shape.rotary.base > 0) || !(shape.epsilon >= 0))
    return fail(Code::BadInput, "{}: rotary base {}, norm epsilon {}, expected positive numbers",
                path, shape.rotary.base, shape.epsilon);
  return {};
}

Result<Shape> read_shape(const Weights& weights) {
  const Metadata& data = weights.metadata();
  Shape shape;
  shape.width = CAIRN_TRY(data.u32("llama.embedding_length"));
  shape.layers = CAIRN_TRY(data.u32("llama.block_count"));
  shape.hidden = CAIRN_TRY(data.u32("llama.feed_forward_length"));
  shape.query_heads = CAIRN_TRY(data.u32("llama.attention.head_count"));
  shape.heads = CAIRN_TRY(data.u32_or("llama.attention.head_count_kv", shape.query_heads));
  const uint32_t usual_dim = shape.query_heads == 0 ? 0 : shape.width / shape.query_heads;
  shape.head_dim = CAIRN_TRY(data.u32_or("llama.attention.key_length", usual_dim));
  shape.rotary_dim = CAIRN_TRY(data.u32_or("llama.rope.dimension_count", shape.head_dim));
  shape.context = CAIRN_TRY(data.u32("llama.context_length"));
  shape.vocabulary = CAIRN_TRY(vocabulary_of(weights));
  shape.epsilon = CAIRN_TRY(data.f32("llama.attention.layer_norm_rms_epsilon"));
  shape.rotary = CAIRN_TRY(read_rotary(data, "llama", FlatterBy::rotated));
  CAIRN_TRY(check(shape, weights));
  return shape;
}

Result<Layer> read_layer(Weights& weights, const Shape& shape, uint32_t index) {
  const auto named = [&](std::string_view part) {
    return fmt::format("blk.{}.{}.weight", index, part);
  };
  const int64_t queries = int64_t{shape.query_heads} * shape.head_dim;
  const int64_t keys = int64_t{shape.heads} * shape.head_dim;
  Layer layer{};
  layer.attention_norm = CAIRN_TRY(weights.vector(named("attn_norm"), shape.width));
  layer.query = CAIRN_TRY(weights.matrix(named("attn_q"), shape.width, queries));
  layer.key = CAIRN_TRY(weights.matrix(named("attn_k"), shape.width, keys));
  layer.value = CAIRN_TRY(weights.matrix(named("attn_v"), shape.width, keys));
  layer.output = CAIRN_TRY(weights.matrix(named("attn_output"), queries, shape.width));
  layer.hidden_norm = CAIRN_TRY(weights.vector(named("ffn_norm"), shape.width));
  layer.gate = CAIRN_TRY(weights.matrix(named("ffn_gate"), shape.width, shape.hidden));
  layer.up = CAIRN_TRY(weights.matrix(named("ffn_up"), shape.width, shape.hidden));
  layer.down = CAIRN_TRY(weights.matrix(named("ffn_down"), shape.hidden, shape.width));
  return layer;
}

class Llama final : public Network {
 public:
  static Result<std::unique_ptr<Network>> make(Weights& weights) {
    auto model = std::make_unique<Llama>();
    model->shape_ = CAIRN_TRY(read_shape(weights));
    const Shape& shape = model->shape_;
    model->pairs_ = weights.llama_pairs();
    model->embedding_ =
        CAIRN_TRY(weights.matrix("token_embd.weight", shape.width, shape.vocabulary));
    for (uint32_t i = 0; i < shape.layers; ++i)
      model->layers_.push_back(CAIRN_TRY(read_layer(weights, shape, i)));
    model->norm_ = CAIRN_TRY(weights.vector("output_norm.weight", shape.width));
    model->output_ = model->embedding_;  // tied, unless the file has an own one
    if (weights.has("output.weight"))
      model->output_ = CAIRN_TRY(weights.matrix("output.weight", shape.width, shape.vocabulary));
    if (weights.has("rope_freqs.weight"))
      model->rotary_factors_ = CAIRN_TRY(weights.vector("rope_freqs.weight", shape.rotary_dim / 2));
    return std::unique_ptr<Network>(std::move(model));
  }

  uint32_t vocabulary() const override { return shape_.vocabulary; }
  Pos context_length() const override { return shape_.context; }
  std::vector<SlotSpec> slots() const override {
    return std::vector<SlotSpec>(shape_.layers, attention({.heads = shape_.heads,
                                                           .head_dim = shape_.head_dim,
                                                           .max_positions = shape_.context}));
  }
  size_t max_nodes() const override { return 32 * (layers_.size() + 1); }
  uint32_t adjacent_pairs() const override {
    return pairs_ == RotaryPairs::adjacent ? shape_.rotary_dim : 0;
  }

  ggml_tensor* build(GraphBuilder& b) const override {
    ggml_tensor* x = ggml_get_rows(b.context, embedding_, b.tokens);
    for (uint32_t i = 0; i < shape_.layers; ++i) {
      const bool is_last = i + 1 == shape_.layers;
      x = layer(b, layers_[i], SlotId{i}, x, is_last ? Rows::wanted : Rows::all);
      if (x == nullptr) return nullptr;
    }
    return ggml_mul_mat(b.context, output_, b.rms_norm(x, norm_, shape_.epsilon));
  }

 private:
  enum class Rows {
    all,
    wanted
  };  // which rows leave a layer; after the last one only the wanted ones are needed

  // Null when no row leaves the layer.
  ggml_tensor* layer(
      GraphBuilder& b, const Layer& w, SlotId slot, ggml_tensor* x, Rows rows) const {
    ggml_tensor* normed = b.rms_norm(x, w.attention_norm, shape_.epsilon);
    ggml_tensor* key = rotate(b, project(b, w.key, normed, shape_.heads));
    ggml_tensor* written = b.write(slot, key, project(b, w.value, normed, shape_.heads));
    if (rows == Rows::wanted && b.wanted == nullptr) return nullptr;
    ggml_tensor* query = rotate(b, project(b, w.query, normed, shape_.query_heads));
    ggml_tensor* attended = b.attend(slot, query, written);
    if (rows == Rows::wanted) {
      attended = ggml_get_rows(b.context, attended, b.wanted);
      x = ggml_get_rows(b.context, x, b.wanted);
    }
    x = ggml_add(b.context, x, ggml_mul_mat(b.context, w.output, attended));
    return ggml_add(b.context, x, feed_forward(b, w, b.rms_norm(x, w.hidden_norm, shape_.epsilon)));
  }

  ggml_tensor* project(GraphBuilder& b, ggml_tensor* weight, ggml_tensor* x, uint32_t heads) const {
    return b.as_heads(ggml_mul_mat(b.context, weight, x), shape_.head_dim, heads);
  }

  ggml_tensor* feed_forward(GraphBuilder& b, const Layer& w, ggml_tensor* x) const {
    ggml_tensor* gate = ggml_mul_mat(b.context, w.gate, x);
    ggml_tensor* up = ggml_mul_mat(b.context, w.up, x);
    return ggml_mul_mat(b.context, w.down, ggml_swiglu_split(b.context, gate, up));
  }

  ggml_tensor* rotate(GraphBuilder& b, ggml_tensor* x) const {
    const int mode = pairs_ == RotaryPairs::halves ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL;
    return cairn::rotate(b, x, shape_.rotary, shape_.rotary_dim, mode, rotary_factors_);
  }

  Shape shape_;
  RotaryPairs pairs_ = RotaryPairs::adjacent;
  std::vector<Layer> layers_;
  ggml_tensor* embedding_ = nullptr;
  ggml_tensor* norm_ = nullptr;
  ggml_tensor* output_ = nullptr;
  ggml_tensor* rotary_factors_ = nullptr;  // null: none
};

}  // namespace

Result<std::unique_ptr<Network>> make_llama(Weights& weights) { return Llama::make(weights); }

}  // namespace cairn
