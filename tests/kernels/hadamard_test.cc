#include "cairn/kernels/hadamard.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "tests/support/random.h"
#include "tests/support/targets.h"

namespace cairn {
namespace {

using testing::expect_same_on_every_target;
using testing::random_floats;
using testing::with_one_nan;

constexpr uint32_t kWidths[] = {16, 32, 64, 128, 256, 512, 1024};

TEST(Hadamard, IsTheMatrixOfParities) {
  for (const uint32_t width : kWidths)
    for (uint32_t column = 0; column < width; column += 1 + width / 40) {
      std::vector<float> x(width);
      x[column] = 1;
      hadamard(x.data(), width);
      const auto entry = static_cast<float>(1 / std::sqrt(static_cast<double>(width)));
      for (uint32_t row = 0; row < width; ++row)
        ASSERT_EQ(x[row], std::popcount(row & column) % 2 == 0 ? entry : -entry)
            << row << ", " << column << " of " << width;
    }
}

TEST(Hadamard, KeepsNormsAndIsItsOwnInverse) {
  for (const uint32_t width : kWidths)
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const std::vector<float> x = random_floats(seed, width);
      std::vector<float> y = x;
      const auto norm = [](const std::vector<float>& z) {
        double sum = 0;
        for (const float value : z) sum += double{value} * value;
        return std::sqrt(sum);
      };
      hadamard(y.data(), width);
      ASSERT_NEAR(norm(y) / norm(x), 1, 1e-5) << width;
      hadamard(y.data(), width);
      for (uint32_t i = 0; i < width; ++i) ASSERT_NEAR(y[i], x[i], 1e-5) << width;
    }
}

TEST(Hadamard, AddsInTheStatedOrder) {
  // (2^24 + 1) + (0 + 1) loses both ones; with strides the other way round they would meet first.
  std::vector<float> x(16);
  x[0] = 0x1p24f;
  x[1] = x[3] = 1;
  hadamard(x.data(), 16);
  EXPECT_EQ(x[0], 0x1p22f);
}

TEST(Hadamard, IsTheSameOnEveryTarget) {
  for (const uint32_t width : kWidths)
    for (uint64_t seed = 0; seed < 10; ++seed) {
      std::vector<float> x = random_floats(seed, width + 1, seed % 2 == 0 ? 1.f : 1e-38f);
      if (seed == 3) x[5] = __builtin_inff();
      if (seed == 4) x[7] = __builtin_nanf("");
      expect_same_on_every_target([&] {
        std::vector<float> y = x;
        hadamard(y.data() + 1, width);
        return with_one_nan(y);
      });
    }
}

}  // namespace
}  // namespace cairn
