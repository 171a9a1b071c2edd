// IEEE binary16 ("f16") and bfloat16 ("bf16"), to and from f32.
//
// To f32 is exact. From f32 rounds to nearest, ties to even; what is too large becomes infinity;
// every NaN becomes one pattern (quiet, positive), so that stored bytes never depend on a NaN's
// payload. This scalar code is the definition: every SIMD conversion gives the same bits.
#ifndef CAIRN_CORE_HALF_H_
#define CAIRN_CORE_HALF_H_

#include <bit>
#include <cstdint>

namespace cairn {

inline constexpr uint16_t kNanF16 = 0x7e00;
inline constexpr uint16_t kNanBf16 = 0x7fc0;
inline constexpr uint32_t kNanF32 = 0x7fc00000;

constexpr float f32_from_bf16(uint16_t x) { return std::bit_cast<float>(uint32_t{x} << 16); }

constexpr uint16_t bf16_from_f32(float value) {
  const uint32_t x = std::bit_cast<uint32_t>(value);
  if ((x & 0x7fffffff) > 0x7f800000) return kNanBf16;
  return static_cast<uint16_t>((x + 0x7fff + ((x >> 16) & 1)) >> 16);
}

constexpr float f32_from_f16(uint16_t x) {
  const uint32_t sign = uint32_t{x & 0x8000u} << 16;
  const uint32_t exponent = (x >> 10) & 31;
  const uint32_t fraction = x & 1023;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | (fraction << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
  // Zero and subnormals: fraction * 2^-24, exact in f32.
  return std::bit_cast<float>(sign |
                              std::bit_cast<uint32_t>(static_cast<float>(fraction) * 0x1p-24f));
}

constexpr uint16_t f16_from_f32(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t x = bits & 0x7fffffff;
  if (x > 0x7f800000) return kNanF16;
  if (x >= 0x477ff000)
    return static_cast<uint16_t>(sign | 0x7c00);  // 65520 and up round to infinity
  if (x < 0x38800000) {  // below 2^-14: a multiple of 2^-24, rounded by adding 0.5 (= 2^-1, whose
                         // ulp is 2^-24)
    const float magic = std::bit_cast<float>(x) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(magic) - 0x3f000000));
  }
  const uint32_t rounded = x + 0xfff + ((x >> 13) & 1);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000) >> 13));
}

// A NaN as it is stored in f32.
constexpr float canonical(float value) {
  return value != value ? std::bit_cast<float>(kNanF32) : value;
}

}  // namespace cairn

#endif  // CAIRN_CORE_HALF_H_
