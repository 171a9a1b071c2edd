// The kind of recurrent layers: fixed tensors, always exact.
#include <array>

#include "cairn/state/registry.h"

namespace cairn {
namespace {

constexpr std::array<const Family*, 2> kFamilies = {&kConvFamily, &kRecurrentFamily};

Result<void> validate_recurrent(const SlotSpec& slot) {
  if (slot.families.empty() || slot.families.size() > kMostTensors)
    return fail(Code::BadInput, "recurrent: {} tensors, expected 1 to {}", slot.families.size(),
                kMostTensors);
  for (size_t i = 0; i < slot.families.size(); ++i) {
    const FamilySpec& tensor = slot.families[i];
    if (!tensor.family->is_fixed || tensor.heads == 0 || tensor.width == 0)
      return fail(Code::BadInput, "recurrent: {} is [{}, {}], expected a fixed tensor with numbers",
                  tensor.family->name, tensor.heads, tensor.width);
    if (uint64_t{tensor.heads} * tensor.width > kMostTensorNumbers)
      return fail(Code::BadInput, "recurrent: {} is [{}, {}], expected at most {} numbers",
                  tensor.family->name, tensor.heads, tensor.width, kMostTensorNumbers);
    for (size_t other = 0; other < i; ++other)
      if (slot.families[other].family->id == tensor.family->id)
        return fail(Code::BadInput, "recurrent: {} appears twice", tensor.family->name);
  }
  if (slot.retention != Retention{})
    return fail(Code::BadInput, "recurrent: a window of {} positions, expected none",
                slot.retention.window);
  if (slot.advance.function != nullptr && slot.advance.input_bytes == 0)
    return fail(Code::BadInput, "recurrent: it advances from inputs of 0 bytes per position");
  return {};
}

std::vector<SlotSpec> recurrent_samples() {
  return {recurrent({{&kConvFamily, 3, 40}, {&kRecurrentFamily, 2, 24}}),
          recurrent({{&kRecurrentFamily, 1, 7}})};
}

}  // namespace

const StateKind kRecurrentKind = {.id = {5},
                                  .name = "recurrent",
                                  .families = kFamilies,
                                  .validate = validate_recurrent,
                                  .samples = recurrent_samples};

SlotSpec recurrent(std::vector<FamilySpec> tensors, Advance advance, Pos max_positions) {
  return {.kind = &kRecurrentKind,
          .families = std::move(tensors),
          .max_positions = max_positions,
          .advance = advance};
}

}  // namespace cairn
