// Conversations that are answered together say what each says alone: tokens, logits and state, with
// drafts of several drafters or none, greedy or sampled.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cairn/runtime/draft_model.h"
#include "cairn/runtime/generate.h"
#include "cairn/runtime/head_drafter.h"
#include "cairn/runtime/speculate.h"
#include "tests/models/latent_file.h"
#include "tests/runtime/plain_way.h"
#include "tests/support/scratch_folder.h"

namespace cairn {
namespace {

using namespace cairn::testing;

std::string oracle(const std::string& name) { return "tests/oracles/" + name + ".safetensors"; }

struct Setting {
  const char* model;
  const char* scheme;
};

// Right for `right` tokens of every proposal, and then wrong.
class RightFor final : public Drafter {
 public:
  RightFor(Tokens whole, size_t right) : whole_(std::move(whole)), right_(right) {}
  std::vector<int32_t> propose(const Conversation& conversation, uint32_t most) override {
    std::vector<int32_t> drafts;
    for (size_t i = conversation.tokens.size(); i < whole_.size() && drafts.size() < most; ++i)
      drafts.push_back(drafts.size() < right_ ? whole_[i] : (whole_[i] + 1) % 300);
    return drafts;
  }

 private:
  Tokens whole_;
  size_t right_;
};

class Together : public ::testing::TestWithParam<Setting> {
 protected:
  static constexpr size_t kCount = 7;  // conversations

  // Answers of several lengths, the fifth with draws, to texts of several lengths.
  Together() {
    for (size_t i = 0; i < kCount; ++i) {
      samplers_.push_back(must(make_sampler(sampling(i))));
      prompts_.push_back(assorted_prompts()[3 + 4 * i]);
    }
  }
  static SamplingOptions sampling(size_t i) {
    return {.temperature = i == 4 ? 0.8F : 0.0F, .seed = i};
  }
  static uint64_t length(size_t i) { return 10 + 11 * i % 37; }
  GenerateOptions options(size_t i) const { return {.max_tokens = length(i), .chunk = 48}; }

  std::vector<Conversation> start() {
    std::vector<Conversation> all;
    for (const Tokens& prompt : prompts_) all.push_back({session_.start(), prompt});
    return all;
  }
  Generated answer_alone(size_t i, Conversation& conversation, const GenerateOptions& how) {
    samplers_[i].resume({.seed = i});
    return must(generate(*model_, session_, conversation, samplers_[i], how));
  }
  std::vector<Generated> answer_together(std::vector<Conversation>& all,
                                         const std::vector<GenerateOptions>& how) {
    std::vector<Asked> asked;
    for (size_t i = 0; i < all.size(); ++i) {
      samplers_[i].resume({.seed = i});
      asked.push_back({.conversation = &all[i], .sampler = &samplers_[i], .options = how[i]});
    }
    return must(generate_together(*model_, session_, asked));
  }

  // Of another sort for each conversation, so that in one step some accept all drafts, some a part,
  // some none, and the first has none.
  std::unique_ptr<Drafter> drafter(size_t i, const Tokens& whole) {
    if (i == 0) return nullptr;
    if (i < 4) return std::make_unique<RightFor>(whole, i == 3 ? 100 : i - 1);
    if (i == 6) return std::make_unique<PromptLookup>();
    if (!small_) small_ = must(load_model(oracle(GetParam().model), {.beside = model_.get()}));
    return must(
        DraftModel::make(*small_, *model_, memory_, must(parse_scheme("f32")), samplers_[i]));
  }

  Memory memory_;
  std::unique_ptr<Model> model_ = must(load_model(oracle(GetParam().model), {}));
  std::unique_ptr<Model> small_;  // once a drafter needs it
  Session session_ =
      must(open_session(model_->spec(), must(parse_scheme(GetParam().scheme)), memory_));
  std::vector<Sampler> samplers_;
  std::vector<Tokens> prompts_;
};

INSTANTIATE_TEST_SUITE_P(Models,
                         Together,
                         ::testing::Values(Setting{"llama", "f16"},
                                           Setting{"llama", "affine4-g32-after96"},
                                           Setting{"gemma3", "f32"},
                                           Setting{"deepseek_v3", "f32"},
                                           Setting{"glm_moe_dsa", "turbo-k8v3"},
                                           Setting{"qwen3_next", "f32"}),
                         [](const auto& setting) {
                           std::string name =
                               std::string(setting.param.model) + "_" + setting.param.scheme;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST_P(Together, EachSaysHoldsAndAcceptsWhatItDoesAlone) {
  std::vector<std::unique_ptr<PlainWay>> ways;
  std::vector<Conversation> plain = start(), alone = start(), together = start();
  std::vector<std::unique_ptr<Drafter>> drafters;
  std::vector<GenerateOptions> how;
  for (size_t i = 0; i < kCount; ++i) {
    ways.push_back(std::make_unique<PlainWay>(*model_, session_));
    GenerateOptions plainly = options(i);
    plainly.after_step = [&, i] { ways[i]->remember(plain[i].seq); };
    answer_alone(i, plain[i], plainly);
    drafters.push_back(drafter(i, plain[i].tokens));
    how.push_back(options(i));
    how[i].drafter = drafters[i].get();
    how[i].most_drafts = 5;
    how[i].after_step = [&, i] {  // in company, a prompt may be read in other parts
      if (session_.length(together[i].seq) >= prompts_[i].size())
        ways[i]->expect_same(together[i].seq);
    };
  }
  const std::vector<Generated> found = answer_together(together, how);
  ASSERT_EQ(found.size(), kCount);
  for (size_t i = 0; i < kCount; ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(together[i].tokens, plain[i].tokens);
    EXPECT_EQ(difference(session_, together[i].seq, session_, plain[i].seq), std::nullopt);
    const auto own = drafter(i, plain[i].tokens);
    how[i].drafter = own.get();
    how[i].after_step = {};
    const Generated expected = answer_alone(i, alone[i], how[i]);
    EXPECT_EQ(found[i].tokens, expected.tokens);
    EXPECT_EQ(found[i].finish, expected.finish);
    EXPECT_EQ(found[i].stats.rounds, expected.stats.rounds);
    EXPECT_EQ(found[i].stats.drafted, expected.stats.drafted);
    EXPECT_EQ(found[i].stats.accepted, expected.stats.accepted);
  }
  const auto stats = [&](size_t i) { return found[i].stats; };
  EXPECT_EQ(stats(0).drafted, 0u);
  EXPECT_GT(stats(1).drafted, 0u);
  EXPECT_EQ(stats(1).accepted, 0u);
  EXPECT_GT(stats(2).accepted, 0u);
  EXPECT_LT(stats(2).accepted, stats(2).drafted);
  EXPECT_GT(stats(3).drafted, 0u);
  EXPECT_EQ(stats(3).accepted, stats(3).drafted);
}

// What all texts begin with is computed once: a fork of it has the bits that each would compute.
TEST_P(Together, WhatAllTextsBeginWithIsComputedOnce) {
  Random random(3);
  const Tokens beginning = random_tokens(random, 120, 320);
  for (size_t i = 0; i < kCount; ++i) {
    prompts_[i] = joined(beginning, prompts_[i]);
    prompts_[i][beginning.size()] = static_cast<int32_t>(i);
  }
  for (const bool is_one_nothing_else : {false, true}) {
    if (is_one_nothing_else) prompts_[2].resize(beginning.size());  // its last token is its own
    std::vector<Conversation> alone = start(), together = start();
    std::vector<GenerateOptions> how;
    for (size_t i = 0; i < kCount; ++i) how.push_back(options(i));
    const std::vector<Generated> found = answer_together(together, how);
    for (size_t i = 0; i < kCount; ++i) {
      SCOPED_TRACE(i);
      EXPECT_EQ(found[i].tokens, answer_alone(i, alone[i], how[i]).tokens);
      EXPECT_EQ(difference(session_, together[i].seq, session_, alone[i].seq), std::nullopt);
      EXPECT_EQ(found[i].stats.reused, i == 0 ? 0u : beginning.size() - is_one_nothing_else);
      EXPECT_EQ(found[i].stats.computed + found[i].stats.reused, prompts_[i].size());
    }
  }
}

class TogetherLlama : public Together {};
INSTANTIATE_TEST_SUITE_P(F16,
                         TogetherLlama,
                         ::testing::Values(Setting{"llama", "f16"}),
                         [](const auto&) { return "llama"; });

// More than a step of rounds holds, prompts beyond a chunk, and one token each for some.
TEST_P(TogetherLlama, AHundredOfThem) {
  prompts_.clear();
  samplers_.clear();
  Random random(5);
  std::vector<GenerateOptions> how;
  for (size_t i = 0; i < 100; ++i) {
    prompts_.push_back(random_tokens(random, 1 + i % 70, 320));
    samplers_.push_back(must(make_sampler({})));
    how.push_back({.max_tokens = 1 + i % 9, .chunk = 64});
  }
  std::vector<Conversation> alone = start(), together = start();
  const std::vector<Generated> found = answer_together(together, how);
  for (size_t i = 0; i < 100; ++i) {
    EXPECT_EQ(found[i].tokens, answer_alone(i, alone[i], how[i]).tokens) << i;
    EXPECT_EQ(difference(session_, together[i].seq, session_, alone[i].seq), std::nullopt) << i;
  }
}

TEST_P(TogetherLlama, NothingAskedIsNothingAnswered) {
  EXPECT_TRUE(must(generate_together(*model_, session_, {})).empty());
}

TEST_P(TogetherLlama, OneTextTooLongIsSaidBeforeAnythingIsComputed) {
  std::vector<Conversation> all = start();
  std::vector<Asked> asked;
  for (size_t i = 0; i < kCount; ++i)
    asked.push_back({.conversation = &all[i], .sampler = &samplers_[i], .options = options(i)});
  asked[5].options.context = prompts_[5].size();
  const auto refused = generate_together(*model_, session_, asked);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::BadInput);
  for (const Conversation& each : all) EXPECT_EQ(session_.length(each.seq), 0u);
}

TEST_P(TogetherLlama, CancelledAllEndWithStatesOfTheirTokens) {
  std::atomic<bool> cancel{false};
  std::vector<Conversation> all = start();
  std::vector<GenerateOptions> how;
  for (size_t i = 0; i < kCount; ++i) {
    how.push_back(options(i));
    how[i].cancel = &cancel;
  }
  how[3].on_token = [&, said = 0](int32_t) mutable {
    cancel = ++said == 4;
    return Flow::go_on;
  };
  const std::vector<Generated> found = answer_together(all, how);
  for (size_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(session_.length(all[i].seq), all[i].tokens.size()) << i;
    EXPECT_LE(found[i].tokens.size(), 5u) << i;
  }
  EXPECT_EQ(found[3].finish, Finish::cancelled);

  cancel = true;
  all = start();
  for (const Generated& each : answer_together(all, how)) {
    EXPECT_EQ(each.finish, Finish::cancelled);
    EXPECT_TRUE(each.tokens.empty());
  }
}

// A guess costs no answer: drafters make room one after the other.
TEST_P(TogetherLlama, DraftersGiveWayWhereTheModelNeedsTheMemory) {
  std::vector<Conversation> alone = start();
  uint64_t bytes = 0;
  for (size_t i = 0; i < kCount; ++i) {
    answer_alone(i, alone[i], options(i));
    bytes += session_.peak_bytes_for(alone[i].tokens.size(), prompts_[i].size());
  }
  Memory limited({.max_bytes = bytes});
  Session session = must(open_session(model_->spec(), must(parse_scheme("f16")), limited));
  const auto small = must(load_model(oracle("llama"), {.beside = model_.get()}));
  std::vector<std::unique_ptr<DraftModel>> drafters;
  std::vector<Conversation> all;
  std::vector<Asked> asked;
  for (size_t i = 0; i < kCount; ++i) all.push_back({session.start(), prompts_[i]});
  for (size_t i = 0; i < kCount; ++i) {
    samplers_[i].resume({.seed = i});
    drafters.push_back(
        must(DraftModel::make(*small, *model_, limited, must(parse_scheme("f32")), samplers_[i])));
    asked.push_back({.conversation = &all[i], .sampler = &samplers_[i], .options = options(i)});
    asked[i].options.drafter = drafters[i].get();
  }
  must(generate_together(*model_, session, asked));
  for (size_t i = 0; i < kCount; ++i) EXPECT_EQ(all[i].tokens, alone[i].tokens) << i;
}

// With a draft head, whose guesses need the hidden states of the model's rows.
TEST(TogetherWithAHead, EachGuessesAsItDoesAlone) {
  const ScratchFolder folder;
  LatentFile file;
  file.add_head(2, LatentFile::join(1, 0.1F));
  file.write(folder / "head.gguf");
  const auto model = must(load_model(folder / "head.gguf", {}));
  Memory memory;
  Session session = must(open_session(model->spec(), must(parse_scheme("f32")), memory));
  std::vector<Conversation> alone, together;
  std::vector<std::unique_ptr<HeadDrafter>> own, drafters;
  std::vector<Asked> asked;
  std::vector<Generated> expected;
  Sampler sampler = must(make_sampler({}));
  const auto drafter = [&] {
    return must(HeadDrafter::make(*model, memory, must(parse_scheme("f32"))));
  };
  for (size_t i = 0; i < 4; ++i) {
    const Tokens prompt = assorted_prompts()[5 * i + 1];
    alone.push_back({session.start(), prompt});
    together.push_back({session.start(), prompt});
    own.push_back(drafter());
    expected.push_back(
        must(generate(*model, session, alone[i], sampler,
                      {.max_tokens = 40, .drafter = own[i].get(), .most_drafts = 3})));
    drafters.push_back(i == 2 ? nullptr : drafter());
  }
  for (size_t i = 0; i < 4; ++i)
    asked.push_back(
        {.conversation = &together[i],
         .sampler = &sampler,
         .options = {.max_tokens = 40, .drafter = drafters[i].get(), .most_drafts = 3}});
  const std::vector<Generated> found = must(generate_together(*model, session, asked));
  for (size_t i = 0; i < 4; ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(found[i].tokens, expected[i].tokens);
    EXPECT_EQ(difference(session, together[i].seq, session, alone[i].seq), std::nullopt);
    if (i == 2) continue;
    EXPECT_GT(found[i].stats.drafted, 0u);
    EXPECT_EQ(found[i].stats.drafted, expected[i].stats.drafted);
    EXPECT_EQ(found[i].stats.accepted, expected[i].stats.accepted);
    EXPECT_EQ(
        difference(drafters[i]->session(), drafters[i]->seq(), own[i]->session(), own[i]->seq()),
        std::nullopt);
  }
}

}  // namespace
}  // namespace cairn
