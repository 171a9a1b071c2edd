// SmolLM2-135M against a float32 forward of an independent implementation over the expanded
// weights, f32 state.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/models/real_oracle.h"

namespace cairn {
namespace {

using testing::Comparison;
using testing::must;
using testing::Passes;
using testing::RealOracle;

constexpr const char* kModel = "models/smollm2.gguf";
constexpr const char* kOracle = "tests/oracles/real/smollm2.safetensors";
constexpr float kTolerance = 0.02f;

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
  RealOracle oracle_{kOracle, GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Texts,
                         SmolLm2,
                         ::testing::ValuesIn(testing::kRealTexts),
                         [](const auto& text) { return std::string(text.param); });

TEST_P(SmolLm2, ExpandedToF32GivesTheOraclesLogitsAndWords) {
  Passes passes(model(Expand::f32), "f32");
  const SeqId seq = passes.start();
  const Comparison result = oracle_.compare(passes, seq);
  RecordProperty("worst_difference", std::to_string(result.worst));
  EXPECT_EQ(result.wrong_tops, 0u);
  EXPECT_LT(result.worst, kTolerance);
  EXPECT_EQ(oracle_.continuation(passes, seq, result.last_row), oracle_.greedy());
}

TEST_P(SmolLm2, ItsOwnQuantizedWeightsStayNearTheOracle) {
  Passes passes(model(Expand::no), "f32");
  const Comparison result = oracle_.compare(passes, passes.start());
  RecordProperty("mean_difference", std::to_string(result.mean()));
  RecordProperty("mean_nll", std::to_string(result.nll));
  RecordProperty("expected_nll", std::to_string(oracle_.nll()));
  // ggml quantizes the activations to 8 bits, which moves single logits by tenths and what the
  // model knows by hundredths.
  EXPECT_LT(result.mean(), 0.4) << "worst " << result.worst;
  EXPECT_NEAR(result.nll, oracle_.nll(), 0.05);
}

}  // namespace
}  // namespace cairn
