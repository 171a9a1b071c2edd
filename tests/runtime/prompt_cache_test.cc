// A llama as llama.cpp's files have it, whose rotary pairs lie side by side, and the prompt caches
// that mlx-lm made of the same weights, which has them as halves: each goes on from the other's.
#include <ggml.h>
#include <gguf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "cairn/engine/convert.h"
#include "cairn/engine/snapshot.h"
#include "tests/models/oracle_file.h"
#include "tests/models/passes.h"
#include "tests/support/scratch_folder.h"

namespace cairn::testing {
namespace {

constexpr const char* kWeights = "tests/oracles/llama.safetensors";
constexpr const char* kCache = "tests/oracles/mlx_lm/llama.plain.cache.safetensors";
constexpr const char* kLogits = "tests/oracles/mlx_lm/llama.plain.logits.safetensors";
constexpr float kTolerance = 1e-4f;
constexpr size_t kWidth = 96, kHidden = 192, kQueryHeads = 6, kHeads = 2, kHeadDim = 32,
                 kVocabulary = 320, kLayers = 3, kLength = 40;

// Rows [j] and [j + 16] of every head become rows [2j] and [2j + 1].
std::vector<float> with_adjacent_pairs(const std::vector<float>& rows) {
  std::vector<float> out(rows.size());
  for (size_t row = 0; row < rows.size() / kWidth; ++row) {
    const size_t j = row % kHeadDim;
    const size_t target = row - j + 2 * (j % (kHeadDim / 2)) + j / (kHeadDim / 2);
    std::copy_n(rows.begin() + static_cast<ptrdiff_t>(row * kWidth), kWidth,
                out.begin() + static_cast<ptrdiff_t>(target * kWidth));
  }
  return out;
}

void write_gguf(const std::string& path) {
  OracleFile weights(kWeights);
  ggml_context* context =
      ggml_init({.mem_size = size_t{8} << 20, .mem_buffer = nullptr, .no_alloc = false});
  gguf_context* file = gguf_init_empty();
  const auto add = [&](const std::string& name, const std::vector<float>& numbers, size_t in) {
    ggml_tensor* tensor = ggml_new_tensor_2d(context, GGML_TYPE_F32, static_cast<int64_t>(in),
                                             static_cast<int64_t>(numbers.size() / in));
    std::memcpy(tensor->data, numbers.data(), numbers.size() * sizeof(float));
    ggml_set_name(tensor, name.c_str());
    gguf_add_tensor(file, tensor);
  };
  gguf_set_val_str(file, "general.architecture", "llama");
  for (const auto& [key, value] : {std::pair{"embedding_length", kWidth},
                                   {"block_count", kLayers},
                                   {"feed_forward_length", kHidden},
                                   {"attention.head_count", kQueryHeads},
                                   {"attention.head_count_kv", kHeads},
                                   {"attention.key_length", kHeadDim},
                                   {"rope.dimension_count", kHeadDim},
                                   {"context_length", size_t{512}},
                                   {"vocab_size", kVocabulary}})
    gguf_set_val_u32(file, (std::string("llama.") + key).c_str(), static_cast<uint32_t>(value));
  gguf_set_val_f32(file, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
  add("token_embd.weight", weights.floats("model.embed_tokens.weight"), kWidth);
  add("output_norm.weight", weights.floats("model.norm.weight"), kWidth);
  for (size_t layer = 0; layer < kLayers; ++layer) {
    const auto theirs = [&](const char* name) {
      return weights.floats(fmt::format("model.layers.{}.{}.weight", layer, name));
    };
    const auto ours = [&](const char* name) {
      return fmt::format("blk.{}.{}.weight", layer, name);
    };
    add(ours("attn_norm"), theirs("input_layernorm"), kWidth);
    add(ours("attn_q"), with_adjacent_pairs(theirs("self_attn.q_proj")), kWidth);
    add(ours("attn_k"), with_adjacent_pairs(theirs("self_attn.k_proj")), kWidth);
    add(ours("attn_v"), theirs("self_attn.v_proj"), kWidth);
    add(ours("attn_output"), theirs("self_attn.o_proj"), kQueryHeads * kHeadDim);
    add(ours("ffn_norm"), theirs("post_attention_layernorm"), kWidth);
    add(ours("ffn_gate"), theirs("mlp.gate_proj"), kWidth);
    add(ours("ffn_up"), theirs("mlp.up_proj"), kWidth);
    add(ours("ffn_down"), theirs("mlp.down_proj"), kHidden);
  }
  const bool is_written = gguf_write_to_file(file, path.c_str(), false);
  gguf_free(file);
  ggml_free(context);
  if (!is_written) throw std::runtime_error(path + ": not written");
}

float worst_difference(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return INFINITY;
  float worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const float difference = std::fabs(a[i] - b[i]);
    worst = difference > worst || std::isnan(difference) ? difference : worst;
  }
  return worst;
}

class PromptCaches : public ::testing::Test {
 protected:
  void SetUp() override {
    write_gguf(folder_ / "llama.gguf");
    gguf_ = must(load_model(folder_ / "llama.gguf", {.threads = 2}));
    safetensors_ = must(load_model(kWeights, {.threads = 2}));
  }
  static StateOwner owner_of(const Model& model) {
    return {.spec = model.spec(), .adjacent_pairs = model.adjacent_pairs()};
  }
  std::string path(const char* name) const { return folder_ / name; }

  ScratchFolder folder_;
  std::unique_ptr<Model> gguf_, safetensors_;
};

TEST_F(PromptCaches, TheModelGoesOnFromMlxLmsCache) {
  OracleFile oracle(kLogits);
  const std::vector<int32_t> tokens = oracle.ids("tokens");
  EXPECT_EQ(gguf_->adjacent_pairs(), kHeadDim);
  EXPECT_EQ(safetensors_->adjacent_pairs(), 0u);
  for (Model* model : {gguf_.get(), safetensors_.get()}) {
    const StateOwner owner = owner_of(*model);
    must(convert(kCache, path("chat.cairn"), {.owner = &owner}));
    Passes passes(*model, "f32");
    const Loaded loaded = must(load(passes.session(), path("chat.cairn")));
    const std::vector<float> logits = passes.run_in_chunks(loaded.seq, tokens, 1);
    EXPECT_LT(worst_difference(logits, oracle.floats("logits")), kTolerance);
  }
}

TEST_F(PromptCaches, TheModelsStateIsMlxLmsCache) {
  OracleFile weights(kWeights), theirs(kCache);
  const std::vector<int32_t> ids = weights.ids("oracle.input_ids");
  for (Model* model : {gguf_.get(), safetensors_.get()}) {
    Passes passes(*model, "f32");
    const SeqId seq = passes.start();
    passes.run(seq, Tokens(ids).first(kLength));
    must(save(passes.session(), seq, Tokens(ids).first(kLength), path("chat.cairn")));
    const StateOwner owner = owner_of(*model);
    must(convert(path("chat.cairn"), path("cache.safetensors"),
                 {.owner = &owner, .to = FileKind::prompt_cache}));
    OracleFile ours(path("cache.safetensors"));
    for (size_t layer = 0; layer < kLayers; ++layer)
      for (size_t list = 0; list < 2; ++list) {
        const std::string name = fmt::format("{}.{}", layer, list);
        const std::vector<float> a = ours.floats(name), b = theirs.floats(name);
        constexpr size_t kNumbers = kLength * kHeadDim;
        for (size_t head = 0; head < kHeads; ++head)  // theirs have room for more positions
          EXPECT_LT(worst_difference(std::span(a).subspan(head * kNumbers, kNumbers),
                                     std::span(b).subspan(head * b.size() / kHeads, kNumbers)),
                    kTolerance)
              << name;
      }
  }
}

}  // namespace
}  // namespace cairn::testing
