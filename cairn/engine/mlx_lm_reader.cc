#include "cairn/engine/mlx_lm_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "cairn/core/numbers.h"
#include "cairn/engine/description.h"
#include "cairn/format/json_fields.h"
#include "cairn/format/prompt_cache.h"

namespace cairn {
namespace {

constexpr uint64_t kBlockBytes = 1 << 20;

// Where the positions of a cache's arrays lie: `rows` of them in the order of time, of which those
// from `keep` on begin at `start` of a ring that ends with the array.
struct Ring {
  Pos rows = 0;
  Pos capacity = 0;
  Pos keep = 0;
  Pos start = 0;

  // The longest stretch from `row` on that lies in one piece: its first position in the array, and
  // how many.
  PositionRun stretch(Pos row) const {
    if (row < keep) return {row, keep - row};
    const Pos at = start + (row - keep), wrap = capacity - start;
    if (at < capacity) return {at, std::min(capacity - at, rows - row)};
    return {keep + (row - keep - wrap), rows - row};
  }
};

Result<Ring> ring_of(const PromptCache& cache) {
  const Pos capacity = cache.arrays[0][0].shape[2];
  const bool is_ring = cache.class_name == "RotatingKVCache";
  const Pos index = is_ring ? cache.index : cache.offset;
  Ring ring{.rows = index, .capacity = capacity, .keep = 0, .start = 0};
  if (is_ring && index < capacity && index < cache.offset) {  // wrapped
    ring = {.rows = capacity, .capacity = capacity, .keep = cache.keep, .start = index};
    if (index < cache.keep)
      return fail(Code::BadInput, "a ring that goes on at {}, expected at least the {} that stay",
                  index, cache.keep);
  }
  if (ring.rows > capacity || ring.rows > cache.offset ||
      (ring.rows < cache.offset && (!is_ring || ring.rows < cache.keep)))
    return fail(Code::BadInput, "{} positions in arrays of {}, expected {}", ring.rows, capacity,
                cache.offset);
  return ring;
}

// What of a cache becomes a slot.
struct Layer {
  SlotSpec slot;
  std::vector<std::string> encodings;                  // per family
  std::vector<const std::vector<TensorInfo>*> arrays;  // per family: its planes
  const PromptCache* positions = nullptr;              // says how many; null: fixed tensors
};

struct RawDType {
  std::string_view dtype;  // as safetensors spells it
  const Encoding* encoding;
  DType type;
};
const std::array kRawDTypes = {RawDType{"F32", &kF32, DType::F32},
                               RawDType{"F16", &kF16, DType::F16},
                               RawDType{"BF16", &kBf16, DType::BF16}};

Result<const RawDType*> raw_dtype(const TensorInfo& array) {
  for (const RawDType& row : kRawDTypes)
    if (row.dtype == array.dtype) return &row;
  return fail(Code::Unsupported, "{} holds {}, expected F32, F16 or BF16", array.name, array.dtype);
}

// A family of `width` numbers in affine groups, from the arrays of codes, scales and biases.
Result<std::string> affine_text(const PromptCache& cache,
                                const std::vector<TensorInfo>& arrays,
                                uint64_t& width) {
  const TensorInfo &codes = arrays[0], &scales = arrays[1], &biases = arrays[2];
  const RawDType* dtype = CAIRN_TRY(raw_dtype(scales));
  constexpr uint64_t kMostBits = 8, kMostGroup = 128, kWordBits = 32;
  const bool is_possible = cache.bits > 0 && cache.bits <= kMostBits && cache.group_size > 0 &&
                           cache.group_size <= kMostGroup && codes.shape[3] <= UINT32_MAX;
  width = is_possible ? codes.shape[3] * kWordBits / cache.bits : 0;
  if (width == 0 || codes.dtype != "U32" || width * cache.bits != codes.shape[3] * kWordBits ||
      scales.shape[3] * cache.group_size != width || biases.shape != scales.shape ||
      biases.dtype != scales.dtype)
    return fail(Code::BadInput,
                "{}: {} [{}] with scales [{}], which are not groups of {} numbers of {} bits",
                codes.name, codes.dtype, fmt::join(codes.shape, ", "),
                fmt::join(scales.shape, ", "), cache.group_size, cache.bits);
  std::string text = fmt::format("affine{}-g{}", cache.bits, cache.group_size);
  if (dtype->type != DType::F16) text += fmt::format("-{}", dtype->encoding->name);
  return kAffine.print(CAIRN_TRY(kAffine.parse(text)));
}

Result<void> add_family(const PromptCache& cache,
                        const std::vector<TensorInfo>& arrays,
                        const Family& family,
                        Layer& layer) {
  uint64_t width = arrays[0].shape[3];
  std::string encoding;
  if (arrays.size() == 1)
    encoding = CAIRN_TRY(raw_dtype(arrays[0]))->encoding->name;
  else
    encoding = CAIRN_TRY(affine_text(cache, arrays, width));
  if (arrays[0].shape[1] > UINT32_MAX || width > UINT32_MAX)
    return fail(Code::BadInput, "{}: [{}], expected fewer heads and numbers", arrays[0].name,
                fmt::join(arrays[0].shape, ", "));
  layer.slot.families.push_back(
      {&family, static_cast<uint32_t>(arrays[0].shape[1]), static_cast<uint32_t>(width)});
  layer.encodings.push_back(std::move(encoding));
  layer.arrays.push_back(&arrays);
  return {};
}

Result<void> check_filled(const PromptCache& cache) {
  if (cache.arrays.empty() || cache.offset == 0)
    return fail(Code::BadInput, "a {} in which nothing was cached yet", cache.class_name);
  return {};
}

bool looks_latent(const PromptCache& cache) {
  const auto &keys = cache.arrays[0][0].shape, &values = cache.arrays[1][0].shape;
  return cache.arrays[0].size() == 1 && keys[1] == 1 && values[3] < keys[3];
}

Result<Layer> two_families(const PromptCache& cache,
                           const StateKind& kind,
                           const Family& first,
                           const Family& second) {
  CAIRN_TRY(check_filled(cache));
  Layer layer{.slot = {.kind = &kind, .families = {}, .retention = {}, .advance = {}},
              .encodings = {},
              .arrays = {},
              .positions = &cache};
  CAIRN_TRY(add_family(cache, cache.arrays[0], first, layer));
  CAIRN_TRY(add_family(cache, cache.arrays[1], second, layer));
  return layer;
}

Result<Layer> key_value_layer(const PromptCache& cache, const SlotSpec* model) {
  CAIRN_TRY(check_filled(cache));
  const bool is_latent =
      model != nullptr ? model->families[0].family == &kLatentFamily : looks_latent(cache);
  if (!is_latent) return two_families(cache, kAttention, kKeyFamily, kValueFamily);
  const bool is_draft = model != nullptr && model->kind == &kLatentDraftKind;
  return two_families(cache, is_draft ? kLatentDraftKind : kLatentKind, kLatentFamily, kRopeFamily);
}

Result<Layer> window_layer(const PromptCache& cache) {
  if (cache.keep >= cache.max_size)
    return fail(Code::BadInput, "a ring of {} positions of which {} stay, expected fewer",
                cache.max_size, cache.keep);
  Layer layer = CAIRN_TRY(two_families(cache, kWindow, kKeyFamily, kValueFamily));
  layer.slot.retention = {.window = cache.max_size - cache.keep, .sinks = cache.keep, .rewind = 0};
  return layer;
}

Result<Layer> recurrent_layer(const PromptCache& cache) {
  constexpr std::array<const Family*, 2> kTensors = {&kConvFamily, &kRecurrentFamily};
  Layer layer{.slot = {.kind = &kRecurrentKind, .families = {}, .retention = {}, .advance = {}},
              .encodings = {},
              .arrays = {}};
  if (cache.arrays.empty() || cache.arrays.size() > kTensors.size())
    return fail(Code::Unsupported, "an ArraysCache of {} arrays, expected conv and recurrent state",
                cache.arrays.size());
  for (size_t i = 0; i < cache.arrays.size(); ++i) {
    const TensorInfo& array = cache.arrays[i][0];
    (void)CAIRN_TRY(raw_dtype(array));
    const size_t rank = 3 + i;  // [1, a, b] and [1, a, b, c]
    const uint64_t heads = array.shape.size() == rank ? array.shape[1] : 0;
    const uint64_t width = heads == 0 ? 0 : array.elements() / heads;
    if (heads == 0 || width == 0 || heads > UINT32_MAX || width > UINT32_MAX / sizeof(float))
      return fail(Code::Unsupported, "{} is [{}], expected {} dimensions", array.name,
                  fmt::join(array.shape, ", "), rank);
    layer.slot.families.push_back(
        {kTensors[i], static_cast<uint32_t>(heads), static_cast<uint32_t>(width)});
    layer.encodings.emplace_back(kF32.name);
    layer.arrays.push_back(&cache.arrays[i]);
  }
  return layer;
}

Result<void> expect_zeros(File& file, const TensorInfo& array) {
  std::vector<std::byte> block(std::min(array.bytes(), kBlockBytes));
  for (uint64_t at = array.begin; at < array.end; at += block.size()) {
    const std::span<std::byte> part(block.data(), std::min<uint64_t>(block.size(), array.end - at));
    if (CAIRN_TRY(file.read_at(at, part)) < part.size())
      return fail(Code::Corrupt, "ends inside {}", array.name);
    if (std::ranges::any_of(part, [](std::byte b) { return b != std::byte{0}; }))
      return fail(Code::Unsupported,
                  "a CacheList whose {} holds numbers, expected zeros beside index keys",
                  array.name);
  }
  return {};
}

Result<Layer> list_layer(const PromptCache& cache, File& file) {
  const auto is_plain = [](const PromptCache& member) { return member.class_name == "KVCache"; };
  if (cache.members.size() != 2 || !std::ranges::all_of(cache.members, is_plain))
    return fail(Code::Unsupported,
                "a CacheList of {} caches, expected two KVCaches: latents, and index keys",
                cache.members.size());
  const PromptCache& index = cache.members[1];
  Layer layer = CAIRN_TRY(two_families(cache.members[0], kLatentKind, kLatentFamily, kRopeFamily));
  CAIRN_TRY(check_filled(index));
  (void)CAIRN_TRY(ring_of(index));
  if (index.offset != cache.members[0].offset)
    return fail(Code::BadInput, "{} index keys, expected {}", index.offset,
                cache.members[0].offset);
  CAIRN_TRY(expect_zeros(file, index.arrays[1][0]));
  CAIRN_TRY(add_family(index, index.arrays[0], kIndexFamily, layer));
  return layer;
}

Result<Layer> layer_of(const PromptCache& cache, const SlotSpec* model, File& file) {
  Layer layer;
  if (cache.class_name == "RotatingKVCache")
    layer = CAIRN_TRY(window_layer(cache));
  else if (cache.class_name == "ArraysCache")
    layer = CAIRN_TRY(recurrent_layer(cache));
  else if (cache.class_name == "CacheList")
    layer = CAIRN_TRY(list_layer(cache, file));
  else
    layer = CAIRN_TRY(key_value_layer(cache, model));
  CAIRN_TRY(layer.slot.kind->validate(layer.slot));
  return layer;
}

// One plane of a family.
struct Place {
  TensorInfo array;
  Ring ring;
};

class PromptCacheSequence final : public StoredSequence {
 public:
  // places[slot][family][plane].
  using Places = std::vector<std::vector<std::vector<Place>>>;
  PromptCacheSequence(std::unique_ptr<File> file,
                      CheckpointInfo info,
                      std::vector<int32_t> tokens,
                      Places places)
      : file_(std::move(file)),
        info_(std::move(info)),
        tokens_(std::move(tokens)),
        places_(std::move(places)) {}

  const CheckpointInfo& info() const override { return info_; }

  Result<void> read(PlaneId plane,
                    uint64_t first_row,
                    uint64_t rows,
                    std::span<std::byte> out) override {
    if (plane.slot == CheckpointTensor::kTokens) {
      std::memcpy(out.data(), tokens_.data() + first_row, out.size());
      return {};
    }
    const Place& place = places_[plane.slot][plane.family][plane.plane];
    if (info_.slots[plane.slot].is_fixed) return read_tensor(place.array, out);
    const uint64_t row_bytes = out.size() / rows;
    for (uint64_t done = 0; done < rows;) {
      PositionRun run = place.ring.stretch(first_row + done);
      run.count = std::min(run.count, rows - done);
      CAIRN_TRY(read_rows(place, run, out.subspan(done * row_bytes, run.count * row_bytes)));
      done += run.count;
    }
    return {};
  }

 private:
  // From [head][position] to [position][head].
  Result<void> read_rows(const Place& place, PositionRun run, std::span<std::byte> out) {
    const uint64_t heads = place.array.shape[1];
    const uint64_t record_bytes = place.array.bytes() / (heads * place.ring.capacity);
    block_.resize(run.count * record_bytes);
    for (uint64_t head = 0; head < heads; ++head) {
      const uint64_t record = head * place.ring.capacity + run.first;
      CAIRN_TRY(read_bytes(place.array.begin + record * record_bytes, block_));
      for (Pos i = 0; i < run.count; ++i)
        std::memcpy(out.data() + (i * heads + head) * record_bytes,
                    block_.data() + i * record_bytes, record_bytes);
    }
    return {};
  }

  Result<void> read_tensor(const TensorInfo& array, std::span<std::byte> out) {
    block_.resize(array.bytes());
    CAIRN_TRY(read_bytes(array.begin, block_));
    const RawDType* dtype = CAIRN_TRY(raw_dtype(array));
    load_f32({block_.data(), dtype->type}, 0, static_cast<uint32_t>(array.elements()),
             reinterpret_cast<float*>(out.data()));
    return {};
  }

  Result<void> read_bytes(uint64_t offset, std::span<std::byte> out) {
    if (CAIRN_TRY(file_->read_at(offset, out)) < out.size())
      return fail(Code::Corrupt, "{}: ends before byte {}", file_->path(), offset + out.size());
    return {};
  }

  std::unique_ptr<File> file_;
  CheckpointInfo info_;
  std::vector<int32_t> tokens_;
  Places places_;
  std::vector<std::byte> block_;
};

// A scheme under which every family has the encoding that it has here: one encoding for all, and
// others by family or by slot.
Result<Scheme> scheme_of(const std::vector<Layer>& layers,
                         const ModelSpec& spec,
                         const Registry& registry) {
  std::map<std::string_view, std::set<std::string>> by_family;
  std::string base(kF32.name);
  for (size_t i = layers.size(); i-- > 0;)
    for (size_t j = layers[i].encodings.size(); j-- > 0;) {
      const Family& family = *layers[i].slot.families[j].family;
      if (family.is_fixed) continue;
      by_family[family.name].insert(layers[i].encodings[j]);
      base = layers[i].encodings[j];
    }
  std::string text = base;
  for (const auto& [family, encodings] : by_family)
    if (encodings.size() == 1 && *encodings.begin() != base)
      text += fmt::format("+{}:{}", family, *encodings.begin());
  for (size_t i = 0; i < layers.size(); ++i) {
    const std::string& first = layers[i].encodings[0];
    if (!layers[i].slot.families[0].family->is_fixed && first != base &&
        by_family[layers[i].slot.families[0].family->name].size() > 1)
      text += fmt::format("+slots{}:{}", i, first);
  }
  Scheme scheme = CAIRN_TRY(parse_scheme(text, registry));
  const auto codecs = CAIRN_TRY(resolve(scheme, spec));
  for (size_t i = 0; i < layers.size(); ++i)
    for (size_t j = 0; j < codecs[i].size(); ++j)
      if (codecs[i][j].encoding->print(codecs[i][j].params) != layers[i].encodings[j])
        return fail(Code::Unsupported,
                    "cache {} holds {} where the others hold {}: no scheme says so", i,
                    layers[i].encodings[j], text);
  return scheme;
}

// The ids in the metadata, or -1 for every position. More than there are positions: chosen, but not
// yet computed.
std::vector<int32_t> tokens_of(const PromptCacheFile& content, Pos length) {
  std::vector<int32_t> tokens;
  const auto text = content.about.find(kMlxLmTokens);
  if (text != content.about.end()) {
    const auto list = nlohmann::json::parse(text->second, nullptr, false);
    const auto is_id = [](const nlohmann::json& id) {
      return id.is_number_integer() && id >= -1 && id <= INT32_MAX;
    };
    if (list.is_array() && std::all_of(list.begin(), list.end(), is_id))
      for (const auto& id : list) tokens.push_back(id.get<int32_t>());
  }
  if (tokens.size() < length) tokens.resize(length, -1);
  return tokens;
}

Result<Pos> length_of(const std::vector<Layer>& layers, const PromptCacheFile& content) {
  std::optional<Pos> length;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].positions == nullptr) continue;
    const Pos offset = layers[i].positions->offset;
    if (length && *length != offset)
      return fail(Code::BadInput, "cache {} holds {} positions, expected {} as the others", i,
                  offset, *length);
    length = offset;
  }
  if (!length) length = tokens_of(content, 0).size();  // recurrent layers alone do not say
  if (*length == 0)
    return fail(Code::BadInput, "no cache says how many positions it has seen, nor do token ids");
  return *length;
}

Result<CheckpointInfo> describe(const std::vector<Layer>& layers,
                                const std::vector<Ring>& rings,
                                Pos length,
                                const Registry& registry) {
  ModelSpec spec;
  for (const Layer& layer : layers) spec.slots.push_back(layer.slot);
  const Scheme scheme = CAIRN_TRY(scheme_of(layers, spec, registry));
  CheckpointInfo info = CAIRN_TRY(describe_session(spec, scheme, registry, "", length));
  info.arithmetic = kMlxLmArithmetic;
  info.is_derived = true;
  for (size_t i = 0; i < layers.size(); ++i)
    if (rings[i].rows < length && layers[i].positions != nullptr)
      info.slots[i].first_kept = length - (rings[i].rows - info.slots[i].sinks);
  return info;
}

Result<std::unique_ptr<StoredSequence>> open_caches(std::unique_ptr<File> file,
                                                    const PromptCacheFile& content,
                                                    const ModelSpec* model,
                                                    const Registry& registry) {
  const bool does_match = model != nullptr && model->slots.size() == content.caches.size();
  std::vector<Layer> layers;
  std::vector<Ring> rings;
  for (size_t i = 0; i < content.caches.size(); ++i) {
    const auto in_cache = [&](const Error& error) {
      return fail(error.code, "cache {}: {}", i, error.message);
    };
    auto layer = layer_of(content.caches[i], does_match ? &model->slots[i] : nullptr, *file);
    if (!layer) return in_cache(layer.error());
    auto ring = layer->positions != nullptr ? ring_of(*layer->positions) : Ring{};
    if (!ring) return in_cache(ring.error());
    layers.push_back(std::move(*layer));
    rings.push_back(*ring);
  }
  const Pos length = CAIRN_TRY(length_of(layers, content));
  std::vector<int32_t> tokens = tokens_of(content, length);
  CheckpointInfo info = CAIRN_TRY(describe(layers, rings, length, registry));
  info.tokens = tokens.size();
  (void)CAIRN_TRY(make_layout(info));  // a window that lacks what the next query sees, for example

  PromptCacheSequence::Places places;
  for (size_t i = 0; i < layers.size(); ++i) {
    places.emplace_back();
    for (const std::vector<TensorInfo>* planes : layers[i].arrays) {
      places.back().emplace_back();
      for (const TensorInfo& array : *planes) {
        Place& place = places.back().back().emplace_back(Place{array, rings[i]});
        if (layers[i].positions != nullptr) place.ring.capacity = array.shape[2];
      }
    }
  }
  return std::make_unique<PromptCacheSequence>(std::move(file), std::move(info), std::move(tokens),
                                               std::move(places));
}

}  // namespace

Result<std::unique_ptr<StoredSequence>> open_prompt_cache(FileSystem& fs,
                                                          const std::string& path,
                                                          const ModelSpec* model,
                                                          const Registry& registry) {
  std::unique_ptr<File> file = CAIRN_TRY(fs.open_read(path));
  const PromptCacheFile content = CAIRN_TRY(read_prompt_cache(*file));
  auto sequence = open_caches(std::move(file), content, model, registry);
  if (!sequence) return fail(sequence.error().code, "{}: {}", path, sequence.error().message);
  return sequence;
}

}  // namespace cairn
