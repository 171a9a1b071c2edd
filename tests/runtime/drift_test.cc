// Where answers under a scheme leave those of f32, against answers that were really generated.
#include "cairn/runtime/drift.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "cairn/runtime/generate.h"
#include "tests/support/must.h"
#include "tests/support/token_state.h"

namespace cairn {
namespace {

using namespace cairn::testing;
using ::testing::Optional;

struct Setting {
  const char* model;
  const char* scheme;
};

class DriftTest : public ::testing::TestWithParam<Setting> {
 protected:
  static constexpr uint32_t kTokens = 40;

  DriftTest() {
    Random random(2);
    for (const size_t length : {1, 20, 63, 64, 90, 120, 33, 7})
      prompts_.push_back(random_tokens(random, length, 300));
  }
  Session open(const char* scheme) {
    return must(open_session(model_->spec(), must(parse_scheme(scheme)), memory_));
  }
  TokenLists generated(const char* scheme) {
    Session session = open(scheme);
    TokenLists all;
    for (const Tokens& prompt : prompts_) {
      Conversation conversation{session.start(), prompt};
      Sampler sampler = must(make_sampler({}));
      all.push_back(
          must(generate(*model_, session, conversation, sampler, {.max_tokens = kTokens})).tokens);
    }
    return all;
  }

  Memory memory_;
  std::unique_ptr<Model> model_ = must(load_model(
      std::string("tests/oracles/") + GetParam().model + ".safetensors", {.threads = 1}));
  TokenLists prompts_;
};

INSTANTIATE_TEST_SUITE_P(Models,
                         DriftTest,
                         ::testing::Values(Setting{"llama", "affine2-g32"},
                                           Setting{"llama", "affine4-g32-after70"},
                                           Setting{"gemma3", "affine2-g32"},
                                           Setting{"glm_moe_dsa", "affine2-g32"},
                                           Setting{"qwen3_next", "affine2-g32-keep16"}),
                         [](const auto& setting) {
                           std::string name =
                               std::string(setting.param.model) + setting.param.scheme;
                           std::erase_if(name, [](char c) {
                             return !std::isalnum(static_cast<unsigned char>(c));
                           });
                           return name;
                         });

TEST_P(DriftTest, TheBatchOfAnswersIsThatOfPlainDecoding) {
  Session session = open("f32");
  EXPECT_EQ(must(greedy_answers(*model_, session, prompts_, {.tokens = kTokens})),
            generated("f32"));
  EXPECT_EQ(session.use().sequences, 0u);
}

TEST_P(DriftTest, ADifferenceIsWhereGeneratedAnswersDiffer) {
  const TokenLists answers = generated("f32"), others = generated(GetParam().scheme);
  Session session = open(GetParam().scheme);
  const auto differences = must(first_differences(*model_, session, prompts_, answers));
  EXPECT_EQ(session.use().sequences, 0u);
  ASSERT_EQ(differences.size(), prompts_.size());
  size_t different = 0;
  for (size_t i = 0; i < prompts_.size(); ++i) {
    const auto [at, other] = std::ranges::mismatch(answers[i], others[i]);
    if (at == answers[i].end()) {
      EXPECT_EQ(differences[i], std::nullopt) << i;
    } else {
      EXPECT_THAT(differences[i], Optional(at - answers[i].begin() + 1)) << i;
      ++different;
    }
  }
  EXPECT_GT(different, 2u) << "the scheme is to be coarse enough for the test";
}

TEST_P(DriftTest, AnswersEndWithTheTokenThatEndsThem) {
  Session session = open("f32");
  const TokenLists whole = generated("f32");
  const std::set<int32_t> endings = {whole[0][3], whole[2][9], whole[5][0]};
  const TokenLists answers = must(greedy_answers(
      *model_, session, prompts_,
      {.tokens = kTokens, .ends = [&](int32_t token) { return endings.contains(token); }}));
  for (size_t i = 0; i < answers.size(); ++i) {
    Tokens expected;
    for (const int32_t token : whole[i]) {
      expected.push_back(token);
      if (endings.contains(token)) break;
    }
    EXPECT_EQ(answers[i], expected) << i;
  }
  EXPECT_EQ(session.use().sequences, 0u);
}

TEST(Drift, TheMedianCountsAnswersThatNeverDifferAsTheLatest) {
  constexpr FirstDifference kNever;
  EXPECT_EQ(drift_of({9, 3, 5}).median, 5u);
  EXPECT_EQ(drift_of({9, 3, 5}).never, 0);
  EXPECT_EQ(drift_of({kNever, 3, kNever, 5}).median, 5u);
  EXPECT_EQ(drift_of({kNever, 3, kNever, 5}).never, 0.5);
  EXPECT_EQ(drift_of({kNever, 3, kNever}).median, kNever);
}

}  // namespace
}  // namespace cairn
