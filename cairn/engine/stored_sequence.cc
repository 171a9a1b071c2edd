#include "cairn/engine/stored_sequence.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "cairn/engine/description.h"
#include "cairn/format/checkpoint_reader.h"
#include "cairn/kernels/dispatch.h"

namespace cairn {
namespace {

constexpr Pos kRecodedPositions = 64;  // at once

class CheckpointSequence final : public StoredSequence {
 public:
  explicit CheckpointSequence(CheckpointReader reader) : reader_(std::move(reader)) {
    const auto& tensors = reader_.layout().tensors;
    for (size_t i = 0; i < tensors.size(); ++i)
      tensors_[{tensors[i].slot, tensors[i].family, tensors[i].plane}] = i;
  }

  const CheckpointInfo& info() const override { return reader_.info(); }

  Result<void> read(PlaneId plane,
                    uint64_t first_row,
                    uint64_t rows,
                    std::span<std::byte> out) override {
    const CheckpointTensor& tensor = reader_.layout().tensors[tensors_.at(plane)];
    Held& held = held_[plane.family % 2 * kMaxPlanes + plane.plane % kMaxPlanes];
    std::byte* to = out.data();
    while (rows > 0) {
      CAIRN_TRY(hold(held, tensor.first_chunk + first_row / tensor.chunk_rows));
      const uint64_t skipped = first_row - held.chunk.first_row;
      const uint64_t count = std::min(held.chunk.rows - skipped, rows);
      std::memcpy(to, held.rows.data() + skipped * tensor.row_bytes, count * tensor.row_bytes);
      to += count * tensor.row_bytes;
      first_row += count;
      rows -= count;
    }
    return {};
  }

 private:
  // The chunk that was read last: the next rows are mostly in it too.
  struct Held {
    Chunk chunk;
    std::span<const std::byte> rows;  // empty: none
    AlignedBuffer buffer;
  };

  Result<void> hold(Held& held, uint64_t chunk) {
    if (!held.rows.empty() && held.chunk.index == chunk) return {};
    held.rows = {};
    held.chunk = reader_.layout().chunk(chunk);
    held.rows = CAIRN_TRY(reader_.read_chunk(held.chunk, held.buffer));
    return {};
  }

  CheckpointReader reader_;
  std::map<PlaneId, size_t> tensors_;
  std::array<Held, 2 * kMaxPlanes> held_;  // of the planes of one family in both forms
};

// The row of a position in one form of a family.
uint64_t row_of(const CheckpointSlot& slot, const CheckpointFamily& family, Pos position) {
  return slot.is_fixed ? position : stored_rows(slot, position) - stored_rows(slot, family.begin);
}

uint64_t row_bytes_of(const CheckpointInfo& info, PlaneId plane) {
  const CheckpointFamily& family = info.slots[plane.slot].families[plane.family];
  return family.heads * family.planes[plane.plane].record_bytes;
}

// The form of the family named so that holds the position.
uint32_t form_at(const CheckpointSlot& slot, const std::string& family, Pos position) {
  const auto holds = [&](const CheckpointFamily& form) {
    return form.name == family && position >= form.begin && position < form.end;
  };
  return static_cast<uint32_t>(std::ranges::find_if(slot.families, holds) - slot.families.begin());
}

// [row][head][word] of `bytes` each: the first `rotated` words of every head in the other order.
void reorder(
    std::span<std::byte> numbers, uint64_t width, uint64_t bytes, uint32_t rotated, PairOrder to) {
  std::vector<std::byte> old(rotated * bytes);
  const uint64_t half = rotated / 2;
  for (std::byte* head = numbers.data(); head < numbers.data() + numbers.size();
       head += width * bytes) {
    std::memcpy(old.data(), head, old.size());
    for (uint64_t i = 0; i < rotated; ++i) {
      const uint64_t adjacent = 2 * (i % half) + i / half;
      const auto [target, source] =
          to == PairOrder::adjacent ? std::pair(adjacent, i) : std::pair(i, adjacent);
      std::memcpy(head + target * bytes, old.data() + source * bytes, bytes);
    }
  }
}

}  // namespace

Result<std::unique_ptr<StoredSequence>> open_checkpoint(FileSystem& fs, const std::string& path) {
  return std::make_unique<CheckpointSequence>(CAIRN_TRY(CheckpointReader::open(fs, path)));
}

Result<Recoded::Codecs> Recoded::codecs_of(const CheckpointInfo& info, const Registry& registry) {
  Codecs codecs;
  for (size_t i = 0; i < info.slots.size(); ++i) {
    codecs.emplace_back();
    for (const CheckpointFamily& family : info.slots[i].families) {
      codecs.back().emplace_back();
      if (info.slots[i].is_fixed) continue;  // never recoded
      const EncodingChoice choice = CAIRN_TRY(parse_encoding(registry, family.encoding));
      codecs.back().back() = CAIRN_TRY(
          make_codec(*choice.encoding, choice.params, static_cast<uint32_t>(family.width)));
    }
  }
  return codecs;
}

Result<std::unique_ptr<Recoded>> Recoded::make(StoredSequence& from,
                                               CheckpointInfo info,
                                               const Registry& registry) {
  ModelSpec spec = CAIRN_TRY(model_of(from.info(), registry));
  Codecs from_codecs = CAIRN_TRY(codecs_of(from.info(), registry));
  Codecs codecs = CAIRN_TRY(codecs_of(info, registry));
  return std::unique_ptr<Recoded>(new Recoded(from, std::move(info), std::move(spec),
                                              std::move(from_codecs), std::move(codecs)));
}

Result<void> Recoded::read(PlaneId plane,
                           uint64_t first_row,
                           uint64_t rows,
                           std::span<std::byte> out) {
  if (plane.slot == CheckpointTensor::kTokens) return from_.read(plane, first_row, rows, out);
  const CheckpointSlot& to_slot = info_.slots[plane.slot];
  const CheckpointFamily& to = to_slot.families[plane.family];
  const CheckpointSlot& from_slot = from_.info().slots[plane.slot];
  const uint64_t row_bytes = row_bytes_of(info_, plane);
  std::byte* next = out.data();
  for (PositionRun run : positions_of(to_slot, to, first_row, rows))
    while (run.count > 0) {
      const uint32_t form = form_at(from_slot, to.name, run.first);
      const CheckpointFamily& from = from_slot.families[form];
      const bool is_copied = from.encoding == to.encoding;
      PositionRun stretch{run.first, std::min(run.count, from.end - run.first)};
      if (!is_copied) stretch.count = std::min(stretch.count, kRecodedPositions);
      const std::span<std::byte> into(next, stretch.count * row_bytes);
      if (is_copied)
        CAIRN_TRY(from_.read({plane.slot, form, plane.plane},
                             row_of(from_slot, from, stretch.first), stretch.count, into));
      else
        CAIRN_TRY(recode(plane, form, stretch, into));
      next += into.size();
      run.first += stretch.count;
      run.count -= stretch.count;
    }
  return {};
}

// Through two pages of one family, which is where records are decoded and encoded.
Result<void> Recoded::recode(PlaneId to, uint32_t form, PositionRun run, std::span<std::byte> out) {
  const CheckpointSlot& from_slot = from_.info().slots[to.slot];
  const CheckpointFamily& from = from_slot.families[form];
  SlotSpec slot = spec_.slots[to.slot];
  slot.families = {slot.families[form / forms_of(from_slot)]};
  const SlotSpec* slots[] = {&slot};
  const PageLayout from_layout =
      make_page_layout(slots, {{from_codecs_[to.slot][form]}}, kRecodedPositions);
  const PageLayout to_layout =
      make_page_layout(slots, {{codecs_[to.slot][to.family]}}, kRecodedPositions);
  const FamilyPlace& from_place = from_layout.slots[0].families[0];
  const FamilyPlace& to_place = to_layout.slots[0].families[0];
  std::byte* from_page = CAIRN_TRY(from_page_.reserve(from_layout.page_bytes)).data();
  std::byte* to_page = CAIRN_TRY(to_page_.reserve(to_layout.page_bytes)).data();

  const uint32_t count = static_cast<uint32_t>(run.count);
  for (uint32_t i = 0; i < from_place.planes.size(); ++i) {
    const PlaneId plane{to.slot, form, i};
    const uint64_t row_bytes = row_bytes_of(from_.info(), plane);
    rows_.resize(count * row_bytes);
    CAIRN_TRY(from_.read(plane, row_of(from_slot, from, run.first), count, rows_));
    for (uint32_t head = 0; head < from_place.heads; ++head)
      copy_in(from_place.planes[i], head, from_page, 0, count,
              rows_.data() + uint64_t{head} * from_place.planes[i].record_bytes, row_bytes);
  }
  const RoundingScope rounding;
  const uint64_t saturated = transcode({from_place, from_page, 0}, {to_place, to_page, 0}, count);
  if (to.plane == 0) saturated_ += saturated;  // each plane is asked for once
  for (uint32_t head = 0; head < to_place.heads; ++head)
    copy_out(to_place.planes[to.plane], head, to_page, 0, count,
             out.data() + uint64_t{head} * to_place.planes[to.plane].record_bytes,
             row_bytes_of(info_, to));
  return {};
}

Result<void> Reordered::read(PlaneId plane,
                             uint64_t first_row,
                             uint64_t rows,
                             std::span<std::byte> out) {
  CAIRN_TRY(from_.read(plane, first_row, rows, out));
  if (plane.slot == CheckpointTensor::kTokens) return {};
  const CheckpointFamily& family = info().slots[plane.slot].families[plane.family];
  if (family.name == kKeyFamily.name)
    reorder(out, family.width, family.planes[0].record_bytes / family.width, rotated_, to_);
  return {};
}

bool holds_plain_numbers(const CheckpointFamily& family) {
  return family.encoding == kF32.name || family.encoding == kF16.name ||
         family.encoding == kBf16.name;
}

CheckpointFamily in_f32(CheckpointFamily family) {
  family.encoding = kF32.name;
  family.planes = {
      {.name = "values", .dtype = "F32", .record_bytes = family.width * sizeof(float)}};
  return family;
}

Losses losses_of(const CheckpointInfo& from, const CheckpointInfo& to) {
  Losses losses;
  for (size_t i = 0; i < from.slots.size(); ++i)
    for (const CheckpointFamily& ours : from.slots[i].families)
      for (const CheckpointFamily& theirs : to.slots[i].families) {
        const bool do_meet = std::max(ours.begin, theirs.begin) < std::min(ours.end, theirs.end);
        if (ours.name == theirs.name && do_meet && ours.encoding != theirs.encoding &&
            ours.encoding != kF32.name)
          losses[ours.encoding].insert(ours.name);
      }
  return losses;
}

}  // namespace cairn
