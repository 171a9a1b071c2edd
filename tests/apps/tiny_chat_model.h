// A tiny model that reads and writes text: random weights, a vocabulary of single bytes and ChatML.
// What it says is nonsense and always the same, which is all that tests of the programs need.
#ifndef CAIRN_TESTS_APPS_TINY_CHAT_MODEL_H_
#define CAIRN_TESTS_APPS_TINY_CHAT_MODEL_H_

#include <ggml.h>
#include <gguf.h>

#include <algorithm>
#include <cstring>
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

inline void write_tiny_chat_model(const std::string& path, uint64_t seed) {
  ggml_context* context =
      ggml_init({.mem_size = size_t{4} << 20, .mem_buffer = nullptr, .no_alloc = false});
  gguf_context* file = gguf_init_empty();
  const auto tensor = [&](const std::string& name, int64_t in, int64_t out) {
    ggml_tensor* made = ggml_new_tensor_2d(context, GGML_TYPE_F32, in, out);
    const bool is_norm = out == 1;
    std::vector<float> numbers =
        random_floats(scatter(seed) + static_cast<uint64_t>(gguf_get_n_tensors(file)),
                      static_cast<size_t>(in * out), is_norm ? 0.1f : 0.3f);
    for (float& number : numbers) number += is_norm ? 1 : 0;
    if (name == "token_embd.weight") std::fill(numbers.end() - kControls * in, numbers.end(), 0.0f);
    std::memcpy(made->data, numbers.data(), numbers.size() * sizeof(float));
    ggml_set_name(made, name.c_str());
    gguf_add_tensor(file, made);
  };

  std::vector<std::string> tokens = byte_letters();
  const std::string space = tokens[' '];
  tokens.push_back(space + "t");
  std::vector<int32_t> types(tokens.size(), 1);
  for (const char* control : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) {
    tokens.emplace_back(control);
    types.push_back(3);
  }
  std::vector<const char*> names;
  for (const std::string& token : tokens) names.push_back(token.c_str());
  const std::string merge = space + " t";
  const char* merges[] = {merge.c_str()};

  gguf_set_val_str(file, "general.architecture", "llama");
  for (const auto& [key, value] : {std::pair{"embedding_length", 64u},
                                   {"block_count", 2u},
                                   {"feed_forward_length", 96u},
                                   {"attention.head_count", 4u},
                                   {"attention.head_count_kv", 2u},
                                   {"context_length", kTinyContext}})
    gguf_set_val_u32(file, (std::string("llama.") + key).c_str(), value);
  gguf_set_val_f32(file, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
  gguf_set_val_str(file, "tokenizer.ggml.model", "gpt2");
  gguf_set_val_str(file, "tokenizer.ggml.pre", "smollm");
  gguf_set_arr_str(file, "tokenizer.ggml.tokens", names.data(), names.size());
  gguf_set_arr_data(file, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types.data(), types.size());
  gguf_set_arr_str(file, "tokenizer.ggml.merges", merges, 1);
  gguf_set_val_u32(file, "tokenizer.ggml.bos_token_id", 258);
  gguf_set_val_u32(file, "tokenizer.ggml.eos_token_id", 259);
  gguf_set_val_str(file, "tokenizer.chat_template",
                   "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + "
                   "message['content'] + "
                   "'<|im_end|>' + '\n' }}{% endfor %}{{ '<|im_start|>assistant\n' }}");

  tensor("token_embd.weight", 64, static_cast<int64_t>(tokens.size()));
  tensor("output_norm.weight", 64, 1);
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
      tensor("blk." + std::to_string(layer) + "." + name + ".weight", in, out);

  const bool is_written = gguf_write_to_file(file, path.c_str(), false);
  gguf_free(file);
  ggml_free(context);
  if (!is_written) throw std::runtime_error(path + ": not written");
}

}  // namespace cairn::testing

#endif  // CAIRN_TESTS_APPS_TINY_CHAT_MODEL_H_
