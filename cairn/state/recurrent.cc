#include "cairn/state/recurrent.h"

#include <algorithm>

#include "cairn/core/bytes.h"
#include "cairn/state/registry.h"

namespace cairn {
namespace {

constexpr uint64_t kTensorAlignment = 64;
constexpr uint64_t kInputsAlignment = 4096;

}  // namespace

Codec tensor_codec(const FamilySpec& tensor) {
  Codec codec{.encoding = &kF32, .width = tensor.width};
  codec.geometry.planes = {{.name = "values",
                            .dtype = "F32",
                            .record_bytes = static_cast<uint32_t>(tensor.width * sizeof(float)),
                            .word_bytes = sizeof(float)}};
  return codec;
}

PageLayout make_tensor_layout(std::span<const SlotSpec* const> slots) {
  PageLayout layout{.page_positions = 1};
  for (const SlotSpec* slot : slots) {
    SlotPlace place;
    for (const FamilySpec& family : slot->families) {
      const auto record = static_cast<uint32_t>(family.width * sizeof(float));
      FamilyPlace tensor{.family = family.family,
                         .heads = family.heads,
                         .codec = tensor_codec(family),
                         .capacity = 1};
      tensor.planes = {{.offset = layout.page_bytes,
                        .head_bytes = record,
                        .position_stride = record,
                        .word_stride = sizeof(float),
                        .record_bytes = record,
                        .word_bytes = sizeof(float)}};
      layout.page_bytes += round_up(uint64_t{family.heads} * record, kTensorAlignment);
      layout.record_bytes += uint64_t{family.heads} * record;
      place.families.push_back(std::move(tensor));
    }
    layout.slots.push_back(std::move(place));
  }
  return layout;
}

Recurrent::Recurrent(Form form, std::vector<SlotSpec> slots, Memory& memory)
    : State({.encoded = std::move(form)}, {}), slots_(std::move(slots)), memory_(&memory) {
  size_t largest = 0;
  bool can_replay = true;
  for (const SlotSpec& slot : slots_) {
    can_replay &= slot.advance.function != nullptr;
    input_bytes_ += slot.advance.input_bytes;
    for (const FamilySpec& family : slot.families)
      largest = std::max(largest, size_t{family.heads} * family.width);
  }
  if (!can_replay) input_bytes_ = 0;
  zeros_.resize(largest);
}

std::unique_ptr<State> Recurrent::clone() const { return std::make_unique<Recurrent>(*this); }

Result<void> Recurrent::reserve(PageTable& table,
                                Growth growth,
                                Round round,
                                Reservation& reservation) const {
  if (growth.count == 0) return {};
  const bool keeps_states = round == Round::yes && !replays();
  const Pos states = keeps_states ? growth.count : 1;
  reservation.pages.reserve(states);
  while (reservation.pages.size() < states) {
    PageRef page = CAIRN_TRY(forms().encoded.pool->take());
    reservation.pages.push_back(std::move(page));
  }
  if (round == Round::yes && replays()) {
    PagePool& pool = memory_->pool(round_up(growth.count * input_bytes_, kInputsAlignment));
    reservation.inputs = CAIRN_TRY(pool.take());
  }
  table.tail.reserve(1);
  return {};
}

uint64_t Recurrent::publish(PageTable& table,
                            Reservation& reservation,
                            Growth growth) const noexcept {
  if (growth.kept == 0) return 0;
  if (reservation.inputs && growth.kept < growth.count) replay(table, reservation, growth);
  PageRef& state =
      reservation.pages.size() == 1 ? reservation.pages[0] : reservation.pages[growth.kept - 1];
  if (table.tail.empty())
    table.tail.push_back(std::move(state));
  else
    table.tail[0] = std::move(state);
  return 0;
}

void Recurrent::replay(const PageTable& table,
                       Reservation& reservation,
                       Growth growth) const noexcept {
  std::byte* next_page = reservation.pages[0].data();
  for (size_t place = 0; place < slots_.size(); ++place) {
    const SlotSpec& slot = slots_[place];
    std::array<const float*, kMostTensors> previous_tensors{};
    std::array<float*, kMostTensors> next_tensors{};
    for (size_t i = 0; i < slot.families.size(); ++i) {
      previous_tensors[i] = previous(table, place, slot.families[i].family->id);
      next_tensors[i] = tensor(next_page, place, slot.families[i].family->id);
    }
    slot.advance.function(slot.advance.model, previous_tensors.data(),
                          inputs(reservation, place, growth.count), growth.kept,
                          next_tensors.data());
  }
}

const FamilyPlace& Recurrent::family_place(size_t place, FamilyId family) const {
  const FamilyPlace* found = forms().encoded.layout.slots[place].find(family);
  CAIRN_CHECK(found != nullptr, "recurrent: the slot has no tensor {}", family.value);
  return *found;
}

float* Recurrent::tensor(std::byte* page, size_t place, FamilyId family) const {
  return reinterpret_cast<float*>(page + family_place(place, family).planes[0].offset);
}

const float* Recurrent::previous(const PageTable& table, size_t place, FamilyId family) const {
  const FamilyPlace& found = family_place(place, family);
  if (table.tail.empty()) return zeros_.data();
  return reinterpret_cast<const float*>(table.tail[0].data() + found.planes[0].offset);
}

std::byte* Recurrent::inputs(const Reservation& reservation, size_t place, Pos count) const {
  if (!reservation.inputs) return nullptr;
  uint64_t before = 0;
  for (size_t i = 0; i < place; ++i) before += slots_[i].advance.input_bytes;
  return reservation.inputs.data() + before * count;
}

bool Recurrent::can_truncate(const PageTable&, Pos length, Pos to) const {
  return to == length || to == 0;  // the states between are gone
}

void Recurrent::truncate(PageTable& table, Pos length, Pos to) const noexcept {
  if (to < length) table.tail.clear();
}

Result<PageTable> Recurrent::allocate(Pos length, Pos, const PageSource& given) const {
  PageTable table;
  if (length == 0) return table;
  PageRef page = given ? given(0) : PageRef();
  if (!page) page = CAIRN_TRY(forms().encoded.pool->take());
  table.tail.push_back(std::move(page));
  return table;
}

Pos Recurrent::max_run(Pos) const { return UINT64_MAX; }

uint64_t Recurrent::bytes_for(Pos tokens) const {
  return tokens > 0 ? forms().encoded.pool->page_cost() : 0;
}

uint64_t Recurrent::peak_bytes_for(Pos tokens, Pos longest_run) const {
  const Pos run = std::min(tokens, longest_run);
  if (run == 0) return 0;
  const uint64_t page = forms().encoded.pool->page_cost();
  if (replays()) return 2 * page + round_up(run * input_bytes_, kInputsAlignment);
  return (1 + run) * page;  // a round holds a state per position
}

}  // namespace cairn
