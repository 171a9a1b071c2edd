// What the TurboQuant encodings' SIMD shares: codes become numbers, numbers become weighted sums.
// Included once per target: between hwy/highway.h and the file's own HWY_NAMESPACE code.
#if defined(CAIRN_ENCODINGS_TURBO_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CAIRN_ENCODINGS_TURBO_CODES_INL_H_
#undef CAIRN_ENCODINGS_TURBO_CODES_INL_H_
#else
#define CAIRN_ENCODINGS_TURBO_CODES_INL_H_
#endif

#include <array>

#include "cairn/encodings/codes-inl.h"
#include "cairn/encodings/turbo_codes.h"
#include "hwy/highway.h"

#if !CAIRN_NO_SIMD
HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {
namespace {

using namespace turbo;  // NOLINT: of the same family of files

using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;
using DI = hn::Rebind<int32_t, D>;
using VI = hn::Vec<DI>;
constexpr D d;
constexpr DI di;
constexpr uint32_t kLanes = hn::MaxLanes(D());

constexpr uint32_t kTurned = 16;         // positions whose numbers are turned at a time
constexpr size_t kBytesReadBeyond = 16;  // by unpack_group

// How eight codes are found in sixteen bytes: the two bytes that hold a code, and the factor that
// moves it to their upper end. `half` says which eight of sixteen.
struct Picks {
  alignas(16) uint8_t bytes[16];
  alignas(16) uint16_t factors[8];
};
template <uint32_t kBits>
constexpr Picks make_picks(uint32_t half) {
  Picks picks{};
  for (uint32_t i = 0; i < 8; ++i) {
    const uint32_t bit = (half * 8 + i) * kBits;
    picks.bytes[2 * i] = static_cast<uint8_t>(bit / 8);
    picks.bytes[2 * i + 1] = static_cast<uint8_t>(bit / 8 + 1);
    picks.factors[i] = static_cast<uint16_t>(1u << (16 - kBits - bit % 8));
  }
  return picks;
}

// One group's codes. Reads up to kBytesReadBeyond bytes more than the group has.
template <uint32_t kBits>
HWY_INLINE void unpack_group(const std::byte* from, uint16_t* codes) {
  const hn::FixedTag<uint8_t, 16> d8;
  const hn::FixedTag<uint16_t, 8> d16;
  const auto* bytes = reinterpret_cast<const uint8_t*>(from);
  if constexpr (kBits == 8) {
    const hn::FixedTag<uint8_t, 8> eight;
    for (uint32_t i = 0; i < kGroup; i += 8)
      hn::StoreU(hn::PromoteTo(d16, hn::LoadU(eight, bytes + i)), d16, codes + i);
  } else {
    static constexpr Picks kPicks[2] = {make_picks<kBits>(0), make_picks<kBits>(1)};
    for (uint32_t i = 0; i < kGroup; i += 16) {
      const auto sixteen = hn::LoadU(d8, bytes + i * kBits / 8);
      for (uint32_t half = 0; half < 2; ++half) {
        const auto picked = hn::TableLookupBytes(sixteen, hn::Load(d8, kPicks[half].bytes));
        const auto moved = hn::Mul(hn::BitCast(d16, picked), hn::Load(d16, kPicks[half].factors));
        hn::StoreU(hn::ShiftRight<16 - kBits>(moved), d16, codes + i + half * 8);
      }
    }
  }
}

// numbers[width]: what `number` makes of the codes of the record at `position`.
template <uint32_t kBits, class Number>
HWY_INLINE void expand(
    const Records& in, uint32_t position, uint32_t width, Number number, float* numbers) {
  alignas(64) std::byte words[kMaxWidth + kBytesReadBeyond];
  const size_t stride = in.planes[0].word_stride;
  const std::byte* from = in.at(0, position);
  if (stride == sizeof(uint32_t))
    std::memcpy(words, from, width / 8 * kBits);
  else
    for (uint32_t i = 0; i < width / kGroup * kBits; ++i, from += stride)
      std::memcpy(words + i * sizeof(uint32_t), from, sizeof(uint32_t));
  const hn::Rebind<uint16_t, D> d16;
  for (uint32_t group = 0; group < width / kGroup; ++group) {
    alignas(64) uint16_t codes[kGroup];
    unpack_group<kBits>(words + group * kBits * sizeof(uint32_t), codes);
    for (uint32_t i = 0; i < kGroup; i += kLanes)
      hn::StoreU(number(hn::PromoteTo(di, hn::Load(d16, codes + i))), d,
                 numbers + group * kGroup + i);
  }
}

// One plane of f16: values[group][i] of positions [position, position + count), zeros behind them.
HWY_INLINE void load_halves(const Records& in,
                            size_t plane,
                            uint32_t position,
                            uint32_t count,
                            uint32_t groups,
                            float (*values)[kTurned]) {
  const hn::Rebind<hwy::float16_t, D> half;
  for (uint32_t group = 0; group < groups; ++group) {
    uint16_t halves[kTurned] = {};
    for (uint32_t i = 0; i < count; ++i) halves[i] = load_half(in, plane, position + i, group);
    for (uint32_t i = 0; i < kTurned; i += kLanes) {
      const auto* from = reinterpret_cast<const hwy::float16_t*>(halves + i);
      hn::StoreU(hn::PromoteTo(d, hn::LoadU(half, from)), d, values[group] + i);
    }
  }
}

// [count][width] -> [width][kTurned], zeros behind.
HWY_INLINE void turn(const float* numbers, uint32_t count, uint32_t width, float* turned) {
  for (uint32_t i = 0; i < width; ++i, turned += kTurned) {
    for (uint32_t p = 0; p < count; ++p) turned[p] = numbers[p * width + i];
    for (uint32_t p = count; p < kTurned; ++p) turned[p] = 0;
  }
}

}  // namespace
}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // !CAIRN_NO_SIMD

#endif  // per-target include guard
