#include "cairn/kernels/softmax.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/support/random.h"
#include "tests/support/targets.h"

namespace cairn {
namespace {

using testing::expect_same_on_every_target;
using testing::random_floats;
using testing::with_one_nan;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(Exp2, IsExactAtZeroAndZeroBelowItsFloor) {
  EXPECT_EQ(exp2_nonpositive(0.f), 1.f);
  EXPECT_EQ(exp2_nonpositive(-0.f), 1.f);
  EXPECT_EQ(exp2_nonpositive(-64.f), 0x1p-64f);
  EXPECT_EQ(std::bit_cast<uint32_t>(exp2_nonpositive(std::nextafter(-64.f, -65.f))), 0u);
  EXPECT_EQ(std::bit_cast<uint32_t>(exp2_nonpositive(-kInf)), 0u);
  EXPECT_TRUE(std::isnan(exp2_nonpositive(kNan)));
}

TEST(Exp2, StaysWithinItsStatedError) {
  double worst = 0;
  for (int i = 0; i <= 64 << 12; ++i) {
    const float x = -static_cast<float>(i) * 0x1p-12f;
    const double exact = std::exp2(static_cast<double>(x));
    worst = std::max(worst, std::abs(exp2_nonpositive(x) - exact) / exact);
  }
  EXPECT_LT(worst, 8e-8);
}

TEST(LogSumExp, AgreesWithDoublePrecision) {
  for (const float sum : {1.f, 1.5f, 2.f, 3.f, 255.f, 7424.f, 1e9f, 0x1.6a09e6p0f, 0x1.6a09e8p0f})
    for (const float max : {0.f, -3.25f, 1e4f, -1e4f}) {
      const double exact = (double{max} + std::log2(double{sum})) * 0.69314718055994530942;
      EXPECT_EQ(log_sum_exp({max, sum}), static_cast<float>(exact)) << max << " " << sum;
    }
  EXPECT_EQ(log_sum_exp({0, 0}), -kInf);
  EXPECT_TRUE(std::isnan(log_sum_exp({1, kNan})));
}

struct Ranges {
  Range a, b;
};
const Ranges kRanges[] = {
    {{}, {0, 256}},      {{}, {0, 1}},      {{}, {255, 256}}, {{}, {15, 17}},      {{}, {16, 32}},
    {{}, {17, 18}},      {{}, {0, 61}},     {{}, {3, 200}},   {{0, 4}, {9, 256}},  {{0, 4}, {5, 9}},
    {{0, 33}, {34, 35}}, {{5, 7}, {8, 30}}, {{0, 256}, {}},   {{0, 16}, {17, 31}},
};

std::vector<float> block(std::vector<float> scores, Pos first, const Ranges& ranges) {
  const auto move = [&](Range r) { return r.empty() ? r : Range{r.begin + first, r.end + first}; };
  Softmax result;
  softmax_functions().block(scores.data(), 0, 1, first, move(ranges.a), move(ranges.b), &result);
  scores.push_back(result.max);
  scores.push_back(result.sum);
  return scores;
}

TEST(SoftmaxBlock, IsTheSameOnEveryTarget) {
  for (uint64_t seed = 0; seed < 20; ++seed)
    for (const float scale : {0.f, 1e-42f, 1.f, 30.f, 1e4f})
      for (const Ranges& ranges : kRanges) {
        const std::vector<float> scores = random_floats(seed, 256, scale);
        expect_same_on_every_target([&] { return block(scores, 512, ranges); });
      }
}

TEST(SoftmaxBlock, GivesRowsTheBitsOfEachAlone) {
  constexpr uint32_t kMostRows = 9;
  constexpr size_t kStride = 272;
  for (const std::string& target : kernel_targets()) {
    const testing::TargetScope scope(target);
    for (uint32_t rows = 1; rows <= kMostRows; ++rows)
      for (const Ranges& ranges : kRanges) {
        std::vector<float> together = random_floats(rows, rows * kStride, 30.f);
        std::vector<float> alone = together;
        std::vector<Softmax> results(rows), result(rows);
        softmax_functions().block(together.data(), kStride, rows, 0, ranges.a, ranges.b,
                                  results.data());
        for (uint32_t row = 0; row < rows; ++row)
          softmax_functions().block(alone.data() + row * kStride, 0, 1, 0, ranges.a, ranges.b,
                                    &result[row]);
        EXPECT_EQ(std::memcmp(together.data(), alone.data(), together.size() * sizeof(float)), 0);
        EXPECT_EQ(std::memcmp(results.data(), result.data(), rows * sizeof(Softmax)), 0) << target;
      }
  }
}

TEST(SoftmaxBlock, ReadsAndWritesNothingOutsideItsRanges) {
  for (const std::string& target : kernel_targets()) {
    const testing::TargetScope scope(target);
    for (const Ranges& ranges : kRanges) {
      const std::vector<float> scores(256, kNan);
      std::vector<float> with_zeros = scores;
      Pos visible = 0;
      for (const Range& range : {ranges.a, ranges.b})
        for (Pos p = range.begin; p < range.end; ++p, ++visible) with_zeros[p] = 0;
      const std::vector<float> result = block(with_zeros, 0, ranges);
      EXPECT_EQ(result[256], 0.f);
      EXPECT_EQ(result[257], static_cast<float>(visible));
      for (Pos p = 0; p < 256; ++p) {
        const bool is_seen =
            (p >= ranges.a.begin && p < ranges.a.end) || (p >= ranges.b.begin && p < ranges.b.end);
        ASSERT_EQ(std::isnan(result[p]), !is_seen) << target << " " << p;
      }
    }
  }
}

TEST(SoftmaxBlock, GivesNanForWhatHasNoSoftmax) {
  for (const std::string& target : kernel_targets()) {
    const testing::TargetScope scope(target);
    for (const float bad : {kNan, kInf})
      for (const size_t at : {0, 7, 100, 255}) {
        std::vector<float> scores = random_floats(at, 256);
        scores[at] = bad;
        EXPECT_TRUE(std::isnan(block(scores, 0, {{}, {0, 256}})[257])) << target << " " << at;
      }
    EXPECT_TRUE(std::isnan(block(std::vector<float>(256, -kInf), 0, {{}, {0, 256}})[257]));
    // One score of minus infinity weighs nothing.
    std::vector<float> scores(256, 0.f);
    scores[3] = -kInf;
    EXPECT_EQ(block(scores, 0, {{}, {0, 256}})[257], 255.f);
  }
}

TEST(SoftmaxJoin, IsTheSameOnEveryTarget) {
  for (const uint32_t width : {8u, 16u, 61u, 64u, 80u, 96u, 128u, 576u})
    for (const float other_max : {-100.f, -63.9f, -1.f, 0.f, 2.5f, 63.f, 200.f})
      expect_same_on_every_target([&] {
        std::vector<float> running = random_floats(width, width);
        const std::vector<float> part = random_floats(width + 1, width);
        Softmax softmax{0.25f, 17.5f};
        softmax_functions().join(softmax, running.data(), {other_max, 3.f}, part.data(), width);
        running.push_back(softmax.max);
        running.push_back(softmax.sum);
        std::vector<float> out(width);
        softmax_functions().normalize(softmax, running.data(), out.data(), width);
        running.insert(running.end(), out.begin(), out.end());
        return running;
      });
}

TEST(SoftmaxJoin, TakesNothingSeenForNothing) {
  for (const std::string& target : kernel_targets()) {
    const testing::TargetScope scope(target);
    const std::vector<float> x = random_floats(1, 64);
    std::vector<float> running(64, kNan);
    Softmax softmax;
    softmax_functions().join(softmax, running.data(), {3.f, 2.f}, x.data(), 64);
    EXPECT_TRUE(testing::same_bytes(running, x));
    const std::vector<float> nothing(64, kNan);
    softmax_functions().join(softmax, running.data(), {}, nothing.data(), 64);
    EXPECT_TRUE(testing::same_bytes(running, x));
    EXPECT_EQ(softmax.max, 3.f);
    EXPECT_EQ(softmax.sum, 2.f);

    std::vector<float> out(64, kNan);
    softmax_functions().normalize({}, nothing.data(), out.data(), 64);
    EXPECT_EQ(out, std::vector<float>(64, 0.f));
  }
}

TEST(SoftmaxJoin, KeepsNan) {
  for (const std::string& target : kernel_targets()) {
    const testing::TargetScope scope(target);
    const std::vector<float> x(64, 1.f);
    for (const float max : {-1000.f, 0.f, 1000.f}) {
      std::vector<float> running(64, 1.f);
      Softmax softmax{0, kNan};
      softmax_functions().join(softmax, running.data(), {max, 2.f}, x.data(), 64);
      EXPECT_TRUE(std::isnan(softmax.sum)) << target << " " << max;
      Softmax other{0, 1};
      softmax_functions().join(other, running.data(), {max, kNan}, x.data(), 64);
      EXPECT_TRUE(std::isnan(other.sum)) << target << " " << max;
    }
  }
}

}  // namespace
}  // namespace cairn
