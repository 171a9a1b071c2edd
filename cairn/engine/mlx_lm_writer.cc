#include "cairn/engine/mlx_lm_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>

#include "cairn/engine/mlx_lm_reader.h"
#include "cairn/format/prompt_cache.h"
#include "cairn/io/replacement.h"

namespace cairn {
namespace {

constexpr uint64_t kBlockBytes = 1 << 20;

// Where the rows of an array come from; none: zeros.
struct Origin {
  const TensorInfo* array;
  std::optional<PlaneId> plane;
};

TensorInfo array_of(const CheckpointFamily& family, const CheckpointPlane& plane, Pos rows) {
  const uint64_t element_bytes = *element_bits(plane.dtype) / 8;
  return {.name = {},
          .dtype = plane.dtype,
          .shape = {1, family.heads, rows, plane.record_bytes / element_bytes}};
}

std::vector<TensorInfo> arrays_of(const CheckpointSlot& slot, size_t family) {
  std::vector<TensorInfo> arrays;
  for (const CheckpointPlane& plane : slot.families[family].planes)
    arrays.push_back(
        array_of(slot.families[family], plane, stored_rows(slot, slot.families[family])));
  return arrays;
}

bool is_affine(const CheckpointFamily& family) { return family.encoding.starts_with(kAffine.name); }

struct Groups {
  uint64_t bits = 0, size = 0;
  bool operator==(const Groups&) const = default;
};

// What the planes of an affine family say.
Groups groups_of(const CheckpointFamily& family) {
  const CheckpointPlane& scales = family.planes[1];
  const uint64_t groups = scales.record_bytes / (*element_bits(scales.dtype) / 8);
  return {family.planes[0].record_bytes * 8 / family.width, family.width / groups};
}

PromptCache key_value_cache(const CheckpointSlot& slot, Pos length) {
  PromptCache cache{.class_name = "KVCache",
                    .arrays = {arrays_of(slot, 0), arrays_of(slot, 1)},
                    .offset = length,
                    .members = {}};
  if (slot.window != 0) {
    cache.class_name = "RotatingKVCache";
    cache.keep = slot.sinks;
    cache.max_size = slot.window + slot.sinks;
    cache.index = stored_rows(slot, length);
  } else if (is_affine(slot.families[0])) {
    const Groups groups = groups_of(slot.families[0]);
    cache.class_name = "QuantizedKVCache";
    cache.group_size = groups.size;
    cache.bits = groups.bits;
  }
  return cache;
}

PromptCache index_cache(const CheckpointSlot& slot, Pos length) {
  return {.class_name = "KVCache",
          .arrays = {arrays_of(slot, 2), arrays_of(slot, 2)},
          .offset = length,
          .members = {}};
}

// 0: none.
uint64_t side_of_square(uint64_t numbers) {
  const auto side = static_cast<uint64_t>(std::lround(std::sqrt(static_cast<double>(numbers))));
  return side * side == numbers ? side : 0;
}

// [1, a, b] of conv, [1, a, b, b] of recurrent state: the file says only how many numbers a matrix
// has.
PromptCache tensors_cache(const CheckpointSlot& slot) {
  PromptCache cache{.class_name = "ArraysCache", .arrays = {}, .members = {}};
  for (const CheckpointFamily& family : slot.families) {
    TensorInfo array{.name = {}, .dtype = "F32", .shape = {1, family.heads, family.width}};
    if (family.name == kRecurrentFamily.name) {
      const uint64_t side = side_of_square(family.width);
      array.shape = {1, family.heads, side, side};
    }
    cache.arrays.push_back({array});
  }
  return cache;
}

PromptCache cache_of(const CheckpointSlot& slot, Pos length) {
  if (slot.is_fixed) return tensors_cache(slot);
  if (slot.families.size() == 2) return key_value_cache(slot, length);
  return {.class_name = "CacheList",
          .arrays = {},
          .members = {key_value_cache(slot, length), index_cache(slot, length)}};
}

std::vector<Origin> origins_of(const PromptCacheFile& content) {
  std::vector<Origin> origins;
  for (uint32_t slot = 0; slot < content.caches.size(); ++slot) {
    const PromptCache& cache = content.caches[slot];
    const auto add = [&](const PromptCache& from, uint32_t first_family, size_t families) {
      for (uint32_t list = 0; list < from.arrays.size(); ++list)
        for (uint32_t plane = 0; plane < from.arrays[list].size(); ++plane)
          origins.push_back({&from.arrays[list][plane],
                             list < families
                                 ? std::optional(PlaneId{slot, first_family + list, plane})
                                 : std::nullopt});
    };
    add(cache, 0, cache.arrays.size());
    if (cache.members.empty()) continue;
    add(cache.members[0], 0, 2);
    add(cache.members[1], 2, 1);  // values that nothing reads
  }
  return origins;
}

Result<void> write_zeros(File& file, const TensorInfo& array) {
  const std::vector<std::byte> block(std::min(array.bytes(), kBlockBytes));
  for (uint64_t at = array.begin; at < array.end; at += block.size())
    CAIRN_TRY(file.write_at(
        at, std::span(block).first(std::min<uint64_t>(block.size(), array.end - at))));
  return {};
}

// From [position][head] to [head][position].
Result<void> write_rows(File& file,
                        const TensorInfo& array,
                        PlaneId plane,
                        StoredSequence& sequence) {
  const uint64_t heads = array.shape[1], rows = array.shape[2];
  const uint64_t record_bytes = array.bytes() / (heads * rows);
  const uint64_t row_bytes = heads * record_bytes;
  const uint64_t block_rows = std::clamp<uint64_t>(kBlockBytes / row_bytes, 1, rows);
  std::vector<std::byte> block(block_rows * row_bytes), records(block_rows * record_bytes);
  for (uint64_t first = 0; first < rows; first += block_rows) {
    const uint64_t count = std::min(block_rows, rows - first);
    CAIRN_TRY(sequence.read(plane, first, count, std::span(block).first(count * row_bytes)));
    for (uint64_t head = 0; head < heads; ++head) {
      for (uint64_t i = 0; i < count; ++i)
        std::memcpy(records.data() + i * record_bytes,
                    block.data() + i * row_bytes + head * record_bytes, record_bytes);
      CAIRN_TRY(file.write_at(array.begin + (head * rows + first) * record_bytes,
                              std::span(records).first(count * record_bytes)));
    }
  }
  return {};
}

Result<void> write_array(File& file, const Origin& origin, StoredSequence& sequence) {
  if (!origin.plane) return write_zeros(file, *origin.array);
  if (!sequence.info().slots[origin.plane->slot].is_fixed)
    return write_rows(file, *origin.array, *origin.plane, sequence);
  std::vector<std::byte> tensor(origin.array->bytes());
  CAIRN_TRY(sequence.read(*origin.plane, 0, 1, tensor));
  return file.write_at(origin.array->begin, tensor);
}

// A JSON list of the ids; none: no position has one.
Result<std::optional<std::string>> tokens_text(StoredSequence& sequence) {
  std::vector<int32_t> tokens(sequence.info().tokens);
  CAIRN_TRY(sequence.read({}, 0, tokens.size(), std::as_writable_bytes(std::span(tokens))));
  if (std::ranges::all_of(tokens, [](int32_t id) { return id < 0; })) return std::nullopt;
  return fmt::format("[{}]", fmt::join(tokens, ", "));
}

// --- what mlx-lm has

// Keys and values of one attention layer, which mlx-lm encodes alike.
bool is_quantized_cache(const CheckpointSlot& slot) {
  constexpr std::array<uint64_t, 3> kGroups = {32, 64, 128};
  const auto is_known = [&](const CheckpointFamily& family) {
    return is_affine(family) && std::ranges::count(kGroups, groups_of(family).size) > 0;
  };
  return slot.kind == kAttention.name && std::ranges::all_of(slot.families, is_known) &&
         groups_of(slot.families[0]) == groups_of(slot.families[1]);
}

// One form per family, in what mlx-lm has.
void simplify(CheckpointSlot& slot, Losses& unknown) {
  const size_t forms = forms_of(slot);
  const bool is_quantized = forms == 1 && is_quantized_cache(slot);
  std::vector<CheckpointFamily> families;
  for (size_t i = 0; i < slot.families.size(); i += forms) {
    CheckpointFamily family = slot.families[i + forms - 1];
    if (forms > 1 || (!is_quantized && !holds_plain_numbers(family))) {
      if (family.begin < family.end) unknown[family.encoding].insert(family.name);
      family = in_f32(std::move(family));
      family.begin = 0;
    }
    families.push_back(std::move(family));
  }
  slot.families = std::move(families);
}

Result<void> check_counterpart(const CheckpointSlot& slot, Pos length) {
  const auto has_name = [&](const StateKind* kind) { return kind->name == slot.kind; };
  constexpr std::array kKnown = {&kAttention, &kWindow, &kLatentKind, &kLatentDraftKind,
                                 &kRecurrentKind};
  if (std::ranges::none_of(kKnown, has_name))
    return fail(Code::Unsupported, "mlx-lm has nothing for the kind \"{}\"", slot.kind);
  for (const CheckpointFamily& family : slot.families)
    if (family.name == kRecurrentFamily.name && side_of_square(family.width) == 0)
      return fail(Code::Unsupported,
                  "{} of {} numbers per head, expected a square matrix: the file does not say "
                  "which shape it has in mlx-lm",
                  family.name, family.width);
  const Pos ring = std::min(length, slot.window + slot.sinks), stored = stored_rows(slot, length);
  if (slot.window != 0 && stored < ring)
    return fail(Code::Unsupported, "{} positions are stored, expected the {} of mlx-lm's ring",
                stored, ring);
  return {};
}

}  // namespace

Result<CheckpointInfo> as_mlx_lm(CheckpointInfo info, Losses& unknown) {
  if (info.length == 0)
    return fail(Code::BadInput, "an empty sequence, expected one with positions");
  for (size_t i = 0; i < info.slots.size(); ++i) {
    if (auto known = check_counterpart(info.slots[i], info.length); !known)
      return fail(known.error().code, "slot {}: {}", i, known.error().message);
    simplify(info.slots[i], unknown);
  }
  info.encoded_after = 0;
  return info;
}

Result<uint64_t> write_prompt_cache(FileSystem& fs,
                                    const std::string& path,
                                    StoredSequence& sequence) {
  PromptCacheFile content;
  for (const CheckpointSlot& slot : sequence.info().slots)
    content.caches.push_back(cache_of(slot, sequence.info().length));
  if (auto text = CAIRN_TRY(tokens_text(sequence)))
    content.about.emplace(kMlxLmTokens, std::move(*text));
  auto head = lay_out_prompt_cache(content);
  if (!head) return fail(head.error().code, "{}: {}", path, head.error().message);
  Replacement next = CAIRN_TRY(Replacement::make(fs, path));
  CAIRN_TRY(next.file().write_at(0, std::as_bytes(std::span(*head))));
  for (const Origin& origin : origins_of(content))
    CAIRN_TRY(write_array(next.file(), origin, sequence));
  const uint64_t file_bytes = CAIRN_TRY(next.file().size());
  CAIRN_TRY(next.commit());
  return file_bytes;
}

}  // namespace cairn
