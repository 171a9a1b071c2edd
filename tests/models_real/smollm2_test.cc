// SmolLM2-135M against a float32 forward of an independent implementation over the expanded
// weights, f32 state.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "tests/models/oracle_file.h"
#include "tests/models/passes.h"

namespace cairn {
namespace {

using testing::must;
using testing::OracleFile;
using testing::Passes;
using testing::Tokens;

constexpr const char* kModel = "models/smollm2.gguf";
constexpr const char* kOracle = "tests/oracles/real/smollm2.safetensors";
constexpr const char* kTexts[] = {"short", "code", "chat", "mixed", "gpl3_4000"};
constexpr size_t kListed = 32;    // tokens per position whose logits the oracle lists, best first
constexpr float kMargin = 0.02f;  // between the oracle's first and second: below it either may win
constexpr float kTolerance = 0.02f;

// What one text's oracle says, and how our logits compare.
struct Comparison {
  size_t compared = 0;
  size_t wrong_tops = 0;  // where the margin decides
  double worst = 0;       // of the listed logits
  double sum = 0;         // of |difference| over the listed logits
  double mean() const { return sum / static_cast<double>(compared); }
};

size_t best_of(std::span<const float> row) {
  return static_cast<size_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

Comparison compare(OracleFile& oracle,
                   const std::string& text,
                   std::span<const float> logits,
                   size_t vocabulary) {
  const auto ids = oracle.ids(text + ".top_ids");
  const auto expected = oracle.floats(text + ".top_logits");
  Comparison result;
  for (size_t position = 0; position * vocabulary < logits.size(); ++position) {
    const auto row = logits.subspan(position * vocabulary, vocabulary);
    const size_t first = position * kListed;
    if (expected[first] - expected[first + 1] > kMargin &&
        best_of(row) != static_cast<size_t>(ids[first]))
      ++result.wrong_tops;
    for (size_t i = first; i < first + kListed; ++i, ++result.compared) {
      const double difference =
          std::fabs(double{row[static_cast<size_t>(ids[i])]} - double{expected[i]});
      result.worst = std::max(result.worst, difference);
      result.sum += difference;
    }
  }
  return result;
}

// Mean over positions of -log p(next token).
double mean_nll(std::span<const float> logits, const std::vector<int32_t>& ids, size_t vocabulary) {
  double sum = 0;
  for (size_t position = 0; position + 1 < ids.size(); ++position) {
    const auto row = logits.subspan(position * vocabulary, vocabulary);
    const double best = row[best_of(row)];
    double total = 0;
    for (const float logit : row) total += std::exp(logit - best);
    sum += best + std::log(total) - row[static_cast<size_t>(ids[position + 1])];
  }
  return sum / static_cast<double>(ids.size() - 1);
}

// The most likely tokens after a text, one by one.
std::vector<int32_t> greedy(Passes& passes,
                            SeqId seq,
                            std::span<const float> last_row,
                            size_t count) {
  std::vector<int32_t> tokens{static_cast<int32_t>(best_of(last_row))};
  while (tokens.size() < count) {
    const auto logits = passes.run(seq, Tokens(tokens).last(1));
    tokens.push_back(static_cast<int32_t>(best_of(logits)));
  }
  return tokens;
}

class SmolLm2 : public ::testing::TestWithParam<const char*> {
 protected:
  // One model for the whole program: expanded it takes 540 MB.
  static Model& model(Expand expand) {
    static std::unique_ptr<Model> models[2];
    auto& chosen = models[expand == Expand::f32];
    if (!chosen)
      chosen = must(load_model(kModel, {.threads = 2, .expand = expand, .cache_folder = {}}));
    return *chosen;
  }
};

INSTANTIATE_TEST_SUITE_P(Texts, SmolLm2, ::testing::ValuesIn(kTexts), [](const auto& text) {
  return std::string(text.param);
});

TEST_P(SmolLm2, ExpandedToF32GivesTheOraclesLogitsAndWords) {
  OracleFile oracle(kOracle);
  Passes passes(model(Expand::f32), "f32");
  const std::string text = GetParam();
  const SeqId seq = passes.start();
  const std::vector<float> logits = passes.run(seq, oracle.ids(text + ".ids"));
  const Comparison result = compare(oracle, text, logits, passes.vocabulary());
  RecordProperty("worst_difference", std::to_string(result.worst));
  EXPECT_EQ(result.wrong_tops, 0u);
  EXPECT_LT(result.worst, kTolerance);
  const auto expected = oracle.ids(text + ".greedy");
  EXPECT_EQ(greedy(passes, seq, std::span(logits).last(passes.vocabulary()), expected.size()),
            expected);
}

TEST_P(SmolLm2, ItsOwnQuantizedWeightsStayNearTheOracle) {
  OracleFile oracle(kOracle);
  Passes passes(model(Expand::no), "f32");
  const std::string text = GetParam();
  const std::vector<int32_t> ids = oracle.ids(text + ".ids");
  const std::vector<float> logits = passes.run(passes.start(), ids);
  const Comparison result = compare(oracle, text, logits, passes.vocabulary());
  const double nll = mean_nll(logits, ids, passes.vocabulary()),
               expected_nll = oracle.floats(text + ".mean_nll")[0];
  RecordProperty("mean_difference", std::to_string(result.mean()));
  RecordProperty("mean_nll", std::to_string(nll));
  RecordProperty("expected_nll", std::to_string(expected_nll));
  // ggml quantizes the activations to 8 bits, which moves single logits by tenths and what the
  // model knows by hundredths.
  EXPECT_LT(result.mean(), 0.4) << "worst " << result.worst;
  EXPECT_NEAR(nll, expected_nll, 0.05);
}

}  // namespace
}  // namespace cairn
