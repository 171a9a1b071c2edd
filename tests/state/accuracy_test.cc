// What attend.h promises against exact arithmetic on the decoded numbers, for every encoding, from
// one position to 100,000, on numbers that are usual and on numbers that are chosen to hurt.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "cairn/state/attend.h"
#include "tests/support/pages.h"
#include "tests/support/random.h"
#include "tests/support/sanitized.h"

namespace cairn::testing {
namespace {

constexpr double kUnit = 0x1p-24;

struct Numbers {
  std::vector<float> query;         // [width]
  std::vector<float> keys, values;  // [positions, width]
};

Numbers normal(uint32_t width, Pos positions) {
  return {random_floats(1, width), random_floats(2, positions * width),
          random_floats(3, positions * width)};
}

// What is made of normal numbers. Scores are given at 1 / sqrt(width).
struct Pattern {
  const char* name;
  void (*change)(Numbers&);
};

void leave(Numbers&) {}

// Keys along the query, so that the score of each position is what `score` says.
template <class Score>
void set_scores(Numbers& numbers, Score score) {
  const size_t width = numbers.query.size();
  double square = 0;
  for (const float x : numbers.query) square += double{x} * x;
  for (size_t i = 0; i < numbers.keys.size(); ++i)
    numbers.keys[i] = static_cast<float>(score(i / width) * std::sqrt(static_cast<double>(width)) *
                                         numbers.query[i % width] / square);
}

void equalize(Numbers& numbers) {
  set_scores(numbers, [](Pos) { return 3.; });
}

void ask_nothing(Numbers& numbers) { std::ranges::fill(numbers.query, 0.f); }

void let_one_dominate(Numbers& numbers) {
  set_scores(numbers, [](Pos t) { return t % 700 == 3 ? 200. + static_cast<double>(t) : 0.5; });
}

void go_to_extremes(Numbers& numbers) {
  set_scores(numbers, [](Pos t) { return t % 3 == 1 ? -1e4 : 1e4; });
}

// Every block and segment that is joined moves the maximum.
void rise(Numbers& numbers) {
  const auto positions = static_cast<double>(numbers.keys.size() / numbers.query.size());
  set_scores(numbers, [=](Pos t) { return 40 * static_cast<double>(t) / positions - 20; });
}

// Products of thousands that cancel in the sum over the vector.
void cancel(Numbers& numbers) {
  const size_t width = numbers.query.size();
  for (size_t i = 0; i < numbers.keys.size(); i += 2) {
    const float large = 3000 + numbers.keys[i];
    numbers.keys[i] = std::clamp(large / numbers.query[i % width], -6e4f, 6e4f);
    numbers.keys[i + 1] = std::clamp(-large / numbers.query[i % width + 1], -6e4f, 6e4f);
  }
}

// Values of one sign and size, far from zero, but for a spike here and there.
void unbalance(Numbers& numbers) {
  for (float& value : numbers.values) value = 1000 + 0.01f * value;
  for (size_t i = 0; i < numbers.values.size(); i += 6211) numbers.values[i] = -5000;
}

constexpr Pattern kPatterns[] = {{"normal", leave},
                                 {"equal scores", equalize},
                                 {"a query of zeros", ask_nothing},
                                 {"one dominates", let_one_dominate},
                                 {"scores of +-1e4", go_to_extremes},
                                 {"rising", rise},
                                 {"cancelling", cancel},
                                 {"unbalanced values", unbalance}};

double length_of(const float* vector, uint32_t width) {
  double square = 0;
  for (uint32_t i = 0; i < width; ++i) square += double{vector[i]} * vector[i];
  return std::sqrt(square);
}

// What an exact computation gives, and how far from it a row may be.
struct Expected {
  std::vector<double> out;
  double log_sum_exp = 0;
  double out_bound = 0, log_sum_exp_bound = 0;
};

Expected expect(const Numbers& decoded, Pos positions, double score_error) {
  const auto width = static_cast<uint32_t>(decoded.query.size());
  const double scale = 1 / std::sqrt(static_cast<double>(width));
  std::vector<double> scores(positions);
  double longest_key = 0, longest_value = 0;
  for (Pos t = 0; t < positions; ++t) {
    const float* key = decoded.keys.data() + t * width;
    for (uint32_t i = 0; i < width; ++i) scores[t] += double{decoded.query[i]} * key[i];
    scores[t] *= scale;
    longest_key = std::max(longest_key, length_of(key, width));
    longest_value = std::max(longest_value, length_of(decoded.values.data() + t * width, width));
  }
  const double largest = *std::ranges::max_element(scores);
  Expected expected{.out = std::vector<double>(width)};
  double sum = 0;
  for (Pos t = 0; t < positions; ++t) {
    const double weight = std::exp(scores[t] - largest);
    sum += weight;
    if (weight == 0) continue;
    for (uint32_t i = 0; i < width; ++i) expected.out[i] += weight * decoded.values[t * width + i];
  }
  for (double& number : expected.out) number /= sum;
  expected.log_sum_exp = largest + std::log(sum);

  const double e =
      scale * score_error * kUnit * length_of(decoded.query.data(), width) * longest_key;
  const double r = (1200 + static_cast<double>(positions) / 128) * kUnit;
  expected.out_bound = longest_value * std::min(2 + r, std::expm1(2 * e + r));
  expected.log_sum_exp_bound = e + r + kUnit * std::abs(expected.log_sum_exp);
  return expected;
}

struct Scheme {
  std::string_view key, value;
};

// One sequence and a query at each of several lengths of it.
class Story {
 public:
  Story(Scheme scheme, const Pattern& pattern, Numbers numbers)
      : width_(static_cast<uint32_t>(numbers.query.size())),
        pages_(
            {.shape = {.heads = 1, .head_dim = width_}, .key = scheme.key, .value = scheme.value}),
        sequence_(pages_.start()),
        decoded_(std::move(numbers)) {
    pattern.change(decoded_);
    const Pos positions = decoded_.keys.size() / width_;
    pages_.append(sequence_, positions, decoded_.keys.data(), decoded_.values.data());
    const RunView all[] = {pages_.run(sequence_, 0, positions)};
    const View view = pages_.view(all);
    decode(view, 0, kKey, 0, positions, decoded_.keys.data());
    decode(view, 0, kValue, 0, positions, decoded_.values.data());
  }

  // turbo-key-reference reads some groups back as infinities, as the form that it keeps does.
  bool is_finite() const {
    const auto finite = [](float x) { return std::isfinite(x); };
    return std::ranges::all_of(decoded_.keys, finite) &&
           std::ranges::all_of(decoded_.values, finite);
  }

  struct Error {
    double out = 0, log_sum_exp = 0;
  };
  // Of the row that sees `positions`.
  Error check(Pos positions) {
    const RunView runs[] = {pages_.run(sequence_, positions - 1, 1)};
    const View view = pages_.view(runs);
    std::vector<float> out(width_);
    float log_sum_exp = 0;
    attend(view, {.data = decoded_.query.data(), .heads = 1},
           {.data = out.data(), .log_sum_exp = &log_sum_exp});
    const Expected expected =
        expect(decoded_, positions, view.slot->find(kKey)->codec.geometry.score_error);
    Error error;
    for (uint32_t i = 0; i < width_; ++i) {
      EXPECT_NEAR(out[i], expected.out[i], expected.out_bound) << "element " << i;
      error.out = std::max(error.out, std::abs(out[i] - expected.out[i]));
    }
    EXPECT_NEAR(log_sum_exp, expected.log_sum_exp, expected.log_sum_exp_bound);
    error.log_sum_exp = std::abs(log_sum_exp - expected.log_sum_exp);
    return error;
  }

 private:
  const uint32_t width_;
  Pages pages_;
  const size_t sequence_;
  Numbers decoded_;
};

std::vector<Scheme> every_scheme() {
  std::vector<Scheme> schemes = {{"turbo-key8", "turbo-value3"}, {"f16", "affine4"}};
  for (const Encoding* encoding : builtin().encodings)
    for (const std::string_view sample : encoding->samples) schemes.push_back({sample, sample});
  return schemes;
}

void expect_within_bounds(Scheme scheme,
                          const Numbers& numbers,
                          std::initializer_list<Pos> lengths) {
  for (const Pattern& pattern : kPatterns) {
    Story story(scheme, pattern, numbers);
    if (!story.is_finite()) continue;
    for (const Pos length : lengths) {
      SCOPED_TRACE(::testing::Message()
                   << scheme.key << ", " << scheme.value << ", " << numbers.query.size()
                   << " wide, " << pattern.name << ", " << length << " positions");
      const Story::Error error = story.check(length);
      if (pattern.change == leave) {  // what docs/numbers.md calls usual
        EXPECT_LE(error.out, 1e-4);
        EXPECT_LE(error.log_sum_exp, 1e-4);
      }
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(Accuracy, OfEveryEncodingIsWithinItsBound) {
  const auto schemes = every_scheme();
  for (const uint32_t width : {128u, 256u}) {
    const Numbers numbers = normal(width, 1030);
    for (size_t i = 0; i < schemes.size() && !HasFailure(); i += stride(3))
      expect_within_bounds(schemes[i], numbers,
                           {1, 2, 63, 64, 65, 255, 256, 257, 1023, 1024, 1025});
  }
}

TEST(Accuracy, OfAHundredThousandPositionsIsWithinItsBound) {
  const Numbers numbers = normal(64, 100'000 / stride(10));
  for (const Scheme& scheme : {Scheme{"f32", "f32"},
                               {"f16", "f16"},
                               {"affine8", "affine8"},
                               {"affine4", "affine4"},
                               {"turbo-key8", "turbo-value3"}})
    expect_within_bounds(scheme, numbers, {5000 / stride(10), 100'000 / stride(10)});
}

// A row that sees nothing is zeros, and runs of no positions leave their neighbours alone.
TEST(Accuracy, OfRowsWithoutPositionsIsExact) {
  constexpr uint32_t kWidth = 64;
  for (const Scheme& scheme : every_scheme()) {
    SCOPED_TRACE(scheme.key);
    Pages pages(
        {.shape = {.heads = 1, .head_dim = kWidth}, .key = scheme.key, .value = scheme.value});
    const Numbers numbers = normal(kWidth, 300);
    const size_t sequence = pages.start(), empty = pages.start();
    pages.append(sequence, 300, numbers.keys.data(), numbers.values.data());
    const std::vector<float> queries = random_floats(4, 2 * kWidth);
    std::vector<float> out(2 * kWidth, 7), log_sum_exp(2, 7), alone(kWidth);

    const RunView runs[] = {pages.run(empty, 0, 0, 0), pages.run(sequence, 299, 1, 0),
                            pages.run(empty, 0, 0, 1)};
    attend(pages.view(runs), {.data = queries.data(), .heads = 1}, {.data = out.data()});
    attend(pages.view({runs + 1, 1}), {.data = queries.data(), .heads = 1}, {.data = alone.data()});
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), out.begin()));
    EXPECT_EQ(out[kWidth], 7);

    const RunView two[] = {pages.run(sequence, 298, 2)};
    const uint32_t positions[] = {0, 5}, counts[] = {0, 1};
    const Chosen chosen{.positions = positions, .counts = counts, .row_stride = 1};
    attend(pages.view(two), {.data = queries.data(), .heads = 1, .chosen = &chosen},
           {.data = out.data(), .log_sum_exp = log_sum_exp.data()});
    EXPECT_TRUE(std::all_of(out.begin(), out.begin() + kWidth, [](float x) { return x == 0; }));
    EXPECT_EQ(log_sum_exp[0], -INFINITY);
    EXPECT_TRUE(std::isfinite(log_sum_exp[1]));
  }
}

}  // namespace
}  // namespace cairn::testing
