#include "cairn/runtime/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <vector>

namespace cairn {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Sampler sampler_of(const SamplingOptions& options) {
  auto sampler = make_sampler(options);
  EXPECT_TRUE(sampler) << sampler.error().message;
  return *sampler;
}

int32_t choose(const SamplingOptions& options,
               const std::vector<float>& logits,
               const std::vector<int32_t>& history = {}) {
  return *sampler_of(options).sample(logits, history);
}

std::map<int32_t, int> counts(const SamplingOptions& options,
                              const std::vector<float>& logits,
                              int draws,
                              const std::vector<int32_t>& history = {}) {
  Sampler sampler = sampler_of(options);
  std::map<int32_t, int> counted;
  for (int i = 0; i < draws; ++i) ++counted[*sampler.sample(logits, history)];
  return counted;
}

std::vector<int32_t> tokens_drawn(const SamplingOptions& options,
                                  const std::vector<float>& logits) {
  std::vector<int32_t> tokens;
  for (const auto& [token, count] : counts(options, logits, 2000)) tokens.push_back(token);
  return tokens;
}

std::vector<double> softmax(const std::vector<float>& logits, double temperature) {
  std::vector<double> probabilities;
  for (const float logit : logits) probabilities.push_back(std::exp(logit / temperature));
  const double sum = std::accumulate(probabilities.begin(), probabilities.end(), 0.0);
  for (double& each : probabilities) each /= sum;
  return probabilities;
}

double chi_square(const std::map<int32_t, int>& counted,
                  const std::vector<double>& probabilities,
                  int draws) {
  double sum = 0;
  for (size_t token = 0; token < probabilities.size(); ++token) {
    const double expected = probabilities[token] * draws;
    const auto found = counted.find(static_cast<int32_t>(token));
    const double difference = (found == counted.end() ? 0 : found->second) - expected;
    sum += difference * difference / expected;
  }
  return sum;
}

const std::vector<float> kToy = {0.5f, -1, 2, 1.5f, 0, -2, 1, 0.25f};

TEST(Sampler, DrawsByTheModelsProbabilities) {
  constexpr int kDraws = 20000;
  for (const float temperature : {0.5f, 1.0f, 2.0f})
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      const auto counted = counts({.temperature = temperature, .seed = seed}, kToy, kDraws);
      EXPECT_LT(chi_square(counted, softmax(kToy, temperature), kDraws),
                24.3)  // 7 degrees of freedom: 1 in 1,000 above
          << "temperature " << temperature << ", seed " << seed;
    }
}

TEST(Sampler, KeepsProportionsAmongWhatAFilterLeaves) {
  const auto counted =
      counts({.temperature = 1, .top_k = 3, .seed = 3}, kToy, 20000);  // tokens 2, 3, 6
  const auto probabilities = softmax({2, 1.5f, 1}, 1);
  EXPECT_EQ(counted.size(), 3u);
  EXPECT_LT(chi_square({{0, counted.at(2)}, {1, counted.at(3)}, {2, counted.at(6)}}, probabilities,
                       20000),
            13.8);
}

TEST(Sampler, IsGreedyAtTemperatureZeroAndTakesTheLowerIdOfEquals) {
  EXPECT_EQ(choose({}, kToy), 2);
  EXPECT_EQ(choose({}, {1, 3, 3, 2}), 1);
  EXPECT_EQ(choose({}, {-kInfinity, -5}), 1);
  EXPECT_EQ(choose({.top_k = 1, .top_p = 0.1f, .seed = 9}, kToy), 2);
  Sampler sampler = sampler_of({});
  EXPECT_TRUE(sampler.sample(kToy, {}));
  EXPECT_EQ(sampler.state().draws, 0u);
}

TEST(Sampler, TopKKeepsTheKMostProbable) {
  const std::vector<float> logits = {1, 3, 2, 3, 0};
  EXPECT_EQ(tokens_drawn({.temperature = 2, .top_k = 1}, logits), (std::vector<int32_t>{1}));
  EXPECT_EQ(tokens_drawn({.temperature = 2, .top_k = 3}, logits), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(tokens_drawn({.temperature = 2, .top_k = 0}, logits).size(), 5u);
  EXPECT_EQ(tokens_drawn({.temperature = 2, .top_k = 100}, logits).size(), 5u);
}

// Probabilities 1/2, 1/4, 1/8, 1/8.
const std::vector<float> kHalves = {std::log(4.0f), std::log(2.0f), 0, 0};

TEST(Sampler, TopPKeepsTheFewestThatHoldEnough) {
  EXPECT_EQ(tokens_drawn({.temperature = 1, .top_p = 0}, kHalves), (std::vector<int32_t>{0}));
  EXPECT_EQ(tokens_drawn({.temperature = 1, .top_p = 0.4f}, kHalves), (std::vector<int32_t>{0}));
  EXPECT_EQ(tokens_drawn({.temperature = 1, .top_p = 0.6f}, kHalves), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(tokens_drawn({.temperature = 1, .top_p = 0.8f}, kHalves),
            (std::vector<int32_t>{0, 1, 2}));  // of equals the lower id
  EXPECT_EQ(tokens_drawn({.temperature = 1, .top_p = 1}, kHalves).size(), 4u);
}

TEST(Sampler, TopPLooksAtMoreThanItsFirstHead) {
  const std::vector<float> flat(1000, 0);
  const auto tokens = counts({.temperature = 1, .top_p = 0.4999f}, flat, 20000);
  EXPECT_EQ(tokens.size(), 500u);
  EXPECT_EQ(tokens.rbegin()->first, 499);
}

TEST(Sampler, MinPComparesWithTheMostProbable) {
  EXPECT_EQ(tokens_drawn({.temperature = 1, .min_p = 0.6f}, kHalves), (std::vector<int32_t>{0}));
  EXPECT_EQ(tokens_drawn({.temperature = 1, .min_p = 0.3f}, kHalves), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(tokens_drawn({.temperature = 1, .min_p = 1}, kHalves), (std::vector<int32_t>{0}));
}

TEST(Sampler, FiltersBeforeTheTemperatureIsApplied) {
  EXPECT_EQ(tokens_drawn({.temperature = 100, .top_p = 0.6f}, kHalves),
            (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(tokens_drawn({.temperature = 100, .min_p = 0.3f}, kHalves),
            (std::vector<int32_t>{0, 1}));
}

TEST(Sampler, AppliesEachFilterToWhatTheOneBeforeLeft) {
  // Two of top_k hold 2/3 and 1/3: top_p 0.6 is reached by the first.
  EXPECT_EQ(tokens_drawn({.temperature = 1, .top_k = 2, .top_p = 0.6f}, kHalves),
            (std::vector<int32_t>{0}));
}

TEST(Sampler, PenalizesRecentTokensOnce) {
  EXPECT_EQ(choose({.repetition_penalty = 2}, {4, 3, -1}, {0, 0, 0}), 1);
  EXPECT_EQ(choose({.repetition_penalty = 1.2f}, {4, 3, -1}, {0, 0, 0}),
            0);                                                       // 3.3: once, not three times
  EXPECT_EQ(choose({.repetition_penalty = 2}, {-1, -1.5f}, {0}), 1);  // a negative logit falls too
  EXPECT_EQ(choose({.repetition_penalty = 2, .repetition_window = 2}, {4, 3, -1}, {0, 2, 2}), 0);
  EXPECT_EQ(choose({.repetition_penalty = 2, .repetition_window = 0}, {4, 3, -1}, {0}), 0);
}

TEST(Sampler, GivesTheSameTokensForASeedAndOthersForAnother) {
  const auto run = [](uint64_t seed) {
    Sampler sampler = sampler_of({.temperature = 1, .seed = seed});
    std::vector<int32_t> tokens;
    for (int i = 0; i < 50; ++i) tokens.push_back(*sampler.sample(kToy, {}));
    return tokens;
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

TEST(Sampler, GoesOnFromASavedState) {
  Sampler whole = sampler_of({.temperature = 1, .seed = 5});
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(whole.sample(kToy, {}));
  Sampler resumed = sampler_of({.temperature = 1, .seed = 77});
  resumed.resume({.seed = 5, .draws = 20});
  for (int i = 0; i < 20; ++i) EXPECT_EQ(*whole.sample(kToy, {}), *resumed.sample(kToy, {}));
  EXPECT_EQ(whole.state(), resumed.state());
}

// Golden: another number here is another text for every seed that users know.
TEST(UniformDraw, IsTheSameOnEveryMachine) {
  EXPECT_EQ(uniform_draw(0, 0), 0x1.4e0dba5e9a32fp-1);
  EXPECT_EQ(uniform_draw(0, 1), 0x1.6705460be8829p-1);
  EXPECT_EQ(uniform_draw(42, 1000), 0x1.63f919049aa49p-1);
}

TEST(UniformDraw, FillsTheUnitIntervalEvenly) {
  int buckets[100] = {};
  for (uint64_t i = 0; i < 100000; ++i) {
    const double u = uniform_draw(7, i);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    ++buckets[static_cast<int>(u * 100)];
  }
  double chi = 0;
  for (const int count : buckets) chi += (count - 1000.0) * (count - 1000.0) / 1000;
  EXPECT_LT(chi, 149);  // 99 degrees of freedom: 1 in 1,000 above
}

TEST(Sampler, RefusesLogitsThatAreNoNumbers) {
  for (const float temperature : {0.0f, 1.0f}) {
    Sampler sampler = sampler_of({.temperature = temperature});
    const auto nan = sampler.sample(std::vector<float>{1, kNan, 2}, {});
    ASSERT_FALSE(nan);
    EXPECT_EQ(nan.error().code, Code::BadInput);
    EXPECT_EQ(nan.error().message, "logits: token 1: found nan, expected a number");
    EXPECT_EQ(sampler.sample(std::vector<float>{1, kInfinity}, {}).error().message,
              "logits: token 1: found inf, expected a number");
    EXPECT_EQ(sampler.sample(std::vector<float>(3, -kInfinity), {}).error().message,
              "logits: all 3 are minus infinity, expected a token that is possible");
    EXPECT_EQ(sampler.state().draws, 0u);
  }
}

TEST(Sampler, NeverDrawsWhatIsImpossible) {
  EXPECT_EQ(tokens_drawn({.temperature = 1000}, {-kInfinity, 0, -kInfinity, 0}),
            (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(tokens_drawn({.temperature = 1e-30f}, {1, 2, 1.9999f}), (std::vector<int32_t>{1}));
  EXPECT_EQ(tokens_drawn({.temperature = 1}, {-1e30f, 3e38f}), (std::vector<int32_t>{1}));
}

TEST(Sampler, RefusesOptionsOutOfRange) {
  for (const SamplingOptions& options :
       {SamplingOptions{.temperature = -1}, SamplingOptions{.temperature = kNan},
        SamplingOptions{.temperature = kInfinity}, SamplingOptions{.top_p = 1.5f},
        SamplingOptions{.min_p = -0.1f}, SamplingOptions{.repetition_penalty = 0}}) {
    const auto sampler = make_sampler(options);
    ASSERT_FALSE(sampler);
    EXPECT_EQ(sampler.error().code, Code::BadInput);
  }
  EXPECT_EQ(make_sampler({.top_p = 1.5f}).error().message, "top_p: found 1.5, expected 0 to 1");
}

TEST(Sampler, HoldsItsCallerToTheContract) {
  Sampler sampler = sampler_of({.repetition_penalty = 2});
  EXPECT_THROW((void)sampler.sample({}, {}), ContractError);
  EXPECT_THROW((void)sampler.sample(kToy, std::vector<int32_t>{8}), ContractError);
}

}  // namespace
}  // namespace cairn
