#include "cairn/models/hybrid.h"

#include <algorithm>
#include <optional>

#include "cairn/models/delta_net.h"
#include "cairn/models/experts.h"
#include "cairn/models/rotary.h"

namespace cairn {
namespace {

struct Shape {
  uint32_t width = 0;  // of the residual stream
  uint32_t layers = 0;
  uint32_t attention_period = 0;  // of so many layers the last one attends
  uint32_t query_heads = 0;
  uint32_t heads = 0;  // key-value heads
  uint32_t head_dim = 0;
  uint32_t rotary_dim = 0;  // the first numbers of a head, which are rotated
  uint32_t context = 0;     // positions
  uint32_t vocabulary = 0;
  uint32_t hidden = 0;         // of an expert
  uint32_t shared_hidden = 0;  // of the shared one
  float epsilon = 0;           // of the norms
  Rotary rotary;
  DeltaShape delta;
  Routing routing;
  bool attends(uint32_t layer) const { return (layer + 1) % attention_period == 0; }
};

// Of a layer that attends.
struct Attention {
  ggml_tensor* query;  // of each head its query and then its gate
  ggml_tensor *query_norm, *key, *key_norm, *value, *output;
};

// Of a layer that does not. Older files have all inputs in one matrix, by key head.
struct Linear {
  std::unique_ptr<DeltaNet> net;
  ggml_tensor* inputs = nullptr;  // [query, key, values, output gates] per key head; null: apart
  ggml_tensor *mixed = nullptr, *output_gate = nullptr;
  ggml_tensor *gates = nullptr, *norm = nullptr, *output = nullptr;
};

struct Layer {
  ggml_tensor* norm;
  std::optional<Attention> attention;
  std::optional<Linear> linear;
  ggml_tensor* hidden_norm;
  Experts experts;
  ggml_tensor *shared_router, *shared_gate, *shared_up, *shared_down;
};

Result<uint32_t> vocabulary_of(const Weights& weights) {
  const Metadata& data = weights.metadata();
  return data.has("qwen3next.vocab_size") ? data.u32("qwen3next.vocab_size")
                                          : data.count("tokenizer.ggml.tokens");
}

Result<DeltaShape> read_delta_shape(const Metadata& data) {
  DeltaShape shape;
  shape.key_heads = CAIRN_TRY(data.u32("qwen3next.ssm.group_count"));
  shape.value_heads = CAIRN_TRY(data.u32("qwen3next.ssm.time_step_rank"));
  shape.key_dim = CAIRN_TRY(data.u32("qwen3next.ssm.state_size"));
  shape.taps = CAIRN_TRY(data.u32("qwen3next.ssm.conv_kernel"));
  const uint32_t values = CAIRN_TRY(data.u32("qwen3next.ssm.inner_size"));
  if (shape.value_heads == 0 || values % shape.value_heads != 0)
    return fail(Code::BadInput,
                "{}: qwen3next.ssm.inner_size is {}, expected a multiple of "
                "qwen3next.ssm.time_step_rank, {}",
                data.path(), values, shape.value_heads);
  shape.value_dim = values / shape.value_heads;
  CAIRN_TRY(validate(shape, data.path()));
  return shape;
}

Result<Routing> read_expert_routing(const Metadata& data) {
  Routing routing = CAIRN_TRY(read_routing(data, "qwen3next"));
  // Files of llama.cpp do not say it.
  routing.normalize = CAIRN_TRY(data.flag_or("qwen3next.expert_weights_norm", true));
  constexpr uint32_t kMostExperts = 4096;
  if (routing.experts > kMostExperts)
    return fail(Code::Unsupported, "{}: {} experts, expected at most {}", data.path(),
                routing.experts, kMostExperts);
  return routing;
}

// What ggml would end the process for, and what would give silently wrong numbers.
Result<void> check(const Shape& shape, const Metadata& data) {
  const std::string& path = data.path();
  if (shape.heads == 0 || shape.query_heads == 0 || shape.query_heads % shape.heads != 0)
    return fail(Code::BadInput, "{}: {} query heads over {} key-value heads, expected a multiple",
                path, shape.query_heads, shape.heads);
  if (shape.rotary_dim == 0 || shape.rotary_dim % 2 != 0 || shape.rotary_dim > shape.head_dim)
    return fail(
        Code::BadInput,
        "{}: qwen3next.rope.dimension_count is {}, expected an even number up to the head's {}",
        path, shape.rotary_dim, shape.head_dim);
  const uint32_t value_dim =
      CAIRN_TRY(data.u32_or("qwen3next.attention.value_length", shape.head_dim));
  if (value_dim != shape.head_dim)
    return fail(Code::Unsupported,
                "{}: qwen3next.attention.value_length is {}, expected the key's length, {}", path,
                value_dim, shape.head_dim);
  if (shape.context == 0 || shape.vocabulary == 0 || shape.layers == 0 || shape.width == 0 ||
      shape.hidden == 0 || shape.shared_hidden == 0 || shape.attention_period == 0)
    return fail(Code::BadInput,
                "{}: a model of {} layers, every {}th of which attends, width {}, hidden widths {} "
                "and {}, {} tokens, context {}, expected none to be 0",
                path, shape.layers, shape.attention_period, shape.width, shape.hidden,
                shape.shared_hidden, shape.vocabulary, shape.context);
  if (shape.context > INT32_MAX)
    return fail(Code::Unsupported, "{}: qwen3next.context_length is {}, expected at most 2^31 - 1",
                path, shape.context);
  if (!(shape.rotary.base > 0) || !(shape.epsilon >= 0))
    return fail(Code::BadInput, "{}: rotary base {}, norm epsilon {}, expected positive numbers",
                path, shape.rotary.base, shape.epsilon);
  return {};
}

Result<Shape> read_shape(const Weights& weights) {
  const Metadata& data = weights.metadata();
  Shape shape;
  shape.width = CAIRN_TRY(data.u32("qwen3next.embedding_length"));
  shape.layers = CAIRN_TRY(data.u32("qwen3next.block_count"));
  shape.attention_period = CAIRN_TRY(data.u32_or("qwen3next.full_attention_interval", 4));
  shape.query_heads = CAIRN_TRY(data.u32("qwen3next.attention.head_count"));
  shape.heads = CAIRN_TRY(data.u32_or("qwen3next.attention.head_count_kv", shape.query_heads));
  shape.head_dim = CAIRN_TRY(data.u32("qwen3next.attention.key_length"));
  shape.rotary_dim = CAIRN_TRY(data.u32("qwen3next.rope.dimension_count"));
  shape.context = CAIRN_TRY(data.u32("qwen3next.context_length"));
  shape.vocabulary = CAIRN_TRY(vocabulary_of(weights));
  shape.hidden = CAIRN_TRY(data.u32("qwen3next.expert_feed_forward_length"));
  shape.shared_hidden =
      CAIRN_TRY(data.u32_or("qwen3next.expert_shared_feed_forward_length", shape.hidden));
  shape.epsilon = CAIRN_TRY(data.f32("qwen3next.attention.layer_norm_rms_epsilon"));
  shape.rotary = CAIRN_TRY(read_rotary(data, "qwen3next", FlatterBy::rotated));
  CAIRN_TRY(check(shape, data));
  shape.delta = CAIRN_TRY(read_delta_shape(data));
  shape.routing = CAIRN_TRY(read_expert_routing(data));
  return shape;
}

std::span<const float> floats(const ggml_tensor* tensor) {
  return {static_cast<const float*>(tensor->data), static_cast<size_t>(ggml_nelements(tensor))};
}

class LayerReader {
 public:
  LayerReader(Weights& weights, const Shape& shape, uint32_t index)
      : weights_(weights), shape_(shape), index_(index) {}

  Result<Layer> read() {
    Layer layer{};
    layer.norm = CAIRN_TRY(weights_.vector(named("attn_norm.weight"), shape_.width));
    if (shape_.attends(index_))
      layer.attention = CAIRN_TRY(attention());
    else
      layer.linear = CAIRN_TRY(linear());
    layer.hidden_norm =
        CAIRN_TRY(weights_.vector(named("post_attention_norm.weight"), shape_.width));
    layer.experts =
        CAIRN_TRY(read_experts(weights_, shape_.routing, index_, shape_.width, shape_.hidden));
    layer.shared_router = CAIRN_TRY(matrix("ffn_gate_inp_shexp", shape_.width, 1));
    layer.shared_gate = CAIRN_TRY(matrix("ffn_gate_shexp", shape_.width, shape_.shared_hidden));
    layer.shared_up = CAIRN_TRY(matrix("ffn_up_shexp", shape_.width, shape_.shared_hidden));
    layer.shared_down = CAIRN_TRY(matrix("ffn_down_shexp", shape_.shared_hidden, shape_.width));
    return layer;
  }

 private:
  std::string named(std::string_view part) const { return fmt::format("blk.{}.{}", index_, part); }
  Result<ggml_tensor*> matrix(std::string_view part, int64_t in, int64_t out) {
    return weights_.matrix(named(part) + ".weight", in, out);
  }

  Result<Attention> attention() {
    const int64_t queries = int64_t{shape_.query_heads} * shape_.head_dim;
    const int64_t keys = int64_t{shape_.heads} * shape_.head_dim;
    Attention layer{};
    layer.query = CAIRN_TRY(matrix("attn_q", shape_.width, 2 * queries));
    layer.query_norm = CAIRN_TRY(weights_.vector(named("attn_q_norm.weight"), shape_.head_dim));
    layer.key = CAIRN_TRY(matrix("attn_k", shape_.width, keys));
    layer.key_norm = CAIRN_TRY(weights_.vector(named("attn_k_norm.weight"), shape_.head_dim));
    layer.value = CAIRN_TRY(matrix("attn_v", shape_.width, keys));
    layer.output = CAIRN_TRY(matrix("attn_output", queries, shape_.width));
    return layer;
  }

  Result<Linear> linear() {
    const DeltaShape& delta = shape_.delta;
    Linear layer;
    if (weights_.has(named("ssm_in.weight"))) {
      layer.inputs =
          CAIRN_TRY(matrix("ssm_in", shape_.width, int64_t{delta.channels()} + delta.values()));
    } else {
      layer.mixed = CAIRN_TRY(matrix("attn_qkv", shape_.width, delta.channels()));
      layer.output_gate = CAIRN_TRY(matrix("attn_gate", shape_.width, delta.values()));
    }
    layer.gates = CAIRN_TRY(matrix("ssm_ba", shape_.width, delta.gates()));
    layer.norm = CAIRN_TRY(weights_.vector(named("ssm_norm.weight"), delta.value_dim));
    layer.output = CAIRN_TRY(matrix("ssm_out", delta.values(), shape_.width));
    layer.net = CAIRN_TRY(net());
    return layer;
  }

  Result<std::unique_ptr<DeltaNet>> net() {
    const DeltaShape& delta = shape_.delta;
    const std::string taps_name = named("ssm_conv1d.weight");
    const ggml_tensor* taps = CAIRN_TRY(weights_.matrix(taps_name, delta.taps, delta.channels()));
    if (taps->type != GGML_TYPE_F32)
      return fail(Code::Unsupported, "{}: tensor {} is {}, expected f32", weights_.path(),
                  taps_name, ggml_type_name(taps->type));
    const ggml_tensor* decays = CAIRN_TRY(weights_.vector(named("ssm_a"), delta.value_heads));
    const ggml_tensor* biases = CAIRN_TRY(weights_.vector(named("ssm_dt.bias"), delta.value_heads));
    for (const float decay : floats(decays))
      if (!(decay <= 0))
        return fail(Code::BadInput, "{}: tensor {} has {}, expected no number above 0",
                    weights_.path(), named("ssm_a"), decay);
    return std::make_unique<DeltaNet>(delta, floats(taps), floats(decays), floats(biases));
  }

  Weights& weights_;
  const Shape& shape_;
  uint32_t index_;
};

class Hybrid final : public Network {
 public:
  static Result<std::unique_ptr<Network>> make(Weights& weights) {
    auto model = std::make_unique<Hybrid>();
    model->shape_ = CAIRN_TRY(read_shape(weights));
    const Shape& shape = model->shape_;
    model->embedding_ =
        CAIRN_TRY(weights.matrix("token_embd.weight", shape.width, shape.vocabulary));
    for (uint32_t i = 0; i < shape.layers; ++i)
      model->layers_.push_back(CAIRN_TRY(LayerReader(weights, shape, i).read()));
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
    for (const Layer& layer : layers_)
      slots.push_back(layer.linear ? layer.linear->net->slot(shape_.context)
                                   : attention({.heads = shape_.heads,
                                                .head_dim = shape_.head_dim,
                                                .max_positions = shape_.context}));
    return slots;
  }
  size_t max_nodes() const override {
    return (64 + kMostRoutingNodes + size_t{2} * shape_.routing.used) * (layers_.size() + 1);
  }

  ggml_tensor* build(GraphBuilder& b) const override {
    ggml_tensor* x = ggml_get_rows(b.context, embedding_, b.tokens);
    for (uint32_t i = 0; i < shape_.layers; ++i) {
      const Layer& w = layers_[i];
      ggml_tensor* normed = b.rms_norm(x, w.norm, shape_.epsilon);
      const bool is_last = i + 1 == shape_.layers;
      Mixed mixed = w.linear ? remember(b, *w.linear, SlotId{i}, normed)
                             : attend(b, *w.attention, SlotId{i}, normed, is_last);
      if (is_last) {  // only the wanted rows go on
        if (b.wanted == nullptr) return nullptr;
        mixed.rows = ggml_get_rows(b.context, mixed.rows, b.wanted);
        x = ggml_get_rows(b.context, x, b.wanted);
      }
      x = ggml_add(b.context, x, ggml_mul_mat(b.context, mixed.output, mixed.rows));
      x = ggml_add(b.context, x, feed_forward(b, w, b.rms_norm(x, w.hidden_norm, shape_.epsilon)));
    }
    return ggml_mul_mat(b.context, output_, b.rms_norm(x, norm_, shape_.epsilon));
  }

 private:
  // What a layer found, and the matrix that brings it back to the residual stream.
  struct Mixed {
    ggml_tensor* rows;
    ggml_tensor* output;
  };

  // Null rows when it is the last layer and none are wanted.
  Mixed attend(
      GraphBuilder& b, const Attention& w, SlotId slot, ggml_tensor* x, bool is_last) const {
    const int64_t width = shape_.head_dim;
    ggml_tensor* key = b.as_heads(ggml_mul_mat(b.context, w.key, x), width, shape_.heads);
    ggml_tensor* value = b.as_heads(ggml_mul_mat(b.context, w.value, x), width, shape_.heads);
    ggml_tensor* written =
        b.write(slot, rotate(b, b.rms_norm(key, w.key_norm, shape_.epsilon)), value);
    if (is_last && b.wanted == nullptr) return {};
    ggml_tensor* both =
        b.as_heads(ggml_mul_mat(b.context, w.query, x), 2 * width, shape_.query_heads);
    ggml_tensor* query = b.rms_norm(part(b, both, 0, width), w.query_norm, shape_.epsilon);
    ggml_tensor* attended = b.attend(slot, rotate(b, query), written);
    ggml_tensor* gate = ggml_sigmoid(b.context, part(b, both, width, width));
    gate = ggml_reshape_2d(b.context, gate, width * shape_.query_heads, x->ne[1]);
    return {ggml_mul(b.context, attended, gate), w.output};
  }

  Mixed remember(GraphBuilder& b, const Linear& w, SlotId slot, ggml_tensor* x) const {
    const DeltaShape& delta = shape_.delta;
    ggml_tensor *mixed = nullptr, *output_gate = nullptr;
    if (w.inputs != nullptr) {
      std::tie(mixed, output_gate) = take_apart(b, ggml_mul_mat(b.context, w.inputs, x));
    } else {
      mixed = ggml_mul_mat(b.context, w.mixed, x);
      output_gate = ggml_mul_mat(b.context, w.output_gate, x);
    }
    ggml_tensor* answers = b.advance(slot, *w.net, mixed, ggml_mul_mat(b.context, w.gates, x));
    ggml_tensor* heads = b.as_heads(answers, delta.value_dim, delta.value_heads);
    heads = b.rms_norm(heads, w.norm, shape_.epsilon);
    output_gate = b.as_heads(output_gate, delta.value_dim, delta.value_heads);
    ggml_tensor* gated = ggml_swiglu_split(b.context, output_gate, heads);
    return {ggml_reshape_2d(b.context, gated, delta.values(), x->ne[1]), w.output};
  }

  // [query, key, values, output gates] per key head as {all queries, all keys, all values} and all
  // output gates.
  std::pair<ggml_tensor*, ggml_tensor*> take_apart(GraphBuilder& b, ggml_tensor* inputs) const {
    const DeltaShape& delta = shape_.delta;
    const int64_t rows = inputs->ne[1], key = delta.key_dim,
                  values = int64_t{delta.sharers()} * delta.value_dim;
    ggml_tensor* heads = b.as_heads(inputs, 2 * key + 2 * values, delta.key_heads);
    const auto all = [&](int64_t first, int64_t count) {
      return ggml_reshape_2d(b.context, part(b, heads, first, count), count * delta.key_heads,
                             rows);
    };
    ggml_tensor* both = ggml_concat(b.context, all(0, key), all(key, key), 0);
    return {ggml_concat(b.context, both, all(2 * key, values), 0), all(2 * key + values, values)};
  }

  // Numbers [first, first + count) of every head, dense.
  ggml_tensor* part(GraphBuilder& b, ggml_tensor* heads, int64_t first, int64_t count) const {
    return ggml_cont(b.context,
                     ggml_view_3d(b.context, heads, count, heads->ne[1], heads->ne[2], heads->nb[1],
                                  heads->nb[2], static_cast<size_t>(first) * heads->nb[0]));
  }

  ggml_tensor* feed_forward(GraphBuilder& b, const Layer& w, ggml_tensor* x) const {
    ggml_tensor* gate = ggml_mul_mat(b.context, w.shared_gate, x);
    ggml_tensor* up = ggml_mul_mat(b.context, w.shared_up, x);
    ggml_tensor* shared =
        ggml_mul_mat(b.context, w.shared_down, ggml_swiglu_split(b.context, gate, up));
    ggml_tensor* share = ggml_sigmoid(b.context, ggml_mul_mat(b.context, w.shared_router, x));
    return ggml_add(b.context, route(b.context, w.experts, x), ggml_mul(b.context, shared, share));
  }

  ggml_tensor* rotate(GraphBuilder& b, ggml_tensor* x) const {
    return cairn::rotate(b, x, shape_.rotary, shape_.rotary_dim, GGML_ROPE_TYPE_NEOX);
  }

  Shape shape_;
  std::vector<Layer> layers_;
  ggml_tensor* embedding_ = nullptr;
  ggml_tensor* norm_ = nullptr;
  ggml_tensor* output_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<Network>> make_hybrid(Weights& weights) { return Hybrid::make(weights); }

}  // namespace cairn
