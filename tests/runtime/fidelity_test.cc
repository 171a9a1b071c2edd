#include "cairn/runtime/fidelity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "tests/support/must.h"
#include "tests/support/token_state.h"

namespace cairn {
namespace {

using namespace cairn::testing;
using ::testing::HasSubstr;

class FidelityTest : public ::testing::Test {
 protected:
  Fidelity measure(const std::vector<std::string>& schemes,
                   FidelityOptions options = {.context = 350}) {
    return must(measure_fidelity(*model_, tokens_, schemes, options));
  }
  void expect_error(const std::vector<std::string>& schemes,
                    const Tokens& tokens,
                    FidelityOptions options,
                    const char* text) {
    const auto measured = measure_fidelity(*model_, tokens, schemes, options);
    ASSERT_FALSE(measured.has_value()) << text;
    EXPECT_EQ(measured.error().code, Code::BadInput);
    EXPECT_THAT(measured.error().message, HasSubstr(text));
  }

  Random random_{1};
  const Tokens tokens_ = random_tokens(random_, 700, 300);
  std::unique_ptr<Model> model_ =
      must(load_model("tests/oracles/llama.safetensors", {.threads = 1}));
};

TEST_F(FidelityTest, OfF32IsExact) {
  const Fidelity measured = measure({"f32"});
  EXPECT_EQ(measured.schemes[0].kl_mean, 0);
  EXPECT_EQ(measured.schemes[0].kl_high, 0);
  EXPECT_EQ(measured.schemes[0].kl_p999, 0);
  EXPECT_EQ(measured.schemes[0].top1, 1);
  EXPECT_EQ(measured.schemes[0].bits_per_number, 32);
  EXPECT_EQ(measured.schemes[0].perplexity, measured.perplexity);
  EXPECT_EQ(measured.schemes[0].attention_error, 0);
  ASSERT_TRUE(measured.schemes[0].drift);
  EXPECT_EQ(measured.schemes[0].drift->median, std::nullopt);
  EXPECT_EQ(measured.schemes[0].drift->never, 1);
}

TEST_F(FidelityTest, FallsWithTheBits) {
  const Fidelity measured = measure({"affine2-g32", "affine4-g32", "affine8-g32", "f16"});
  for (size_t i = 0; i + 1 < measured.schemes.size(); ++i) {
    const SchemeFidelity &few = measured.schemes[i], &more = measured.schemes[i + 1];
    EXPECT_LT(few.bits_per_number, more.bits_per_number);
    EXPECT_GT(few.kl_mean, more.kl_mean);
    EXPECT_GT(few.attention_error, more.attention_error);
    EXPECT_LE(few.drift->never, more.drift->never);
    EXPECT_GE(few.kl_p999, few.kl_mean);
    EXPECT_LE(few.kl_low, few.kl_mean);
    EXPECT_GE(few.kl_high, few.kl_mean);
  }
  EXPECT_EQ(measured.schemes[3].bits_per_number, 16);
  EXPECT_EQ(measured.schemes[2].bits_per_number, 9)
      << "a scale and a bias of 16 bits for 32 numbers";
}

TEST_F(FidelityTest, TheStepChangesNoFigure) {
  const Fidelity a = measure({"affine4-g32"}, {.context = 300, .step = 256});
  const Fidelity b = measure({"affine4-g32"}, {.context = 300, .step = 7});
  EXPECT_EQ(a.schemes[0].kl_mean, b.schemes[0].kl_mean);
  EXPECT_EQ(a.schemes[0].perplexity, b.schemes[0].perplexity);
  EXPECT_EQ(a.schemes[0].attention_error, b.schemes[0].attention_error);
  EXPECT_EQ(a.perplexity, b.perplexity);
  EXPECT_EQ(a.schemes[0].tokens, 700u - 3) << "each of the three sequences predicts all but one";
}

// The perplexity from the model's own logits, all at once.
TEST_F(FidelityTest, PerplexityIsThatOfTheText) {
  Memory memory;
  Session session = must(open_session(model_->spec(), must(parse_scheme("f32")), memory));
  double sum = 0;
  for (const size_t begin : {0, 350}) {  // two sequences
    const Tokens tokens(tokens_.begin() + static_cast<ptrdiff_t>(begin),
                        tokens_.begin() + static_cast<ptrdiff_t>(begin + 350));
    std::vector<uint32_t> wanted(tokens.size());
    std::iota(wanted.begin(), wanted.end(), 0);
    std::vector<float> logits(wanted.size() * model_->vocabulary());
    Step step = must(session.plan({{.seq = session.start(), .count = tokens.size()}}));
    must(model_->forward(step, tokens, wanted, logits.data()));
    step.commit();
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      const float* row = logits.data() + i * model_->vocabulary();
      double total = 0;
      for (uint32_t j = 0; j < model_->vocabulary(); ++j)
        total += std::exp(static_cast<double>(row[j]));
      sum += std::log(total) - static_cast<double>(row[tokens[i + 1]]);
    }
  }
  const double expected = std::exp(sum / static_cast<double>(tokens_.size() - 2));
  EXPECT_NEAR(measure({"f16"}).perplexity / expected, 1, 1e-6);
}

TEST_F(FidelityTest, RecommendsTheFewestBitsThatAreNearEnough) {
  const auto scheme = [](double bits, double kl) {
    return SchemeFidelity{
        .kl_mean = kl, .kl_low = kl / 2, .kl_high = kl * 2, .bits_per_number = bits};
  };
  const std::vector<SchemeFidelity> schemes = {scheme(16, 0.0001), scheme(8, 0.001),
                                               scheme(4, 0.1)};
  EXPECT_EQ(recommend(schemes, 0.01), 1u);
  EXPECT_EQ(recommend(schemes, 0.001), 0u) << "the interval counts, not the mean";
  EXPECT_EQ(recommend(schemes, 1), 2u);
  EXPECT_EQ(recommend(schemes, 0.00001), std::nullopt);
}

// What recurrent layers remember is exact under every scheme, and part of the state.
TEST_F(FidelityTest, OfAModelWithRecurrentLayersCountsTheirTensorsToo) {
  model_ = must(load_model("tests/oracles/qwen3_next.safetensors", {.threads = 1}));
  const Fidelity measured = measure({"f32", "f16", "affine4-g32"});
  EXPECT_EQ(measured.schemes[0].kl_high, 0);
  EXPECT_EQ(measured.schemes[0].bits_per_number, 32);
  EXPECT_GT(measured.schemes[1].kl_mean, 0);
  EXPECT_GT(measured.schemes[2].kl_mean, measured.schemes[1].kl_mean);
  EXPECT_GT(measured.schemes[1].bits_per_number, 16);
  EXPECT_LT(measured.schemes[2].bits_per_number, measured.schemes[1].bits_per_number);
  EXPECT_EQ(measured.schemes[2].kl_mean,
            measure({"affine4-g32"}, {.context = 350, .step = 7}).schemes[0].kl_mean);
}

TEST_F(FidelityTest, DriftIsThatOfAnswersToPiecesOfTheText) {
  const Fidelity measured = measure(
      {"affine2-g32"}, {.context = 350, .prompts = 3, .prompt_tokens = 40, .drift_tokens = 30});
  Memory memory;
  Session reference = must(open_session(model_->spec(), must(parse_scheme("f32")), memory));
  Session session = must(open_session(model_->spec(), must(parse_scheme("affine2-g32")), memory));
  TokenLists prompts;
  for (const ptrdiff_t begin : {0, 220, 440})
    prompts.emplace_back(tokens_.begin() + begin, tokens_.begin() + begin + 40);
  const auto answers = must(greedy_answers(*model_, reference, prompts, {.tokens = 30}));
  const Drift drift = drift_of(must(first_differences(*model_, session, prompts, answers)));
  EXPECT_EQ(measured.schemes[0].drift->median, drift.median);
  EXPECT_EQ(measured.schemes[0].drift->never, drift.never);
  EXPECT_FALSE(measure({"f16"}, {.context = 350, .drift_tokens = 0}).schemes[0].drift);
}

TEST_F(FidelityTest, SaysWhatIsWrong) {
  expect_error({"affine9"}, tokens_, {.context = 350}, "affine9");
  expect_error({"affine8-g32"}, first(tokens_, 100), {.context = 350}, "100");
  expect_error({"f16"}, tokens_, {}, "1024 positions, expected 2 to 512");
  expect_error({"f16"}, tokens_, {.context = 350, .drift_tokens = 500},
               "64 tokens with answers of 500, expected at most 512");
  Tokens strange = tokens_;
  strange[3] = 1'000'000;
  expect_error({"f16"}, strange, {.context = 350}, "1000000");
}

}  // namespace
}  // namespace cairn
