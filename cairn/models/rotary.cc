#include "cairn/models/rotary.h"

#include <cmath>

namespace cairn {
namespace {

// Of ggml's own making: what ggml_rope_ext multiplies by, besides what it is told.
float factor_of_ggml(float factor) { return 1.0f + 0.1f * std::log(factor); }

Result<Yarn> read_yarn(const Metadata& data, const std::string& architecture, FlatterBy by) {
  const auto key = [&](const std::string& name) { return architecture + "." + name; };
  const auto scaling = [&](const std::string& name) { return key("rope.scaling." + name); };
  Yarn yarn;
  yarn.factor = CAIRN_TRY(data.f32(scaling("factor")));
  const std::string original = scaling("original_context_length");
  yarn.original_context = CAIRN_TRY(data.u32(original));
  yarn.fast = CAIRN_TRY(data.f32_or(scaling("yarn_beta_fast"), 32.0f));
  yarn.slow = CAIRN_TRY(data.f32_or(scaling("yarn_beta_slow"), 1.0f));
  const float usual = by == FlatterBy::rotated ? factor_of_ggml(yarn.factor) : 1.0f;
  yarn.rotated_factor = CAIRN_TRY(data.f32_or(key(kRotatedFactorKey), usual));
  const float multiplier = CAIRN_TRY(data.f32_or(scaling("yarn_log_multiplier"), 0.0f));
  const float flatter = 1.0f + multiplier * std::log(yarn.factor);
  if (by == FlatterBy::scores) yarn.score_factor = flatter * flatter;
  if (!(yarn.factor >= 1) || !std::isfinite(yarn.factor))
    return fail(Code::BadInput, "{}: {} is {}, expected a number of at least 1", data.path(),
                scaling("factor"), yarn.factor);
  if (yarn.original_context == 0 || yarn.original_context > INT32_MAX)
    return fail(Code::BadInput, "{}: {} is {}, expected 1 to 2^31 - 1", data.path(), original,
                yarn.original_context);
  if (!(yarn.slow > 0) || !(yarn.fast >= yarn.slow))
    return fail(Code::BadInput, "{}: {} is {} and {} is {}, expected at least the latter, above 0",
                data.path(), scaling("yarn_beta_fast"), yarn.fast, scaling("yarn_beta_slow"),
                yarn.slow);
  if (!(yarn.rotated_factor > 0) || !(yarn.score_factor > 0))
    return fail(Code::BadInput, "{}: factors {} and {} of YaRN, expected positive numbers",
                data.path(), yarn.rotated_factor, yarn.score_factor);
  // Programs differ in what these mean where they are not 1.
  for (const std::string name : {"attn_factor", "yarn_attn_factor", "yarn_ext_factor"})
    if (const float value = CAIRN_TRY(data.f32_or(scaling(name), 1.0f)); value != 1)
      return fail(Code::Unsupported, "{}: {} is {}, expected 1", data.path(), scaling(name), value);
  return yarn;
}

}  // namespace

Result<Rotary> read_rotary(const Metadata& data,
                           const std::string& architecture,
                           FlatterBy flatter_by) {
  Rotary rotary;
  rotary.base = CAIRN_TRY(data.f32_or(architecture + ".rope.freq_base", 10000.0f));
  const std::string type = architecture + ".rope.scaling.type";
  const std::string scaling = CAIRN_TRY(data.text_or(type, "none"));
  if (scaling == "yarn")
    rotary.yarn = CAIRN_TRY(read_yarn(data, architecture, flatter_by));
  else if (scaling != "none")
    return fail(Code::Unsupported, "{}: {} is {}, expected none or yarn", data.path(), type,
                scaling);
  return rotary;
}

ggml_tensor* rotate(GraphBuilder& b,
                    ggml_tensor* x,
                    const Rotary& rotary,
                    uint32_t width,
                    int pairs,
                    ggml_tensor* slower) {
  const bool has_yarn = rotary.yarn.has_value();
  const Yarn yarn = rotary.yarn.value_or(Yarn());
  return ggml_rope_ext(b.context, x, b.positions, slower, static_cast<int>(width), pairs,
                       static_cast<int>(yarn.original_context), rotary.base, 1.0f / yarn.factor,
                       has_yarn ? 1.0f : 0.0f,
                       has_yarn ? yarn.rotated_factor / factor_of_ggml(yarn.factor) : 1.0f,
                       yarn.fast, yarn.slow);
}

}  // namespace cairn
