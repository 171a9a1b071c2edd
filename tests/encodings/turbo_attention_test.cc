// Attention over pages of TurboQuant records, against double precision over what they decode to.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/pages.h"
#include "tests/support/random.h"
#include "tests/support/targets.h"

namespace cairn {
namespace {

using testing::expect_same_on_every_target;
using testing::Pages;
using testing::random_floats;
using testing::same_bytes;

struct Story {
  std::string_view key, value;
  uint32_t width;
  Pos length;
  uint32_t page_positions = 64;

  static constexpr uint32_t kHeads = 2, kGroup = 3;
  uint32_t query_heads() const { return kHeads * kGroup; }
};

// The newest two positions' rows, then their logarithms of sums.
std::vector<float> told(const Story& story, uint32_t parts, std::vector<float>* decoded) {
  Pages pages({.shape = {.heads = Story::kHeads, .head_dim = story.width},
               .key = story.key,
               .value = story.value,
               .page_positions = story.page_positions});
  const size_t sequence = pages.start();
  const size_t floats = story.length * Story::kHeads * story.width;
  pages.append(sequence, story.length, random_floats(1, floats).data(),
               random_floats(2, floats).data());
  const Pos rows = std::min<Pos>(2, story.length);
  const RunView runs[] = {pages.run(sequence, story.length - rows, rows)};
  const View view = pages.view(runs);
  if (decoded != nullptr) {
    decoded->resize(2 * floats);
    decode(view, 0, kKey, 0, story.length, decoded->data());
    decode(view, 0, kValue, 0, story.length, decoded->data() + floats);
  }
  const std::vector<float> queries = random_floats(3, rows * story.query_heads() * story.width);
  const size_t outs = rows * story.query_heads() * story.width;
  std::vector<float> out(outs + rows * story.query_heads());
  for (uint32_t part = 0; part < parts; ++part)
    attend(view, {.data = queries.data(), .heads = story.query_heads()},
           {.data = out.data(), .log_sum_exp = out.data() + outs}, {part, parts});
  return out;
}

void expect_near_double(const Story& story, double bound) {
  std::vector<float> decoded;
  const std::vector<float> out = told(story, 1, &decoded);
  const Pos rows = std::min<Pos>(2, story.length);
  const uint32_t width = story.width;
  const float* keys = decoded.data();
  const float* values = keys + decoded.size() / 2;
  const std::vector<float> queries = random_floats(3, rows * story.query_heads() * width);
  for (Pos row = 0; row < rows; ++row)
    for (uint32_t h = 0; h < story.query_heads(); ++h) {
      const Pos seen = story.length - rows + row + 1;
      const auto at = [&](const float* numbers, Pos p) {
        return numbers + (p * Story::kHeads + h / Story::kGroup) * width;
      };
      const uint64_t place = row * story.query_heads() + h;
      std::vector<double> weights(seen);
      for (Pos p = 0; p < seen; ++p) {
        for (uint32_t i = 0; i < width; ++i)
          weights[p] += double{at(keys, p)[i]} * queries[place * width + i];
        weights[p] /= std::sqrt(static_cast<double>(width));
      }
      const double max = *std::max_element(weights.begin(), weights.end());
      double sum = 0;
      for (double& weight : weights) sum += weight = std::exp(weight - max);
      for (uint32_t i = 0; i < width; ++i) {
        double exact = 0;
        for (Pos p = 0; p < seen; ++p) exact += weights[p] / sum * at(values, p)[i];
        ASSERT_NEAR(out[place * width + i], exact, bound) << "row " << row << ", head " << h;
      }
      ASSERT_NEAR(out[rows * story.query_heads() * width + place], max + std::log(sum), bound);
    }
}

constexpr std::pair<std::string_view, std::string_view> kSchemes[] = {
    {"turbo-key8", "turbo-value8"},
    {"turbo-key8", "turbo-value3"},
    {"turbo-key5", "turbo-value5"},
    {"turbo-key4", "turbo-value4"},
    {"turbo-key2", "turbo-value2"},
    {"turbo-value3", "turbo-key4"},
    {"turbo-key-reference8", "turbo-key-reference4"}};

TEST(TurboAttention, AgreesWithDoublePrecisionOverWhatIsStored) {
  for (const auto& [key, value] : kSchemes)
    for (const uint32_t width : {64u, 96u, 128u, 192u, 256u, 576u})
      for (const Pos length : {1u, 63u, 64u, 65u, 1000u}) {
        SCOPED_TRACE(::testing::Message() << key << ", " << value << ", width " << width << ", "
                                          << length << " positions");
        expect_near_double({key, value, width, length}, 1e-4);
        if (HasFatalFailure()) return;
      }
}

TEST(TurboAttention, IsTheSameOnEveryTargetPageSizeAndCut) {
  for (const auto& [key, value] : kSchemes)
    for (const uint32_t width : {64u, 96u}) {
      const Story story{key, value, width, 1300};
      const std::vector<float> expected = told(story, 1, nullptr);
      expect_same_on_every_target([&] { return told(story, 1, nullptr); });
      for (const uint32_t page_positions : {1u, 4u, 16u})
        EXPECT_TRUE(
            same_bytes(told({key, value, width, 1300, page_positions}, 1, nullptr), expected))
            << key << ", " << value << ", pages of " << page_positions;
      EXPECT_TRUE(same_bytes(told(story, 3, nullptr), expected)) << key << ", " << value;
    }
}

}  // namespace
}  // namespace cairn
