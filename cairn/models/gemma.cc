#include "cairn/models/gemma.h"

#include <cmath>

#include "cairn/models/gelu.h"

namespace cairn {
namespace {

// How a layer attends: to what, and with which rotary embedding.
struct Attention {
  Pos window = 0;  // 0: to everything
  float rotary_base = 0;
  float rotary_scale = 1;  // positions are multiplied by it
};

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
  float scale = 0;    // of the scores
  Attention local, global;
  std::vector<bool> is_local;  // per layer
  const Attention& attention(uint32_t layer) const { return is_local[layer] ? local : global; }
};

struct Layer {
  ggml_tensor *attention_norm, *query, *query_norm, *key, *key_norm, *value, *output;
  ggml_tensor* attended_norm;
  ggml_tensor *hidden_norm, *gate, *up, *down;
  ggml_tensor* fed_norm;
};

Result<uint32_t> vocabulary_of(const Weights& weights) {
  const Metadata& data = weights.metadata();
  return data.has("gemma3.vocab_size") ? data.u32("gemma3.vocab_size")
                                       : data.count("tokenizer.ggml.tokens");
}

// A flag per layer, or every how many layers one sees everything.
Result<std::vector<bool>> local_layers(const Metadata& data, uint32_t layers) {
  const std::string key = "gemma3.attention.sliding_window_pattern";
  if (data.is_array(key)) {
    auto flags = CAIRN_TRY(data.flags(key));
    if (flags.size() != layers)
      return fail(Code::BadInput, "{}: {} has {} elements, expected one for each of {} layers",
                  data.path(), key, flags.size(), layers);
    return flags;
  }
  const uint32_t period = CAIRN_TRY(data.u32_or(key, 6));
  if (period == 0) return fail(Code::BadInput, "{}: {} is 0, expected a period", data.path(), key);
  std::vector<bool> flags(layers);
  for (uint32_t i = 0; i < layers; ++i) flags[i] = (i + 1) % period != 0;
  return flags;
}

Result<float> global_rotary_scale(const Metadata& data) {
  const std::string type = CAIRN_TRY(data.text_or("gemma3.rope.scaling.type", "none"));
  if (type == "none") return 1.0f;
  if (type != "linear")
    return fail(Code::Unsupported, "{}: gemma3.rope.scaling.type is {}, expected none or linear",
                data.path(), type);
  const float factor = CAIRN_TRY(data.f32("gemma3.rope.scaling.factor"));
  if (!(factor > 0))
    return fail(Code::BadInput, "{}: gemma3.rope.scaling.factor is {}, expected a positive number",
                data.path(), factor);
  return 1.0f / factor;
}

// Files of llama.cpp do not say it. In all sizes but one it follows from the head's width.
float usual_scale(const Shape& shape) {
  constexpr uint32_t kLayersOf27B = 62;
  const uint32_t divisor = shape.layers == kLayersOf27B && shape.query_heads > 0
                               ? shape.width / shape.query_heads
                               : shape.head_dim;
  return 1.0f / std::sqrt(static_cast<float>(divisor));
}

// What ggml would end the process for, and what would give silently wrong numbers.
Result<void> check(const Shape& shape, const Weights& weights) {
  const std::string& path = weights.path();
  const Metadata& data = weights.metadata();
  if (shape.heads == 0 || shape.query_heads == 0 || shape.query_heads % shape.heads != 0)
    return fail(Code::BadInput, "{}: {} query heads over {} key-value heads, expected a multiple",
                path, shape.query_heads, shape.heads);
  if (shape.rotary_dim == 0 || shape.rotary_dim % 2 != 0 || shape.rotary_dim > shape.head_dim)
    return fail(
        Code::BadInput,
        "{}: gemma3.rope.dimension_count is {}, expected an even number up to the head's {}", path,
        shape.rotary_dim, shape.head_dim);
  const uint32_t value_dim =
      CAIRN_TRY(data.u32_or("gemma3.attention.value_length", shape.head_dim));
  if (value_dim != shape.head_dim)
    return fail(Code::Unsupported,
                "{}: gemma3.attention.value_length is {}, expected the key's length, {}", path,
                value_dim, shape.head_dim);
  if (shape.context == 0 || shape.vocabulary == 0 || shape.layers == 0 || shape.width == 0 ||
      shape.hidden == 0 || shape.local.window == 0)
    return fail(Code::BadInput,
                "{}: a model of {} layers, width {}, hidden width {}, {} tokens, context {}, "
                "window {}, expected none to be 0",
                path, shape.layers, shape.width, shape.hidden, shape.vocabulary, shape.context,
                shape.local.window);
  if (shape.context > INT32_MAX)
    return fail(Code::Unsupported, "{}: gemma3.context_length is {}, expected at most 2^31 - 1",
                path, shape.context);
  if (!(shape.local.rotary_base > 0) || !(shape.global.rotary_base > 0) || !(shape.scale > 0) ||
      !(shape.epsilon >= 0))
    return fail(Code::BadInput,
                "{}: rotary bases {} and {}, score scale {}, norm epsilon {}, expected positive "
                "numbers",
                path, shape.local.rotary_base, shape.global.rotary_base, shape.scale,
                shape.epsilon);
  if (data.has("gemma3.final_logit_softcapping"))
    return fail(Code::Unsupported, "{}: gemma3.final_logit_softcapping: expected none", path);
  return {};
}

Result<Shape> read_shape(const Weights& weights) {
  const Metadata& data = weights.metadata();
  Shape shape;
  shape.width = CAIRN_TRY(data.u32("gemma3.embedding_length"));
  shape.layers = CAIRN_TRY(data.u32("gemma3.block_count"));
  shape.hidden = CAIRN_TRY(data.u32("gemma3.feed_forward_length"));
  shape.query_heads = CAIRN_TRY(data.u32("gemma3.attention.head_count"));
  shape.heads = CAIRN_TRY(data.u32_or("gemma3.attention.head_count_kv", shape.query_heads));
  shape.head_dim = CAIRN_TRY(data.u32("gemma3.attention.key_length"));
  shape.rotary_dim = CAIRN_TRY(data.u32_or("gemma3.rope.dimension_count", shape.head_dim));
  shape.context = CAIRN_TRY(data.u32("gemma3.context_length"));
  shape.vocabulary = CAIRN_TRY(vocabulary_of(weights));
  shape.epsilon = CAIRN_TRY(data.f32("gemma3.attention.layer_norm_rms_epsilon"));
  shape.scale = CAIRN_TRY(data.f32_or("gemma3.attention.scale", usual_scale(shape)));
  shape.local.window = CAIRN_TRY(data.u32("gemma3.attention.sliding_window"));
  shape.local.rotary_base = CAIRN_TRY(data.f32_or("gemma3.rope.freq_base_swa", 10000.0f));
  shape.global.rotary_base = CAIRN_TRY(data.f32_or("gemma3.rope.freq_base", 1000000.0f));
  shape.global.rotary_scale = CAIRN_TRY(global_rotary_scale(data));
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
  layer.query_norm = CAIRN_TRY(weights.vector(named("attn_q_norm"), shape.head_dim));
  layer.key = CAIRN_TRY(weights.matrix(named("attn_k"), shape.width, keys));
  layer.key_norm = CAIRN_TRY(weights.vector(named("attn_k_norm"), shape.head_dim));
  layer.value = CAIRN_TRY(weights.matrix(named("attn_v"), shape.width, keys));
  layer.output = CAIRN_TRY(weights.matrix(named("attn_output"), queries, shape.width));
  layer.attended_norm = CAIRN_TRY(weights.vector(named("post_attention_norm"), shape.width));
  layer.hidden_norm = CAIRN_TRY(weights.vector(named("ffn_norm"), shape.width));
  layer.gate = CAIRN_TRY(weights.matrix(named("ffn_gate"), shape.width, shape.hidden));
  layer.up = CAIRN_TRY(weights.matrix(named("ffn_up"), shape.width, shape.hidden));
  layer.down = CAIRN_TRY(weights.matrix(named("ffn_down"), shape.hidden, shape.width));
  layer.fed_norm = CAIRN_TRY(weights.vector(named("post_ffw_norm"), shape.width));
  return layer;
}

class Gemma final : public Network {
 public:
  static Result<std::unique_ptr<Network>> make(Weights& weights) {
    auto model = std::make_unique<Gemma>();
    model->shape_ = CAIRN_TRY(read_shape(weights));
    const Shape& shape = model->shape_;
    model->embedding_ =
        CAIRN_TRY(weights.matrix("token_embd.weight", shape.width, shape.vocabulary));
    for (uint32_t i = 0; i < shape.layers; ++i)
      model->layers_.push_back(CAIRN_TRY(read_layer(weights, shape, i)));
    // Only now is the number of layers known to be no invention of a damaged file.
    model->shape_.is_local = CAIRN_TRY(local_layers(weights.metadata(), shape.layers));
    model->norm_ = CAIRN_TRY(weights.vector("output_norm.weight", shape.width));
    model->output_ = model->embedding_;  // tied, unless the file has an own one
    if (weights.has("output.weight"))
      model->output_ = CAIRN_TRY(weights.matrix("output.weight", shape.width, shape.vocabulary));
    return std::unique_ptr<Network>(std::move(model));
  }

  uint32_t vocabulary() const override { return shape_.vocabulary; }
  Pos context_length() const override { return shape_.context; }
  std::vector<SlotSpec> slots() const override {
    std::vector<SlotSpec> slots;
    for (uint32_t i = 0; i < shape_.layers; ++i) {
      const AttentionShape shape{.heads = shape_.heads,
                                 .head_dim = shape_.head_dim,
                                 .window = shape_.attention(i).window,
                                 .max_positions = shape_.context};
      slots.push_back(shape.window == 0 ? attention(shape) : window(shape));
    }
    return slots;
  }
  size_t max_nodes() const override { return 48 * (layers_.size() + 1); }

  ggml_tensor* build(GraphBuilder& b) const override {
    ggml_tensor* x = ggml_get_rows(b.context, embedding_, b.tokens);
    x = ggml_scale(b.context, x, std::sqrt(static_cast<float>(shape_.width)));
    for (uint32_t i = 0; i < shape_.layers; ++i) {
      x = attend(b, i, x);
      if (x == nullptr) return nullptr;
      x = feed_forward(b, layers_[i], x);
    }
    return ggml_mul_mat(b.context, output_, b.rms_norm(x, norm_, shape_.epsilon));
  }

 private:
  // The first half of a layer. Of the last one only the wanted rows leave; null when there are
  // none.
  ggml_tensor* attend(GraphBuilder& b, uint32_t index, ggml_tensor* x) const {
    const Layer& w = layers_[index];
    const SlotId slot{index};
    const bool is_last = index + 1 == shape_.layers;
    ggml_tensor* normed = b.rms_norm(x, w.attention_norm, shape_.epsilon);
    ggml_tensor* key =
        b.rms_norm(project(b, w.key, normed, shape_.heads), w.key_norm, shape_.epsilon);
    ggml_tensor* written =
        b.write(slot, rotate(b, index, key), project(b, w.value, normed, shape_.heads));
    if (is_last && b.wanted == nullptr) return nullptr;
    ggml_tensor* query =
        b.rms_norm(project(b, w.query, normed, shape_.query_heads), w.query_norm, shape_.epsilon);
    ggml_tensor* attended = b.attend(slot, rotate(b, index, query), written, shape_.scale);
    if (is_last) {
      attended = ggml_get_rows(b.context, attended, b.wanted);
      x = ggml_get_rows(b.context, x, b.wanted);
    }
    ggml_tensor* added = ggml_mul_mat(b.context, w.output, attended);
    return ggml_add(b.context, x, b.rms_norm(added, w.attended_norm, shape_.epsilon));
  }

  ggml_tensor* feed_forward(GraphBuilder& b, const Layer& w, ggml_tensor* x) const {
    ggml_tensor* normed = b.rms_norm(x, w.hidden_norm, shape_.epsilon);
    ggml_tensor* gate = ggml_mul_mat(b.context, w.gate, normed);
    ggml_tensor* up = ggml_mul_mat(b.context, w.up, normed);
    ggml_tensor* added = ggml_mul_mat(b.context, w.down, gelu_gate(b.context, gate, up));
    return ggml_add(b.context, x, b.rms_norm(added, w.fed_norm, shape_.epsilon));
  }

  ggml_tensor* project(GraphBuilder& b, ggml_tensor* weight, ggml_tensor* x, uint32_t heads) const {
    return b.as_heads(ggml_mul_mat(b.context, weight, x), shape_.head_dim, heads);
  }

  ggml_tensor* rotate(GraphBuilder& b, uint32_t layer, ggml_tensor* x) const {
    const Attention& attention = shape_.attention(layer);
    return ggml_rope_ext(b.context, x, b.positions, nullptr, static_cast<int>(shape_.rotary_dim),
                         GGML_ROPE_TYPE_NEOX, static_cast<int>(shape_.context),
                         attention.rotary_base, attention.rotary_scale, 0.0f, 1.0f, 32.0f, 1.0f);
  }

  Shape shape_;
  std::vector<Layer> layers_;
  ggml_tensor* embedding_ = nullptr;
  ggml_tensor* norm_ = nullptr;
  ggml_tensor* output_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<Network>> make_gemma(Weights& weights) { return Gemma::make(weights); }

}  // namespace cairn
