#include "cairn/kernels/choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/support/random.h"
#include "tests/support/targets.h"

namespace cairn {
namespace {

using testing::expect_same_on_every_target;
using testing::random_floats;
using testing::with_one_nan;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> weigh(const std::vector<float>& products,
                         size_t stride,
                         const std::vector<float>& weights,
                         uint32_t count) {
  std::vector<float> scores(count + 1, 7);  // one more than may be written
  weigh_heads(products.data(), stride, weights.data(), static_cast<uint32_t>(weights.size()), count,
              scores.data());
  EXPECT_EQ(scores[count], 7);
  return scores;
}

std::vector<uint32_t> best(const std::vector<float>& scores, uint32_t k) {
  std::vector<uint32_t> places(k), scratch(scores.size());
  places.resize(choose_best(scores, k, places.data(), scratch.data()));
  return places;
}

// By sorting all of them.
std::vector<uint32_t> best_by_sorting(std::vector<float> scores, uint32_t k) {
  for (float& score : scores)
    if (std::isnan(score)) score = -kInfinity;
  std::vector<uint32_t> places(scores.size());
  std::iota(places.begin(), places.end(), 0u);
  std::stable_sort(places.begin(), places.end(),
                   [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
  places.resize(std::min<size_t>(k, places.size()));
  std::sort(places.begin(), places.end());
  return places;
}

TEST(Choice, ANegativeProductWeighsNothingAndANanStays) {
  // Two heads, stride 4: head 0 at 0, head 1 at 4.
  const std::vector<float> products = {1, -1, kNan, 2, 3, 5, 1, -kInfinity};
  const auto scores = weigh(products, 4, {2, -1}, 4);
  EXPECT_EQ(scores[0], 2 * 1 - 3);
  EXPECT_EQ(scores[1], -5);
  EXPECT_TRUE(std::isnan(scores[2]));
  EXPECT_EQ(scores[3], 4);
}

TEST(Choice, WeighsHeadsTheSameOnEveryTarget) {
  for (const uint32_t count : {1u, 7u, 16u, 31u, 33u, 64u})
    for (const uint32_t heads : {1u, 3u, 64u}) {
      std::vector<float> products = random_floats(count + heads, heads * 80);
      products[0] = kNan;
      products.back() = -0.f;
      const auto weights = random_floats(heads, heads);
      expect_same_on_every_target(
          [&] { return with_one_nan(weigh(products, 80, weights, count)); });
    }
}

TEST(Choice, ChoosesAsSortingWould) {
  for (uint64_t seed = 1; seed <= 60; ++seed)
    for (const uint32_t count : {1u, 2u, 100u, 3000u}) {
      std::vector<float> scores = random_floats(seed, count, seed % 3 == 0 ? 1e-3f : 100);
      if (seed % 2 == 0)  // many equals, zeros of both signs
        for (float& score : scores) score = std::round(score * 0.02f);
      if (seed % 5 == 0)
        for (uint32_t i = 0; i < count; i += 7)
          scores[i] = i % 3 == 0 ? kNan : i % 3 == 1 ? kInfinity : -kInfinity;
      for (const uint32_t k : {0u, 1u, 2u, count / 2, count - 1, count, count + 5})
        ASSERT_EQ(best(scores, k), best_by_sorting(scores, k))
            << seed << ": " << k << " of " << count;
    }
}

TEST(Choice, EqualsGoToTheLowerPlaceWhateverTheSignOfZero) {
  EXPECT_EQ(best({0.f, -0.f, 0.f, -0.f}, 2), (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(best({kNan, -kInfinity, -1, kNan}, 2), (std::vector<uint32_t>{0, 2}));
}

}  // namespace
}  // namespace cairn
