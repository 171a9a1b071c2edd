// The tiny qwen3next: its numbers, and the state of layers that do not attend.
#include "cairn/models/hybrid.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/models/tiny_oracle.h"
#include "tests/support/scratch_folder.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;
using testing::must;

constexpr const char* kOracle = "tests/oracles/qwen3_next.safetensors";
constexpr const char* kMlxLmCache = "tests/oracles/mlx_lm/qwen3_next.plain.cache.safetensors";
constexpr uint32_t kLayers = 4;

class TinyHybrid : public testing::TinyOracle {
 protected:
  TinyHybrid() : TinyOracle(kOracle) {}
};

TEST_F(TinyHybrid, AFullForwardGivesTheOraclesLogits) { expect_the_logits_of_a_full_forward(); }

TEST_F(TinyHybrid, APrefillAndThenSingleTokensGiveTheOraclesLogits) {
  expect_the_logits_of_a_prefill_and_single_tokens();
}

TEST_F(TinyHybrid, RaggedBatchesOfBothRowsGiveTheOraclesLogits) {
  expect_the_logits_of_ragged_batches();
}

TEST_F(TinyHybrid, TheStateHoldsTheOraclesKeysAndValues) { expect_the_keys_and_values(); }

TEST_F(TinyHybrid, TheStateHoldsMlxLmsConvolutionsAndMatrices) {
  const SeqId seq = passes_.start();
  passes_.run_in_chunks(seq, row(0).first(kPrefill), 17);
  const Snapshot snapshot = passes_.session().snapshot(seq);
  testing::OracleFile cache(kMlxLmCache);
  for (uint32_t layer = 0; layer + 1 < kLayers; ++layer)
    for (const auto& [tensor, name] : {std::pair{kConv, ".0.0"}, {kRecurrentTensor, ".0.1"}}) {
      const std::vector<float> theirs = cache.floats(std::to_string(layer) + name);
      EXPECT_LT(testing::worst_difference({snapshot.tensor(SlotId{layer}, tensor), theirs.size()},
                                          theirs),
                kTolerance)
          << layer << name;
    }
}

TEST_F(TinyHybrid, ThreeLayersKeepTensorsOfAFixedSizeAndTheFourthKeysAndValues) {
  const std::vector<SlotSpec>& slots = model_->spec().slots;
  ASSERT_EQ(slots.size(), kLayers);
  for (uint32_t i = 0; i + 1 < kLayers; ++i) {
    EXPECT_EQ(slots[i].kind, &kRecurrentKind);
    EXPECT_EQ(slots[i].families,
              (std::vector<FamilySpec>{{&kConvFamily, 3, 128}, {&kRecurrentFamily, 4, 256}}));
    EXPECT_EQ(slots[i].max_positions, 512u);
  }
  EXPECT_EQ(slots.back().kind, &kAttention);
  const SeqId seq = passes_.start();
  passes_.run(seq, row(0));
  EXPECT_TRUE(passes_.session().can_truncate(seq, 0));
  EXPECT_FALSE(passes_.session().can_truncate(seq, kLength - 1));
}

TEST_F(TinyHybrid, AStepOfAModelWithOtherTensorsIsAContractError) {
  ModelSpec spec = model_->spec();
  spec.slots[1].families[1].width = 64;
  Memory memory;
  Session session = must(open_session(spec, must(parse_scheme("f32")), memory));
  Step step = must(session.plan({{.seq = session.start(), .count = 1}}));
  EXPECT_THROW((void)model_->forward(step, row(0).first(1), {}, nullptr), ContractError);
}

// What a row remembers and which experts it goes to depend on no other row, whatever it is.
TEST_F(TinyHybrid, ARowBesideManyEqualOnesKeepsItsBits) {
  const auto alone = passes_.run(passes_.start(), row(0).first(1));
  std::vector<testing::Piece> pieces;
  for (int i = 0; i < 9; ++i) pieces.push_back({passes_.start(), row(0).first(1)});
  const auto together = passes_.run(pieces);
  for (size_t i = 0; i < pieces.size(); ++i)
    EXPECT_EQ(std::memcmp(&together[i * alone.size()], alone.data(), alone.size() * sizeof(float)),
              0)
        << i;
}

TEST_F(TinyHybrid, RunsUnderEverySchemeAndStaysNear) {
  // About three times what was measured; a choice of experts that tips over costs most of it.
  const auto exact = passes_.run(passes_.start(), row(0));
  for (const auto& [scheme, bound] : {std::pair{"f16", 0.001f},
                                      {"bf16", 0.006f},
                                      {"affine8", 0.02f},
                                      {"affine6", 0.08f},
                                      {"affine5", 0.15f},
                                      {"affine4", 1.5f},
                                      {"affine3", 1.5f},
                                      {"affine2", 2.0f},
                                      {"turbo-k8v8", 0.03f},
                                      {"turbo-k8v4", 0.6f},
                                      {"turbo-k8v3", 0.6f},
                                      {"turbo-k8v2", 2.0f},
                                      {"turbo-k4v4", 0.6f},
                                      {"affine8-after32", 0.02f}}) {
    testing::Passes lossy(*model_, scheme);
    const SeqId seq = lossy.start();
    std::vector<float> logits;
    for (const Pos first : {0, 32}) {
      const auto half = lossy.run(seq, row(0).subspan(first, 32));
      logits.insert(logits.end(), half.begin(), half.end());
    }
    const float difference = testing::worst_difference(logits, exact);
    EXPECT_GT(difference, 0) << scheme;
    EXPECT_LT(difference, bound) << scheme;
  }
}

// The oracle's weights in a GGUF file as llama.cpp writes it.
class HybridGguf : public TinyHybrid {
 protected:
  static constexpr size_t kWidth = 96, kKeyHeads = 2, kKeyDim = 16, kSharedValues = 32;

  HybridGguf() {
    gguf_set_val_str(pairs(), "general.architecture", "qwen3next");
    for (const auto& [key, value] : {std::pair{"embedding_length", 96u},
                                     {"block_count", kLayers},
                                     {"attention.head_count", 4u},
                                     {"attention.head_count_kv", 2u},
                                     {"attention.key_length", 32u},
                                     {"rope.dimension_count", 8u},
                                     {"context_length", 512u},
                                     {"vocab_size", 320u},
                                     {"expert_count", 4u},
                                     {"expert_used_count", 2u},
                                     {"expert_feed_forward_length", 64u},
                                     {"ssm.conv_kernel", 4u},
                                     {"ssm.state_size", 16u},
                                     {"ssm.group_count", 2u},
                                     {"ssm.time_step_rank", 4u},
                                     {"ssm.inner_size", 64u}})
      set(key, value);
    gguf_set_val_f32(pairs(), "qwen3next.attention.layer_norm_rms_epsilon", 1e-6f);
  }
  ~HybridGguf() override { ggml_free(context_); }

  gguf_context* pairs() { return metadata_.gguf(); }
  void set(const char* key, uint32_t value) {
    gguf_set_val_u32(pairs(), (std::string("qwen3next.") + key).c_str(), value);
  }

  enum class Inputs { together, apart };
  void add_tensors(Inputs inputs) {
    add(must(weights_.matrix("token_embd.weight", 96, 320)));
    add(must(weights_.matrix("output.weight", 96, 320)));
    add(must(weights_.vector("output_norm.weight", 96)));
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      layer_ = "blk." + std::to_string(layer) + ".";
      for (const char* norm : {"attn_norm.weight", "post_attention_norm.weight"}) vector(norm, 96);
      if (layer == 3)
        add_attention();
      else
        add_linear(inputs);
      add_experts(inputs);
    }
  }
  void drop_tensor(const std::string& name) { dropped_ = name; }

  Result<std::unique_ptr<Model>> load() {
    const std::string path = folder_ / "hybrid.gguf";
    EXPECT_TRUE(gguf_write_to_file(pairs(), path.c_str(), false));
    return load_model(path, {.threads = 2, .expand = Expand::no, .cache_folder = {}});
  }
  uint64_t hash_of_a_row(Model& model) {
    testing::Passes passes(model, "f32");
    return testing::hash_of(passes.run(passes.start(), row(0)));
  }
  bool gives_the_oracles_bits() {
    const auto model = must(load());
    return hash_of_a_row(*model) == hash_of_a_row(*model_);
  }
  std::string error() {
    const auto loaded = load();
    return loaded ? "it was loaded" : loaded.error().message;
  }

  float* numbers(const std::string& name) {
    const int64_t id = gguf_find_tensor(pairs(), name.c_str());
    EXPECT_GE(id, 0) << name;
    return changed_.at(name);
  }

 private:
  void add(ggml_tensor* tensor) {
    if (tensor->name == dropped_) return;
    gguf_add_tensor(pairs(), tensor);
    changed_[tensor->name] = static_cast<float*>(tensor->data);
  }
  void vector(const std::string& name, int64_t length) {
    add(must(weights_.vector(layer_ + name, length)));
  }
  ggml_tensor* matrix(const std::string& name, int64_t in, int64_t out) {
    return must(weights_.matrix(layer_ + name + ".weight", in, out));
  }
  ggml_tensor* made(const std::string& name, int64_t in, int64_t out, int64_t count = 1) {
    ggml_tensor* tensor = ggml_new_tensor_3d(context_, GGML_TYPE_F32, in, out, count);
    ggml_set_name(tensor, (layer_ + name + ".weight").c_str());
    return tensor;
  }
  // Rows [first, first + count) of every `period` of `from`, in that order.
  void pick_rows(const ggml_tensor* from, size_t period, size_t first, size_t count, float*& out) {
    const auto* rows = static_cast<const float*>(from->data);
    for (size_t start = first; start < static_cast<size_t>(ggml_nrows(from)); start += period)
      out = std::copy_n(rows + start * kWidth, count * kWidth, out);
  }

  void add_attention() {
    for (const auto& [name, in, out] : {std::tuple{"attn_q", 96, 256},
                                        {"attn_k", 96, 64},
                                        {"attn_v", 96, 64},
                                        {"attn_output", 128, 96}})
      add(matrix(name, in, out));
    for (const char* norm : {"attn_q_norm.weight", "attn_k_norm.weight"}) vector(norm, 32);
  }

  void add_linear(Inputs inputs) {
    const ggml_tensor* together = matrix("ssm_in", 96, 192);
    if (inputs == Inputs::together) {
      add(const_cast<ggml_tensor*>(together));
    } else {
      constexpr size_t kPeriod = 2 * kKeyDim + 2 * kSharedValues;
      ggml_tensor* mixed = made("attn_qkv", 96, 128);
      auto* out = static_cast<float*>(mixed->data);
      pick_rows(together, kPeriod, 0, kKeyDim, out);
      pick_rows(together, kPeriod, kKeyDim, kKeyDim, out);
      pick_rows(together, kPeriod, 2 * kKeyDim, kSharedValues, out);
      add(mixed);
      ggml_tensor* gate = made("attn_gate", 96, 64);
      out = static_cast<float*>(gate->data);
      pick_rows(together, kPeriod, 2 * kKeyDim + kSharedValues, kSharedValues, out);
      add(gate);
    }
    add(matrix("ssm_ba", 96, 8));
    add(matrix("ssm_conv1d", 4, 128));
    vector("ssm_a", 4);
    vector("ssm_dt.bias", 4);
    vector("ssm_norm.weight", 16);
    add(matrix("ssm_out", 64, 96));
  }

  void add_experts(Inputs inputs) {
    add(matrix("ffn_gate_inp", 96, 4));
    ggml_tensor* both = must(weights_.matrices(layer_ + "ffn_gate_up_exps.weight", 96, 128, 4));
    if (inputs == Inputs::together) {
      add(both);
    } else {
      ggml_tensor *gate = made("ffn_gate_exps", 96, 64, 4), *up = made("ffn_up_exps", 96, 64, 4);
      auto *gates = static_cast<float*>(gate->data), *ups = static_cast<float*>(up->data);
      pick_rows(both, 128, 0, 64, gates);
      pick_rows(both, 128, 64, 64, ups);
      add(gate);
      add(up);
    }
    add(must(weights_.matrices(layer_ + "ffn_down_exps.weight", 64, 96, 4)));
    add(matrix("ffn_gate_inp_shexp", 96, 1));
    add(matrix("ffn_gate_shexp", 96, 64));
    add(matrix("ffn_up_shexp", 96, 64));
    add(matrix("ffn_down_shexp", 64, 96));
  }

  testing::ScratchFolder folder_;
  Weights weights_ = must(open_weights(kOracle));
  Metadata metadata_{gguf_init_empty(), "hybrid.gguf"};
  ggml_context* context_ =
      ggml_init({.mem_size = size_t{8} << 20, .mem_buffer = nullptr, .no_alloc = false});
  std::map<std::string, float*> changed_;
  std::string layer_, dropped_;
};

TEST_F(HybridGguf, WhatFilesLeaveOutIsWhatTheArchitectureHas) {
  add_tensors(Inputs::together);
  EXPECT_TRUE(gives_the_oracles_bits());
}

TEST_F(HybridGguf, InputsAndExpertsMayBeInMatricesOfTheirOwn) {
  add_tensors(Inputs::apart);
  EXPECT_TRUE(gives_the_oracles_bits());
}

TEST_F(HybridGguf, WhatAFileSaysCounts) {
  add_tensors(Inputs::together);
  set("full_attention_interval", 4);
  EXPECT_TRUE(gives_the_oracles_bits());
  gguf_set_val_bool(pairs(), "qwen3next.expert_weights_norm", false);
  EXPECT_FALSE(gives_the_oracles_bits());
  gguf_remove_key(pairs(), "qwen3next.expert_weights_norm");
  set("rope.dimension_count", 16);
  EXPECT_FALSE(gives_the_oracles_bits());
  set("rope.dimension_count", 8);
  gguf_set_val_f32(pairs(), "qwen3next.rope.freq_base", 1e6f);
  EXPECT_FALSE(gives_the_oracles_bits());
}

TEST_F(HybridGguf, WhatWouldGiveWrongNumbersIsRefused) {
  add_tensors(Inputs::together);
  const auto expect_refused = [&](const char* key, uint32_t wrong, uint32_t right,
                                  const char* message) {
    set(key, wrong);
    EXPECT_THAT(error(), HasSubstr(message)) << key << " " << wrong;
    set(key, right);
  };
  expect_refused("full_attention_interval", 0, 4, "every 0th of which attends");
  expect_refused("full_attention_interval", 2, 4, "tensor blk.1.attn_q.weight is missing");
  expect_refused("attention.head_count", 3, 4, "3 query heads over 2 key-value heads");
  expect_refused("attention.value_length", 64, 32, "value_length is 64, expected the key's");
  expect_refused("rope.dimension_count", 34, 8, "rope.dimension_count is 34, expected an even");
  expect_refused("ssm.group_count", 3, 2, "4 value heads over 3 key heads");
  expect_refused("ssm.group_count", 0, 2, "4 value heads over 0 key heads");
  expect_refused("ssm.group_count", 4, 2, "blk.0.ssm_in.weight has shape [192, 96]");
  expect_refused("ssm.time_step_rank", 0, 4, "ssm.inner_size is 64, expected a multiple");
  expect_refused("ssm.time_step_rank", 6, 4, "ssm.inner_size is 64, expected a multiple");
  expect_refused("ssm.state_size", 20, 16, "heads of 20 numbers, expected a multiple of 16");
  expect_refused("ssm.state_size", 4294967280u, 16, "heads of 4294967280 numbers");
  expect_refused("ssm.conv_kernel", 1, 4, "a convolution over 1 positions, expected 2 to 8");
  expect_refused("ssm.conv_kernel", 5, 4, "ssm_conv1d.weight has shape [128, 4], expected");
  expect_refused("expert_used_count", 5, 2, "5 of 4 experts used");
  expect_refused("expert_count", 5000, 4, "5000 experts, expected at most 4096");
  expect_refused("expert_feed_forward_length", 0, 64, "hidden widths 0 and");
  expect_refused("block_count", 0, 4, "a model of 0 layers");
  expect_refused("block_count", 3, 4, "has no place in this architecture");
  expect_refused("block_count", 5, 4, "tensor blk.4.attn_norm.weight is missing");
  gguf_set_val_str(pairs(), "qwen3next.rope.scaling.type", "linear");
  EXPECT_THAT(error(), HasSubstr("qwen3next.rope.scaling.type is linear, expected none or yarn"));
}

TEST_F(HybridGguf, AStateThatWouldGrowWithoutEndIsRefused) {
  add_tensors(Inputs::together);
  float* decays = numbers("blk.1.ssm_a");
  const float decay = std::exchange(decays[2], 0.5f);
  EXPECT_THAT(error(), HasSubstr("blk.1.ssm_a has 0.5, expected no number above 0"));
  decays[2] = NAN;
  EXPECT_THAT(error(), HasSubstr("blk.1.ssm_a has nan"));
  decays[2] = decay;
  EXPECT_TRUE(gives_the_oracles_bits());
}

TEST_F(HybridGguf, ALayerThatLacksATensorIsRefused) {
  drop_tensor("blk.2.ssm_dt.bias");
  add_tensors(Inputs::together);
  EXPECT_THAT(error(), HasSubstr("tensor blk.2.ssm_dt.bias is missing"));
}

}  // namespace
}  // namespace cairn
