// The tiny llama: its numbers, the cache it ends with, and what forward() asks for.
#include "cairn/models/llama.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/models/tiny_oracle.h"

namespace cairn {
namespace {

using testing::must;

class TinyLlama : public testing::TinyOracle {
 protected:
  TinyLlama() : TinyOracle("tests/oracles/llama.safetensors") {}
};

TEST_F(TinyLlama, AFullForwardGivesTheOraclesLogits) { expect_the_logits_of_a_full_forward(); }

TEST_F(TinyLlama, APrefillAndThenSingleTokensGiveTheOraclesLogits) {
  expect_the_logits_of_a_prefill_and_single_tokens();
}

TEST_F(TinyLlama, RaggedBatchesOfBothRowsGiveTheOraclesLogits) {
  expect_the_logits_of_ragged_batches();
}

TEST_F(TinyLlama, TheStateHoldsTheOraclesKeysAndValues) { expect_the_keys_and_values(); }

TEST_F(TinyLlama, OnlyTheWantedLogitsAreGivenAndTheyAreTheSame) {
  const std::vector<float> all = passes_.run(passes_.start(), row(0));
  Session& session = passes_.session();
  const SeqId seq = session.start();
  Step prefill = must(session.plan({{.seq = seq, .count = 40}}));
  must(model_->forward(prefill, row(0).first(40), {}, nullptr));
  prefill.commit();

  const std::vector<uint32_t> wanted = {23, 5};
  std::vector<float> logits(wanted.size() * model_->vocabulary());
  Step rest = must(session.plan({{.seq = seq, .count = 24}}));
  must(model_->forward(rest, row(0).subspan(40), wanted, logits.data()));
  rest.commit();
  for (size_t i = 0; i < wanted.size(); ++i)
    EXPECT_THAT(std::span(logits).subspan(i * model_->vocabulary(), model_->vocabulary()),
                ::testing::ElementsAreArray(std::span(all).subspan(
                    (40 + wanted[i]) * model_->vocabulary(), model_->vocabulary())));
}

TEST_F(TinyLlama, ATokenOutsideTheVocabularyIsRefusedAndLeavesNoTrace) {
  Session& session = passes_.session();
  const SeqId seq = session.start();
  const std::vector<int32_t> tokens = {1, 320};
  {
    Step step = must(session.plan({{.seq = seq, .count = 2}}));
    const auto refused = model_->forward(step, tokens, {}, nullptr);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::BadInput);
    EXPECT_EQ(refused.error().message, "token 320: not in the vocabulary, expected 0 to 319");
  }
  EXPECT_EQ(session.length(seq), 0u);
}

TEST_F(TinyLlama, TheContextsEndIsAnError) {
  Session& session = passes_.session();
  const auto step = session.plan({{.seq = session.start(), .count = model_->context_length() + 1}});
  ASSERT_FALSE(step);
  EXPECT_EQ(step.error().code, Code::BadInput);
}

TEST_F(TinyLlama, AStepOfAnotherModelIsAContractError) {
  Memory memory;
  ModelSpec other = model_->spec();
  other.slots.assign(3, attention({.heads = 1, .head_dim = 32}));
  Session session = must(open_session(other, must(parse_scheme("f32")), memory));
  Step step = must(session.plan({{.seq = session.start(), .count = 1}}));
  EXPECT_THROW((void)model_->forward(step, row(0).first(1), {}, nullptr), ContractError);
}

}  // namespace
}  // namespace cairn
