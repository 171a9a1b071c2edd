// A tiny model that reads and writes text: random weights, a vocabulary of single bytes and ChatML.
// What it says is nonsense and always the same, which is all that tests of the programs need.
#ifndef CAIRN_TESTS_APPS_TINY_CHAT_MODEL_H_
#define CAIRN_TESTS_APPS_TINY_CHAT_MODEL_H_

#include <string>
#include <tuple>
#include <utility>

#include "tests/support/chat_file.h"
#include "tests/support/hybrid_file.h"

namespace cairn::testing {

inline constexpr uint32_t kTinyContext = 4096;

inline void write_tiny_chat_model(const std::string& path,
                                  uint64_t seed,
                                  const std::string& joined = "t") {
  ChatFile file("llama", seed, kTinyContext, {}, joined);
  for (const auto& [key, value] : {std::pair{"embedding_length", 64u},
                                   {"block_count", 2u},
                                   {"feed_forward_length", 96u},
                                   {"attention.head_count", 4u},
                                   {"attention.head_count_kv", 2u}})
    file.number(key, value);
  file.tensor("token_embd.weight", 64, file.tokens());
  file.tensor("output_norm.weight", 64, 1);
  for (int layer = 0; layer < 2; ++layer)
    for (const auto& [name, in, out] : {std::tuple{"attn_norm", 64, 1},
                                        {"attn_q", 64, 64},
                                        {"attn_k", 64, 32},
                                        {"attn_v", 64, 32},
                                        {"attn_output", 64, 64},
                                        {"ffn_norm", 64, 1},
                                        {"ffn_gate", 64, 96},
                                        {"ffn_up", 64, 96},
                                        {"ffn_down", 96, 64}})
      file.tensor("blk." + std::to_string(layer) + "." + name + ".weight", in, out);
  file.write(path);
}

// The same with recurrent layers: three, and a fourth that attends.
inline void write_tiny_hybrid_model(const std::string& path, uint64_t seed) {
  write_hybrid_model(path, HybridShape{.context = kTinyContext}, seed);
}

// The same with latent attention over chosen positions, experts, and a draft head: the second layer
// shares the choice of the first one.
inline void write_tiny_latent_model(const std::string& path, uint64_t seed) {
  ChatFile file("glm-dsa", seed, kTinyContext);
  for (const auto& [key, value] : {std::pair{"embedding_length", 64u},
                                   {"block_count", 4u},
                                   {"nextn_predict_layers", 1u},
                                   {"feed_forward_length", 96u},
                                   {"leading_dense_block_count", 1u},
                                   {"attention.head_count", 2u},
                                   {"attention.q_lora_rank", 32u},
                                   {"attention.kv_lora_rank", 32u},
                                   {"attention.key_length_mla", 32u},
                                   {"attention.value_length_mla", 16u},
                                   {"rope.dimension_count", 16u},
                                   {"attention.indexer.head_count", 2u},
                                   {"attention.indexer.key_length", 32u},
                                   {"attention.indexer.top_k", 40u},
                                   {"expert_count", 4u},
                                   {"expert_used_count", 2u},
                                   {"expert_shared_count", 1u},
                                   {"expert_gating_func", 2u},
                                   {"expert_feed_forward_length", 32u}})
    file.number(key, value);
  file.tensor("token_embd.weight", 64, file.tokens());
  file.tensor("output_norm.weight", 64, 1);
  for (int layer = 0; layer < 4; ++layer) {
    const std::string block = "blk." + std::to_string(layer) + ".";
    const auto weights = [&](std::initializer_list<std::tuple<const char*, int, int, int>> all) {
      for (const auto& [name, in, out, count] : all)
        file.tensor(block + name + ".weight", in, out, count);
    };
    weights({{"attn_norm", 64, 1, 1},
             {"attn_q_a", 64, 32, 1},
             {"attn_q_a_norm", 32, 1, 1},
             {"attn_q_b", 32, 64, 1},
             {"attn_kv_a_mqa", 64, 48, 1},
             {"attn_kv_a_norm", 32, 1, 1},
             {"attn_k_b", 16, 32, 2},
             {"attn_v_b", 32, 16, 2},
             {"attn_output", 32, 64, 1},
             {"ffn_norm", 64, 1, 1}});
    if (layer == 0 || layer == 2) {
      weights({{"indexer.attn_q_b", 32, 64, 1},
               {"indexer.attn_k", 64, 32, 1},
               {"indexer.k_norm", 32, 1, 1},
               {"indexer.proj", 64, 2, 1}});
      file.tensor(block + "indexer.k_norm.bias", 32, 1);
    }
    if (layer == 0) {
      weights({{"ffn_gate", 64, 96, 1}, {"ffn_up", 64, 96, 1}, {"ffn_down", 96, 64, 1}});
      continue;
    }
    weights({{"ffn_gate_inp", 64, 4, 1},
             {"ffn_gate_exps", 64, 32, 4},
             {"ffn_up_exps", 64, 32, 4},
             {"ffn_down_exps", 32, 64, 4},
             {"ffn_gate_shexp", 64, 32, 1},
             {"ffn_up_shexp", 64, 32, 1},
             {"ffn_down_shexp", 32, 64, 1}});
    file.tensor(block + "exp_probs_b.bias", 4, 1);
    if (layer == 3)
      weights({{"nextn.enorm", 64, 1, 1},
               {"nextn.hnorm", 64, 1, 1},
               {"nextn.eh_proj", 128, 64, 1},
               {"nextn.shared_head_norm", 64, 1, 1}});
  }
  file.write(path);
}

}  // namespace cairn::testing

#endif  // CAIRN_TESTS_APPS_TINY_CHAT_MODEL_H_
