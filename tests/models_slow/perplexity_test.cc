// What the real models make of a long text under each scheme, against figures recorded when nothing
// was known to be wrong: a change of an encoding, of attention or of a model that costs quality
// moves them. The matrix library's products differ a little between processors, hence tolerances.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "cairn/runtime/fidelity.h"
#include "tests/support/must.h"

namespace cairn::testing {
namespace {

constexpr const char* kText = "/usr/share/common-licenses/GPL-3";  // of every Debian
constexpr size_t kTokens = 4000;

struct Recorded {
  std::string scheme;
  double perplexity;
  double kl_mean;
};

struct RealModel {
  std::string name;
  std::string path;
  double perplexity;  // from a state in f32
  std::vector<Recorded> schemes;
};

std::vector<int32_t> tokens_of(const Tokenizer& tokenizer) {
  std::ifstream in(kText, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  std::vector<int32_t> tokens = tokenizer.encode(text, Specials::AsText);
  EXPECT_GE(tokens.size(), kTokens) << kText;
  tokens.resize(kTokens);
  return tokens;
}

class Perplexity : public ::testing::TestWithParam<RealModel> {};

TEST_P(Perplexity, StaysAsRecorded) {
  const RealModel& expected = GetParam();
  const auto model = must(load_model(expected.path, {.threads = 2}));
  const std::vector<int32_t> tokens = tokens_of(*model->tokenizer());
  std::vector<std::string> schemes;
  for (const Recorded& recorded : expected.schemes) schemes.push_back(recorded.scheme);
  FidelityOptions how{.context = kTokens, .drift_tokens = 0};
  if (model->tokenizer()->adds_bos()) how.bos = model->tokenizer()->bos();
  const Fidelity measured = must(measure_fidelity(*model, tokens, schemes, how));
  EXPECT_NEAR(measured.perplexity, expected.perplexity, expected.perplexity * 0.01);
  ASSERT_EQ(measured.schemes.size(), expected.schemes.size());
  for (size_t i = 0; i < schemes.size(); ++i) {
    const SchemeFidelity& got = measured.schemes[i];
    const Recorded& recorded = expected.schemes[i];
    SCOPED_TRACE(fmt::format("{}: perplexity {:.4f}, mean KL {:.5f}", got.scheme, got.perplexity,
                             got.kl_mean));
    EXPECT_NEAR(got.perplexity, recorded.perplexity, recorded.perplexity * 0.02);
    EXPECT_LT(got.kl_mean, recorded.kl_mean * 1.3);
    EXPECT_GT(got.kl_mean, recorded.kl_mean / 1.3);
  }
}

INSTANTIATE_TEST_SUITE_P(Real,
                         Perplexity,
                         ::testing::Values(RealModel{"smollm2",
                                                     "models/smollm2.gguf",
                                                     17.893,
                                                     {{"f16", 17.885, 0.0039},
                                                      {"affine8", 17.899, 0.0048},
                                                      {"affine4", 21.290, 0.174},
                                                      {"turbo-k8v3", 18.243, 0.0336}}},
                                           RealModel{"gemma3",
                                                     "models/gemma3.gguf",
                                                     14.319,
                                                     {{"f16", 14.338, 0.0065},
                                                      {"affine8", 14.375, 0.0088},
                                                      {"affine4", 18.408, 0.262},
                                                      {"turbo-k8v3", 14.768, 0.0325}}}),
                         [](const auto& model) { return model.param.name; });

}  // namespace
}  // namespace cairn::testing
