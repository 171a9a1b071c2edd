// A tiny model that reads and writes text: random weights, a vocabulary of single bytes and ChatML.
// What it says is nonsense and always the same, which is all that tests of the programs need.
#ifndef CAIRN_TESTS_APPS_TINY_CHAT_MODEL_H_
#define CAIRN_TESTS_APPS_TINY_CHAT_MODEL_H_

#include <ggml.h>
#include <gguf.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/support/random.h"

namespace cairn::testing {

inline constexpr uint32_t kTinyContext = 4096;
inline constexpr int kControls =
    3;  // control tokens, the last ones; they never have the largest logit

// The byte-pair vocabularies' letters for bytes: printable ones stand for themselves, the others
// for characters from U+0100 on.
inline std::vector<std::string> byte_letters() {
  std::vector<std::string> letters;
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool stands_for_itself =
        (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    const uint32_t point = stands_for_itself ? byte : next++;
    std::string letter;
    if (point < 0x80) {
      letter = static_cast<char>(point);
    } else {
      letter += static_cast<char>(0xC0 | point >> 6);
      letter += static_cast<char>(0x80 | (point & 0x3F));
    }
    letters.push_back(letter);
  }
  return letters;
}

// A GGUF file in the making, of an architecture: its vocabulary is there, the rest is added.
class TinyChatFile {
 public:
  // `joined`: the letters that a space before them joins into one token.
  TinyChatFile(std::string architecture, uint64_t seed, const std::string& joined = "t")
      : architecture_(std::move(architecture)),
        seed_(scatter(seed)),
        context_(
            ggml_init({.mem_size = size_t{4} << 20, .mem_buffer = nullptr, .no_alloc = false})),
        file_(gguf_init_empty()) {
    gguf_set_val_str(file_, "general.architecture", architecture_.c_str());
    number("context_length", kTinyContext);
    gguf_set_val_f32(file_, (architecture_ + ".attention.layer_norm_rms_epsilon").c_str(), 1e-5f);
    add_vocabulary(joined);
  }
  ~TinyChatFile() {
    gguf_free(file_);
    ggml_free(context_);
  }
  TinyChatFile(const TinyChatFile&) = delete;
  TinyChatFile& operator=(const TinyChatFile&) = delete;

  int64_t tokens() const { return tokens_; }
  void number(const std::string& key, uint32_t value) {
    gguf_set_val_u32(file_, (architecture_ + "." + key).c_str(), value);
  }
  // Random numbers, around 1 where it is a norm.
  std::span<float> tensor(const std::string& name, int64_t in, int64_t out, int64_t count = 1) {
    ggml_tensor* made = ggml_new_tensor_3d(context_, GGML_TYPE_F32, in, out, count);
    const bool is_norm = out == 1;
    std::vector<float> numbers =
        random_floats(seed_ + static_cast<uint64_t>(gguf_get_n_tensors(file_)),
                      static_cast<size_t>(in * out * count), is_norm ? 0.1f : 0.3f);
    for (float& number : numbers) number += is_norm ? 1 : 0;
    if (name == "token_embd.weight") std::fill(numbers.end() - kControls * in, numbers.end(), 0.0f);
    std::memcpy(made->data, numbers.data(), numbers.size() * sizeof(float));
    ggml_set_name(made, name.c_str());
    gguf_add_tensor(file_, made);
    return {static_cast<float*>(made->data), numbers.size()};
  }
  void write(const std::string& path) const {
    if (!gguf_write_to_file(file_, path.c_str(), false))
      throw std::runtime_error(path + ": not written");
  }

 private:
  void add_vocabulary(const std::string& joined) {
    std::vector<std::string> tokens = byte_letters();
    const std::string space = tokens[' '];
    std::vector<std::string> merges;
    for (const char letter : joined) {
      tokens.push_back(space + letter);
      merges.push_back(space + " " + letter);
    }
    std::vector<int32_t> types(tokens.size(), 1);
    for (const char* control : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) {
      tokens.emplace_back(control);
      types.push_back(3);
    }
    tokens_ = static_cast<int64_t>(tokens.size());
    std::vector<const char*> names, merge_names;
    for (const std::string& token : tokens) names.push_back(token.c_str());
    for (const std::string& merge : merges) merge_names.push_back(merge.c_str());
    const auto last = static_cast<uint32_t>(tokens.size() - 1);
    gguf_set_val_str(file_, "tokenizer.ggml.model", "gpt2");
    gguf_set_val_str(file_, "tokenizer.ggml.pre", "smollm");
    gguf_set_arr_str(file_, "tokenizer.ggml.tokens", names.data(), names.size());
    gguf_set_arr_data(file_, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types.data(),
                      types.size());
    gguf_set_arr_str(file_, "tokenizer.ggml.merges", merge_names.data(), merge_names.size());
    gguf_set_val_u32(file_, "tokenizer.ggml.bos_token_id", last - 1);
    gguf_set_val_u32(file_, "tokenizer.ggml.eos_token_id", last);
    gguf_set_val_str(file_, "tokenizer.chat_template",
                     "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + "
                     "message['content'] + "
                     "'<|im_end|>' + '\n' }}{% endfor %}{{ '<|im_start|>assistant\n' }}");
  }

  std::string architecture_;
  uint64_t seed_;
  ggml_context* context_;
  gguf_context* file_;
  int64_t tokens_ = 0;
};

inline void write_tiny_chat_model(const std::string& path,
                                  uint64_t seed,
                                  const std::string& joined = "t") {
  TinyChatFile file("llama", seed, joined);
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
  TinyChatFile file("qwen3next", seed);
  for (const auto& [key, value] : {std::pair{"embedding_length", 64u},
                                   {"block_count", 4u},
                                   {"attention.head_count", 4u},
                                   {"attention.head_count_kv", 2u},
                                   {"attention.key_length", 32u},
                                   {"rope.dimension_count", 8u},
                                   {"expert_count", 4u},
                                   {"expert_used_count", 2u},
                                   {"expert_feed_forward_length", 32u},
                                   {"ssm.conv_kernel", 4u},
                                   {"ssm.state_size", 16u},
                                   {"ssm.group_count", 1u},
                                   {"ssm.time_step_rank", 2u},
                                   {"ssm.inner_size", 32u}})
    file.number(key, value);
  file.tensor("token_embd.weight", 64, file.tokens());
  file.tensor("output_norm.weight", 64, 1);
  for (int layer = 0; layer < 4; ++layer) {
    const std::string block = "blk." + std::to_string(layer) + ".";
    if (layer == 3) {
      for (const auto& [name, in, out] : {std::tuple{"attn_q", 64, 256},
                                          {"attn_k", 64, 64},
                                          {"attn_v", 64, 64},
                                          {"attn_output", 128, 64},
                                          {"attn_q_norm", 32, 1},
                                          {"attn_k_norm", 32, 1}})
        file.tensor(block + name + ".weight", in, out);
    } else {
      for (const auto& [name, in, out] : {std::tuple{"attn_qkv", 64, 64},
                                          {"attn_gate", 64, 32},
                                          {"ssm_ba", 64, 4},
                                          {"ssm_conv1d", 4, 64},
                                          {"ssm_norm", 16, 1},
                                          {"ssm_out", 32, 64}})
        file.tensor(block + name + ".weight", in, out);
      file.tensor(block + "ssm_dt.bias", 2, 1);
      for (float& decay : file.tensor(block + "ssm_a", 2, 1)) decay = -decay;
    }
    for (const auto& [name, in, out] : {std::tuple{"attn_norm", 64, 1},
                                        {"post_attention_norm", 64, 1},
                                        {"ffn_gate_inp", 64, 4},
                                        {"ffn_gate_inp_shexp", 64, 1},
                                        {"ffn_gate_shexp", 64, 32},
                                        {"ffn_up_shexp", 64, 32},
                                        {"ffn_down_shexp", 32, 64}})
      file.tensor(block + name + ".weight", in, out);
    for (const auto& [name, in, out] :
         {std::tuple{"ffn_gate_exps", 64, 32}, {"ffn_up_exps", 64, 32}, {"ffn_down_exps", 32, 64}})
      file.tensor(block + name + ".weight", in, out, 4);
  }
  file.write(path);
}

// The same with latent attention over chosen positions, experts, and a draft head: the second layer
// shares the choice of the first one.
inline void write_tiny_latent_model(const std::string& path, uint64_t seed) {
  TinyChatFile file("glm-dsa", seed);
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
