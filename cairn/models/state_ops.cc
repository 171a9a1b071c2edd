#include "cairn/models/state_ops.h"

#include <algorithm>

namespace cairn {
namespace {

const float* floats(const ggml_tensor* tensor) { return static_cast<const float*>(tensor->data); }

Part part_of(int part, int parts) {
  return {static_cast<uint32_t>(part), static_cast<uint32_t>(parts)};
}

// A tensor as a family's numbers: [width, heads, rows], f32, dense.
void check_numbers(const ggml_tensor* tensor, const FamilySpec& family) {
  CAIRN_CHECK(tensor->type == GGML_TYPE_F32 && ggml_is_contiguous(tensor),
              "{} numbers are not dense f32", family.family->name);
  CAIRN_CHECK(tensor->ne[0] == family.width && tensor->ne[1] == family.heads,
              "{} numbers are [{}, {}], expected [{}, {}]", family.family->name, tensor->ne[1],
              tensor->ne[0], family.heads, family.width);
}

// Numbers per head of the families that have a property.
int64_t width_of(const SlotSpec& spec, bool Family::*property) {
  int64_t width = 0;
  for (const FamilySpec& family : spec.families)
    if (family.family->*property) width += family.width;
  return width;
}

void check_query(const ggml_tensor* query, const SlotSpec& spec, bool Family::*property) {
  CAIRN_CHECK(query->type == GGML_TYPE_F32 && ggml_is_contiguous(query),
              "queries are not dense f32");
  CAIRN_CHECK(query->ne[0] == width_of(spec, property), "queries are {} wide, expected {}",
              query->ne[0], width_of(spec, property));
}

// What choose() made, as attend() takes it: `count` positions per row, and behind them a count per
// row.
ChosenOut choice_in(ggml_tensor* node, Pos rows) {
  const size_t count = static_cast<size_t>(node->ne[0]) / rows - 1;
  auto* positions = static_cast<uint32_t*>(node->data);
  return {.positions = positions, .counts = positions + count * rows, .row_stride = count};
}

void check_rows(const ggml_tensor* tensor, uint32_t numbers, const char* what) {
  CAIRN_CHECK(tensor->type == GGML_TYPE_F32 && ggml_is_contiguous(tensor), "{} are not dense f32",
              what);
  CAIRN_CHECK(tensor->ne[0] == numbers && ggml_nrows(tensor) == tensor->ne[1],
              "{} are [{}, {}], expected [rows, {}]", what, ggml_nrows(tensor), tensor->ne[0],
              numbers);
}

// What a round must know of a run to replay a part of it: [count][mixed, gates].
void record(const DeltaRows& rows, const DeltaShape& shape, std::byte* inputs) {
  auto* out = reinterpret_cast<float*>(inputs);
  for (Pos i = 0; i < rows.count; ++i) {
    out = std::copy_n(rows.mixed + i * rows.mixed_stride, shape.channels(), out);
    out = std::copy_n(rows.gates + i * rows.gates_stride, shape.gates(), out);
  }
}

void check_place(const SlotPlace& place, const SlotSpec& spec) {
  for (const FamilySpec& family : spec.families) {
    const FamilyPlace* held = place.find(family.family->id);
    CAIRN_CHECK(held != nullptr && held->heads == family.heads && held->codec.width == family.width,
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
                             std::span<ggml_tensor* const> numbers) {
  Slot& target = slots_.at(slot.value);
  CAIRN_CHECK(numbers.size() == target.spec.families.size(),
              "slot {}: numbers of {} families, expected {}", slot.value, numbers.size(),
              target.spec.families.size());
  std::vector<ggml_tensor*> inputs(numbers.begin(), numbers.end());
  for (size_t i = 0; i < inputs.size(); ++i) check_numbers(inputs[i], target.spec.families[i]);
  return ggml_custom_4d(context, GGML_TYPE_F32, 1, 1, 1, 1, inputs.data(),
                        static_cast<int>(inputs.size()), write_part, GGML_N_TASKS_MAX, &target);
}

ggml_tensor* StateOps::choose(ggml_context* context,
                              SlotId slot,
                              ggml_tensor* query,
                              ggml_tensor* weights,
                              ggml_tensor* written,
                              uint32_t count,
                              float scale) {
  Slot& source = slots_.at(slot.value);
  source.choice_scale = scale;
  check_query(query, source.spec, &Family::is_index);
  CAIRN_CHECK(weights->type == GGML_TYPE_F32 && ggml_is_contiguous(weights) &&
                  weights->ne[0] == query->ne[1],
              "slot {}: weights of index heads must be dense f32, one per head", slot.value);
  ggml_tensor* inputs[] = {query, weights, written};
  return ggml_custom_4d(context, GGML_TYPE_I32, query->ne[2] * (int64_t{count} + 1), 1, 1, 1,
                        inputs, 3, choose_part, GGML_N_TASKS_MAX, &source);
}

ggml_tensor* StateOps::attend(ggml_context* context,
                              SlotId slot,
                              ggml_tensor* query,
                              ggml_tensor* written,
                              float scale,
                              ggml_tensor* chosen) {
  Slot& source = slots_.at(slot.value);
  source.scale = scale;
  check_query(query, source.spec, &Family::is_scored);
  ggml_tensor* inputs[] = {query, written, chosen};
  return ggml_custom_4d(context, GGML_TYPE_F32,
                        width_of(source.spec, &Family::is_accumulated) * query->ne[1], query->ne[2],
                        1, 1, inputs, chosen == nullptr ? 2 : 3, attend_part, GGML_N_TASKS_MAX,
                        &source);
}

ggml_tensor* StateOps::advance(ggml_context* context,
                               SlotId slot,
                               const DeltaNet& net,
                               ggml_tensor* mixed,
                               ggml_tensor* gates) {
  Slot& target = slots_.at(slot.value);
  target.net = &net;
  check_rows(mixed, net.shape().channels(), "queries, keys and values");
  check_rows(gates, net.shape().gates(), "gates");
  ggml_tensor* inputs[] = {mixed, gates};
  return ggml_custom_4d(context, GGML_TYPE_F32, net.shape().values(), mixed->ne[1], 1, 1, inputs, 2,
                        advance_part, GGML_N_TASKS_MAX, &target);
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
    for (size_t i = 0; i < target.spec.families.size(); ++i)
      ops.step_->write(target.id, target.spec.families[i].family->id, floats(node->src[i]),
                       part_of(part, parts));
  });
}

void StateOps::choose_part(ggml_tensor* node, int part, int parts, void* slot) noexcept {
  Slot& source = *static_cast<Slot*>(slot);
  StateOps& ops = *source.ops;
  ops.guarded(ops.clocks_[static_cast<size_t>(part)].attend, [&] {
    const ggml_tensor* query = node->src[0];
    const ChosenOut out = choice_in(node, source.view.rows);
    cairn::choose(source.view,
                  {.data = floats(query),
                   .weights = floats(node->src[1]),
                   .heads = static_cast<uint32_t>(query->ne[1]),
                   .scale = source.choice_scale},
                  static_cast<uint32_t>(out.row_stride), out, part_of(part, parts));
  });
}

void StateOps::attend_part(ggml_tensor* node, int part, int parts, void* slot) noexcept {
  Slot& source = *static_cast<Slot*>(slot);
  StateOps& ops = *source.ops;
  ops.guarded(ops.clocks_[static_cast<size_t>(part)].attend, [&] {
    const ggml_tensor* query = node->src[0];
    Chosen chosen;
    if (node->src[2] != nullptr) chosen = choice_in(node->src[2], source.view.rows).view();
    const Queries queries{.data = floats(query),
                          .heads = static_cast<uint32_t>(query->ne[1]),
                          .scale = source.scale,
                          .chosen = node->src[2] != nullptr ? &chosen : nullptr};
    if (part == 0 && ops.watcher_) ops.watcher_(source.id, queries, source.view.rows);
    cairn::attend(source.view, queries, {.data = static_cast<float*>(node->data)},
                  part_of(part, parts));
  });
}

// The parts divide the heads of all runs.
void StateOps::advance_part(ggml_tensor* node, int part, int parts, void* slot) noexcept {
  Slot& target = *static_cast<Slot*>(slot);
  StateOps& ops = *target.ops;
  ops.guarded(ops.clocks_[static_cast<size_t>(part)].attend, [&] {
    const DeltaShape& shape = target.net->shape();
    const Part mine = part_of(part, parts);
    const size_t heads = shape.value_heads, all = target.view.runs.size() * heads;
    for (size_t run = 0; run < target.view.runs.size(); ++run) {
      const RunView& view = target.view.runs[run];
      if (view.count == 0) continue;
      const DeltaRows rows{.mixed = floats(node->src[0]) + view.row * shape.channels(),
                           .mixed_stride = shape.channels(),
                           .gates = floats(node->src[1]) + view.row * shape.gates(),
                           .gates_stride = shape.gates(),
                           .count = view.count};
      const size_t first = run * heads;  // of this run's heads
      const auto index = [&](size_t end) {
        return static_cast<uint32_t>(std::clamp(all * end / mine.count, first, first + heads) -
                                     first);
      };
      target.advance_heads(run, rows, index(mine.index), index(mine.index + 1),
                           static_cast<float*>(node->data) + view.row * shape.values());
      std::byte* inputs = ops.step_->round_inputs(target.id, run);
      if (inputs != nullptr && run % mine.count == mine.index) record(rows, shape, inputs);
      ops.step_->mark_written(target.id, run, mine);
    }
  });
}

// Heads [begin, end) of one run; `out` has the answers of all.
void StateOps::Slot::advance_heads(
    size_t run, const DeltaRows& rows, uint32_t begin, uint32_t end, float* out) const {
  Step& step = *ops->step_;
  CAIRN_CHECK(!step.holds_states(id), "slot {}: a round that holds states, expected replayed ones",
              id.value);
  const DeltaState<const float> previous{step.previous(id, kConv, run),
                                         step.previous(id, kRecurrentTensor, run)};
  const DeltaState<float> next{step.next(id, kConv, run, rows.count - 1),
                               step.next(id, kRecurrentTensor, run, rows.count - 1)};
  const DeltaShape& shape = net->shape();
  for (uint32_t head = begin; head < end; ++head)
    net->advance(head, previous, rows, next, out + size_t{head} * shape.value_dim, shape.values());
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
