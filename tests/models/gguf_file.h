// A small llama in a GGUF file, as it should be or as a test wants it.
#ifndef CAIRN_TESTS_MODELS_GGUF_FILE_H_
#define CAIRN_TESTS_MODELS_GGUF_FILE_H_

#include <ggml.h>
#include <gguf.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/random.h"

namespace cairn::testing {

// One layer, width 64, two heads over one key head, 40 tokens, context 128.
class GgufFile {
 public:
  GgufFile()
      : context_(
            ggml_init({.mem_size = size_t{1} << 20, .mem_buffer = nullptr, .no_alloc = false})),
        pairs_(gguf_init_empty()) {
    text("general.architecture", "llama");
    for (const auto& [key, value] : {std::pair{"embedding_length", 64u},
                                     {"block_count", 1u},
                                     {"feed_forward_length", 96u},
                                     {"attention.head_count", 2u},
                                     {"attention.head_count_kv", 1u},
                                     {"context_length", 128u},
                                     {"vocab_size", 40u}})
      number(std::string("llama.") + key, value);
    gguf_set_val_f32(pairs_, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    tensor("token_embd.weight", 64, 40);
    tensor("output_norm.weight", 64, 1);
    for (const auto& [name, in, out] : {std::tuple{"attn_norm", 64, 1},
                                        {"attn_q", 64, 64},
                                        {"attn_k", 64, 32},
                                        {"attn_v", 64, 32},
                                        {"attn_output", 64, 64},
                                        {"ffn_norm", 64, 1},
                                        {"ffn_gate", 64, 96},
                                        {"ffn_up", 64, 96},
                                        {"ffn_down", 96, 64}})
      tensor(std::string("blk.0.") + name + ".weight", in, out);
  }
  ~GgufFile() {
    gguf_free(pairs_);
    ggml_free(context_);
  }
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  void text(const std::string& key, const std::string& value) {
    gguf_set_val_str(pairs_, key.c_str(), value.c_str());
  }
  void number(const std::string& key, uint32_t value) {
    gguf_set_val_u32(pairs_, key.c_str(), value);
  }
  void remove(const std::string& key) { gguf_remove_key(pairs_, key.c_str()); }
  void tensor(const std::string& name, int64_t in, int64_t out) {
    ggml_tensor* made = ggml_new_tensor_2d(context_, GGML_TYPE_F32, in, out);
    const std::vector<float> numbers = random_floats(
        static_cast<uint64_t>(gguf_get_n_tensors(pairs_)), static_cast<size_t>(in * out), 0.2f);
    std::memcpy(made->data, numbers.data(), numbers.size() * sizeof(float));
    ggml_set_name(made, name.c_str());
    gguf_add_tensor(pairs_, made);
  }

  void write(const std::string& path) const {
    if (!gguf_write_to_file(pairs_, path.c_str(), false))
      throw std::runtime_error(path + ": not written");
  }

 private:
  ggml_context* context_;
  gguf_context* pairs_;
};

inline std::string read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

}  // namespace cairn::testing

#endif  // CAIRN_TESTS_MODELS_GGUF_FILE_H_
