// Configurations that would give silently wrong numbers: the oracles', with a word changed.
#include "cairn/models/huggingface.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "cairn/format/safetensors.h"
#include "tests/models/gguf_file.h"
#include "tests/support/must.h"
#include "tests/support/scratch_folder.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;
using testing::must;

struct Change {
  const char* model;
  std::string from, to;  // of one length: the header's tensors keep their places
  const char* message;
};

const Change kChanges[] = {
    {"llama", R"(model_type\": \"llama)", R"(model_type\": \"mamba)",
     R"(model_type "mamba", expected one of: llama, gemma3_text, qwen3_next, deepseek_v3, glm_moe_dsa)"},
    {"llama", R"(\"silu\")", R"(\"gelu\")", R"(hidden_act is "gelu", expected silu)"},
    {"llama", R"(mlp_bias\": false)", R"(mlp_bias\": 10000)", "mlp_bias is 10000, expected none"},
    {"llama", R"(attention_bias\": false)", R"(attention_bias\": 10000)",
     "attention_bias is 10000, expected none"},
    {"llama", R"(rope_type\": \"default)", R"(rope_type\": \"dynamic)",
     "expected the default type"},
    {"llama", R"(num_hidden_layers\": 3)", R"(num_hidden_layers\": {)", "config is no JSON"},
    {"llama", R"(hidden_size\": 96)", R"(hidden_size\": -6)",
     "hidden_size is -6, expected a whole number"},
    {"llama", "rms_norm_eps", "rms_norm_abc", "config has no rms_norm_eps"},
    {"gemma3", "gelu_pytorch_tanh", "gelu_pytorch_none",
     R"(hidden_activation is "gelu_pytorch_none", expected gelu_pytorch_tanh)"},
    {"gemma3", R"(final_logit_softcapping\": null)", R"(final_logit_softcapping\": 30.0)",
     "final_logit_softcapping is 30.0, expected none"},
    {"gemma3", R"(attn_logit_softcapping\": null)", R"(attn_logit_softcapping\": 50.0)",
     "attn_logit_softcapping is 50.0, expected none"},
    {"gemma3", R"(use_bidirectional_attention\": false)", R"(use_bidirectional_attention\": 10000)",
     "use_bidirectional_attention is 10000, expected none"},
    {"gemma3", R"(layer_types\": [\"sliding)", R"(layer_types\": [\"chunked)",
     R"(a layer's type is "chunked_attention", expected sliding_attention or full_attention)"},
    {"gemma3", R"(sliding_attention\": {\"rope_type\": \"default)",
     R"(sliding_attention\": {\"rope_type\": \"dynamic)", "expected the default type"},
    {"qwen3_next", R"(layer_types\": [\"linear_attention)", R"(layer_types\": [\"sparse_attention)",
     R"(layer 0 is "sparse_attention", expected linear_attention)"},
    {"qwen3_next", R"(decoder_sparse_step\": 1)", R"(decoder_sparse_step\": 2)",
     "layers without experts"},
    {"qwen3_next", R"(mlp_only_layers\": [])", R"(mlp_only_layers\":[2])",
     "layers without experts"},
    {"qwen3_next", R"(norm_topk_prob\": true)", R"(norm_topk_prob\": 1.00)",
     "norm_topk_prob is 1.0, expected true or false"},
    {"qwen3_next", R"(partial_rotary_factor\": 0.25)", R"(partial_rotary_factor\": 2.25)",
     "partial_rotary_factor is 2.25, expected 0 to 1"},
    {"qwen3_next", "linear_key_head_dim", "linear_key_head_abc",
     "config has no linear_key_head_dim"},
    {"qwen3_next", R"(num_experts\": 4)", R"(num_experts\": x)", "config is no JSON"},
    {"qwen3_next", R"(num_experts\": 4)", R"(num_experts\":-4)",
     "num_experts is -4, expected a whole number"},
    {"deepseek_v3", R"(rope_interleave\": true)", R"(rope_interleave\": null)",
     "rope_interleave is null, expected true"},
    {"deepseek_v3", R"(rope_type\": \"default)", R"(rope_type\": \"dynamic)",
     "expected the default type"},
    {"deepseek_v3", R"(norm_topk_prob\": true)", R"(norm_topk_prob\": 1000)",
     "norm_topk_prob is 1000, expected true or false"},
    {"deepseek_v3", R"(kv_lora_rank\": 64)", R"(kv_lora_rank\": -1)",
     "kv_lora_rank is -1, expected a whole number"},
    {"deepseek_v3", "routed_scaling_factor", "routed_scaling_actor.",
     "config has no routed_scaling_factor"},
    {"glm_moe_dsa", R"([\"full\", \"full\")", R"([\"full\", \"some\")",
     R"(a layer's indexer is "some", expected full or shared)"},
    {"glm_moe_dsa", R"([\"dense\", \"sparse\")", R"([\"dense\", \"denser\")",
     "expected 1 dense ones, then sparse ones"},
    {"glm_moe_dsa", "index_topk", "index_tops", "config has no index_topk"},
};

void write_changed(const std::string& path, const Change& change) {
  ASSERT_EQ(change.from.size(), change.to.size());
  std::string bytes =
      testing::read_bytes(std::string("tests/oracles/") + change.model + ".safetensors");
  const size_t place = bytes.find(change.from);
  ASSERT_NE(place, std::string::npos);
  testing::write_bytes(path, bytes.replace(place, change.from.size(), change.to));
}

TEST(HuggingFace, AConfigurationThatIsNotTranslatedIsRefused) {
  const testing::ScratchFolder folder;
  const std::string path = folder / "changed.safetensors";
  for (const Change& change : kChanges) {
    SCOPED_TRACE(change.to);
    write_changed(path, change);
    const auto opened = open_huggingface(path);
    ASSERT_FALSE(opened);
    EXPECT_THAT(opened.error().message, HasSubstr(change.message));
  }
}

// The file with other rotary parameters in its configuration.
void write_with_rotary(const std::string& path, std::string parameters) {
  const std::string bytes = testing::read_bytes("tests/oracles/deepseek_v3.safetensors");
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  std::string header = bytes.substr(sizeof(length), length);
  for (size_t at = 0; (at = parameters.find('"', at)) != std::string::npos; at += 2)
    parameters.insert(at, 1, '\\');
  const std::string from = R"(\"rope_type\": \"default\")";
  header.replace(header.find(from), from.size(), parameters);
  header.append(8 - header.size() % 8, ' ');
  const uint64_t now = header.size();
  std::string changed(reinterpret_cast<const char*>(&now), sizeof(now));
  testing::write_bytes(path, changed + header + bytes.substr(sizeof(length) + length));
}

TEST(HuggingFace, YarnsFactorsAreThoseOfTheirLibrary) {
  const testing::ScratchFolder folder;
  const std::string path = folder / "yarn.safetensors";
  const std::string yarn =
      R"("rope_type": "yarn", "factor": 40, "original_max_position_embeddings": 4096)";
  const auto number = [&](const std::string& more, const std::string& key) {
    write_with_rotary(path, yarn + more);
    const Weights weights = must(open_weights(path));
    EXPECT_EQ(must(weights.metadata().text("deepseek2.rope.scaling.type")), "yarn");
    EXPECT_EQ(must(weights.metadata().u32("deepseek2.rope.scaling.original_context_length")),
              4096u);
    EXPECT_EQ(must(weights.metadata().f32("deepseek2.rope.freq_base")), 10000);
    return must(weights.metadata().f32_or("deepseek2.rope.scaling." + key, -1));
  };
  const float log = std::log(40.0F);
  EXPECT_EQ(number("", "factor"), 40);
  EXPECT_EQ(number("", "yarn_beta_fast"), -1);
  EXPECT_EQ(number(R"(, "beta_fast": 16, "beta_slow": 2)", "yarn_beta_fast"), 16);
  EXPECT_EQ(number(R"(, "beta_fast": 16, "beta_slow": 2)", "yarn_beta_slow"), 2);
  EXPECT_FLOAT_EQ(number("", "yarn_rotated_factor"), 1 + 0.1F * log);
  EXPECT_EQ(number("", "yarn_log_multiplier"), 0);
  EXPECT_EQ(number(R"(, "attention_factor": 1.5)", "yarn_rotated_factor"), 1.5F);
  EXPECT_FLOAT_EQ(number(R"(, "mscale": 2, "attention_factor": null)", "yarn_rotated_factor"),
                  1 + 0.1F * log);
  const std::string both = R"(, "mscale": 0.8, "mscale_all_dim": 0.5)";
  EXPECT_FLOAT_EQ(number(both, "yarn_rotated_factor"), (1 + 0.08F * log) / (1 + 0.05F * log));
  EXPECT_FLOAT_EQ(number(both, "yarn_log_multiplier"), 0.05F);
}

TEST(HuggingFace, YarnThatIsNotTranslatedIsRefused) {
  const testing::ScratchFolder folder;
  const std::string path = folder / "yarn.safetensors";
  for (const auto& [parameters, message] :
       {std::pair{R"("rope_type": "yarn")", "config has no factor"},
        {R"("rope_type": "yarn", "factor": "x")", "factor is string, expected a number"},
        {R"("rope_type": "yarn", "factor": 4)", "config has no original_max_position_embeddings"},
        {R"("rope_type": "yarn", "factor": 4, "truncate": false)", "truncate is false, expected"},
        {R"("rope_type": "yarn", "factor": 4, "mscale": true)", "mscale is boolean, expected"}}) {
    write_with_rotary(path, parameters);
    const auto opened = open_huggingface(path);
    ASSERT_FALSE(opened);
    EXPECT_THAT(opened.error().message, HasSubstr(message));
  }
}

// Gemma's files hold w - 1 of a norm's weights w.
TEST(HuggingFace, GivesTheNormsOfGemmaTheOneThatTheyLack) {
  const std::string path = "tests/oracles/gemma3.safetensors";
  const auto file = must(posix_fs().open_read(path));
  const SafetensorsHeader header = must(read_safetensors(*file));
  const TensorInfo* info = header.find("model.layers.2.self_attn.q_norm.weight");
  ASSERT_NE(info, nullptr);
  std::vector<float> theirs(32);
  must(file->read_at(info->begin, std::as_writable_bytes(std::span(theirs))));
  Weights weights = must(open_huggingface(path));
  const ggml_tensor* ours = must(weights.vector("blk.2.attn_q_norm.weight", 32));
  for (size_t i = 0; i < theirs.size(); ++i)
    EXPECT_EQ(static_cast<const float*>(ours->data)[i], theirs[i] + 1.0f);
}

}  // namespace
}  // namespace cairn
