// Kinds of state: which families a layer stores per position, and what attention does with each.
#ifndef CAIRN_STATE_KIND_H_
#define CAIRN_STATE_KIND_H_

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "cairn/core/error.h"
#include "cairn/core/ids.h"
#include "cairn/state/retention.h"

namespace cairn {

// A vector that a layer stores per position and head. What attention does with it decides how a
// page lays it out.
struct Family {
  FamilyId id;  // in files for ever
  std::string_view name;
  bool is_scored = false;         // queries meet it: q . k
  bool is_accumulated = false;    // weights meet it: sum of w v
  bool is_index = false;          // the sparse indexer's queries meet it, attention does not
  bool is_fixed = false;          // one tensor per sequence instead of a vector per position
  bool serves_all_heads = false;  // encodings that leave their precision open take the finer one
};

struct FamilySpec {
  const Family* family = nullptr;
  uint32_t heads = 0;
  uint32_t width = 0;  // numbers per head
  bool operator==(const FamilySpec&) const = default;
};

struct SlotSpec;

// How a recurrent slot advances from recorded inputs: previous tensors (in the order of the slot's
// families) through `count` positions of [input_bytes] to the next ones. Called inside a commit: it
// must not fail. It must give the bits that the model's own step would have given.
struct Advance {
  void (*function)(const void* model,
                   const float* const* previous,
                   const std::byte* inputs,
                   Pos count,
                   float* const* next) = nullptr;  // null: a round holds a state per position
  const void* model = nullptr;
  uint64_t input_bytes = 0;                               // per position
  bool operator==(const Advance&) const { return true; }  // no part of what a state is
};

// A row of the registry.
struct StateKind {
  KindId id;  // in files for ever
  std::string_view name;
  std::span<const Family* const> families;  // those a slot of this kind may have, in storage order
  Result<void> (*validate)(const SlotSpec& slot);  // BadInput names what is wrong
  // Slots that suites walk: small ones of every shape and retention that may behave differently,
  // with vectors of a multiple of 64 numbers, which every encoding takes.
  std::vector<SlotSpec> (*samples)();
};

// One state-owning layer of a model.
struct SlotSpec {
  const StateKind* kind = nullptr;
  std::vector<FamilySpec> families;
  Retention retention;
  Pos max_positions = 0;  // plan refuses to pass it; 0: no limit
  Advance advance;        // of recurrent slots
  bool operator==(const SlotSpec&) const = default;
};

inline constexpr Family kKeyFamily{.id = {0}, .name = "key", .is_scored = true};
inline constexpr Family kValueFamily{.id = {1}, .name = "value", .is_accumulated = true};
inline constexpr Family kLatentFamily{.id = {2},
                                      .name = "latent",
                                      .is_scored = true,
                                      .is_accumulated = true,
                                      .serves_all_heads = true};
inline constexpr Family kRopeFamily{
    .id = {3}, .name = "rope", .is_scored = true, .serves_all_heads = true};
inline constexpr Family kIndexFamily{
    .id = {4}, .name = "index", .is_index = true, .serves_all_heads = true};
inline constexpr Family kConvFamily{.id = {5}, .name = "conv", .is_fixed = true};
inline constexpr Family kRecurrentFamily{.id = {6}, .name = "recurrent", .is_fixed = true};
inline constexpr FamilyId kKey = kKeyFamily.id;
inline constexpr FamilyId kValue = kValueFamily.id;
inline constexpr FamilyId kLatent = kLatentFamily.id;
inline constexpr FamilyId kRope = kRopeFamily.id;
inline constexpr FamilyId kIndex = kIndexFamily.id;
inline constexpr FamilyId kConv = kConvFamily.id;
inline constexpr FamilyId kRecurrentTensor = kRecurrentFamily.id;
inline constexpr size_t kMostTensors = 16;                         // of a recurrent slot
inline constexpr uint64_t kMostTensorNumbers = uint64_t{1} << 28;  // 1 GiB, as in a file

// Keys and values of grouped-query attention.
struct AttentionShape {
  uint32_t heads = 0;      // key-value heads
  uint32_t head_dim = 0;   // a multiple of 8
  uint32_t value_dim = 0;  // 0: as head_dim
  Pos window = 0;          // 0: a query sees everything
  Pos sinks = 0;
  Pos rewind = 256;
  Pos max_positions = 0;
};

SlotSpec attention(const AttentionShape& shape);  // window must be 0
SlotSpec window(const AttentionShape& shape);     // newest `window` + first `sinks`

// Multi-head latent attention: queries meet [latent, rope] (in absorbed form), weights meet latent.
struct LatentShape {
  uint32_t latent_dim = 0;
  uint32_t rope_dim = 0;
  uint32_t index_dim = 0;  // of a sparse indexer's keys; 0: none
  Pos max_positions = 0;
};
SlotSpec latent(const LatentShape& shape);
SlotSpec latent_draft(const LatentShape& shape);  // of a draft head: index_dim must be 0

// Fixed tensors per sequence; their families are is_fixed. conv is [heads, width] = [kernel - 1,
// channels], recurrent [value heads, value width * key width], or whatever the model likes.
SlotSpec recurrent(std::vector<FamilySpec> tensors, Advance advance = {}, Pos max_positions = 0);

}  // namespace cairn

#endif  // CAIRN_STATE_KIND_H_
