// A real model drafts for itself in another form of its weights: as the file has them for those
// expanded to f32, and the other way round. They agree mostly, and where they do not, the answer is
// still that of plain decoding. Measured: 0.77 and 0.76 of the drafts are right.
#include <gtest/gtest.h>

#include "cairn/runtime/draft_model.h"
#include "tests/models/real_text.h"
#include "tests/runtime/plain_way.h"

namespace cairn::testing {
namespace {

struct Pair {
  const char* name;
  Expand model, small;
};

class RealDraft : public ::testing::TestWithParam<Pair> {
 protected:
  static constexpr uint64_t kTokens = 32;

  Generated answer(Conversation& conversation,
                   Drafter* drafter,
                   const std::function<void()>& after_step) {
    sampler_.resume({.seed = 2});
    return must(generate(
        *model_, session_, conversation, sampler_,
        {.max_tokens = kTokens, .after_step = after_step, .drafter = drafter, .most_drafts = 4}));
  }

  Memory memory_;
  std::unique_ptr<Model> model_ =
      must(load_model(kRealModel, {.threads = 2, .expand = GetParam().model, .cache_folder = {}}));
  std::unique_ptr<Model> small_ = must(load_model(
      kRealModel, {.beside = model_.get(), .expand = GetParam().small, .cache_folder = {}}));
  Session session_ = must(open_session(model_->spec(), must(parse_scheme("f16")), memory_));
  Sampler sampler_ = must(make_sampler({}));
};

INSTANTIATE_TEST_SUITE_P(Forms,
                         RealDraft,
                         ::testing::Values(Pair{"quantized_for_f32", Expand::f32, Expand::no},
                                           Pair{"f32_for_quantized", Expand::no, Expand::f32}),
                         [](const auto& pair) { return std::string(pair.param.name); });

TEST_P(RealDraft, SaysHoldsAndPredictsWhatPlainDecodingDoes) {
  const std::vector<int32_t> text = real_text(400);
  uint64_t drafted = 0, accepted = 0;
  for (const float temperature : {0.0F, 0.8F})
    for (const size_t first : {0, 250}) {
      sampler_ = must(make_sampler({.temperature = temperature, .seed = 2}));
      const Tokens prompt(text.begin() + static_cast<ptrdiff_t>(first),
                          text.begin() + static_cast<ptrdiff_t>(first + 60));
      PlainWay way(*model_, session_);
      Conversation plain{session_.start(), prompt}, with{session_.start(), prompt};
      answer(plain, nullptr, [&] { way.remember(plain.seq); });
      const auto drafter =
          must(DraftModel::make(*small_, *model_, memory_, must(parse_scheme("f16")), sampler_));
      const Generated said = answer(with, drafter.get(), [&] { way.expect_same(with.seq); });
      EXPECT_EQ(with.tokens, plain.tokens);
      drafted += said.stats.drafted;
      accepted += said.stats.accepted;
      session_.drop(plain.seq);
      session_.drop(with.seq);
    }
  const double rate = static_cast<double>(accepted) / static_cast<double>(drafted);
  RecordProperty("accepted", std::to_string(rate));
  EXPECT_GT(rate, 0.6) << accepted << " of " << drafted;
}

}  // namespace
}  // namespace cairn::testing
