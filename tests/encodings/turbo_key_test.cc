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
using testing::mean_square_error;
using testing::ramp;
using testing::random_floats;
using testing::TurboRecords;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr size_t kScales = 1, kCentres = 2;  // planes

struct Bits {
  std::string_view text;
  uint32_t bits;
  float middle;
};
constexpr Bits kAll[] = {{"turbo-key2", 2, 1.5f},
                         {"turbo-key4", 4, 7.5f},
                         {"turbo-key5", 5, 15.5f},
                         {"turbo-key8", 8, 127.f}};

TurboRecords encoded(std::string_view text, const std::vector<float>& x) {
  return {codec_of(kTurboKey, text, x.size()), x};
}

TEST(TurboKey, TakesTheMiddleAndTheLeastScaleThatReaches) {
  const std::vector<float> x = ramp(-2.5f, 0.25f);  // to 5.25: centre 1.375, reach 3.875
  TurboRecords five = encoded("turbo-key5", x);
  EXPECT_EQ(five.half(kCentres), 1.375f);
  EXPECT_EQ(five.half(kScales), 0.25f);
  for (uint8_t i = 0; i < 32; ++i) EXPECT_EQ(five.codes()[i], i);
  EXPECT_EQ(five.decoded(), x);
  // 3.875 / 127 = 0.030511811 and 3.875 / 7.5 = 0.51666667, to the next f16 above.
  EXPECT_EQ(encoded("turbo-key8", x).half(kScales), 0.0305175781f);
  EXPECT_EQ(encoded("turbo-key4", x).half(kScales), 0.517089844f);
}

// |decoded - x| <= scale / 2, but for the rounding of f32 itself.
void expect_within_half_a_scale(const Bits& bits, const std::vector<float>& x) {
  TurboRecords records = encoded(bits.text, x);
  const std::vector<float> y = records.decoded();
  for (uint32_t i = 0; i < x.size(); ++i) {
    const double scale = records.half(kScales, i / 32);
    ASSERT_LE(std::abs(double{x[i]} - y[i]), scale * (0.5 + 1e-4) + std::abs(x[i]) * 0x1p-23)
        << bits.text << ", element " << i << ": " << x[i] << " became " << y[i];
  }
}

TEST(TurboKey, IsOffByAtMostHalfAScale) {
  for (const Bits& bits : kAll)
    for (uint64_t seed = 0; seed < 50; ++seed)
      for (const float centre : {0.f, 1.f, -300.f, 60000.f})
        for (const float spread : {1e-6f, 0.01f, 1.f, 1000.f}) {
          std::vector<float> x = random_floats(seed, 64, spread);
          for (float& value : x) value += centre;
          expect_within_half_a_scale(bits, x);
        }
}

// The groups that the original form turns into infinity, NaN or noise.
TEST(TurboKey, HoldsGroupsFarFromZero) {
  for (const Bits& bits : kAll) {
    for (const float centre : {1.f, 4.f, 258.f, 2048.f})
      expect_within_half_a_scale(bits, ramp(centre, 0.01f / 31));
    const std::vector<float> y = encoded(bits.text, ramp(4, 0.01f / 31)).decoded();
    for (const float value : y) EXPECT_NEAR(value, 4.005, 0.0051) << bits.text;
  }
}

TEST(TurboKey, HoldsConstantTinyAndHugeGroups) {
  for (const Bits& bits : kAll) {
    for (const float value :
         {0.f, -0.f, 3.25f, -3.25f, 5e-4f, 1.f, 1e-30f, 1e-40f, -1e-40f, 65504.f, -65504.f}) {
      const std::vector<float> x(32, value);
      for (const float y : encoded(bits.text, x).decoded())
        ASSERT_NEAR(y, value, std::abs(value) * 0x1p-11 + 0x1p-25) << bits.text << ", " << value;
      expect_within_half_a_scale(bits, x);
    }
    for (const float value : {3.25f, -3.25f, 1.f, 65504.f})  // what f16 holds is exact
      for (const float y : encoded(bits.text, std::vector<float>(32, value)).decoded())
        ASSERT_EQ(y, value);
    std::vector<float> spike(32);
    spike[7] = 65504;
    expect_within_half_a_scale(bits, spike);
    for (size_t i = 0; i < 32; ++i) spike[i] = i % 2 == 0 ? 65504.f : -65504.f;
    expect_within_half_a_scale(bits, spike);
  }
}

TEST(TurboKey, GivesEveryCodeAndReadsItsNumberBack) {
  for (const Bits& bits : kAll) {
    const auto last = static_cast<uint32_t>(2 * bits.middle);
    std::vector<float> x;  // groups that begin with both ends, so that the scale is 1/4
    for (uint32_t code = 0; code <= last;) {
      const auto number = [&](uint32_t c) {
        return (static_cast<float>(c) - bits.middle) * 0.25f + 2;
      };
      x.push_back(number(0));
      x.push_back(number(last));
      for (uint32_t i = 2; i < 32; ++i) x.push_back(number(std::min(code++, last)));
    }
    TurboRecords records = encoded(bits.text, x);
    EXPECT_EQ(records.decoded(), x) << bits.text;
    std::vector<bool> seen(last + 1);
    for (const uint8_t code : records.codes()) seen.at(code) = true;
    for (uint32_t code = 0; code <= last; ++code) EXPECT_TRUE(seen[code]) << bits.text << code;
  }
}

TEST(TurboKey, PacksItsCodesAsAStreamOfBits) {
  for (const uint32_t bits : {2u, 3u, 4u, 5u, 8u})
    for (uint64_t seed = 0; seed < 20; ++seed) {
      testing::Random random(seed);
      uint8_t codes[32], again[32];
      for (uint8_t& code : codes) code = static_cast<uint8_t>(random.below(1u << bits));
      uint32_t words[8];
      turbo::pack(codes, bits, words);
      uint8_t bytes[32];
      std::memcpy(bytes, words, 4 * bits);
      for (uint32_t i = 0; i < 32 * bits; ++i)
        ASSERT_EQ((bytes[i / 8] >> (i % 8)) & 1, (codes[i / bits] >> (i % bits)) & 1);
      turbo::unpack(words, bits, again);
      ASSERT_EQ(0, std::memcmp(codes, again, 32)) << bits;
    }
}

TEST(TurboKey, SaturatesBeyondF16AndCounts) {
  for (const Bits& bits : kAll) {
    std::vector<float> x = random_floats(1, 64);
    EXPECT_EQ(encoded(bits.text, x).outside(), 0u);
    x[3] = 70000;
    x[40] = -3e38f;
    TurboRecords records = encoded(bits.text, x);
    EXPECT_EQ(records.outside(), 2u);
    EXPECT_NEAR(records.decoded()[3], 65504, records.half(kScales, 0) / 2 + 1);
    EXPECT_NEAR(records.decoded()[40], -65504, records.half(kScales, 1) / 2 + 1);
  }
}

TEST(TurboKey, NumbersThatAreNotFiniteChangeNoOther) {
  for (const Bits& bits : kAll) {
    std::vector<float> x = random_floats(2, 96);
    std::vector<float> without = x;
    for (float& value : without) value = std::clamp(value, -1.f, 1.f);
    without[0] = -1, without[1] = 1;  // the group's range does not depend on what is replaced
    x = without;
    x[5] = kInf, x[9] = -kInf, x[11] = kNan;
    without[5] = 1, without[9] = -1, without[11] = 0;
    TurboRecords records = encoded(bits.text, x), expected = encoded(bits.text, without);
    EXPECT_EQ(records.outside(), 3u);
    EXPECT_EQ(records.planes(), expected.planes()) << bits.text;
    TurboRecords nothing = encoded(bits.text, std::vector<float>(32, kNan));
    EXPECT_EQ(nothing.outside(), 32u);
    EXPECT_EQ(nothing.decoded(), std::vector<float>(32, 0.f));
  }
}

TEST(TurboKey, HasTheDistortionOfItsBits) {
  const std::vector<float> x = random_floats(7, 128 * 4000);
  constexpr double kExpected[] = {0.1543, 0.00612, 0.00143, 0.0000213};
  for (size_t i = 0; i < std::size(kAll); ++i) {
    TurboRecords records(codec_of(kTurboKey, kAll[i].text, 128), x);
    const double error = mean_square_error(x, records.decoded());
    EXPECT_NEAR(error / kExpected[i], 1, 0.03) << kAll[i].text;
  }
}

std::vector<float> scores_of(const Codec& codec,
                             TurboRecords& records,
                             const std::vector<float>& query,
                             uint32_t count) {
  alignas(64) std::byte prepared[8192];
  std::vector<float> scores(count);
  codec.encoding->functions().prepare(codec, query.data(), prepared);
  codec.encoding->functions().scores(codec, prepared, 1, records.records(), scores.data(), count);
  return scores;
}

TEST(TurboKey, MeetsAQueryOfWholeNumbersExactly) {
  // The largest of the query is 32639, so that it is its own 16-bit form.
  std::vector<float> query(32);
  for (size_t i = 0; i < 32; ++i) query[i] = static_cast<float>(i * 7) - 100;
  query[31] = 32639;
  for (const Bits& bits : kAll) {
    const Codec codec = codec_of(kTurboKey, bits.text, 32);
    TurboRecords records(codec, ramp(-2.5f, 0.25f));
    double exact = 0;
    for (size_t i = 0; i < 32; ++i) exact += double{query[i]} * records.decoded()[i];
    EXPECT_NEAR(scores_of(codec, records, query, 1)[0] / exact, 1, 1e-6) << bits.text;
  }
}

TEST(TurboKey, ANanOrInfinityInTheQueryIsNanInTheScore) {
  for (const Bits& bits : kAll)
    for (const float value : {kNan, kInf, -kInf}) {
      const Codec codec = codec_of(kTurboKey, bits.text, 64);
      TurboRecords records(codec, random_floats(1, 64 * 20));
      std::vector<float> query = random_floats(2, 64);
      query[40] = value;
      for (const std::string& target : kernel_targets()) {
        const testing::TargetScope scope(target);
        for (const float score : scores_of(codec, records, query, 20))
          ASSERT_TRUE(std::isnan(score)) << target;
      }
    }
}

TEST(TurboKey, AQueryOfZerosOrNearlyScoresZero) {
  for (const Bits& bits : kAll)
    for (const float value : {0.f, 1e-45f, 1e-35f}) {
      const Codec codec = codec_of(kTurboKey, bits.text, 64);
      TurboRecords records(codec, random_floats(1, 64 * 20));
      for (const float score : scores_of(codec, records, std::vector<float>(64, value), 20))
        ASSERT_NEAR(score, 0, 1e-30);
    }
}

TEST(TurboKey, SumsDoNotDependOnHowABlockIsCut) {
  for (const Bits& bits : kAll) {
    const Codec codec = codec_of(kTurboKey, bits.text, 96);
    TurboRecords records(codec, random_floats(1, 96 * 100));
    const std::vector<float> weights = random_floats(2, 100);
    const auto sum = [&](const std::vector<uint32_t>& cuts) {
      const RecordFunctions& functions = kTurboKey.functions();
      std::vector<float> partial(codec.geometry.partial_floats);
      uint32_t first = 0;
      for (const uint32_t count : cuts) {
        functions.accumulate(codec, weights.data() + first, 100, 1, 256 + 5 + first,
                             records.records(first, count), partial.data());
        first += count;
      }
      functions.finish_block(codec, 1, partial.data());
      partial.resize(codec.width);
      return partial;
    };
    const std::vector<float> whole = sum({100});
    EXPECT_EQ(sum({1, 15, 16, 17, 51}), whole);
    EXPECT_EQ(sum(std::vector<uint32_t>(100, 1)), whole);
    expect_same_on_every_target([&] { return sum({11, 89}); });
  }
}

TEST(TurboKey, SaysWhatItRefuses) {
  const auto bits = kTurboKey.parse("turbo-key3");
  ASSERT_FALSE(bits.has_value());
  EXPECT_EQ(bits.error().code, Code::BadInput);
  EXPECT_EQ(bits.error().message, "turbo-key: 3 bits, expected 2, 4, 5 or 8");
  EXPECT_EQ(kTurboKey.parse("turbo-key").error().message,
            "turbo-key: no bits, expected 2, 4, 5 or 8");
  EXPECT_EQ(kTurboKey.parse("turbo-key08").error().code, Code::BadInput);
  EXPECT_EQ(kTurboKey.parse("turbo-key4x").error().code, Code::NotFound);
  const auto width = make_codec(kTurboKey, kTurboKey.parse("turbo-key4").value(), 80);
  ASSERT_FALSE(width.has_value());
  EXPECT_EQ(width.error().code, Code::BadInput);
  EXPECT_EQ(width.error().message,
            "turbo-key: vectors of 80 numbers, expected a multiple of 32 up to 1024");
}

}  // namespace
}  // namespace cairn
