#include "cairn/models/huggingface.h"

#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "cairn/format/safetensors.h"

namespace cairn {
namespace {

using Json = nlohmann::json;

struct Name {
  std::string_view theirs, ours;
};

constexpr std::array kTopNames = {
    Name{"model.embed_tokens.weight", "token_embd.weight"},
    Name{"model.norm.weight", "output_norm.weight"},
    Name{"lm_head.weight", "output.weight"},
};
constexpr std::array kLayerNames = {
    Name{"input_layernorm", "attn_norm"},    Name{"self_attn.q_proj", "attn_q"},
    Name{"self_attn.k_proj", "attn_k"},      Name{"self_attn.v_proj", "attn_v"},
    Name{"self_attn.o_proj", "attn_output"}, Name{"post_attention_layernorm", "ffn_norm"},
    Name{"mlp.gate_proj", "ffn_gate"},       Name{"mlp.up_proj", "ffn_up"},
    Name{"mlp.down_proj", "ffn_down"},
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

// "model.layers.3.mlp.up_proj.weight" is "blk.3.ffn_up.weight". A name that has no translation
// stays as it is, and the architecture then refuses it as a tensor that has no place.
std::string our_name(std::string_view theirs) {
  for (const Name& name : kTopNames)
    if (name.theirs == theirs) return std::string(name.ours);
  constexpr std::string_view prefix = "model.layers.";
  if (!theirs.starts_with(prefix)) return std::string(theirs);
  const std::string_view rest = theirs.substr(prefix.size());
  const size_t dot = rest.find('.');
  if (dot == std::string_view::npos) return std::string(theirs);
  for (const Name& name : kLayerNames)
    if (rest.substr(dot + 1) == std::string(name.theirs) + ".weight")
      return fmt::format("blk.{}.{}.weight", rest.substr(0, dot), name.ours);
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

Result<void> set_whole_numbers(gguf_context* pairs, const std::string& path, const Json& config) {
  for (const Name& name : kWholeNumbers) {
    const Json* value = CAIRN_TRY(field(path, config, name.theirs));
    if (!value->is_number_unsigned() || value->get<uint64_t>() > UINT32_MAX)
      return fail(Code::BadInput, "{}: config: {} is {}, expected a whole number", path,
                  name.theirs, value->dump());
    gguf_set_val_u32(pairs, fmt::format("llama.{}", name.ours).c_str(), value->get<uint32_t>());
  }
  return {};
}

// What the translation would lose, and the numbers would silently be wrong.
Result<void> check_supported(const std::string& path, const Json& config) {
  const Json* model = CAIRN_TRY(field(path, config, "model_type"));
  if (*model != "llama")
    return fail(Code::Unsupported, "{}: model_type {}, expected llama", path, model->dump());
  for (const std::string_view key : {"attention_bias", "mlp_bias"})
    if (const auto found = config.find(key); found != config.end() && *found != false)
      return fail(Code::Unsupported, "{}: config: {} is {}, expected false", path, key,
                  found->dump());
  const Json* act = CAIRN_TRY(field(path, config, "hidden_act"));
  if (*act != "silu")
    return fail(Code::Unsupported, "{}: config: hidden_act is {}, expected silu", path,
                act->dump());
  const Json* rotary = CAIRN_TRY(field(path, config, "rope_parameters"));
  if (!rotary->is_object() || rotary->value("rope_type", Json()) != "default")
    return fail(Code::Unsupported, "{}: config: rope_parameters are {}, expected the default type",
                path, rotary->dump());
  return {};
}

Result<Metadata> translate(const std::string& path, const std::string& text) {
  const Json config = Json::parse(text, nullptr, false);
  if (!config.is_object()) return fail(Code::BadInput, "{}: config is no JSON object", path);
  CAIRN_TRY(check_supported(path, config));
  Metadata metadata(gguf_init_empty(), path);
  gguf_context* pairs = metadata.gguf();
  gguf_set_val_str(pairs, "general.architecture", "llama");
  CAIRN_TRY(set_whole_numbers(pairs, path, config));
  gguf_set_val_f32(pairs, "llama.attention.layer_norm_rms_epsilon",
                   CAIRN_TRY(number(path, config, "rms_norm_eps")));
  gguf_set_val_f32(pairs, "llama.rope.freq_base",
                   CAIRN_TRY(number(path, config.at("rope_parameters"), "rope_theta")));
  return metadata;
}

std::optional<ggml_type> type_named(std::string_view dtype) {
  if (dtype == "F32") return GGML_TYPE_F32;
  if (dtype == "F16") return GGML_TYPE_F16;
  if (dtype == "BF16") return GGML_TYPE_BF16;
  return std::nullopt;
}

// A tensor that points into the file. Safetensors lists the slowest dimension first, ggml the
// fastest.
Result<void> add_tensor(ggml_context* context,
                        const std::string& path,
                        const TensorInfo& info,
                        std::span<std::byte> file) {
  const auto type = type_named(info.dtype);
  if (!type)
    return fail(Code::Unsupported, "{}: tensor {} is {}, expected F32, F16 or BF16", path,
                info.name, info.dtype);
  if (info.shape.empty() || info.shape.size() > 2)
    return fail(Code::Unsupported, "{}: tensor {} has {} dimensions, expected 1 or 2", path,
                info.name, info.shape.size());
  if (info.begin % ggml_type_size(*type) != 0)
    return fail(Code::BadInput, "{}: tensor {} is at byte {}, expected a multiple of {}", path,
                info.name, info.begin, ggml_type_size(*type));
  const std::string name = our_name(info.name);
  if (name.size() >= GGML_MAX_NAME)
    return fail(Code::BadInput, "{}: tensor {}: a name of {} bytes, expected less than {}", path,
                name, name.size(), GGML_MAX_NAME);
  std::array<int64_t, 2> shape = {1, 1};
  for (size_t i = 0; i < info.shape.size(); ++i)
    shape[i] = static_cast<int64_t>(info.shape[info.shape.size() - 1 - i]);
  if (shape[0] == 0 || shape[1] == 0)
    return fail(Code::BadInput, "{}: tensor {} is empty", path, name);
  ggml_tensor* tensor = ggml_new_tensor_2d(context, *type, shape[0], shape[1]);
  ggml_set_name(tensor, name.c_str());
  tensor->data = file.data() + info.begin;
  return {};
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
  Metadata metadata = CAIRN_TRY(translate(path, config->second));
  ContextPtr context(ggml_init({.mem_size = (header.tensors.size() + 1) * ggml_tensor_overhead(),
                                .mem_buffer = nullptr,
                                .no_alloc = true}));
  for (const TensorInfo& info : header.tensors) {
    if (info.name.starts_with("oracle.")) continue;
    if (info.end > mapped.bytes().size())
      return fail(Code::Corrupt, "{}: tensor {} ends at byte {} of {}", path, info.name, info.end,
                  mapped.bytes().size());
    CAIRN_TRY(add_tensor(context.get(), path, info, mapped.bytes()));
  }
  return Weights(std::move(mapped), std::move(metadata), std::move(context), RotaryPairs::halves);
}

}  // namespace cairn
