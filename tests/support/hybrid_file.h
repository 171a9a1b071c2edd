// A hybrid model of any size, made of nothing: gated delta nets, every fourth layer attends,
// experts in each. There is no small published one.
#ifndef CAIRN_TESTS_SUPPORT_HYBRID_FILE_H_
#define CAIRN_TESTS_SUPPORT_HYBRID_FILE_H_

#include <string>
#include <tuple>
#include <utility>

#include "tests/support/chat_file.h"

namespace cairn::testing {

struct HybridShape {
  uint32_t context = 4096;  // positions
  uint32_t width = 64;
  uint32_t layers = 4;
  uint32_t query_heads = 4, heads = 2, head_dim = 32, rotary_dim = 8;
  uint32_t experts = 4, used = 2, hidden = 32;  // the shared one's width as well
  uint32_t key_heads = 1, value_heads = 2, state_dim = 16;
  ChatWeights weights;

  bool attends(uint32_t layer) const { return layer % 4 == 3; }
  uint32_t keys() const { return key_heads * state_dim; }
  uint32_t values() const { return value_heads * state_dim; }
};

// About 200 MB, Qwen3-Next's proportions: nine states of 1 MB, and three layers that attend.
inline HybridShape real_hybrid_shape() {
  return {.context = 32768,
          .width = 768,
          .layers = 12,
          .query_heads = 8,
          .heads = 2,
          .head_dim = 128,
          .rotary_dim = 32,
          .experts = 16,
          .used = 4,
          .hidden = 256,
          .key_heads = 8,
          .value_heads = 16,
          .state_dim = 128,
          .weights = {.scale = 0.08f, .wide = GGML_TYPE_Q8_0}};
}

inline void write_hybrid_model(const std::string& path, const HybridShape& shape, uint64_t seed) {
  ChatFile file("qwen3next", seed, shape.context, shape.weights);
  for (const auto& [key, value] : {std::pair{"embedding_length", shape.width},
                                   {"block_count", shape.layers},
                                   {"attention.head_count", shape.query_heads},
                                   {"attention.head_count_kv", shape.heads},
                                   {"attention.key_length", shape.head_dim},
                                   {"rope.dimension_count", shape.rotary_dim},
                                   {"expert_count", shape.experts},
                                   {"expert_used_count", shape.used},
                                   {"expert_feed_forward_length", shape.hidden},
                                   {"ssm.conv_kernel", 4u},
                                   {"ssm.state_size", shape.state_dim},
                                   {"ssm.group_count", shape.key_heads},
                                   {"ssm.time_step_rank", shape.value_heads},
                                   {"ssm.inner_size", shape.values()}})
    file.number(key, value);
  const uint32_t width = shape.width, queries = shape.query_heads * shape.head_dim,
                 keys = shape.heads * shape.head_dim, hidden = shape.hidden,
                 channels = 2 * shape.keys() + shape.values();
  file.tensor("token_embd.weight", width, file.tokens());
  file.tensor("output_norm.weight", width, 1);
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    const std::string block = "blk." + std::to_string(layer) + ".";
    const auto weights = [&](std::initializer_list<std::tuple<const char*, uint32_t, uint32_t>> all,
                             uint32_t count = 1) {
      for (const auto& [name, in, out] : all) file.tensor(block + name + ".weight", in, out, count);
    };
    if (shape.attends(layer)) {
      weights({{"attn_q", width, 2 * queries},
               {"attn_k", width, keys},
               {"attn_v", width, keys},
               {"attn_output", queries, width},
               {"attn_q_norm", shape.head_dim, 1},
               {"attn_k_norm", shape.head_dim, 1}});
    } else {
      weights({{"attn_qkv", width, channels},
               {"attn_gate", width, shape.values()},
               {"ssm_ba", width, 2 * shape.value_heads},
               {"ssm_conv1d", 4, channels},
               {"ssm_norm", shape.state_dim, 1},
               {"ssm_out", shape.values(), width}});
      file.tensor(block + "ssm_dt.bias", shape.value_heads, 1);
      for (float& decay : file.tensor(block + "ssm_a", shape.value_heads, 1)) decay = -decay;
    }
    weights({{"attn_norm", width, 1},
             {"post_attention_norm", width, 1},
             {"ffn_gate_inp", width, shape.experts},
             {"ffn_gate_inp_shexp", width, 1},
             {"ffn_gate_shexp", width, hidden},
             {"ffn_up_shexp", width, hidden},
             {"ffn_down_shexp", hidden, width}});
    weights({{"ffn_gate_exps", width, hidden},
             {"ffn_up_exps", width, hidden},
             {"ffn_down_exps", hidden, width}},
            shape.experts);
  }
  file.write(path);
}

}  // namespace cairn::testing

#endif  // CAIRN_TESTS_SUPPORT_HYBRID_FILE_H_
