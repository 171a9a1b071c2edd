// Kinds of state: which families a layer stores per position, and what attention does with each.
#ifndef CAIRN_STATE_KIND_H_
#define CAIRN_STATE_KIND_H_

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
  bool is_scored = false;       // queries meet it: q . k
  bool is_accumulated = false;  // weights meet it: sum of w v
};

struct FamilySpec {
  const Family* family = nullptr;
  uint32_t heads = 0;
  uint32_t width = 0;  // numbers per head
  bool operator==(const FamilySpec&) const = default;
};

struct SlotSpec;

// A row of the registry.
struct StateKind {
  KindId id;  // in files for ever
  std::string_view name;
  std::span<const Family* const> families;  // those a slot of this kind may have, in storage order
  Result<void> (*validate)(const SlotSpec& slot);  // BadInput names what is wrong
};

// One state-owning layer of a model.
struct SlotSpec {
  const StateKind* kind = nullptr;
  std::vector<FamilySpec> families;
  Retention retention;
  Pos max_positions = 0;  // plan refuses to pass it; 0: no limit
  bool operator==(const SlotSpec&) const = default;
};

inline constexpr Family kKeyFamily{.id = {0}, .name = "key", .is_scored = true};
inline constexpr Family kValueFamily{.id = {1}, .name = "value", .is_accumulated = true};
inline constexpr FamilyId kKey = kKeyFamily.id;
inline constexpr FamilyId kValue = kValueFamily.id;

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

}  // namespace cairn

#endif  // CAIRN_STATE_KIND_H_
