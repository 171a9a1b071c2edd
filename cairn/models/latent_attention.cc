#include "cairn/models/latent_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace cairn {
namespace {

constexpr uint32_t kMost = 1u << 24;  // of every dimension, so that products fit

Result<void> check(const LatentAttentionShape& shape, const std::string& path) {
  if (shape.width == 0 || shape.heads == 0 || shape.query_rank == 0 || shape.latent_dim == 0 ||
      shape.plain_dim == 0 || shape.value_dim == 0 || shape.context == 0)
    return fail(Code::BadInput,
                "{}: attention of width {}, {} heads, query rank {}, latents of {}, keys of {} and "
                "values of {} numbers, context {}, expected none to be 0",
                path, shape.width, shape.heads, shape.query_rank, shape.latent_dim, shape.plain_dim,
                shape.value_dim, shape.context);
  if (shape.rope_dim == 0 || shape.rope_dim % 2 != 0)
    return fail(Code::BadInput, "{}: {} rotated numbers of a key, expected an even number", path,
                shape.rope_dim);
  for (const uint32_t dimension : {shape.width, shape.heads, shape.query_rank, shape.latent_dim,
                                   shape.rope_dim, shape.plain_dim, shape.value_dim})
    if (dimension > kMost)
      return fail(Code::Unsupported, "{}: attention with a dimension of {}, expected at most {}",
                  path, dimension, kMost);
  if (shape.context > INT32_MAX)
    return fail(Code::Unsupported, "{}: a context of {} positions, expected at most 2^31 - 1", path,
                shape.context);
  if (!(shape.rotary.base > 0) || !(shape.epsilon >= 0))
    return fail(Code::BadInput, "{}: rotary base {}, norm epsilon {}, expected positive numbers",
                path, shape.rotary.base, shape.epsilon);
  if (!shape.indexer) return {};
  const IndexerShape& indexer = *shape.indexer;
  if (indexer.heads == 0 || indexer.count == 0 || indexer.dim < shape.rope_dim ||
      indexer.heads > kMost || indexer.dim > kMost)
    return fail(Code::BadInput,
                "{}: an indexer of {} heads of {} numbers that chooses {} positions, expected at "
                "least one and {} rotated numbers",
                path, indexer.heads, indexer.dim, indexer.count, shape.rope_dim);
  return {};
}

ggml_tensor* rotate(GraphBuilder& b, const LatentAttentionShape& shape, ggml_tensor* x) {
  return rotate(b, x, shape.rotary, shape.rope_dim, GGML_ROPE_TYPE_NORMAL);
}

// Numbers [first, first + count) of every head of x, [width, heads, rows].
ggml_tensor* part_of(GraphBuilder& b, ggml_tensor* x, size_t first, int64_t count) {
  return ggml_view_3d(b.context, x, count, x->ne[1], x->ne[2], x->nb[1], x->nb[2],
                      first * sizeof(float));
}

// [a, heads, rows] times a matrix [a, b, heads] for every head: [b, heads, rows], not dense.
ggml_tensor* multiply_by_head(GraphBuilder& b, ggml_tensor* matrices, ggml_tensor* x) {
  ggml_tensor* product = ggml_mul_mat(b.context, matrices, ggml_permute(b.context, x, 0, 2, 1, 3));
  return ggml_permute(b.context, product, 0, 2, 1, 3);
}

// The best positions of every row.
ggml_tensor* choose(GraphBuilder& b,
                    const LatentAttentionShape& shape,
                    const LatentAttention::Indexer& w,
                    SlotId slot,
                    ggml_tensor* x,
                    ggml_tensor* query_latent,
                    ggml_tensor* written) {
  const IndexerShape& indexer = *shape.indexer;
  ggml_tensor* query =
      b.as_heads(ggml_mul_mat(b.context, w.query, query_latent), indexer.dim, indexer.heads);
  ggml_tensor* weights = ggml_scale(b.context, ggml_mul_mat(b.context, w.weights, x),
                                    1.0f / std::sqrt(static_cast<float>(indexer.heads)));
  return b.state.choose(b.context, slot, rotate(b, shape, query), weights, written, indexer.count,
                        1.0f / std::sqrt(static_cast<float>(indexer.dim)));
}

ggml_tensor* index_key(GraphBuilder& b,
                       const LatentAttentionShape& shape,
                       const LatentAttention::Indexer& w,
                       ggml_tensor* x) {
  ggml_tensor* normed =
      ggml_norm(b.context, ggml_mul_mat(b.context, w.key, x), shape.indexer->epsilon);
  ggml_tensor* key = ggml_add(b.context, ggml_mul(b.context, normed, w.key_norm), w.key_bias);
  return rotate(b, shape, b.as_heads(key, shape.indexer->dim, 1));
}

// Writes the slot; returns the node that says so.
ggml_tensor* write(GraphBuilder& b,
                   const LatentAttentionShape& shape,
                   const LatentAttention& w,
                   SlotId slot,
                   ggml_tensor* x) {
  ggml_tensor* down = b.as_heads(ggml_mul_mat(b.context, w.down, x), w.down->ne[1], 1);
  ggml_tensor* latent =
      b.rms_norm(part_of(b, down, 0, shape.latent_dim), w.latent_norm, shape.epsilon);
  ggml_tensor* rope = rotate(b, shape, part_of(b, down, shape.latent_dim, shape.rope_dim));
  if (!w.indexer) return b.write(slot, {latent, rope});
  return b.write(slot, {latent, rope, index_key(b, shape, *w.indexer, x)});
}

// What meets [latent, rope]: [latent + rope, heads, rows].
ggml_tensor* absorbed_query(GraphBuilder& b,
                            const LatentAttentionShape& shape,
                            const LatentAttention& w,
                            ggml_tensor* query_latent) {
  ggml_tensor* query = b.as_heads(ggml_mul_mat(b.context, w.query_up, query_latent),
                                  int64_t{shape.plain_dim} + shape.rope_dim, shape.heads);
  ggml_tensor* plain = multiply_by_head(b, w.key_up, part_of(b, query, 0, shape.plain_dim));
  ggml_tensor* rope = rotate(b, shape, part_of(b, query, shape.plain_dim, shape.rope_dim));
  return ggml_concat(b.context, plain, rope, 0);
}

// One matrix [latent, heads * (plain + value)], as two that are apart by head, the keys' turned
// over.
Result<void> split_up(LatentAttention& layer,
                      const LatentAttentionShape& shape,
                      const ggml_tensor* both,
                      const std::string& path) {
  if (both->type != GGML_TYPE_F32 && both->type != GGML_TYPE_F16 && both->type != GGML_TYPE_BF16)
    return fail(Code::Unsupported,
                "{}: tensor {} is {}, expected f32, f16 or bf16, or attn_k_b and attn_v_b instead",
                path, both->name, ggml_type_name(both->type));
  const size_t bytes = ggml_type_size(both->type);
  const size_t latent = shape.latent_dim, plain = shape.plain_dim, value = shape.value_dim;
  layer.split = ContextPtr(
      ggml_init({.mem_size = ggml_nbytes(both) + 2 * (ggml_tensor_overhead() + GGML_MEM_ALIGN),
                 .mem_buffer = nullptr,
                 .no_alloc = false}));
  if (!layer.split)
    return fail(Code::NoSpace, "{}: no memory for {} bytes", path, ggml_nbytes(both));
  const auto make = [&](uint32_t in, uint32_t out) {
    return ggml_new_tensor_3d(layer.split.get(), both->type, in, out, shape.heads);
  };
  layer.key_up = make(shape.plain_dim, shape.latent_dim);
  layer.value_up = make(shape.latent_dim, shape.value_dim);
  const auto* from = static_cast<const std::byte*>(both->data);
  auto* keys = static_cast<std::byte*>(layer.key_up->data);
  auto* values = static_cast<std::byte*>(layer.value_up->data);
  for (size_t head = 0; head < shape.heads; ++head) {
    for (size_t i = 0; i < plain; ++i)
      for (size_t j = 0; j < latent; ++j)
        std::memcpy(keys + ((head * latent + j) * plain + i) * bytes,
                    from + ((head * (plain + value) + i) * latent + j) * bytes, bytes);
    std::memcpy(values + head * value * latent * bytes,
                from + (head * (plain + value) + plain) * latent * bytes, value * latent * bytes);
  }
  return {};
}

}  // namespace

Result<LatentAttentionShape> read_latent_attention_shape(const Metadata& data,
                                                         const std::string& architecture) {
  const auto key = [&](std::string_view name) { return fmt::format("{}.{}", architecture, name); };
  LatentAttentionShape shape;
  shape.width = CAIRN_TRY(data.u32(key("embedding_length")));
  shape.heads = CAIRN_TRY(data.u32(key("attention.head_count")));
  shape.query_rank = CAIRN_TRY(data.u32(key("attention.q_lora_rank")));
  shape.latent_dim = CAIRN_TRY(data.u32(key("attention.kv_lora_rank")));
  shape.rope_dim = CAIRN_TRY(data.u32(key("rope.dimension_count")));
  const uint32_t key_dim = CAIRN_TRY(data.u32(key("attention.key_length_mla")));
  shape.plain_dim = key_dim - std::min(key_dim, shape.rope_dim);
  shape.value_dim = CAIRN_TRY(data.u32(key("attention.value_length_mla")));
  shape.context = CAIRN_TRY(data.u32(key("context_length")));
  shape.epsilon = CAIRN_TRY(data.f32(key("attention.layer_norm_rms_epsilon")));
  shape.rotary = CAIRN_TRY(read_rotary(data, architecture, FlatterBy::scores));
  if (data.has(key("attention.indexer.top_k"))) {
    IndexerShape indexer;
    indexer.heads = CAIRN_TRY(data.u32(key("attention.indexer.head_count")));
    indexer.dim = CAIRN_TRY(data.u32(key("attention.indexer.key_length")));
    indexer.count = CAIRN_TRY(data.u32(key("attention.indexer.top_k")));
    indexer.count = std::min(indexer.count, static_cast<uint32_t>(shape.context));
    indexer.epsilon = CAIRN_TRY(data.f32_or(key("attention.layer_norm_epsilon"), 1e-6f));
    shape.indexer = indexer;
  }
  CAIRN_TRY(check(shape, data.path()));
  return shape;
}

Result<LatentAttention> read_latent_attention(Weights& weights,
                                              const LatentAttentionShape& shape,
                                              uint32_t layer,
                                              HasIndexer has_indexer) {
  const auto named = [&](std::string_view part) {
    return fmt::format("blk.{}.{}.weight", layer, part);
  };
  const int64_t width = shape.width, heads = shape.heads, rank = shape.query_rank,
                latent = shape.latent_dim, plain = shape.plain_dim, value = shape.value_dim;
  LatentAttention read{};
  read.query_down = CAIRN_TRY(weights.matrix(named("attn_q_a"), width, rank));
  read.query_norm = CAIRN_TRY(weights.vector(named("attn_q_a_norm"), rank));
  read.query_up =
      CAIRN_TRY(weights.matrix(named("attn_q_b"), rank, heads * (plain + shape.rope_dim)));
  read.down = CAIRN_TRY(weights.matrix(named("attn_kv_a_mqa"), width, latent + shape.rope_dim));
  read.latent_norm = CAIRN_TRY(weights.vector(named("attn_kv_a_norm"), latent));
  if (weights.has(named("attn_kv_b"))) {
    const ggml_tensor* both =
        CAIRN_TRY(weights.matrix(named("attn_kv_b"), latent, heads * (plain + value)));
    CAIRN_TRY(split_up(read, shape, both, weights.path()));
  } else {
    read.key_up = CAIRN_TRY(weights.matrices(named("attn_k_b"), plain, latent, heads));
    read.value_up = CAIRN_TRY(weights.matrices(named("attn_v_b"), latent, value, heads));
  }
  read.output = CAIRN_TRY(weights.matrix(named("attn_output"), heads * value, width));
  if (has_indexer == HasIndexer::no) return read;
  const IndexerShape& indexer = *shape.indexer;
  LatentAttention::Indexer own{};
  own.query = CAIRN_TRY(
      weights.matrix(named("indexer.attn_q_b"), rank, int64_t{indexer.heads} * indexer.dim));
  own.key = CAIRN_TRY(weights.matrix(named("indexer.attn_k"), width, indexer.dim));
  own.key_norm = CAIRN_TRY(weights.vector(named("indexer.k_norm"), indexer.dim));
  own.key_bias =
      CAIRN_TRY(weights.vector(fmt::format("blk.{}.indexer.k_norm.bias", layer), indexer.dim));
  own.weights = CAIRN_TRY(weights.matrix(named("indexer.proj"), width, indexer.heads));
  read.indexer = own;
  return read;
}

SlotSpec latent_slot(const LatentAttentionShape& shape, HasIndexer has_indexer) {
  return latent({.latent_dim = shape.latent_dim,
                 .rope_dim = shape.rope_dim,
                 .index_dim = has_indexer == HasIndexer::yes ? shape.indexer->dim : 0,
                 .max_positions = shape.context});
}

ggml_tensor* attend_latents(GraphBuilder& b,
                            const LatentAttentionShape& shape,
                            const LatentAttention& w,
                            SlotId slot,
                            ggml_tensor* x,
                            ggml_tensor* residual,
                            Rows rows,
                            ggml_tensor*& chosen) {
  ggml_tensor* written = write(b, shape, w, slot, x);
  if (rows == Rows::wanted && b.wanted == nullptr) return nullptr;
  ggml_tensor* query_latent =
      b.rms_norm(ggml_mul_mat(b.context, w.query_down, x), w.query_norm, shape.epsilon);
  if (w.indexer) chosen = choose(b, shape, *w.indexer, slot, x, query_latent, written);
  const float scale =
      shape.rotary.yarn.value_or(Yarn()).score_factor /
      std::sqrt(static_cast<float>(shape.plain_dim) + static_cast<float>(shape.rope_dim));
  ggml_tensor* attended =
      b.attend(slot, absorbed_query(b, shape, w, query_latent), written, scale, chosen);
  if (rows == Rows::wanted) {
    attended = ggml_get_rows(b.context, attended, b.wanted);
    residual = ggml_get_rows(b.context, residual, b.wanted);
  }
  ggml_tensor* values =
      multiply_by_head(b, w.value_up, b.as_heads(attended, shape.latent_dim, shape.heads));
  values = ggml_cont_2d(b.context, values, int64_t{shape.value_dim} * shape.heads, values->ne[2]);
  return ggml_add(b.context, residual, ggml_mul_mat(b.context, w.output, values));
}

}  // namespace cairn
