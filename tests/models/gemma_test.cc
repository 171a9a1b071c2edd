// The tiny gemma3: its numbers, and the state of layers that see a window.
#include "cairn/models/gemma.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/models/tiny_oracle.h"
#include "tests/support/scratch_folder.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;
using testing::must;

constexpr const char* kOracle = "tests/oracles/gemma3.safetensors";
constexpr Pos kWindow = 16;
constexpr uint32_t kLayers = 6;

class TinyGemma : public testing::TinyOracle {
 protected:
  TinyGemma() : TinyOracle(kOracle) {}
};

TEST_F(TinyGemma, AFullForwardGivesTheOraclesLogits) { expect_the_logits_of_a_full_forward(); }

TEST_F(TinyGemma, APrefillAndThenSingleTokensGiveTheOraclesLogits) {
  expect_the_logits_of_a_prefill_and_single_tokens();
}

TEST_F(TinyGemma, RaggedBatchesOfBothRowsGiveTheOraclesLogits) {
  expect_the_logits_of_ragged_batches();
}

TEST_F(TinyGemma, TheStateHoldsTheOraclesKeysAndValues) { expect_the_keys_and_values(); }

TEST_F(TinyGemma, FiveLayersSeeAWindowAndTheSixthSeesEverything) {
  std::vector<Pos> windows;
  for (const SlotSpec& slot : model_->spec().slots) windows.push_back(slot.retention.window);
  EXPECT_THAT(windows, ::testing::ElementsAre(kWindow, kWindow, kWindow, kWindow, kWindow, 0u));
}

TEST_F(TinyGemma, ALongConversationKeepsWhatItsWindowsNeedAndNoMore) {
  Session& session = passes_.session();
  const SeqId seq = passes_.start();
  const Retention retention = model_->spec().slots.front().retention;
  for (size_t i = 0; i < 7; ++i) passes_.run(seq, row(i % 2));
  ASSERT_EQ(session.length(seq), 7 * kLength);
  const Snapshot snapshot = session.snapshot(seq);
  EXPECT_EQ(snapshot.first_kept(SlotId{0}), 7 * kLength - kWindow - retention.rewind);
  EXPECT_EQ(snapshot.first_kept(SlotId{5}), 0u);
  EXPECT_TRUE(session.can_truncate(seq, 7 * kLength - retention.rewind));
  EXPECT_FALSE(session.can_truncate(seq, 7 * kLength - retention.rewind - 2));
}

// The oracle's weights in a GGUF file that says no more than files of llama.cpp do: neither the
// layers' pattern nor the local rotary base nor the scale.
class GemmaGguf : public TinyGemma {
 protected:
  GemmaGguf() {
    gguf_set_val_str(pairs(), "general.architecture", "gemma3");
    for (const auto& [key, value] : {std::pair{"embedding_length", 96u},
                                     {"block_count", kLayers},
                                     {"feed_forward_length", 192u},
                                     {"attention.head_count", 4u},
                                     {"attention.head_count_kv", 1u},
                                     {"attention.key_length", 32u},
                                     {"attention.sliding_window", 16u},
                                     {"context_length", 512u},
                                     {"vocab_size", 320u}})
      gguf_set_val_u32(pairs(), (std::string("gemma3.") + key).c_str(), value);
    gguf_set_val_f32(pairs(), "gemma3.attention.layer_norm_rms_epsilon", 1e-6f);
    gguf_set_val_f32(pairs(), "gemma3.rope.freq_base", 1e6f);
    add_matrix("token_embd.weight", 96, 320);
    add_vector("output_norm.weight", 96);
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      const std::string prefix = "blk." + std::to_string(layer) + ".";
      for (const auto& [name, in, out] : {std::tuple{"attn_q", 96, 128},
                                          {"attn_k", 96, 32},
                                          {"attn_v", 96, 32},
                                          {"attn_output", 128, 96},
                                          {"ffn_gate", 96, 192},
                                          {"ffn_up", 96, 192},
                                          {"ffn_down", 192, 96}})
        add_matrix(prefix + name + ".weight", in, out);
      for (const char* name : {"attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"})
        add_vector(prefix + name + ".weight", 96);
      for (const char* name : {"attn_q_norm", "attn_k_norm"})
        add_vector(prefix + name + ".weight", 32);
    }
  }

  gguf_context* pairs() { return metadata_.gguf(); }
  void set_pattern(std::initializer_list<int8_t> flags) {
    gguf_set_arr_data(pairs(), "gemma3.attention.sliding_window_pattern", GGUF_TYPE_BOOL,
                      flags.begin(), flags.size());
  }
  Result<std::unique_ptr<Model>> load() {
    const std::string path = folder_ / "gemma.gguf";
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

 private:
  void add_matrix(const std::string& name, int64_t in, int64_t out) {
    gguf_add_tensor(pairs(), must(weights_.matrix(name, in, out)));
  }
  void add_vector(const std::string& name, int64_t length) {
    gguf_add_tensor(pairs(), must(weights_.vector(name, length)));
  }

  testing::ScratchFolder folder_;
  Weights weights_ = must(open_weights(kOracle));
  Metadata metadata_{gguf_init_empty(), "gemma.gguf"};
};

TEST_F(GemmaGguf, WhatFilesLeaveOutIsWhatTheArchitectureHas) {
  EXPECT_TRUE(gives_the_oracles_bits());
}

TEST_F(GemmaGguf, ThePatternOfItsLayersIsAPeriodOrAFlagForEach) {
  gguf_set_val_u32(pairs(), "gemma3.attention.sliding_window_pattern", 6);
  EXPECT_TRUE(gives_the_oracles_bits());
  set_pattern({1, 1, 1, 1, 1, 0});
  EXPECT_TRUE(gives_the_oracles_bits());
  set_pattern({1, 1, 0, 1, 1, 0});
  EXPECT_FALSE(gives_the_oracles_bits());
  EXPECT_EQ(must(load())->spec().slots[2].retention.window, 0u);
  set_pattern({1, 1, 0});
  EXPECT_THAT(error(), HasSubstr("has 3 elements, expected one for each of 6 layers"));
  gguf_set_val_u32(pairs(), "gemma3.attention.sliding_window_pattern", 0);
  EXPECT_THAT(error(), HasSubstr("sliding_window_pattern is 0, expected a period"));
}

TEST_F(GemmaGguf, LinearRotaryScalingIsThatOfTheLayersThatSeeEverything) {
  gguf_set_val_str(pairs(), "gemma3.rope.scaling.type", "linear");
  EXPECT_THAT(error(), HasSubstr("gemma3.rope.scaling.factor is missing"));
  gguf_set_val_f32(pairs(), "gemma3.rope.scaling.factor", 8);
  EXPECT_FALSE(gives_the_oracles_bits());
  set_pattern({1, 1, 1, 1, 1, 1});
  const uint64_t scaled = hash_of_a_row(*must(load()));
  gguf_set_val_f32(pairs(), "gemma3.rope.scaling.factor", 1);
  EXPECT_EQ(hash_of_a_row(*must(load())), scaled) << "no layer sees everything";
  gguf_set_val_str(pairs(), "gemma3.rope.scaling.type", "yarn");
  EXPECT_THAT(error(), HasSubstr("gemma3.rope.scaling.type is yarn, expected none or linear"));
}

TEST_F(GemmaGguf, WhatWouldGiveWrongNumbersIsRefused) {
  gguf_set_val_f32(pairs(), "gemma3.final_logit_softcapping", 30);
  EXPECT_THAT(error(), HasSubstr("final_logit_softcapping: expected none"));
  gguf_set_val_u32(pairs(), "gemma3.attention.value_length", 64);
  EXPECT_THAT(error(), HasSubstr("value_length is 64, expected the key's length, 32"));
  gguf_set_val_u32(pairs(), "gemma3.attention.sliding_window", 0);
  gguf_remove_key(pairs(), "gemma3.attention.value_length");
  EXPECT_THAT(error(), HasSubstr("window 0, expected none to be 0"));
}

}  // namespace
}  // namespace cairn
