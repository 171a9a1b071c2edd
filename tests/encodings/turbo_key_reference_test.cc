// The worked examples of the form's description.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cairn/encodings/registry.h"
#include "tests/encodings/turbo_records.h"
#include "tests/support/random.h"
#include "tests/support/targets.h"

namespace cairn {
namespace {

using testing::codec_of;
using testing::expect_same_on_every_target;
using testing::ramp;
using testing::random_floats;
using testing::TurboRecords;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr size_t kScales = 1, kZeros = 2;  // planes

TurboRecords encoded(std::string_view text, const std::vector<float>& x) {
  return {codec_of(kTurboKeyReference, text, x.size()), x};
}

std::vector<int> codes_of(TurboRecords records, bool is_signed) {
  std::vector<int> codes;
  for (const uint8_t code : records.codes())
    codes.push_back(is_signed ? static_cast<int8_t>(code) : code);
  return codes;
}

TEST(TurboKeyReference, GivesTheWorkedCodes) {
  const std::vector<float> x = ramp(-2.5f, 0.25f);
  TurboRecords eight = encoded("turbo-key-reference8", x);
  EXPECT_EQ(eight.half(kScales), 0.0305175781f);
  EXPECT_EQ(eight.half(kZeros), 45.f);
  EXPECT_EQ(codes_of(eight, true),
            (std::vector<int>{-127, -119, -111, -102, -94, -86, -78, -70, -61, -53, -45,
                              -37,  -29,  -20,  -12,  -4,  4,   12,  21,  29,  37,  45,
                              53,   62,   70,   78,   86,  94,  102, 111, 119, 127}));
  const std::vector<float> y = eight.decoded();
  EXPECT_EQ(y[0], -2.5f);
  EXPECT_EQ(y[10], 0.f);
  EXPECT_EQ(y[31], 5.25f);
  float worst = 0;
  for (size_t i = 0; i < 32; ++i) worst = std::max(worst, std::abs(x[i] - y[i]));
  EXPECT_EQ(worst, 0.015625f);

  TurboRecords five = encoded("turbo-key-reference5", x);
  EXPECT_EQ(five.half(kScales), 0.25f);
  EXPECT_EQ(five.half(kZeros), -10.f);
  for (int i = 0; i < 32; ++i) EXPECT_EQ(five.codes()[i], i);
  EXPECT_EQ(five.decoded(), x);

  TurboRecords four = encoded("turbo-key-reference4", x);
  EXPECT_EQ(four.half(kScales), 0.516601562f);
  EXPECT_EQ(four.half(kZeros), -5.f);
  EXPECT_EQ(codes_of(four, false),
            (std::vector<int>{0, 1, 1, 2, 2,  3,  3,  4,  4,  5,  5,  5,  6,  6,  7,  7,
                              8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15}));
  EXPECT_EQ(four.decoded()[0], -2.578125f);
  EXPECT_EQ(four.decoded()[31], 5.15625f);

  TurboRecords two = encoded("turbo-key-reference2", x);
  EXPECT_EQ(two.half(kScales), 2.58398438f);
  EXPECT_EQ(two.half(kZeros), -1.f);
  std::vector<int> codes(5, 0);
  codes.insert(codes.end(), 11, 1);
  codes.insert(codes.end(), 10, 2);
  codes.insert(codes.end(), 6, 3);
  EXPECT_EQ(codes_of(two, false), codes);
}

TEST(TurboKeyReference, LosesConstantGroups) {
  TurboRecords one = encoded("turbo-key-reference8", std::vector<float>(32, 1.f));
  EXPECT_EQ(one.half(kZeros), kInf);
  EXPECT_EQ(one.outside(), 32u);
  for (const float y : one.decoded()) EXPECT_TRUE(std::isnan(y));

  TurboRecords small = encoded("turbo-key-reference8", std::vector<float>(32, 5e-4f));
  EXPECT_EQ(small.half(kZeros), 49984.f);
  EXPECT_EQ(small.outside(), 0u);
  EXPECT_EQ(small.decoded(), std::vector<float>(32, 0.f));

  for (const std::string_view text : kTurboKeyReference.samples) {
    TurboRecords zeros = encoded(text, std::vector<float>(32));
    EXPECT_EQ(zeros.decoded(), std::vector<float>(32, 0.f));
    EXPECT_EQ(zeros.codes(), std::vector<uint8_t>(32));
  }
}

TEST(TurboKeyReference, LosesGroupsFarFromZero) {
  std::vector<float> x(32);
  for (size_t i = 0; i < 32; ++i) x[i] = 1 + 0.01f * static_cast<float>(i) / 31;
  TurboRecords near = encoded("turbo-key-reference8", x);
  EXPECT_EQ(near.half(kZeros), 25520.f);
  EXPECT_EQ(near.half(kScales), f32_from_f16(f16_from_f32(3.93700429e-05f)));
  float worst = 0;
  for (size_t i = 0; i < 32; ++i) worst = std::max(worst, std::abs(x[i] - near.decoded()[i]));
  EXPECT_NEAR(worst, 0.00426, 0.00001);

  for (float& value : x) value += 3;
  TurboRecords far = encoded("turbo-key-reference8", x);
  EXPECT_EQ(far.half(kZeros), kInf);
  EXPECT_EQ(far.outside(), 32u);
  for (const float y : far.decoded()) EXPECT_EQ(y, kInf);
}

TEST(TurboKeyReference, NumbersThatAreNotFiniteChangeNoOther) {
  for (const std::string_view text : kTurboKeyReference.samples) {
    std::vector<float> without = random_floats(2, 96);
    for (float& value : without) value = std::clamp(value, -1.f, 1.f);
    without[0] = -1, without[1] = 1;
    std::vector<float> x = without;
    x[5] = kInf, x[9] = -kInf, x[11] = kNan;
    without[5] = 1, without[9] = -1, without[11] = 0;
    TurboRecords records = encoded(text, x), expected = encoded(text, without);
    EXPECT_EQ(records.outside(), 3u);
    EXPECT_EQ(records.planes(), expected.planes()) << text;
  }
}

TEST(TurboKeyReference, IsTheSameOnEveryTargetWhereItLosesEverything) {
  for (const std::string_view text : kTurboKeyReference.samples)
    for (const float value : {1.f, -1.f, 3e38f, 1e-40f})
      expect_same_on_every_target([&] {
        std::vector<float> x(32, value);
        x[3] = value * 1.00001f;
        TurboRecords records = encoded(text, x);
        std::vector<float> y = records.decoded();
        for (const uint8_t code : records.codes()) y.push_back(code);
        return testing::with_one_nan(y);
      });
}

}  // namespace
}  // namespace cairn
