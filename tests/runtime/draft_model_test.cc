// Drafts of a smaller model change no token, no logit and no state, and its own state is one that
// never saw what was rejected. The tiny oracles share a vocabulary, so each can draft for any.
#include "cairn/runtime/draft_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tests/runtime/plain_way.h"

namespace cairn {
namespace {

using namespace cairn::testing;

std::string oracle(const std::string& name) { return "tests/oracles/" + name + ".safetensors"; }

struct Setting {
  const char* name;
  const char* model;
  const char* scheme;
  const char* small;
  const char* small_scheme;
  double least, most;  // of the drafts, that are accepted when greedy
};

constexpr Setting kSettings[] = {
    {"llama_itself", "llama", "f32", "llama", "f32", 1, 1},
    {"llama_other", "llama", "f32", "qwen3_next", "f32", 0, 0.3},
    {"llama_f16_f32", "llama", "f16", "llama", "f32", 0.9, 1},
    {"llama_after", "llama", "affine4-g32-after96", "llama", "turbo-k8v4", 0.2, 1},
    {"gemma_itself", "gemma3", "f32", "gemma3", "f32", 1, 1},
    {"gemma_other", "gemma3", "f32", "qwen3_next", "f32", 0, 0.3},
    {"gemma_f32_f16", "gemma3", "f32", "gemma3", "f16", 0.9, 1},
    {"deepseek_other", "deepseek_v3", "f32", "llama", "f32", 0, 0.3},
    {"deepseek_f16_f32", "deepseek_v3", "f16", "deepseek_v3", "f32", 0.9, 1},
    {"glm_itself", "glm_moe_dsa", "f32", "glm_moe_dsa", "f32", 1, 1},
    {"glm_other", "glm_moe_dsa", "turbo-k8v3", "gemma3", "f32", 0, 0.3},
    {"hybrid_itself", "qwen3_next", "f32", "qwen3_next", "f32", 1, 1},
    {"hybrid_other", "qwen3_next", "f32", "llama", "f32", 0, 0.3},
    {"hybrid_f16_f32", "qwen3_next", "f16", "qwen3_next", "f32", 0.9, 1},
};

// A target, its session, and how it is asked.
class AskedModel {
 protected:
  static constexpr uint64_t kTokens = 40;

  AskedModel(const char* model, const char* scheme) : model_(must(load_model(oracle(model), {}))) {
    session_.emplace(must(open_session(model_->spec(), must(parse_scheme(scheme)), memory_)));
  }

  std::unique_ptr<DraftModel> drafter(const char* small, const char* scheme, Memory& memory) {
    small_ = must(load_model(oracle(small), {.beside = model_.get()}));
    return must(DraftModel::make(*small_, *model_, memory, must(parse_scheme(scheme)), sampler_));
  }

  Generated answer(Conversation& conversation,
                   Drafter* drafter,
                   const std::function<void()>& after_step = {},
                   uint64_t tokens = kTokens) {
    sampler_.resume({.seed = sampler_.state().seed, .draws = conversation.tokens.size()});
    return must(generate(
        *model_, *session_, conversation, sampler_,
        {.max_tokens = tokens, .after_step = after_step, .drafter = drafter, .most_drafts = 5}));
  }

  Memory memory_;
  std::optional<Memory> limited_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Model> small_;  // of the newest drafter
  std::optional<Session> session_;
  Sampler sampler_ = must(make_sampler({}));
};

class DraftModels : public AskedModel, public ::testing::TestWithParam<Setting> {
 protected:
  DraftModels() : AskedModel(GetParam().model, GetParam().scheme) {}
  std::unique_ptr<DraftModel> drafter() {
    return AskedModel::drafter(GetParam().small, GetParam().small_scheme, memory_);
  }

  // The drafter's state is that of one pass over what it holds.
  static void expect_state_of(const DraftModel& drafter, const Tokens& tokens) {
    const Pos length = drafter.session().length(drafter.seq());
    ASSERT_LE(length, tokens.size());
    Memory memory;
    const auto small = must(load_model(oracle(GetParam().small), {}));
    Session session = must(open_session(small->spec(), drafter.session().scheme(), memory));
    const SeqId seq = session.start();
    Step step = must(session.plan({{.seq = seq, .count = length}}));
    must(small->forward(step, std::span(tokens).first(length), {}, nullptr));
    step.commit();
    EXPECT_EQ(difference(drafter.session(), drafter.seq(), session, seq), std::nullopt);
  }
};

INSTANTIATE_TEST_SUITE_P(Models,
                         DraftModels,
                         ::testing::ValuesIn(kSettings),
                         [](const auto& setting) { return std::string(setting.param.name); });

TEST_P(DraftModels, GiveTheTokensTheLogitsAndTheStateOfPlainDecoding) {
  uint64_t drafted_tokens = 0, accepted_tokens = 0;
  for (const Tokens& prompt : assorted_prompts()) {
    PlainWay way(*model_, *session_);
    Conversation plain{session_->start(), prompt};
    const Generated expected = answer(plain, nullptr, [&] { way.remember(plain.seq); });

    Conversation drafted{session_->start(), prompt};
    const auto small = drafter();
    const Generated result = answer(drafted, small.get(), [&] { way.expect_same(drafted.seq); });
    EXPECT_EQ(result.tokens, expected.tokens);
    EXPECT_EQ(drafted.tokens, plain.tokens);
    EXPECT_EQ(result.finish, expected.finish);
    EXPECT_EQ(difference(*session_, drafted.seq, *session_, plain.seq), std::nullopt);
    expect_state_of(*small, drafted.tokens);
    EXPECT_EQ(small->session().use().sequences, 1u) << "no fork is left";
    drafted_tokens += result.stats.drafted;
    accepted_tokens += result.stats.accepted;
    session_->drop(plain.seq);
    session_->drop(drafted.seq);
  }
  ASSERT_GT(drafted_tokens, 100u);
  const auto rate = static_cast<double>(accepted_tokens) / static_cast<double>(drafted_tokens);
  EXPECT_GE(rate, GetParam().least);
  EXPECT_LE(rate, GetParam().most);
}

// Every option of the sampler; the small model's choice has the same draws.
TEST_P(DraftModels, GiveTheTokensOfPlainSampling) {
  const SamplingOptions all[] = {
      {.temperature = 0.7F, .seed = 3},
      {.temperature = 1.3F, .top_k = 20, .repetition_penalty = 1.2F, .seed = 4},
      {.temperature = 1, .top_p = 0.8F, .min_p = 0.01F, .seed = 5}};
  for (const SamplingOptions& sampling : all) {
    sampler_ = must(make_sampler(sampling));
    const Tokens prompt = assorted_prompts()[20];
    Conversation plain{session_->start(), prompt}, drafted{session_->start(), prompt};
    answer(plain, nullptr);
    const auto small = drafter();
    const Generated result = answer(drafted, small.get());
    EXPECT_EQ(drafted.tokens, plain.tokens);
    EXPECT_EQ(difference(*session_, drafted.seq, *session_, plain.seq), std::nullopt);
    EXPECT_GT(result.stats.drafted, 0u);
    if (GetParam().least == 1) {
      EXPECT_EQ(result.stats.accepted, result.stats.drafted);
    }
  }
}

// Another answer, one to a text that was taken back and said otherwise, and one drafter for two
// branches by turns.
TEST_P(DraftModels, FollowAConversationThatGoesOnAndBackAndBranches) {
  const Tokens prompt = assorted_prompts()[25];
  Conversation plain{session_->start(), prompt}, drafted{session_->start(), prompt};
  const auto small = drafter();
  const auto both_answer = [&](Conversation& without, Conversation& with) {
    answer(without, nullptr);
    const Generated result = answer(with, small.get());
    EXPECT_GT(result.stats.drafted, 0u);
    EXPECT_EQ(with.tokens, without.tokens);
    EXPECT_EQ(difference(*session_, with.seq, *session_, without.seq), std::nullopt);
    expect_state_of(*small, with.tokens);
  };
  both_answer(plain, drafted);
  both_answer(plain, drafted);
  Conversation plain_branch{session_->fork(plain.seq), plain.tokens};
  Conversation branch{session_->fork(drafted.seq), drafted.tokens};
  for (Conversation* each : {&plain_branch, &branch}) each->tokens.push_back(5);
  for (Conversation* each : {&plain, &drafted}) each->tokens.push_back(6);
  both_answer(plain_branch, branch);
  both_answer(plain, drafted);
  for (Conversation* each : {&plain, &drafted}) {
    if (!session_->truncate(each->seq, 130)) must(session_->truncate(each->seq, 0));
    each->tokens.resize(130);
    each->tokens.insert(each->tokens.end(), {5, 6, 7, 8});
  }
  both_answer(plain, drafted);
}

// A proposal computes at most kStep tokens of what the small model has not seen, and what it
// guessed costs it nothing of what it has: also where no state can be taken back, a step is enough
// for what follows.
TEST_P(DraftModels, CatchUpOnALongTextOverSeveralRoundsOnce) {
  Random random(7);
  Conversation conversation{session_->start(), random_tokens(random, DraftModel::kStep + 50, 320)};
  const auto small = drafter();
  EXPECT_TRUE(small->propose(conversation, 3).empty());
  EXPECT_EQ(small->session().length(small->seq()), DraftModel::kStep);
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(small->propose(conversation, 3).size(), 3u);
    EXPECT_EQ(small->session().length(small->seq()), conversation.tokens.size());
    for (const int32_t token : random_tokens(random, 2, 320)) conversation.tokens.push_back(token);
  }
}

class LlamaDraft : public AskedModel, public ::testing::Test {
 protected:
  LlamaDraft() : AskedModel("llama", "f16") {}
  Random random_{7};
};

TEST_F(LlamaDraft, ProposesNoMoreThanTheSmallModelsContextHolds) {
  const Pos context = must(load_model(oracle("llama"), {}))->context_length();
  const auto small = drafter("llama", "f16", memory_);
  Conversation conversation{session_->start(), random_tokens(random_, context - 2)};
  const auto proposed = [&] {
    std::vector<int32_t> drafts;
    for (int i = 0; i < 3 && drafts.empty(); ++i) drafts = small->propose(conversation, 9);
    return drafts.size();
  };
  EXPECT_EQ(proposed(), 3u) << "two that it computes, and what follows them";
  conversation.tokens.resize(context, 1);
  EXPECT_EQ(proposed(), 1u);
  conversation.tokens.push_back(1);
  EXPECT_EQ(proposed(), 0u);
}

TEST_F(LlamaDraft, WithoutMemoryForTheSmallModelTheAnswerIsTheSame) {
  const Tokens prompt = random_tokens(random_, 40, 320);
  Conversation plain{session_->start(), prompt}, drafted{session_->start(), prompt};
  answer(plain, nullptr);
  Memory small_memory({.max_bytes = 1});
  const Generated result = answer(drafted, drafter("llama", "f16", small_memory).get());
  EXPECT_EQ(drafted.tokens, plain.tokens);
  EXPECT_EQ(result.stats.drafted, 0u);
}

// A guess costs no answer: what the small model holds goes when the model needs another page.
TEST_F(LlamaDraft, GivesWayWhereTheModelNeedsTheMemory) {
  constexpr uint64_t kLong = 60;
  const Tokens prompt = random_tokens(random_, 40, 320);
  Conversation plain{session_->start(), prompt};
  answer(plain, nullptr, {}, kLong);
  limited_.emplace(
      MemoryOptions{.max_bytes = session_->peak_bytes_for(plain.tokens.size(), prompt.size())});
  session_.emplace(must(open_session(model_->spec(), must(parse_scheme("f16")), *limited_)));
  const auto small = drafter("llama", "f16", *limited_);
  Conversation drafted{session_->start(), prompt};
  Pos most_held = 0;
  const Generated result = answer(
      drafted, small.get(),
      [&] { most_held = std::max(most_held, small->session().length(small->seq())); }, kLong);
  EXPECT_EQ(drafted.tokens, plain.tokens);
  EXPECT_GT(result.stats.drafted, 0u);
  EXPECT_GT(most_held, prompt.size());
  EXPECT_EQ(small->session().length(small->seq()), 0u);
}

// Shares of every answer of four tokens, of the two likeliest each.
class Shares {
 public:
  static constexpr uint32_t kChoices = 2;
  static constexpr uint32_t kTokens = 4;
  static constexpr float kTemperature = 2;

  Shares(Model& model, Session& session, SeqId prompt, int32_t last)
      : model_(model), session_(session) {
    follow(prompt, last, {}, 1);
  }
  const std::map<Tokens, double>& all() const { return shares_; }

 private:
  void follow(SeqId before, int32_t token, const Tokens& said, double share) {
    if (said.size() == kTokens) {
      shares_[said] = share;
      return;
    }
    const SeqId seq = session_.fork(before);
    Step step = must(session_.plan({{.seq = seq, .count = 1}}));
    std::vector<float> logits(model_.vocabulary());
    const uint32_t row = 0;
    must(model_.forward(step, std::span(&token, 1), std::span(&row, 1), logits.data()));
    step.commit();
    Tokens order(logits.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    std::ranges::sort(order, [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
    double sum = 0;
    for (uint32_t i = 0; i < kChoices; ++i) sum += std::exp(logits[order[i]] / kTemperature);
    for (uint32_t i = 0; i < kChoices; ++i)
      follow(seq, order[i], joined(said, {order[i]}),
             share * std::exp(logits[order[i]] / kTemperature) / sum);
    session_.drop(seq);
  }

  Model& model_;
  Session& session_;
  std::map<Tokens, double> shares_;
};

// Sampled answers with drafts, some right and some wrong, are distributed as the model says: chi
// square of 16 answers against their shares, which are computed without a sampler.
TEST_F(LlamaDraft, AnswersAreDistributedAsTheModelSays) {
  constexpr uint64_t kAnswers = 3000;
  const Tokens prompt = random_tokens(random_, 60, 320);
  Conversation conversation{session_->start(), prompt};
  answer(conversation, nullptr, {}, 0);
  must(session_->truncate(conversation.seq, prompt.size() - 1));
  const Shares shares(*model_, *session_, conversation.seq, prompt.back());
  ASSERT_EQ(shares.all().size(), 16u);

  std::unique_ptr<DraftModel> small = drafter("llama", "turbo-k4v3", memory_);
  std::map<Tokens, uint64_t> counts;
  uint64_t drafted = 0, accepted = 0;
  for (uint64_t seed = 0; seed < kAnswers; ++seed) {
    sampler_ = must(make_sampler(
        {.temperature = Shares::kTemperature, .top_k = Shares::kChoices, .seed = seed}));
    Conversation branch{session_->fork(conversation.seq), prompt};
    const Generated result = answer(branch, small.get(), {}, Shares::kTokens);
    ++counts[result.tokens];
    drafted += result.stats.drafted;
    accepted += result.stats.accepted;
    session_->drop(branch.seq);
  }
  EXPECT_GT(accepted, kAnswers / 4);
  EXPECT_GT(drafted - accepted, kAnswers / 10);
  double chi_square = 0;
  uint64_t possible = 0;
  for (const auto& [tokens, share] : shares.all()) {
    const double expected = share * kAnswers, found = static_cast<double>(counts[tokens]);
    ASSERT_GT(expected, 5);
    chi_square += (found - expected) * (found - expected) / expected;
    possible += counts[tokens];
  }
  EXPECT_EQ(possible, kAnswers);
  EXPECT_LT(chi_square, 37.7) << "15 degrees of freedom: one in a thousand lies above";
}

}  // namespace
}  // namespace cairn
