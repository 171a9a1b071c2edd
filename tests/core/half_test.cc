#include "cairn/core/half.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/random.h"

namespace cairn {
namespace {

// The nearest of all 65,536 values, ties to the even pattern: the definition by exhaustion, slow
// and obvious.
template <class FromBits>
uint16_t nearest(float x, uint16_t infinity, double largest, double last_step, FromBits value_of) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(x));
  if (magnitude >= largest + last_step / 2) return sign | infinity;
  uint16_t low = 0, high = infinity - 1;  // patterns of finite magnitudes ascend with their values
  while (high - low > 1) {
    const uint16_t middle = static_cast<uint16_t>((low + high) / 2);
    (value_of(middle) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - value_of(low), above = value_of(high) - magnitude;
  const uint16_t closest = below < above ? low : above < below ? high : (low % 2 == 0 ? low : high);
  return sign | closest;
}

uint16_t nearest_f16(float x) {
  return nearest(x, 0x7c00, 65504, 32,
                 [](uint16_t bits) { return static_cast<double>(f32_from_f16(bits)); });
}
uint16_t nearest_bf16(float x) {
  return nearest(x, 0x7f80, 0x1.fep127, 0x1p120,
                 [](uint16_t bits) { return static_cast<double>(f32_from_bf16(bits)); });
}

TEST(Half, EveryPatternComesBack) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto pattern = static_cast<uint16_t>(bits);
    const float f16 = f32_from_f16(pattern), bf16 = f32_from_bf16(pattern);
    EXPECT_EQ(f16_from_f32(f16), std::isnan(f16) ? kNanF16 : pattern);
    EXPECT_EQ(bf16_from_f32(bf16), std::isnan(bf16) ? kNanBf16 : pattern);
  }
}

TEST(Half, KnownValues) {
  EXPECT_EQ(f32_from_f16(0x3c00), 1.0f);
  EXPECT_EQ(f32_from_f16(0x0001), 0x1p-24f);
  EXPECT_EQ(f32_from_f16(0x7bff), 65504.0f);
  EXPECT_EQ(f16_from_f32(65519.996f), 0x7bff);
  EXPECT_EQ(f16_from_f32(65520.0f), 0x7c00);
  EXPECT_EQ(f16_from_f32(-0.0f), 0x8000);
  EXPECT_EQ(f16_from_f32(0x1p-25f), 0x0000);  // a tie, to even
  EXPECT_EQ(f16_from_f32(0x1.000002p-25f), 0x0001);
  EXPECT_EQ(bf16_from_f32(1.00390625f), 0x3f80);  // a tie, to even
  EXPECT_EQ(bf16_from_f32(0x1.ffp127f), 0x7f80);  // rounds up to infinity
}

TEST(Half, RoundsToTheNearestEvenLikeTheExhaustiveSearch) {
  testing::Random random(1);
  for (int i = 0; i < 200'000; ++i) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(random.bits()));
    if (std::isnan(x)) {
      EXPECT_EQ(f16_from_f32(x), kNanF16);
      EXPECT_EQ(bf16_from_f32(x), kNanBf16);
      continue;
    }
    ASSERT_EQ(bf16_from_f32(x), nearest_bf16(x)) << x;
    const float y =
        std::ldexp(x, -static_cast<int>(std::ilogb(x)) + static_cast<int>(random.below(44)) - 26);
    ASSERT_EQ(f16_from_f32(y), nearest_f16(y)) << y;
  }
}

}  // namespace
}  // namespace cairn
