// Drafts of a draft head change no token, no logit and no state; the head's own state follows what
// the model keeps. The weights of the heads are made up here: no small model has one.
#include "cairn/runtime/head_drafter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "cairn/runtime/sampler.h"
#include "tests/models/latent_file.h"
#include "tests/runtime/plain_way.h"
#include "tests/support/scratch_folder.h"

namespace cairn {
namespace {

using namespace cairn::testing;
using File = LatentFile;

struct Setting {
  const char* name;
  const char* scheme;
  bool guesses_well;
};

// A head that goes by the last token, over a model that mostly does; or one of random numbers.
void write_model(const std::string& path, bool guesses_well) {
  File file;
  file.add_head(2, File::join(1, 0.1F));
  if (guesses_well) {
    file.scale("token_embd.weight", 10);
    for (size_t layer = 0; layer <= File::kLayers; ++layer)
      for (const char* name : {"attn_output", "ffn_down", "ffn_down_exps", "ffn_down_shexp"})
        if (const std::string whole = File::prefix(layer) + name + ".weight";
            file.tensors().contains(whole))
          file.scale(whole, 0.3F);
  } else {
    const std::string join = File::prefix(File::kLayers) + "nextn.eh_proj.weight";
    file[join] = random_floats(5, file[join].size(), 0.1F);
  }
  file.write(path);
}

class HeadDrafts : public ::testing::TestWithParam<Setting> {
 protected:
  static constexpr uint64_t kTokens = 60;

  HeadDrafts() {
    const std::string path = folder_ / "head.gguf";
    write_model(path, GetParam().guesses_well);
    model_ = must(load_model(path, {.threads = 1}));
    session_.emplace(
        must(open_session(model_->spec(), must(parse_scheme(GetParam().scheme)), memory_)));
  }

  std::unique_ptr<HeadDrafter> drafter(const char* scheme = "f32") {
    return must(HeadDrafter::make(*model_, memory_, must(parse_scheme(scheme))));
  }

  Generated answer(Conversation& conversation,
                   Drafter* drafter,
                   const SamplingOptions& sampling = {},
                   uint32_t chunk = 512,
                   const std::function<void()>& after_step = {}) {
    Sampler sampler = must(make_sampler(sampling));
    return must(generate(*model_, *session_, conversation, sampler,
                         {.max_tokens = kTokens,
                          .chunk = chunk,
                          .after_step = after_step,
                          .drafter = drafter,
                          .most_drafts = 4}));
  }

  ScratchFolder folder_;
  Memory memory_;
  std::unique_ptr<Model> model_;
  std::optional<Session> session_;
  Random random_{11};
  Tokens prompt_ = random_tokens(random_, 50, 320);
};

INSTANTIATE_TEST_SUITE_P(Heads,
                         HeadDrafts,
                         ::testing::Values(Setting{"good_f32", "f32", true},
                                           Setting{"good_f16", "f16", true},
                                           Setting{"good_turbo", "turbo-k8v4", true},
                                           Setting{"good_after", "affine8-after96", true},
                                           Setting{"random_f32", "f32", false}),
                         [](const auto& setting) { return std::string(setting.param.name); });

TEST_P(HeadDrafts, GiveTheTokensTheLogitsAndTheStateOfPlainDecoding) {
  for (const SamplingOptions& sampling :
       {SamplingOptions{}, SamplingOptions{.temperature = 0.7F, .seed = 3}}) {
    Conversation plain{session_->start(), prompt_};
    const Generated expected = answer(plain, nullptr, sampling);
    const auto head = drafter();
    Conversation drafted{session_->start(), prompt_};
    // After every round the state is one that never saw what was rejected.
    const Generated result = answer(drafted, head.get(), sampling, 512, [&] {
      const SeqId branch = session_->fork(plain.seq);
      const Pos length = session_->length(drafted.seq);
      if (session_->truncate(branch, length)) {
        EXPECT_EQ(difference(*session_, drafted.seq, *session_, branch), std::nullopt) << length;
      }
      session_->drop(branch);
    });
    EXPECT_EQ(result.tokens, expected.tokens);
    EXPECT_EQ(drafted.tokens, plain.tokens);
    EXPECT_EQ(difference(*session_, drafted.seq, *session_, plain.seq), std::nullopt);
    EXPECT_EQ(next_logits(*model_, *session_, drafted.seq),
              next_logits(*model_, *session_, plain.seq));
    EXPECT_GT(result.stats.drafted, 0u);
    EXPECT_LT(result.stats.accepted, result.stats.drafted);
    // Over shares as flat as these a draw is hardly ever what is likeliest.
    const bool is_greedy = sampling.temperature == 0;
    EXPECT_GE(result.stats.accepted, GetParam().guesses_well && is_greedy ? 5u : 0u);
  }
}

TEST_P(HeadDrafts, AfterEveryRoundOf32AnswersHoldAndSayWhatPlainDecodingDoes) {
  uint64_t drafted_tokens = 0, accepted_tokens = 0;
  for (const Tokens& prompt : assorted_prompts()) {
    PlainWay way(*model_, *session_);
    Conversation plain{session_->start(), prompt}, drafted{session_->start(), prompt};
    answer(plain, nullptr, {}, 512, [&] { way.remember(plain.seq); });
    const auto head = drafter();
    const Generated result =
        answer(drafted, head.get(), {}, 512, [&] { way.expect_same(drafted.seq); });
    EXPECT_EQ(drafted.tokens, plain.tokens);
    drafted_tokens += result.stats.drafted;
    accepted_tokens += result.stats.accepted;
    session_->drop(plain.seq);
    session_->drop(drafted.seq);
  }
  EXPECT_GT(drafted_tokens - accepted_tokens, 100u);
  if (GetParam().guesses_well) {
    EXPECT_GT(accepted_tokens, 100u);
  }
}

TEST_P(HeadDrafts, DoNotDependOnHowThePromptWasCutAndTheHeadsStateIsThatOfTheWholeText) {
  Conversation whole{session_->start(), prompt_}, cut{session_->start(), prompt_};
  const auto of_whole = drafter(), of_cut = drafter();
  const Generated expected = answer(whole, of_whole.get());
  const Generated result = answer(cut, of_cut.get(), {}, 7);
  EXPECT_EQ(result.tokens, expected.tokens);
  EXPECT_EQ(result.stats.drafted, expected.stats.drafted);
  EXPECT_EQ(result.stats.accepted, expected.stats.accepted);

  // One pass of the model over everything, and one of the head.
  const size_t count = whole.tokens.size() - 1;
  Memory memory;
  Session trunk = must(open_session(model_->spec(), session_->scheme(), memory));
  const SeqId seq = trunk.start();
  std::vector<float> hidden(whole.tokens.size() * model_->hidden_width());
  for (size_t first = 0; first < count;) {
    const Pos run = std::min<Pos>(count - first, trunk.max_run(seq));
    Step step = must(trunk.plan({{.seq = seq, .count = run}}));
    must(model_->forward(step, std::span(whole.tokens).subspan(first, run), {}, nullptr,
                         hidden.data() + first * model_->hidden_width()));
    step.commit();
    first += run;
  }
  DraftHead& head = *model_->draft_head();
  Session session = must(open_session(head.spec(), must(parse_scheme("f32")), memory));
  const SeqId once = session.start();
  Step step = must(session.plan({{.seq = once, .count = count}}));
  must(head.forward(step, std::span(whole.tokens).subspan(1), hidden.data(), {}, nullptr, nullptr));
  step.commit();
  for (const auto& used : {of_whole.get(), of_cut.get()}) {
    ASSERT_EQ(used->session().length(used->seq()), count);
    EXPECT_EQ(difference(used->session(), used->seq(), session, once), std::nullopt);
  }
}

TEST_P(HeadDrafts, GoOnInAConversationWhoseBeginningTheHeadDidNotSee) {
  Conversation plain{session_->start(), prompt_};
  const Generated expected = answer(plain, nullptr);
  Conversation drafted{session_->start(), prompt_};
  {
    Sampler sampler = must(make_sampler({}));
    must(generate(*model_, *session_, drafted, sampler, {.max_tokens = 20}));
  }
  const auto head = drafter();
  Sampler sampler = must(make_sampler({}));
  const Generated rest =
      must(generate(*model_, *session_, drafted, sampler,
                    {.max_tokens = kTokens - 20, .drafter = head.get(), .most_drafts = 4}));
  EXPECT_EQ(drafted.tokens, plain.tokens);
  EXPECT_GT(rest.stats.drafted, 0u);
  EXPECT_LT(head->session().length(head->seq()), plain.tokens.size() - 60);
}

// Another answer, and one to a text that was taken back and said otherwise.
TEST_P(HeadDrafts, FollowAConversationThatGoesOnAndBack) {
  Conversation plain{session_->start(), prompt_}, drafted{session_->start(), prompt_};
  const auto head = drafter();
  const auto both_answer = [&] {
    answer(plain, nullptr);
    const Generated result = answer(drafted, head.get());
    EXPECT_GT(result.stats.drafted, 0u);
    EXPECT_EQ(drafted.tokens, plain.tokens);
    EXPECT_EQ(difference(*session_, drafted.seq, *session_, plain.seq), std::nullopt);
    EXPECT_EQ(head->session().length(head->seq()), plain.tokens.size() - 1);
  };
  both_answer();
  both_answer();
  for (Conversation* conversation : {&plain, &drafted}) {
    conversation->tokens.resize(130);
    must(session_->truncate(conversation->seq, 130));
    conversation->tokens.insert(conversation->tokens.end(), {5, 6, 7, 8});
  }
  both_answer();
}

TEST_P(HeadDrafts, WithoutMemoryForTheHeadTheAnswerIsTheSame) {
  Conversation plain{session_->start(), prompt_}, drafted{session_->start(), prompt_};
  const Generated expected = answer(plain, nullptr);
  Memory small({.max_bytes = 1});
  const auto head = must(HeadDrafter::make(*model_, small, must(parse_scheme("f32"))));
  const Generated result = answer(drafted, head.get());
  EXPECT_EQ(result.tokens, expected.tokens);
  EXPECT_EQ(result.stats.drafted, 0u);
}

TEST(HeadDrafter, OfAModelWithoutAHeadIsRefused) {
  const auto model = must(load_model("tests/oracles/deepseek_v3.safetensors", {.threads = 1}));
  Memory memory;
  const auto made = HeadDrafter::make(*model, memory, must(parse_scheme("f32")));
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, Code::Unsupported);
  EXPECT_THAT(made.error().message, ::testing::HasSubstr("no draft head"));
}

}  // namespace
}  // namespace cairn
