// Ids that cannot be swapped, and the position type.
#ifndef CAIRN_CORE_IDS_H_
#define CAIRN_CORE_IDS_H_

#include <compare>
#include <cstdint>
#include <functional>

namespace cairn {

template <class Tag>
struct Id {
  uint32_t value = 0;
  auto operator<=>(const Id&) const = default;
};

using SeqId = Id<struct SeqTag>;    // one conversation of a session
using SlotId = Id<struct SlotTag>;  // one state-owning layer, in model order
using FamilyId =
    Id<struct FamilyTag>;  // a vector that a layer stores per position; in files for ever
using EncodingId = Id<struct EncodingTag>;  // in files for ever
using KindId = Id<struct KindTag>;          // in files for ever

using Pos = uint64_t;  // a token's place in its sequence, counted from 0; also a count of positions

// Part `index` of `count` of a job. A call does its part and returns; whoever has threads drives
// the parts.
struct Part {
  uint32_t index = 0;
  uint32_t count = 1;
};

}  // namespace cairn

template <class Tag>
struct std::hash<cairn::Id<Tag>> {
  size_t operator()(cairn::Id<Tag> id) const noexcept { return std::hash<uint32_t>{}(id.value); }
};

#endif  // CAIRN_CORE_IDS_H_
