// The tiny DeepSeek-V3 in a GGUF file, as llama.cpp's files have it: with another weight here and
// there, and with a draft head, which no small published model has.
#ifndef CAIRN_TESTS_MODELS_LATENT_FILE_H_
#define CAIRN_TESTS_MODELS_LATENT_FILE_H_

#include <ggml.h>
#include <gguf.h>

#include <algorithm>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "cairn/models/weights.h"
#include "tests/support/must.h"
#include "tests/support/random.h"

namespace cairn::testing {

class LatentFile {
 public:
  static constexpr size_t kWidth = 128, kVocabulary = 320, kLayers = 3, kHidden = 256,
                          kExpertHidden = 64, kExperts = 8, kQueryRank = 96, kLatent = 64,
                          kRope = 32, kPlain = 32, kValue = 32, kHeads = 4;

  struct Tensor {
    std::vector<size_t> shape;  // the fastest dimension first
    std::vector<float> numbers;
  };

  LatentFile() : weights_(must(open_weights("tests/oracles/deepseek_v3.safetensors"))) {
    gguf_set_kv(pairs_.gguf(), weights_.metadata().gguf());
    take("token_embd.weight", {kWidth, kVocabulary});
    take("output.weight", {kWidth, kVocabulary});
    take("output_norm.weight", {kWidth});
    for (size_t layer = 0; layer < kLayers; ++layer) take_layer(layer);
  }

  gguf_context* pairs() { return pairs_.gguf(); }
  std::map<std::string, Tensor>& tensors() { return tensors_; }
  std::vector<float>& operator[](const std::string& name) { return tensors_.at(name).numbers; }

  void scale(const std::string& name, float factor) {
    for (float& number : (*this)[name]) number *= factor;
  }
  void copy(const std::string& from, const std::string& to) { tensors_[to] = tensors_.at(from); }
  void add(const std::string& name, std::vector<size_t> shape, std::vector<float> numbers) {
    tensors_[name] = {std::move(shape), std::move(numbers)};
  }

  // A head whose layer has the weights of layer `like`.
  void add_head(size_t like, std::vector<float> join) {
    const std::string from = prefix(like), to = prefix(kLayers);
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_)
      if (name.starts_with(from)) names.push_back(name.substr(from.size()));
    for (const std::string& name : names) copy(from + name, to + name);
    add(to + "nextn.enorm.weight", {kWidth}, std::vector<float>(kWidth, 1));
    add(to + "nextn.hnorm.weight", {kWidth}, std::vector<float>(kWidth, 1));
    add(to + "nextn.eh_proj.weight", {2 * kWidth, kWidth}, std::move(join));
    copy("output_norm.weight", to + "nextn.shared_head_norm.weight");
    const auto key = [](const char* name) { return std::string("deepseek2.") + name; };
    gguf_set_val_u32(pairs(), key("block_count").c_str(), kLayers + 1);
    gguf_set_val_u32(pairs(), key("nextn_predict_layers").c_str(), 1);
  }
  // eh_proj that passes on `token` times what it is given of the token, and so of the hidden state.
  static std::vector<float> join(float token, float hidden) {
    std::vector<float> matrix(2 * kWidth * kWidth);
    for (size_t i = 0; i < kWidth; ++i) {
      matrix[i * 2 * kWidth + i] = token;
      matrix[i * 2 * kWidth + kWidth + i] = hidden;
    }
    return matrix;
  }
  static std::string prefix(size_t layer) { return "blk." + std::to_string(layer) + "."; }

  void write(const std::string& path) const {
    size_t bytes = 0;
    for (const auto& [name, tensor] : tensors_)
      bytes += tensor.numbers.size() * sizeof(float) + ggml_tensor_overhead() + GGML_MEM_ALIGN;
    const ContextPtr context(
        ggml_init({.mem_size = bytes, .mem_buffer = nullptr, .no_alloc = false}));
    Metadata file(gguf_init_empty(), path);
    gguf_set_kv(file.gguf(), pairs_.gguf());
    for (const auto& [name, tensor] : tensors_) {
      std::array<int64_t, 3> shape = {1, 1, 1};
      std::ranges::copy(tensor.shape, shape.begin());
      ggml_tensor* made =
          ggml_new_tensor_3d(context.get(), GGML_TYPE_F32, shape[0], shape[1], shape[2]);
      std::ranges::copy(tensor.numbers, static_cast<float*>(made->data));
      ggml_set_name(made, name.c_str());
      gguf_add_tensor(file.gguf(), made);
    }
    if (!gguf_write_to_file(file.gguf(), path.c_str(), false))
      throw std::runtime_error(path + ": not written");
  }

 private:
  void take(const std::string& name, std::vector<size_t> shape) {
    std::array<int64_t, 3> sizes = {1, 1, 1};
    std::ranges::copy(shape, sizes.begin());
    const ggml_tensor* tensor = must(weights_.matrices(name, sizes[0], sizes[1], sizes[2]));
    const auto* numbers = static_cast<const float*>(tensor->data);
    add(name, std::move(shape), {numbers, numbers + ggml_nelements(tensor)});
  }

  void take_layer(size_t layer) {
    const auto weight = [&](const std::string& name, std::vector<size_t> shape) {
      take(prefix(layer) + name + ".weight", std::move(shape));
    };
    weight("attn_norm", {kWidth});
    weight("attn_q_a", {kWidth, kQueryRank});
    weight("attn_q_a_norm", {kQueryRank});
    weight("attn_q_b", {kQueryRank, kHeads * (kPlain + kRope)});
    weight("attn_kv_a_mqa", {kWidth, kLatent + kRope});
    weight("attn_kv_a_norm", {kLatent});
    weight("attn_kv_b", {kLatent, kHeads * (kPlain + kValue)});
    weight("attn_output", {kHeads * kValue, kWidth});
    weight("ffn_norm", {kWidth});
    if (layer == 0) return take_dense(layer, "", kHidden);
    weight("ffn_gate_inp", {kWidth, kExperts});
    take(prefix(layer) + "exp_probs_b.bias", {kExperts});
    weight("ffn_gate_up_exps", {kWidth, 2 * kExpertHidden, kExperts});
    weight("ffn_down_exps", {kExpertHidden, kWidth, kExperts});
    take_dense(layer, "_shexp", kExpertHidden);
  }

  void take_dense(size_t layer, const std::string& suffix, size_t hidden) {
    take(prefix(layer) + "ffn_gate" + suffix + ".weight", {kWidth, hidden});
    take(prefix(layer) + "ffn_up" + suffix + ".weight", {kWidth, hidden});
    take(prefix(layer) + "ffn_down" + suffix + ".weight", {hidden, kWidth});
  }

  Weights weights_;
  Metadata pairs_{gguf_init_empty(), "latent file"};
  std::map<std::string, Tensor> tensors_;
};

}  // namespace cairn::testing

#endif  // CAIRN_TESTS_MODELS_LATENT_FILE_H_
