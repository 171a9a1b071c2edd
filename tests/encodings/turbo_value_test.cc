#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "cairn/encodings/registry.h"
#include "cairn/encodings/turbo_tables.h"
#include "cairn/kernels/hadamard.h"
#include "tests/encodings/turbo_records.h"
#include "tests/support/random.h"
#include "tests/support/targets.h"

namespace cairn {
namespace {

using testing::codec_of;
using testing::mean_square_error;
using testing::random_floats;
using testing::TurboRecords;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr size_t kRms = 1;  // plane

struct Bits {
  std::string_view text;
  uint32_t bits;
  double distortion;        // of vectors of 128 normal numbers
  double table_distortion;  // of normal numbers through the table alone
};
constexpr Bits kAll[] = {{"turbo-value2", 2, 0.1117, 0.1174},
                         {"turbo-value3", 3, 0.0324, 0.03452},
                         {"turbo-value4", 4, 0.00893, 0.00950},
                         {"turbo-value5", 5, 0.00238, 0.00252},
                         {"turbo-value8", 8, 0.0000994, 0.000100}};

TurboRecords encoded(std::string_view text, const std::vector<float>& x) {
  return {codec_of(kTurboValue, text, x.size()), x};
}

// Centroids and the boundaries between them.
struct Entries {
  std::vector<float> centroids, boundaries;
};
template <uint32_t kBits>
Entries entries() {
  const turbo::Table<kBits>& table = turbo::kTable<kBits>;
  return {{table.centroids, table.centroids + table.kCodes},
          {table.boundaries, table.boundaries + table.kCodes - 1}};
}
Entries entries_of(uint32_t bits) {
  switch (bits) {
    case 2:
      return entries<2>();
    case 3:
      return entries<3>();
    case 4:
      return entries<4>();
    case 5:
      return entries<5>();
    default:
      return entries<8>();
  }
}

std::string hex_of_signs(uint32_t width) {
  std::string hex;
  for (uint32_t byte = 0; byte < width / 8; ++byte) {
    uint32_t bits = 0;
    for (uint32_t i = 0; i < 8; ++i) bits |= (turbo::signs_of(width)[byte * 8 + i] >> 31) << i;
    hex += fmt::format("{:02x}", bits);
  }
  return hex;
}

TEST(TurboValue, HasThePublishedSigns) {
  EXPECT_EQ(hex_of_signs(64), "8e5469b70248de62");
  EXPECT_EQ(hex_of_signs(128), "0ddf396a50029c6ad537834ade596014");
  EXPECT_EQ(hex_of_signs(256), "1230e662114acd106f146da9c95e9cd39bf22f3a735d27b26bd9305757c38bfe");
  EXPECT_EQ(hex_of_signs(512),
            "bd4b36700de3fb6263e439d461d2ca5c8f7c479b4312dde930de2a54bacaba77"
            "843e871118154c9ac5a304321f72815d5214828ac29ba78eef4b0e526d9d6b29");
}

TEST(TurboValue, HasThePublishedBoundaries) {
  const auto same = [](uint32_t bits, std::vector<float> expected) {
    EXPECT_EQ(entries_of(bits).boundaries, expected) << bits;
  };
  same(2, {-0.9863501191139221f, -0.004796460270881653f, 0.9803922176361084f});
  same(3, {-1.7479300498962402f, -1.0499600172042847f, -0.5005499720573425f, 0, 0.5005499720573425f,
           1.0499600172042847f, 1.7479300498962402f});
  EXPECT_EQ(entries_of(4).boundaries[7], -0.012782108038663864f);
  EXPECT_EQ(entries_of(5).boundaries[15], -0.03549768775701523f);
  EXPECT_EQ(entries_of(8).boundaries.front(), -4.4801483154296875f);
  EXPECT_EQ(entries_of(8).boundaries.back(), 4.324540138244629f);
  for (const Bits& bits : kAll) {
    const Entries table = entries_of(bits.bits);
    for (size_t i = 0; i + 1 < table.centroids.size(); ++i) {
      EXPECT_LT(table.centroids[i], table.boundaries[i]);
      EXPECT_LT(table.boundaries[i], table.centroids[i + 1]);
    }
  }
}

TEST(TurboValue, GivesTheWorkedExample) {
  std::vector<float> x(64);
  x[0] = 1;
  TurboRecords records = encoded("turbo-value3", x);
  EXPECT_EQ(records.half(kRms), 0.125f);
  EXPECT_EQ(records.codes(), std::vector<uint8_t>(64, 5));
  for (size_t i = 0; i < 24; i += 3) {
    EXPECT_EQ(records.planes()[0][i], std::byte{0x6d});
    EXPECT_EQ(records.planes()[0][i + 1], std::byte{0xdb});
    EXPECT_EQ(records.planes()[0][i + 2], std::byte{0xb6});
  }
  const std::vector<float> y = records.decoded();
  EXPECT_EQ(y[0], 0.7560099959f);
  for (size_t i = 1; i < 64; ++i) EXPECT_EQ(y[i], 0.f);
}

TEST(TurboValue, HoldsZeros) {
  for (const Bits& bits : kAll)
    for (const float zero : {0.f, -0.f}) {
      TurboRecords records = encoded(bits.text, std::vector<float>(128, zero));
      EXPECT_EQ(records.half(kRms), 0.f);
      for (const float y : records.decoded()) EXPECT_EQ(y, 0.f);
    }
  EXPECT_EQ(encoded("turbo-value3", std::vector<float>(64)).codes(), std::vector<uint8_t>(64, 3));
}

TEST(TurboValue, HasTheDistortionOfItsBits) {
  const std::vector<float> x = random_floats(7, 128 * 8000);
  for (const Bits& bits : kAll) {
    TurboRecords records(codec_of(kTurboValue, bits.text, 128), x);
    EXPECT_NEAR(mean_square_error(x, records.decoded()) / bits.distortion, 1, 0.01) << bits.text;
  }
}

TEST(TurboValue, ItsTablesHaveTheDistortionOfTheirBits) {
  const std::vector<float> x = random_floats(8, 1 << 20);
  for (const Bits& bits : kAll) {
    const Entries table = entries_of(bits.bits);
    std::vector<float> y;
    for (const float u : x) {
      const auto code = std::lower_bound(table.boundaries.begin(), table.boundaries.end(), u) -
                        table.boundaries.begin();
      y.push_back(table.centroids[static_cast<size_t>(code)]);
    }
    EXPECT_NEAR(mean_square_error(x, y) / bits.table_distortion, 1, 0.01) << bits.text;
  }
}

// x such that its rotated form is y (but for the rounding of f32).
std::vector<float> unrotated(std::vector<float> y) {
  const auto width = static_cast<uint32_t>(y.size());
  hadamard(y.data(), width);
  for (uint32_t i = 0; i < width; ++i)
    if (turbo::signs_of(width)[i] != 0) y[i] = -y[i];
  return y;
}

TEST(TurboValue, GivesEveryCodeAndReadsItsCentroidBack) {
  for (const Bits& bits : kAll) {
    const Entries table = entries_of(bits.bits);
    for (uint32_t code = 0; code < table.centroids.size(); ++code) {
      // A group whose first number is the centroid and whose mean square is 1.
      const float centroid = table.centroids[code];
      const float rest = std::sqrt((32 - centroid * centroid) / 31);
      std::vector<float> y(64);
      for (size_t i = 0; i < 64; ++i) y[i] = i % 32 == 0 ? centroid : i % 2 == 0 ? rest : -rest;
      TurboRecords records = encoded(bits.text, unrotated(y));
      ASSERT_EQ(records.codes()[0], code) << bits.text;
      ASSERT_EQ(records.codes()[32], code) << bits.text;
      ASSERT_NEAR(records.half(kRms), 1, 0x1p-10);
      // Rotating what was decoded gives the stored form back.
      std::vector<float> decoded = records.decoded();
      for (uint32_t i = 0; i < 64; ++i)
        if (turbo::signs_of(64)[i] != 0) decoded[i] = -decoded[i];
      hadamard(decoded.data(), 64);
      ASSERT_NEAR(decoded[0], centroid * records.half(kRms), 2e-6) << bits.text;
    }
  }
}

TEST(TurboValue, KeepsWhereAOneIs) {
  for (const Bits& bits : kAll)
    for (const uint32_t width : {64u, 128u, 256u, 512u})
      for (uint32_t i = 0; i < width; i += 17) {
        std::vector<float> x(width);
        x[i] = 1;
        const std::vector<float> y = encoded(bits.text, x).decoded();
        ASSERT_EQ(std::max_element(y.begin(), y.end()) - y.begin(), i) << bits.text << width;
      }
}

TEST(TurboValue, OtherWidthsAreRotatedByParts) {
  const std::pair<uint32_t, std::vector<uint32_t>> kParts[] = {
      {32, {32}},           {96, {64, 32}},   {192, {128, 64}},
      {224, {128, 64, 32}}, {576, {512, 64}}, {1024, {512, 512}}};
  for (const Bits& bits : kAll)
    for (const auto& [width, parts] : kParts) {
      const std::vector<float> x = random_floats(width, width);
      TurboRecords whole = encoded(bits.text, x);
      std::vector<std::vector<std::byte>> planes(2);
      auto from = x.begin();
      for (const uint32_t part : parts) {
        TurboRecords records = encoded(bits.text, std::vector<float>(from, from + part));
        for (size_t i = 0; i < 2; ++i)
          planes[i].insert(planes[i].end(), records.planes()[i].begin(), records.planes()[i].end());
        from += part;
      }
      EXPECT_EQ(whole.planes(), planes) << bits.text << ", " << width;
    }
}

TEST(TurboValue, TurningBackCommutesWithWeightedSums) {
  for (const Bits& bits : kAll)
    for (const uint32_t width : {32u, 64u, 96u, 128u, 192u, 256u, 576u}) {
      constexpr uint32_t kCount = 40;
      const Codec codec = codec_of(kTurboValue, bits.text, width);
      TurboRecords records(codec, random_floats(1, uint64_t{width} * kCount));
      const std::vector<float> weights = random_floats(2, kCount, 0.2f);
      std::vector<float> partial(codec.geometry.partial_floats);
      kTurboValue.functions().accumulate(codec, weights.data(), kCount, 1, 0, records.records(),
                                         partial.data());
      kTurboValue.functions().finish(codec, partial.data());
      const std::vector<float> y = records.decoded();
      for (uint32_t i = 0; i < width; ++i) {
        double exact = 0;
        for (uint32_t p = 0; p < kCount; ++p) exact += double{weights[p]} * y[p * width + i];
        ASSERT_NEAR(partial[i], exact, 1e-5) << bits.text << ", " << width;
      }
    }
}

TEST(TurboValue, NumbersThatAreNotFiniteAreReadAsZero) {
  for (const Bits& bits : kAll) {
    std::vector<float> x = random_floats(3, 128);
    x[5] = x[70] = x[71] = 0;
    const TurboRecords expected = encoded(bits.text, x);
    x[5] = kNan, x[70] = kInf, x[71] = -kInf;
    const TurboRecords records = encoded(bits.text, x);
    EXPECT_EQ(records.outside(), 3u);
    EXPECT_EQ(records.planes(), expected.planes()) << bits.text;
  }
}

TEST(TurboValue, SaturatesBeyondF16AndCounts) {
  for (const Bits& bits : kAll) {
    std::vector<float> x = random_floats(3, 128);
    x[9] = 65504;
    const TurboRecords expected = encoded(bits.text, x);
    EXPECT_EQ(expected.outside(), 0u);
    x[9] = 3e38f;
    const TurboRecords records = encoded(bits.text, x);
    EXPECT_EQ(records.outside(), 1u);
    EXPECT_EQ(records.planes(), expected.planes());
    // All of a vector's norm in one group: its rms is beyond f16.
    std::vector<float> y(128);
    y[3] = 65504.f * 11;
    for (float& value : y = unrotated(y)) value = std::clamp(value, -65504.f, 65504.f);
    TurboRecords spike = encoded(bits.text, y);
    EXPECT_EQ(spike.outside(), 32u);
    EXPECT_EQ(spike.half(kRms), 65504.f);
    for (const float value : spike.decoded()) EXPECT_TRUE(std::isfinite(value));
  }
}

TEST(TurboValue, SaysWhatItRefuses) {
  EXPECT_EQ(kTurboValue.parse("turbo-value6").error().message,
            "turbo-value: 6 bits, expected 2, 3, 4, 5 or 8");
  const auto width = make_codec(kTurboValue, kTurboValue.parse("turbo-value4").value(), 1056);
  ASSERT_FALSE(width.has_value());
  EXPECT_EQ(width.error().code, Code::BadInput);
  EXPECT_EQ(width.error().message,
            "turbo-value: vectors of 1056 numbers, expected a multiple of 32 up to 1024");
}

}  // namespace
}  // namespace cairn
