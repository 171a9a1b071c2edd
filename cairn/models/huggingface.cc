#include "cairn/models/huggingface.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "cairn/format/safetensors.h"
#include "cairn/models/rotary.h"

namespace cairn {
namespace {

using Json = nlohmann::json;

struct Name {
  std::string_view theirs, ours;
};

// What we have instead of the numbers of the tensors whose names end so.
struct Change {
  std::string_view suffix;
  float (*of)(float number);  // null: the same
};

// How the configurations and files of one model type differ from the others'.
struct Dialect {
  std::string_view model_type;
  std::string_view architecture;
  std::span<const Name> layer_names;  // those that kLayerNames does not have
  std::string_view activation_key, activation;
  std::span<const Change> changes;  // of f32 tensors; the first that fits
  // The keys that not all architectures have.
  Result<void> (*set_more)(gguf_context* pairs, const std::string& path, const Json& config);
};

constexpr std::array kTopNames = {
    Name{"model.embed_tokens.weight", "token_embd.weight"},
    Name{"model.norm.weight", "output_norm.weight"},
    Name{"lm_head.weight", "output.weight"},
};
constexpr std::array kLayerNames = {
    Name{"input_layernorm", "attn_norm"},    Name{"self_attn.q_proj", "attn_q"},
    Name{"self_attn.k_proj", "attn_k"},      Name{"self_attn.v_proj", "attn_v"},
    Name{"self_attn.o_proj", "attn_output"}, Name{"mlp.gate_proj", "ffn_gate"},
    Name{"mlp.up_proj", "ffn_up"},           Name{"mlp.down_proj", "ffn_down"},
};
constexpr std::array kLlamaNames = {
    Name{"post_attention_layernorm", "ffn_norm"},
};
constexpr std::array kGemmaNames = {
    Name{"self_attn.q_norm", "attn_q_norm"},
    Name{"self_attn.k_norm", "attn_k_norm"},
    Name{"post_attention_layernorm", "post_attention_norm"},
    Name{"pre_feedforward_layernorm", "ffn_norm"},
    Name{"post_feedforward_layernorm", "post_ffw_norm"},
};
constexpr std::array kHybridNames = {
    Name{"post_attention_layernorm", "post_attention_norm"},
    Name{"self_attn.q_norm", "attn_q_norm"},
    Name{"self_attn.k_norm", "attn_k_norm"},
    Name{"linear_attn.in_proj_qkvz", "ssm_in"},
    Name{"linear_attn.in_proj_ba", "ssm_ba"},
    Name{"linear_attn.conv1d", "ssm_conv1d"},
    Name{"linear_attn.A_log", "ssm_a"},
    Name{"linear_attn.dt_bias", "ssm_dt.bias"},
    Name{"linear_attn.norm", "ssm_norm"},
    Name{"linear_attn.out_proj", "ssm_out"},
    Name{"mlp.gate", "ffn_gate_inp"},
    Name{"mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight"},
    Name{"mlp.experts.down_proj", "ffn_down_exps.weight"},
    Name{"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
    Name{"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
    Name{"mlp.shared_expert.up_proj", "ffn_up_shexp"},
    Name{"mlp.shared_expert.down_proj", "ffn_down_shexp"},
};
constexpr std::array kLatentNames = {
    Name{"self_attn.q_a_proj", "attn_q_a"},
    Name{"self_attn.q_a_layernorm", "attn_q_a_norm"},
    Name{"self_attn.q_b_proj", "attn_q_b"},
    Name{"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
    Name{"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
    Name{"self_attn.kv_b_proj", "attn_kv_b"},
    Name{"self_attn.indexer.wq_b", "indexer.attn_q_b"},
    Name{"self_attn.indexer.wk", "indexer.attn_k"},
    Name{"self_attn.indexer.k_norm", "indexer.k_norm"},
    Name{"self_attn.indexer.weights_proj", "indexer.proj"},
    Name{"post_attention_layernorm", "ffn_norm"},
    Name{"enorm", "nextn.enorm"},
    Name{"hnorm", "nextn.hnorm"},
    Name{"eh_proj", "nextn.eh_proj"},
    Name{"shared_head.norm", "nextn.shared_head_norm"},
    Name{"shared_head.head", "nextn.shared_head_head"},
    Name{"embed_tokens", "nextn.embed_tokens"},
    Name{"mlp.gate", "ffn_gate_inp"},
    Name{"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
    Name{"mlp.shared_experts.up_proj", "ffn_up_shexp"},
    Name{"mlp.shared_experts.down_proj", "ffn_down_shexp"},
    Name{"self_attn.indexer.k_norm.bias", "indexer.k_norm.bias"},
    Name{"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"},
    Name{"mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight"},
    Name{"mlp.experts.down_proj", "ffn_down_exps.weight"},
};
constexpr std::array kWholeNumbers = {
    Name{"vocab_size", "vocab_size"},
    Name{"hidden_size", "embedding_length"},
    Name{"intermediate_size", "feed_forward_length"},
    Name{"num_hidden_layers", "block_count"},
    Name{"num_attention_heads", "attention.head_count"},
    Name{"num_key_value_heads", "attention.head_count_kv"},
    Name{"max_position_embeddings", "context_length"},
    Name{"head_dim", "attention.key_length"},
};

// Of a norm's weights w the file has w - 1.
float plus_one(float number) { return number + 1.0f; }

// In double, so that hardly any C library can tell another f32.
float minus_exp(float number) { return static_cast<float>(-std::exp(static_cast<double>(number))); }

constexpr std::array kGemmaChanges = {Change{"norm.weight", plus_one}};
constexpr std::array kHybridChanges = {
    Change{"linear_attn.norm.weight", nullptr},
    Change{"norm.weight", plus_one},
    Change{"linear_attn.A_log", minus_exp},
};

// "model.layers.3.mlp.up_proj.weight" is "blk.3.ffn_up.weight"; names of tensors that are no
// ".weight" stand whole in the tables. A name that has no translation stays as it is, and the
// architecture then refuses it as a tensor that has no place.
std::string our_name(const Dialect& dialect, std::string_view theirs) {
  for (const Name& name : kTopNames)
    if (name.theirs == theirs) return std::string(name.ours);
  constexpr std::string_view prefix = "model.layers.";
  if (!theirs.starts_with(prefix)) return std::string(theirs);
  const std::string_view rest = theirs.substr(prefix.size());
  const size_t dot = rest.find('.');
  if (dot == std::string_view::npos) return std::string(theirs);
  for (const std::span<const Name> names :
       {std::span<const Name>(kLayerNames), dialect.layer_names})
    for (const Name& name : names) {
      if (rest.substr(dot + 1) == name.theirs)
        return fmt::format("blk.{}.{}", rest.substr(0, dot), name.ours);
      if (rest.substr(dot + 1) == std::string(name.theirs) + ".weight")
        return fmt::format("blk.{}.{}.weight", rest.substr(0, dot), name.ours);
    }
  return std::string(theirs);
}

Result<const Json*> field(const std::string& path, const Json& config, std::string_view key) {
  const auto found = config.find(key);
  if (found == config.end()) return fail(Code::BadInput, "{}: config has no {}", path, key);
  return &*found;
}

Result<float> number(const std::string& path, const Json& config, std::string_view key) {
  const Json* value = CAIRN_TRY(field(path, config, key));
  if (!value->is_number())
    return fail(Code::BadInput, "{}: config: {} is {}, expected a number", path, key,
                value->type_name());
  return value->get<float>();
}

Result<uint32_t> whole_number(const std::string& path, const Json& config, std::string_view key) {
  const Json* value = CAIRN_TRY(field(path, config, key));
  if (!value->is_number_unsigned() || value->get<uint64_t>() > UINT32_MAX)
    return fail(Code::BadInput, "{}: config: {} is {}, expected a whole number", path, key,
                value->dump());
  return value->get<uint32_t>();
}

// A switch or a number that we do not translate must be absent, null or false.
Result<void> check_absent(const std::string& path, const Json& config, std::string_view key) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null() || *found == false) return {};
  return fail(Code::Unsupported, "{}: config: {} is {}, expected none", path, key, found->dump());
}

// The base of rotary parameters that have nothing else.
Result<float> rotary_base(const std::string& path, const Json& rotary) {
  if (!rotary.is_object() || rotary.value("rope_type", Json()) != "default")
    return fail(Code::Unsupported, "{}: config: rope_parameters are {}, expected the default type",
                path, rotary.dump());
  return number(path, rotary, "rope_theta");
}

// A switch whose other setting we do not translate. Absent, it is at the one that we do.
Result<void> check_switch(const std::string& path,
                          const Json& config,
                          std::string_view key,
                          const Json& expected) {
  const auto found = config.find(key);
  if (found == config.end() || *found == expected) return {};
  return fail(Code::Unsupported, "{}: config: {} is {}, expected {}", path, key, found->dump(),
              expected.dump());
}

// YaRN's factor for flatter scores on what is rotated. `mscale` and `mscale_all_dim` share it out
// between that and the scores.
float rotated_factor(const Json& rotary, float factor) {
  const auto given = [&](const char* key) { return rotary.value(key, Json(0)); };
  const auto share = [&](const Json& of) { return 1 + 0.1f * of.get<float>() * std::log(factor); };
  if (const Json own = given("attention_factor"); own != 0) return own.get<float>();
  const Json some = given("mscale"), all = given("mscale_all_dim");
  return some != 0 && all != 0 ? share(some) / share(all) : share(1);
}

Result<void> set_yarn(gguf_context* pairs,
                      const std::string& path,
                      const Json& rotary,
                      const std::string& architecture) {
  const auto set = [&](const std::string& name, float value) {
    gguf_set_val_f32(pairs, (architecture + "." + name).c_str(), value);
  };
  CAIRN_TRY(check_switch(path, rotary, "truncate", true));
  for (const auto& [theirs, ours] :
       {Name{"beta_fast", "yarn_beta_fast"}, {"beta_slow", "yarn_beta_slow"}, {"factor", "factor"}})
    if (theirs == "factor" || rotary.contains(theirs))
      set(fmt::format("rope.scaling.{}", ours), CAIRN_TRY(number(path, rotary, theirs)));
  for (const char* key : {"attention_factor", "mscale", "mscale_all_dim"})
    if (rotary.contains(key)) CAIRN_TRY(number(path, rotary, key));
  gguf_set_val_str(pairs, (architecture + ".rope.scaling.type").c_str(), "yarn");
  gguf_set_val_u32(pairs, (architecture + ".rope.scaling.original_context_length").c_str(),
                   CAIRN_TRY(whole_number(path, rotary, "original_max_position_embeddings")));
  set(kRotatedFactorKey, rotated_factor(rotary, CAIRN_TRY(number(path, rotary, "factor"))));
  set("rope.scaling.yarn_log_multiplier",
      0.1f * rotary.value("mscale_all_dim", Json(0)).get<float>());
  return {};
}

// Rotary parameters of all layers: the default type, or YaRN.
Result<void> set_rotary(gguf_context* pairs,
                        const std::string& path,
                        const Json& config,
                        const std::string& architecture) {
  Json rotary = *CAIRN_TRY(field(path, config, "rope_parameters"));
  if (rotary.is_object() && rotary.value("rope_type", Json()) == "yarn") {
    for (const char* optional : {"attention_factor", "mscale", "mscale_all_dim", "truncate"})
      if (rotary.value(optional, Json()).is_null()) rotary.erase(optional);
    CAIRN_TRY(set_yarn(pairs, path, rotary, architecture));
    rotary["rope_type"] = "default";
  }
  gguf_set_val_f32(pairs, (architecture + ".rope.freq_base").c_str(),
                   CAIRN_TRY(rotary_base(path, rotary)));
  return {};
}

Result<void> set_llama(gguf_context* pairs, const std::string& path, const Json& config) {
  CAIRN_TRY(check_absent(path, config, "mlp_bias"));
  return set_rotary(pairs, path, config, "llama");
}

Result<void> set_gemma_layers(gguf_context* pairs, const std::string& path, const Json& config) {
  const Json* types = CAIRN_TRY(field(path, config, "layer_types"));
  std::vector<int8_t> is_local;
  for (const Json& type : *types) {
    if (type != "sliding_attention" && type != "full_attention")
      return fail(Code::Unsupported,
                  "{}: config: a layer's type is {}, expected sliding_attention or full_attention",
                  path, type.dump());
    is_local.push_back(type == "sliding_attention");
  }
  gguf_set_arr_data(pairs, "gemma3.attention.sliding_window_pattern", GGUF_TYPE_BOOL,
                    is_local.data(), is_local.size());
  gguf_set_val_u32(pairs, "gemma3.attention.sliding_window",
                   CAIRN_TRY(whole_number(path, config, "sliding_window")));
  return {};
}

Result<void> set_gemma_rotary(gguf_context* pairs, const std::string& path, const Json& config) {
  const Json* rotary = CAIRN_TRY(field(path, config, "rope_parameters"));
  const Json* local = CAIRN_TRY(field(path, *rotary, "sliding_attention"));
  gguf_set_val_f32(pairs, "gemma3.rope.freq_base_swa", CAIRN_TRY(rotary_base(path, *local)));
  Json global = *CAIRN_TRY(field(path, *rotary, "full_attention"));
  if (global.is_object() && global.value("rope_type", Json()) == "linear") {
    gguf_set_val_str(pairs, "gemma3.rope.scaling.type", "linear");
    gguf_set_val_f32(pairs, "gemma3.rope.scaling.factor",
                     CAIRN_TRY(number(path, global, "factor")));
    global["rope_type"] = "default";
  }
  gguf_set_val_f32(pairs, "gemma3.rope.freq_base", CAIRN_TRY(rotary_base(path, global)));
  return {};
}

Result<void> set_gemma(gguf_context* pairs, const std::string& path, const Json& config) {
  for (const std::string_view key :
       {"final_logit_softcapping", "attn_logit_softcapping", "use_bidirectional_attention"})
    CAIRN_TRY(check_absent(path, config, key));
  const float divisor = CAIRN_TRY(number(path, config, "query_pre_attn_scalar"));
  gguf_set_val_f32(pairs, "gemma3.attention.scale", 1.0f / std::sqrt(divisor));
  CAIRN_TRY(set_gemma_layers(pairs, path, config));
  return set_gemma_rotary(pairs, path, config);
}

// The period after which a layer attends to everything.
Result<uint32_t> attention_period(const std::string& path, const Json& config) {
  const Json* types = CAIRN_TRY(field(path, config, "layer_types"));
  uint32_t period = 0, index = 0;
  for (const Json& type : *types) {
    ++index;
    if (period == 0 && type == "full_attention") period = index;
    const bool attends = period != 0 && index % period == 0;
    if (type != (attends ? "full_attention" : "linear_attention"))
      return fail(Code::Unsupported,
                  "{}: config: layer {} is {}, expected linear_attention, and full_attention after "
                  "equal numbers of them",
                  path, index - 1, type.dump());
  }
  return period == 0 ? index + 1 : period;
}

Result<void> set_hybrid_experts(gguf_context* pairs, const std::string& path, const Json& config) {
  if (config.value("mlp_only_layers", Json()) != Json::array() ||
      config.value("decoder_sparse_step", Json()) != 1)
    return fail(Code::Unsupported,
                "{}: config: layers without experts: mlp_only_layers and decoder_sparse_step, "
                "expected [] and 1",
                path);
  for (const auto& [theirs, ours] :
       {Name{"num_experts", "expert_count"},
        {"num_experts_per_tok", "expert_used_count"},
        {"moe_intermediate_size", "expert_feed_forward_length"},
        {"shared_expert_intermediate_size", "expert_shared_feed_forward_length"}})
    gguf_set_val_u32(pairs, fmt::format("qwen3next.{}", ours).c_str(),
                     CAIRN_TRY(whole_number(path, config, theirs)));
  const Json* normalize = CAIRN_TRY(field(path, config, "norm_topk_prob"));
  if (!normalize->is_boolean())
    return fail(Code::BadInput, "{}: config: norm_topk_prob is {}, expected true or false", path,
                normalize->dump());
  gguf_set_val_bool(pairs, "qwen3next.expert_weights_norm", normalize->get<bool>());
  return {};
}

Result<void> set_hybrid_linear(gguf_context* pairs, const std::string& path, const Json& config) {
  for (const auto& [theirs, ours] : {Name{"linear_num_key_heads", "group_count"},
                                     {"linear_num_value_heads", "time_step_rank"},
                                     {"linear_key_head_dim", "state_size"},
                                     {"linear_conv_kernel_dim", "conv_kernel"}})
    gguf_set_val_u32(pairs, fmt::format("qwen3next.ssm.{}", ours).c_str(),
                     CAIRN_TRY(whole_number(path, config, theirs)));
  const uint64_t heads = CAIRN_TRY(whole_number(path, config, "linear_num_value_heads"));
  const uint64_t width = CAIRN_TRY(whole_number(path, config, "linear_value_head_dim"));
  gguf_set_val_u64(pairs, "qwen3next.ssm.inner_size", heads * width);
  gguf_set_val_u32(pairs, "qwen3next.full_attention_interval",
                   CAIRN_TRY(attention_period(path, config)));
  return {};
}

Result<void> set_hybrid(gguf_context* pairs, const std::string& path, const Json& config) {
  const Json* rotary = CAIRN_TRY(field(path, config, "rope_parameters"));
  CAIRN_TRY(set_rotary(pairs, path, config, "qwen3next"));
  const float share = CAIRN_TRY(number(path, *rotary, "partial_rotary_factor"));
  const uint32_t width = CAIRN_TRY(whole_number(path, config, "head_dim"));
  if (!(share > 0 && share <= 1))
    return fail(Code::BadInput, "{}: config: partial_rotary_factor is {}, expected 0 to 1", path,
                share);
  gguf_set_val_u32(pairs, "qwen3next.rope.dimension_count",
                   static_cast<uint32_t>(static_cast<float>(width) * share));
  CAIRN_TRY(set_hybrid_linear(pairs, path, config));
  return set_hybrid_experts(pairs, path, config);
}

// Whole numbers under our keys.
Result<void> set_numbers(gguf_context* pairs,
                         const std::string& path,
                         const Json& config,
                         std::string_view architecture,
                         std::span<const Name> names) {
  for (const Name& name : names)
    gguf_set_val_u32(pairs, fmt::format("{}.{}", architecture, name.ours).c_str(),
                     CAIRN_TRY(whole_number(path, config, name.theirs)));
  return {};
}

Result<void> set_routing(gguf_context* pairs,
                         const std::string& path,
                         const Json& config,
                         std::string_view architecture) {
  constexpr uint32_t kSigmoid = 2;
  constexpr std::array kNames = {
      Name{"moe_intermediate_size", "expert_feed_forward_length"},
      Name{"first_k_dense_replace", "leading_dense_block_count"},
      Name{"n_routed_experts", "expert_count"},
      Name{"num_experts_per_tok", "expert_used_count"},
      Name{"n_shared_experts", "expert_shared_count"},
      Name{"n_group", "expert_group_count"},
      Name{"topk_group", "expert_group_used_count"},
  };
  CAIRN_TRY(set_numbers(pairs, path, config, architecture, kNames));
  const auto ours = [&](std::string_view key) { return fmt::format("{}.{}", architecture, key); };
  const Json* normalize = CAIRN_TRY(field(path, config, "norm_topk_prob"));
  if (!normalize->is_boolean())
    return fail(Code::BadInput, "{}: config: norm_topk_prob is {}, expected true or false", path,
                normalize->dump());
  gguf_set_val_bool(pairs, ours("expert_weights_norm").c_str(), normalize->get<bool>());
  gguf_set_val_f32(pairs, ours("expert_weights_scale").c_str(),
                   CAIRN_TRY(number(path, config, "routed_scaling_factor")));
  gguf_set_val_u32(pairs, ours("expert_gating_func").c_str(), kSigmoid);
  return {};
}

Result<void> set_latent_attention(gguf_context* pairs,
                                  const std::string& path,
                                  const Json& config,
                                  std::string_view architecture) {
  constexpr std::array kNames = {
      Name{"q_lora_rank", "attention.q_lora_rank"},
      Name{"kv_lora_rank", "attention.kv_lora_rank"},
      Name{"qk_head_dim", "attention.key_length_mla"},
      Name{"v_head_dim", "attention.value_length_mla"},
      Name{"qk_rope_head_dim", "rope.dimension_count"},
  };
  CAIRN_TRY(set_numbers(pairs, path, config, architecture, kNames));
  CAIRN_TRY(set_rotary(pairs, path, config, std::string(architecture)));
  return check_switch(path, config, "rope_interleave", true);
}

Result<void> set_deepseek(gguf_context* pairs, const std::string& path, const Json& config) {
  CAIRN_TRY(set_latent_attention(pairs, path, config, "deepseek2"));
  return set_routing(pairs, path, config, "deepseek2");
}

// What each layer is, where the configuration says it layer by layer: first `dense` dense ones,
// then sparse ones.
Result<void> check_layer_types(const std::string& path, const Json& config) {
  const auto types = config.find("mlp_layer_types");
  if (types == config.end()) return {};
  const uint32_t dense = CAIRN_TRY(whole_number(path, config, "first_k_dense_replace"));
  for (size_t i = 0; i < types->size(); ++i) {
    const std::string_view expected = i < dense ? "dense" : "sparse";
    if (!types->is_array() || (*types)[i] != expected)
      return fail(Code::Unsupported,
                  "{}: config: mlp_layer_types are {}, expected {} dense ones, "
                  "then sparse ones",
                  path, types->dump(), dense);
  }
  return {};
}

// Which layers share the choice of the last one before that has an indexer.
Result<void> set_shared_indexers(gguf_context* pairs, const std::string& path, const Json& config) {
  const Json* types = CAIRN_TRY(field(path, config, "indexer_types"));
  std::vector<int8_t> is_shared;
  for (const Json& type : *types) {
    if (type != "full" && type != "shared")
      return fail(Code::Unsupported, "{}: config: a layer's indexer is {}, expected full or shared",
                  path, type.dump());
    is_shared.push_back(type == "shared");
  }
  gguf_set_arr_data(pairs, "glm-dsa.attention.indexer.shared", GGUF_TYPE_BOOL, is_shared.data(),
                    is_shared.size());
  return {};
}

Result<void> set_glm(gguf_context* pairs, const std::string& path, const Json& config) {
  constexpr std::array kNames = {
      Name{"index_n_heads", "attention.indexer.head_count"},
      Name{"index_head_dim", "attention.indexer.key_length"},
      Name{"index_topk", "attention.indexer.top_k"},
  };
  CAIRN_TRY(check_absent(path, config, "mlp_bias"));
  CAIRN_TRY(check_layer_types(path, config));
  CAIRN_TRY(set_shared_indexers(pairs, path, config));
  CAIRN_TRY(set_numbers(pairs, path, config, "glm-dsa", kNames));
  CAIRN_TRY(set_latent_attention(pairs, path, config, "glm-dsa"));
  return set_routing(pairs, path, config, "glm-dsa");
}

constexpr std::array kDialects = {
    Dialect{.model_type = "llama",
            .architecture = "llama",
            .layer_names = kLlamaNames,
            .activation_key = "hidden_act",
            .activation = "silu",
            .changes = {},
            .set_more = set_llama},
    Dialect{.model_type = "gemma3_text",
            .architecture = "gemma3",
            .layer_names = kGemmaNames,
            .activation_key = "hidden_activation",
            .activation = "gelu_pytorch_tanh",
            .changes = kGemmaChanges,
            .set_more = set_gemma},
    Dialect{.model_type = "qwen3_next",
            .architecture = "qwen3next",
            .layer_names = kHybridNames,
            .activation_key = "hidden_act",
            .activation = "silu",
            .changes = kHybridChanges,
            .set_more = set_hybrid},
    Dialect{.model_type = "deepseek_v3",
            .architecture = "deepseek2",
            .layer_names = kLatentNames,
            .activation_key = "hidden_act",
            .activation = "silu",
            .changes = {},
            .set_more = set_deepseek},
    Dialect{.model_type = "glm_moe_dsa",
            .architecture = "glm-dsa",
            .layer_names = kLatentNames,
            .activation_key = "hidden_act",
            .activation = "silu",
            .changes = {},
            .set_more = set_glm},
};

Result<const Dialect*> dialect_of(const std::string& path, const Json& config) {
  const Json* type = CAIRN_TRY(field(path, config, "model_type"));
  std::string known;
  for (const Dialect& dialect : kDialects) {
    if (*type == dialect.model_type) return &dialect;
    known += (known.empty() ? "" : ", ") + std::string(dialect.model_type);
  }
  return fail(Code::Unsupported, "{}: model_type {}, expected one of: {}", path, type->dump(),
              known);
}

Result<Metadata> translate(const std::string& path, const Dialect& dialect, const Json& config) {
  CAIRN_TRY(check_absent(path, config, "attention_bias"));
  const Json* activation = CAIRN_TRY(field(path, config, dialect.activation_key));
  if (*activation != dialect.activation)
    return fail(Code::Unsupported, "{}: config: {} is {}, expected {}", path,
                dialect.activation_key, activation->dump(), dialect.activation);
  Metadata metadata(gguf_init_empty(), path);
  gguf_context* pairs = metadata.gguf();
  const auto ours = [&](std::string_view key) {
    return fmt::format("{}.{}", dialect.architecture, key);
  };
  gguf_set_val_str(pairs, "general.architecture", std::string(dialect.architecture).c_str());
  CAIRN_TRY(set_numbers(pairs, path, config, dialect.architecture, kWholeNumbers));
  gguf_set_val_f32(pairs, ours("attention.layer_norm_rms_epsilon").c_str(),
                   CAIRN_TRY(number(path, config, "rms_norm_eps")));
  CAIRN_TRY(dialect.set_more(pairs, path, config));
  return metadata;
}

std::optional<ggml_type> type_named(std::string_view dtype) {
  if (dtype == "F32") return GGML_TYPE_F32;
  if (dtype == "F16") return GGML_TYPE_F16;
  if (dtype == "BF16") return GGML_TYPE_BF16;
  return std::nullopt;
}

// Null: its numbers stay.
float (*change_of(const Dialect& dialect, const TensorInfo& info))(float) {
  for (const Change& change : dialect.changes)
    if (info.dtype == "F32" && info.name.ends_with(change.suffix)) return change.of;
  return nullptr;
}

// Without the inner dimension of a convolution that keeps channels apart: [channels, 1, taps].
std::vector<uint64_t> shape_of(const TensorInfo& info) {
  if (info.shape.size() == 3 && info.shape[1] == 1) return {info.shape[0], info.shape[2]};
  return {info.shape.begin(), info.shape.end()};
}

// A tensor that points into the file. Safetensors lists the slowest dimension first, ggml the
// fastest.
Result<ggml_tensor*> make_tensor(ggml_context* context,
                                 const std::string& path,
                                 const std::string& name,
                                 const TensorInfo& info,
                                 std::span<std::byte> file) {
  const auto type = type_named(info.dtype);
  if (!type)
    return fail(Code::Unsupported, "{}: tensor {} is {}, expected F32, F16 or BF16", path,
                info.name, info.dtype);
  if (info.shape.empty() || info.shape.size() > 3)
    return fail(Code::Unsupported, "{}: tensor {} has {} dimensions, expected 1 to 3", path,
                info.name, info.shape.size());
  if (info.begin % ggml_type_size(*type) != 0)
    return fail(Code::BadInput, "{}: tensor {} is at byte {}, expected a multiple of {}", path,
                info.name, info.begin, ggml_type_size(*type));
  if (info.end > file.size())
    return fail(Code::Corrupt, "{}: tensor {} ends at byte {} of {}", path, info.name, info.end,
                file.size());
  if (name.size() >= GGML_MAX_NAME)
    return fail(Code::BadInput, "{}: tensor {}: a name of {} bytes, expected less than {}", path,
                name, name.size(), GGML_MAX_NAME);
  std::array<int64_t, 3> shape = {1, 1, 1};
  const std::vector<uint64_t> theirs = shape_of(info);
  for (size_t i = 0; i < theirs.size(); ++i)
    shape[i] = static_cast<int64_t>(theirs[theirs.size() - 1 - i]);
  if (std::ranges::count(shape, 0) != 0)
    return fail(Code::BadInput, "{}: tensor {} is empty", path, name);
  ggml_tensor* tensor = ggml_new_tensor_3d(context, *type, shape[0], shape[1], shape[2]);
  ggml_set_name(tensor, name.c_str());
  tensor->data = file.data() + info.begin;
  return tensor;
}

// Gives a tensor numbers of its own, in memory of the context.
void replace(ggml_context* context, ggml_tensor* tensor, float (*change)(float)) {
  const auto* theirs = static_cast<const float*>(tensor->data);
  auto* ours = static_cast<float*>(ggml_new_buffer(context, ggml_nbytes(tensor)));
  for (int64_t i = 0; i < ggml_nelements(tensor); ++i) ours[i] = change(theirs[i]);
  tensor->data = ours;
}

Result<ContextPtr> make_tensors(const std::string& path,
                                const Dialect& dialect,
                                std::span<const TensorInfo> infos,
                                std::span<std::byte> file) {
  size_t bytes = (infos.size() + 1) * ggml_tensor_overhead();
  for (const TensorInfo& info : infos)
    if (change_of(dialect, info) != nullptr)
      bytes += info.end - info.begin + ggml_tensor_overhead();
  ContextPtr context(ggml_init({.mem_size = bytes, .mem_buffer = nullptr, .no_alloc = true}));
  for (const TensorInfo& info : infos) {
    if (info.name.starts_with("oracle.")) continue;
    ggml_tensor* tensor =
        CAIRN_TRY(make_tensor(context.get(), path, our_name(dialect, info.name), info, file));
    if (const auto change = change_of(dialect, info)) replace(context.get(), tensor, change);
  }
  return context;
}

}  // namespace

bool is_safetensors_path(const std::string& path) { return path.ends_with(".safetensors"); }

Result<Weights> open_huggingface(const std::string& path) {
  MappedFile mapped = CAIRN_TRY(MappedFile::open(path));
  auto file = CAIRN_TRY(posix_fs().open_read(path));
  const SafetensorsHeader header = CAIRN_TRY(read_safetensors(*file));
  const auto config = header.metadata.find("config");
  if (config == header.metadata.end())
    return fail(Code::BadInput, "{}: metadata has no config, expected Hugging Face's", path);
  const Json json = Json::parse(config->second, nullptr, false);
  if (!json.is_object()) return fail(Code::BadInput, "{}: config is no JSON object", path);
  const Dialect* dialect = CAIRN_TRY(dialect_of(path, json));
  Metadata metadata = CAIRN_TRY(translate(path, *dialect, json));
  ContextPtr tensors = CAIRN_TRY(make_tensors(path, *dialect, header.tensors, mapped.bytes()));
  return Weights(std::move(mapped), std::move(metadata), std::move(tensors), RotaryPairs::halves);
}

}  // namespace cairn
