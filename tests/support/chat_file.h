// A model that reads and writes text, made of nothing: random weights, a vocabulary of single bytes
// and ChatML. What it says is nonsense and always the same.
#ifndef CAIRN_TESTS_SUPPORT_CHAT_FILE_H_
#define CAIRN_TESTS_SUPPORT_CHAT_FILE_H_

#include <ggml.h>
#include <gguf.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/random.h"

namespace cairn::testing {

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

// How the weights of a file are drawn and kept.
struct ChatWeights {
  float scale = 0.3f;              // deviation of a matrix's numbers
  ggml_type wide = GGML_TYPE_F32;  // of matrices with rows of kWide numbers and more
  static constexpr int64_t kWide = 256;
};

// A GGUF file in the making, of an architecture: its vocabulary is there, the rest is added.
class ChatFile {
 public:
  // `joined`: the letters that a space before them joins into one token.
  ChatFile(std::string architecture,
           uint64_t seed,
           uint32_t context,
           const ChatWeights& weights = {},
           const std::string& joined = "t")
      : architecture_(std::move(architecture)),
        seed_(scatter(seed)),
        weights_(weights),
        context_(ggml_init({.mem_size = kMostTensors * ggml_tensor_overhead(),
                            .mem_buffer = nullptr,
                            .no_alloc = true})),
        file_(gguf_init_empty()) {
    gguf_set_val_str(file_, "general.architecture", architecture_.c_str());
    number("context_length", context);
    gguf_set_val_f32(file_, (architecture_ + ".attention.layer_norm_rms_epsilon").c_str(), 1e-5f);
    add_vocabulary(joined);
  }
  ~ChatFile() {
    gguf_free(file_);
    ggml_free(context_);
  }
  ChatFile(const ChatFile&) = delete;
  ChatFile& operator=(const ChatFile&) = delete;

  int64_t tokens() const { return tokens_; }
  void number(const std::string& key, uint32_t value) {
    gguf_set_val_u32(file_, (architecture_ + "." + key).c_str(), value);
  }
  // Random numbers, around 1 where it is a norm. Valid until the next one is added.
  std::span<float> tensor(const std::string& name, int64_t in, int64_t out, int64_t count = 1) {
    const bool is_norm = out == 1;
    numbers_ =
        random_floats(seed_ + static_cast<uint64_t>(gguf_get_n_tensors(file_)),
                      static_cast<size_t>(in * out * count), is_norm ? 0.1f : weights_.scale);
    for (float& number : numbers_) number += is_norm ? 1 : 0;
    if (name == "token_embd.weight")
      std::fill(numbers_.end() - kControls * in, numbers_.end(), 0.0f);
    const bool is_wide = !is_norm && in >= ChatWeights::kWide;
    return add(name, is_wide ? weights_.wide : GGML_TYPE_F32, {in, out, count});
  }
  void write(const std::string& path) const {
    if (!gguf_write_to_file(file_, path.c_str(), false))
      throw std::runtime_error(path + ": not written");
  }

 private:
  static constexpr size_t kMostTensors = 4096;

  // Of numbers_; f32 ones may still be changed.
  std::span<float> add(const std::string& name, ggml_type type, std::array<int64_t, 3> shape) {
    ggml_tensor* made = ggml_new_tensor(context_, type, 3, shape.data());
    std::vector<std::byte>& bytes = data_.emplace_back(ggml_nbytes(made));
    made->data = bytes.data();
    if (type == GGML_TYPE_F32)
      std::memcpy(made->data, numbers_.data(), bytes.size());
    else
      ggml_quantize_chunk(type, numbers_.data(), made->data, 0, shape[1] * shape[2], shape[0],
                          nullptr);
    ggml_set_name(made, name.c_str());
    gguf_add_tensor(file_, made);
    if (type != GGML_TYPE_F32) return {};
    return {static_cast<float*>(made->data), numbers_.size()};
  }

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
  ChatWeights weights_;
  ggml_context* context_;
  gguf_context* file_;
  std::vector<float> numbers_;                // of the newest tensor
  std::vector<std::vector<std::byte>> data_;  // of all
  int64_t tokens_ = 0;
};

}  // namespace cairn::testing

#endif  // CAIRN_TESTS_SUPPORT_CHAT_FILE_H_
