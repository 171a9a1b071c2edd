#include "cairn/session/model_spec.h"

namespace cairn {
namespace {

// A family's vectors pass through buffers on the stack on their way into a page.
constexpr uint32_t kWidestVector = 8192;

Result<void> validate_slot(const SlotSpec& slot, const Registry& registry) {
  if (slot.kind == nullptr || registry.kind_named(slot.kind->name) != slot.kind)
    return fail(Code::BadInput, "its kind is not in the registry \"{}\"", registry.id);
  for (const FamilySpec& family : slot.families)
    if (!family.family->is_fixed && family.width > kWidestVector)
      return fail(Code::BadInput, "{} is {} numbers wide, expected at most {}", family.family->name,
                  family.width, kWidestVector);
  return slot.kind->validate(slot);
}

}  // namespace

Result<void> validate(const ModelSpec& spec, const Registry& registry) {
  if (spec.identity.is_zero())
    return fail(Code::BadInput,
                "model: its identity is zero, expected 32 bytes that name the weights");
  if (spec.slots.empty()) return fail(Code::BadInput, "model: no slots, expected at least one");
  for (size_t i = 0; i < spec.slots.size(); ++i)
    if (auto valid = validate_slot(spec.slots[i], registry); !valid)
      return fail(valid.error().code, "model: slot {}: {}", i, valid.error().message);
  return {};
}

std::string arithmetic_id(const ModelSpec& spec) {
  return fmt::format("{}/{}", kArithmeticVersion, spec.arithmetic);
}

}  // namespace cairn
