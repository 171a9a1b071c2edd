// Drafts change no token and leave no trace: against plain decoding with the tiny oracles.
#include "cairn/runtime/speculate.h"

#include <gtest/gtest.h>

#include <numeric>

#include "cairn/runtime/sampler.h"
#include "tests/runtime/plain_way.h"

namespace cairn {
namespace {

using namespace cairn::testing;

struct Setting {
  const char* model;
  const char* scheme;
};

class Speculation : public ::testing::TestWithParam<Setting> {
 protected:
  static constexpr uint64_t kTokens = 48;

  // Texts that repeat themselves with several periods, and one that does not.
  static std::vector<Tokens> prompts() {
    std::vector<Tokens> all;
    Random random(1);
    for (const size_t period : {1, 2, 5, 17, 40, 1000}) {
      const Tokens part = random_tokens(random, period, 300);
      Tokens prompt;
      while (prompt.size() < 80) prompt.push_back(part[prompt.size() % period]);
      all.push_back(std::move(prompt));
    }
    return all;
  }

  Generated answer(Conversation& conversation,
                   const SamplingOptions& sampling,
                   Drafter* drafter,
                   const std::function<void()>& after_step = {}) {
    Sampler sampler = must(make_sampler(sampling));
    return must(generate(
        *model_, session_, conversation, sampler,
        {.max_tokens = kTokens, .after_step = after_step, .drafter = drafter, .most_drafts = 6}));
  }

  Memory memory_;
  std::unique_ptr<Model> model_ = must(load_model(GetParam().model, {.threads = 1}));
  Session session_ =
      must(open_session(model_->spec(), must(parse_scheme(GetParam().scheme)), memory_));
};

// Proposes what it was told will come, or something else.
class Told final : public Drafter {
 public:
  Told(Tokens whole, int32_t offset) : whole_(std::move(whole)), offset_(offset) {}
  std::vector<int32_t> propose(const Conversation& conversation, uint32_t most) override {
    std::vector<int32_t> drafts;
    for (size_t i = conversation.tokens.size(); i < whole_.size() && drafts.size() < most; ++i)
      drafts.push_back(offset_ == 0 ? whole_[i] : (whole_[i] + offset_) % 300);
    return drafts;
  }

 private:
  Tokens whole_;
  int32_t offset_;
};

TEST_P(Speculation, GivesTheTokensAndTheStateOfPlainDecoding) {
  for (const SamplingOptions& sampling :
       {SamplingOptions{}, SamplingOptions{.temperature = 0.7F, .seed = 3}}) {
    for (const Tokens& prompt : prompts()) {
      Conversation plain{session_.start(), prompt};
      const Generated expected = answer(plain, sampling, nullptr);
      PromptLookup lookup;
      Told truth(plain.tokens, 0), lies(plain.tokens, 7);
      for (Drafter* drafter : {static_cast<Drafter*>(&lookup), static_cast<Drafter*>(&truth),
                               static_cast<Drafter*>(&lies)}) {
        Conversation drafted{session_.start(), prompt};
        const Generated result = answer(drafted, sampling, drafter, [&] {
          const Pos length = session_.length(drafted.seq);
          ASSERT_GE(drafted.tokens.size(), length);
          ASSERT_LE(drafted.tokens.size(), std::max<size_t>(length + 1, prompt.size()));
        });
        EXPECT_EQ(result.tokens, expected.tokens);
        EXPECT_EQ(drafted.tokens, plain.tokens);
        EXPECT_EQ(result.finish, expected.finish);
        EXPECT_EQ(difference(session_, drafted.seq, session_, plain.seq), std::nullopt);
        if (drafter == &truth) {
          EXPECT_EQ(result.stats.accepted, result.stats.drafted);
          EXPECT_LT(result.stats.rounds, kTokens / 3);
        }
        if (drafter == &lies) {
          EXPECT_EQ(result.stats.accepted, 0u);
          EXPECT_GT(result.stats.drafted, 0u);
        }
        session_.drop(drafted.seq);
      }
      session_.drop(plain.seq);
    }
  }
}

// Right for a while, which changes from round to round, and then wrong.
class HalfTrue final : public Drafter {
 public:
  explicit HalfTrue(Tokens whole) : whole_(std::move(whole)) {}
  std::vector<int32_t> propose(const Conversation& conversation, uint32_t most) override {
    std::vector<int32_t> drafts = Told(whole_, 0).propose(conversation, most);
    const size_t right = rounds_++ % 4;
    if (right < drafts.size()) drafts[right] = (drafts[right] + 1) % 300;
    return drafts;
  }

 private:
  Tokens whole_;
  size_t rounds_ = 0;
};

TEST_P(Speculation, AfterEveryRoundOf32AnswersHoldsAndSaysWhatPlainDecodingDoes) {
  uint64_t looked_up = 0, right = 0, wrong = 0;
  size_t index = 0;
  for (Tokens prompt : assorted_prompts()) {
    if (index++ % 2 == 1) {  // what followed the text is there to be looked up
      Conversation before{session_.start(), prompt};
      prompt = joined(prompt, joined(answer(before, {}, nullptr).tokens, prompt));
      session_.drop(before.seq);
    }
    PlainWay way(*model_, session_);
    Conversation plain{session_.start(), prompt};
    answer(plain, {}, nullptr, [&] { way.remember(plain.seq); });
    const auto stats_of = [&](Drafter& drafter) {
      Conversation drafted{session_.start(), prompt};
      const Generated result = answer(drafted, {}, &drafter, [&] { way.expect_same(drafted.seq); });
      EXPECT_EQ(drafted.tokens, plain.tokens);
      session_.drop(drafted.seq);
      return result.stats;
    };
    PromptLookup lookup;
    looked_up += stats_of(lookup).drafted;
    HalfTrue half_true(plain.tokens);
    const GenerateStats stats = stats_of(half_true);
    right += stats.accepted;
    wrong += stats.drafted - stats.accepted;
    session_.drop(plain.seq);
  }
  EXPECT_GT(looked_up, 10u);
  EXPECT_GT(right, 300u);
  EXPECT_GT(wrong, 300u);
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    Speculation,
    ::testing::Values(Setting{"tests/oracles/llama.safetensors", "f16"},
                      Setting{"tests/oracles/llama.safetensors", "affine8-g32"},
                      Setting{"tests/oracles/llama.safetensors", "affine4-g32-after96"},
                      Setting{"tests/oracles/gemma3.safetensors", "f32"},
                      Setting{"tests/oracles/deepseek_v3.safetensors", "f32"},
                      Setting{"tests/oracles/glm_moe_dsa.safetensors", "f32"},
                      Setting{"tests/oracles/glm_moe_dsa.safetensors", "turbo-k8v3"},
                      Setting{"tests/oracles/qwen3_next.safetensors", "f32"},
                      Setting{"tests/oracles/qwen3_next.safetensors", "turbo-k8v3"}),
    [](const auto& setting) {
      std::string name = std::string(setting.param.model).substr(14) + setting.param.scheme;
      std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
      return name;
    });

TEST(PromptLookup, ProposesWhatFollowedTheLongestAgreement) {
  Conversation conversation;
  conversation.tokens = {1, 2, 3, 4, 50, 51, 9, 2, 3, 4, 60, 61, 1, 2, 3, 4};
  PromptLookup lookup;
  EXPECT_EQ(lookup.propose(conversation, 2), (Tokens{50, 51}));
  conversation.tokens.insert(conversation.tokens.end(), {70, 9, 2, 3, 4});
  EXPECT_EQ(lookup.propose(conversation, 3), (Tokens{60, 61, 1}));
}

TEST(PromptLookup, GoesOnPastTheEndOfATextThatRepeatsItself) {
  Conversation conversation;
  conversation.tokens = {7, 8, 7, 8, 7, 8};
  EXPECT_EQ(PromptLookup().propose(conversation, 5), (Tokens{7, 8, 7, 8, 7}));
}

TEST(PromptLookup, ProposesNothingWhereNothingRepeats) {
  Conversation conversation;
  EXPECT_TRUE(PromptLookup().propose(conversation, 5).empty());
  conversation.tokens.resize(200);
  std::iota(conversation.tokens.begin(), conversation.tokens.end(), 0);
  EXPECT_TRUE(PromptLookup().propose(conversation, 5).empty());
}

}  // namespace
}  // namespace cairn
