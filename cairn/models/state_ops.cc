#include "cairn/models/state_ops.h"

#include <algorithm>

namespace cairn {
namespace {

const float* floats(const ggml_tensor* tensor) { return static_cast<const float*>(tensor->data); }

Part part_of(int part, int parts) {
  return {static_cast<uint32_t>(part), static_cast<uint32_t>(parts)};
}

const FamilySpec* family_of(const SlotSpec& spec, FamilyId id) {
  for (const FamilySpec& family : spec.families)
    if (family.family->id == id) return &family;
  return nullptr;
}

// A tensor as a family's numbers: [width, heads, rows], f32, dense.
void check_numbers(const ggml_tensor* tensor, const SlotSpec& spec, FamilyId id) {
  const FamilySpec* family = family_of(spec, id);
  CAIRN_CHECK(family != nullptr, "slot has no family {}", id.value);
  CAIRN_CHECK(tensor->type == GGML_TYPE_F32 && ggml_is_contiguous(tensor),
              "{} numbers are not dense f32", family->family->name);
  CAIRN_CHECK(tensor->ne[0] == family->width && tensor->ne[1] == family->heads,
              "{} numbers are [{}, {}], expected [{}, {}]", family->family->name, tensor->ne[1],
              tensor->ne[0], family->heads, family->width);
}

void check_place(const SlotPlace& place, const SlotSpec& spec) {
  for (const FamilySpec& family : spec.families) {
    const FamilyPlace* held = place.find(family.family->id);
    CAIRN_CHECK(held != nullptr && held->heads == family.heads,
                "the step belongs to another model: {}", family.family->name);
  }
}

}  // namespace

StateOps::StateOps(std::span<const SlotSpec> slots, uint32_t threads)
    : slots_(slots.size()), clocks_(threads) {
  for (size_t i = 0; i < slots.size(); ++i) {
    slots_[i].ops = this;
    slots_[i].id = {static_cast<uint32_t>(i)};
    slots_[i].spec = slots[i];
  }
}

ggml_tensor* StateOps::write(ggml_context* context,
                             SlotId slot,
                             ggml_tensor* key,
                             ggml_tensor* value) {
  Slot& target = slots_.at(slot.value);
  check_numbers(key, target.spec, kKey);
  check_numbers(value, target.spec, kValue);
  ggml_tensor* numbers[] = {key, value};
  return ggml_custom_4d(context, GGML_TYPE_F32, 1, 1, 1, 1, numbers, 2, write_part,
                        GGML_N_TASKS_MAX, &target);
}

ggml_tensor* StateOps::attend(
    ggml_context* context, SlotId slot, ggml_tensor* query, ggml_tensor* written, float scale) {
  Slot& source = slots_.at(slot.value);
  source.scale = scale;
  const FamilySpec* value = family_of(source.spec, kValue);
  CAIRN_CHECK(value != nullptr && ggml_is_contiguous(query), "slot {}: queries must be dense",
              slot.value);
  ggml_tensor* inputs[] = {query, written};
  return ggml_custom_4d(context, GGML_TYPE_F32, value->width * query->ne[1], query->ne[2], 1, 1,
                        inputs, 2, attend_part, GGML_N_TASKS_MAX, &source);
}

void StateOps::begin(Step& step) {
  for (Slot& slot : slots_) {
    slot.view = step.view(slot.id);
    check_place(*slot.view.slot, slot.spec);
  }
  step_ = &step;
}

void StateOps::end() {
  step_ = nullptr;
  if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
}

template <class Work>
void StateOps::guarded(std::chrono::nanoseconds& clock, Work work) noexcept {
  const auto start = std::chrono::steady_clock::now();
  try {
    work();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    if (!thrown_) thrown_ = std::current_exception();
  }
  clock += std::chrono::steady_clock::now() - start;
}

void StateOps::write_part(ggml_tensor* node, int part, int parts, void* slot) noexcept {
  Slot& target = *static_cast<Slot*>(slot);
  StateOps& ops = *target.ops;
  ops.guarded(ops.clocks_[static_cast<size_t>(part)].write, [&] {
    ops.step_->write(target.id, kKey, floats(node->src[0]), part_of(part, parts));
    ops.step_->write(target.id, kValue, floats(node->src[1]), part_of(part, parts));
  });
}

void StateOps::attend_part(ggml_tensor* node, int part, int parts, void* slot) noexcept {
  Slot& source = *static_cast<Slot*>(slot);
  StateOps& ops = *source.ops;
  ops.guarded(ops.clocks_[static_cast<size_t>(part)].attend, [&] {
    const ggml_tensor* query = node->src[0];
    cairn::attend(source.view,
                  {.data = floats(query),
                   .heads = static_cast<uint32_t>(query->ne[1]),
                   .scale = source.scale},
                  {.data = static_cast<float*>(node->data)}, part_of(part, parts));
  });
}

StateSeconds StateOps::seconds() const {
  const auto slowest = std::max_element(
      clocks_.begin(), clocks_.end(),
      [](const Clock& a, const Clock& b) { return a.write + a.attend < b.write + b.attend; });
  const auto in_seconds = [](std::chrono::nanoseconds time) {
    return std::chrono::duration<double>(time).count();
  };
  return {.write = in_seconds(slowest->write), .attend = in_seconds(slowest->attend)};
}

void StateOps::reset_seconds() { std::fill(clocks_.begin(), clocks_.end(), Clock{}); }

}  // namespace cairn
