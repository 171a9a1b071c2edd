// The kinds of grouped-query attention: keys and values of all positions, or of a window.
#include <array>

#include "cairn/state/registry.h"

namespace cairn {
namespace {

constexpr std::array<const Family*, 2> kFamilies = {&kKeyFamily, &kValueFamily};

Result<void> validate_families(const SlotSpec& slot) {
  if (slot.families.size() != kFamilies.size())
    return fail(Code::BadInput, "{}: {} families, expected key and value", slot.kind->name,
                slot.families.size());
  for (size_t i = 0; i < kFamilies.size(); ++i) {
    const FamilySpec& family = slot.families[i];
    if (family.family != kFamilies[i])
      return fail(Code::BadInput, "{}: family {} is {}, expected {}", slot.kind->name, i,
                  family.family->name, kFamilies[i]->name);
    if (family.heads == 0 || family.width == 0 || family.width % 8 != 0)
      return fail(
          Code::BadInput,
          "{}: {} is [{}, {}], expected at least one head and a width that is a multiple of 8",
          slot.kind->name, family.family->name, family.heads, family.width);
  }
  if (slot.families[0].heads != slot.families[1].heads)
    return fail(Code::BadInput, "{}: {} key heads and {} value heads, expected as many",
                slot.kind->name, slot.families[0].heads, slot.families[1].heads);
  return {};
}

Result<void> validate_attention(const SlotSpec& slot) {
  CAIRN_TRY(validate_families(slot));
  if (slot.retention != Retention{.window = 0, .sinks = 0, .rewind = slot.retention.rewind})
    return fail(Code::BadInput,
                "attention: window {} and {} sinks, expected none (the kind is \"window\")",
                slot.retention.window, slot.retention.sinks);
  return {};
}

Result<void> validate_window(const SlotSpec& slot) {
  CAIRN_TRY(validate_families(slot));
  if (slot.retention.window == 0)
    return fail(Code::BadInput, "window: a window of 0 positions, expected at least 1");
  return {};
}

SlotSpec make_slot(const StateKind& kind, const AttentionShape& shape, Retention retention) {
  const uint32_t value_dim = shape.value_dim ? shape.value_dim : shape.head_dim;
  return {.kind = &kind,
          .families = {{&kKeyFamily, shape.heads, shape.head_dim},
                       {&kValueFamily, shape.heads, value_dim}},
          .retention = retention,
          .max_positions = shape.max_positions};
}

std::vector<SlotSpec> attention_samples() {
  return {attention({.heads = 2, .head_dim = 64}),
          attention({.heads = 1, .head_dim = 64, .value_dim = 128})};
}

std::vector<SlotSpec> window_samples() {
  return {window({.heads = 1, .head_dim = 64, .window = 20, .sinks = 3, .rewind = 10}),
          window({.heads = 1, .head_dim = 64, .window = 90, .rewind = 40}),
          window({.heads = 2, .head_dim = 64, .window = 300, .sinks = 70})};
}

}  // namespace

const StateKind kAttention = {.id = {1},
                              .name = "attention",
                              .families = kFamilies,
                              .validate = validate_attention,
                              .samples = attention_samples};

const StateKind kWindow = {.id = {2},
                           .name = "window",
                           .families = kFamilies,
                           .validate = validate_window,
                           .samples = window_samples};

SlotSpec attention(const AttentionShape& shape) {
  return make_slot(kAttention, shape, {.window = shape.window, .sinks = shape.sinks});
}

SlotSpec window(const AttentionShape& shape) {
  return make_slot(kWindow, shape,
                   {.window = shape.window, .sinks = shape.sinks, .rewind = shape.rewind});
}

}  // namespace cairn
