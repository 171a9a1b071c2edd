// The tiny llama of Hugging Face transformers, f32 state: its numbers, and the cache it ends with.
#include "cairn/models/llama.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cairn/state/view.h"
#include "tests/models/oracle_file.h"
#include "tests/models/passes.h"

namespace cairn {
namespace {

using testing::must;
using testing::OracleFile;
using testing::Passes;
using testing::Piece;
using testing::Tokens;

constexpr const char* kOracle = "tests/oracles/llama.safetensors";
constexpr float kTolerance = 1e-4f;
constexpr size_t kLength = 64;  // tokens of each of the two rows
constexpr size_t kHeads = 2, kWidth = 32;

float worst_difference(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return INFINITY;
  float worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const float difference = std::fabs(a[i] - b[i]);
    worst = difference > worst || std::isnan(difference) ? difference : worst;
  }
  return worst;
}

class TinyLlama : public ::testing::Test {
 protected:
  Tokens row(size_t index) const { return Tokens(ids_).subspan(index * kLength, kLength); }
  std::span<const float> expected(const std::vector<float>& logits, size_t index) const {
    const size_t count = kLength * model_->vocabulary();
    return std::span(logits).subspan(index * count, count);
  }

  OracleFile oracle_{kOracle};
  std::vector<int32_t> ids_ = oracle_.ids("oracle.input_ids");
  std::vector<float> full_ = oracle_.floats("oracle.logits");
  std::vector<float> cached_ = oracle_.floats("oracle.logits_cached");
  std::unique_ptr<Model> model_ =
      must(load_model(kOracle, {.threads = 2, .expand = Expand::no, .cache_folder = {}}));
  Passes passes_{*model_, "f32"};
};

TEST_F(TinyLlama, AFullForwardGivesTheOraclesLogits) {
  for (size_t i = 0; i < 2; ++i)
    EXPECT_LT(worst_difference(passes_.run(passes_.start(), row(i)), expected(full_, i)),
              kTolerance)
        << "row " << i;
}

TEST_F(TinyLlama, APrefillAndThenSingleTokensGiveTheOraclesLogits) {
  for (size_t i = 0; i < 2; ++i) {
    const SeqId seq = passes_.start();
    std::vector<float> logits = passes_.run(seq, row(i).first(40));
    const std::vector<float> rest = passes_.run_in_chunks(seq, row(i).subspan(40), 1);
    logits.insert(logits.end(), rest.begin(), rest.end());
    EXPECT_LT(worst_difference(logits, expected(cached_, i)), kTolerance) << "row " << i;
  }
}

// Both rows in one session, at different lengths; returns row `index`'s logits.
std::vector<float> ragged(Passes& passes, Tokens a, Tokens b, size_t index) {
  constexpr size_t kCuts[][2] = {
      {13, 40}, {1, 1}, {0, 7}, {49, 16}, {1, 0}};  // tokens of a and of b per batch
  const SeqId seqs[] = {passes.start(), passes.start()};
  std::vector<float> logits;
  size_t done[2] = {0, 0};
  for (const auto& cut : kCuts) {
    std::vector<Piece> pieces;
    if (cut[0] > 0) pieces.push_back({seqs[0], a.subspan(done[0], cut[0])});
    if (cut[1] > 0) pieces.push_back({seqs[1], b.subspan(done[1], cut[1])});
    const std::vector<float> batch = passes.run(pieces);
    const size_t first = index == 0 ? 0 : cut[0];
    const auto begin = batch.begin() + static_cast<ptrdiff_t>(first * passes.vocabulary());
    logits.insert(logits.end(), begin,
                  begin + static_cast<ptrdiff_t>(cut[index] * passes.vocabulary()));
    done[0] += cut[0];
    done[1] += cut[1];
  }
  return logits;
}

TEST_F(TinyLlama, RaggedBatchesOfBothRowsGiveTheOraclesLogits) {
  for (size_t i = 0; i < 2; ++i) {
    const std::vector<float> logits = ragged(passes_, row(0), row(1), i);
    EXPECT_LT(worst_difference(logits, expected(full_, i)), kTolerance) << "row " << i;
    EXPECT_EQ(testing::hash_of(logits), testing::hash_of(passes_.run(passes_.start(), row(i))))
        << "row " << i;
  }
}

// [positions, heads, width] of a snapshot as [heads, positions, width], which is the oracle's
// order.
std::vector<float> heads_first(const Snapshot& snapshot, SlotId slot, FamilyId family) {
  std::vector<float> ours(kLength * kHeads * kWidth), theirs(ours.size());
  decode(snapshot.view(slot), 0, family, 0, kLength, ours.data());
  for (size_t position = 0; position < kLength; ++position)
    for (size_t head = 0; head < kHeads; ++head)
      std::copy_n(&ours[(position * kHeads + head) * kWidth], kWidth,
                  &theirs[(head * kLength + position) * kWidth]);
  return theirs;
}

TEST_F(TinyLlama, TheStateHoldsTheOraclesKeysAndValues) {
  constexpr size_t kCount = kLength * kHeads * kWidth;
  for (size_t i = 0; i < 2; ++i) {
    const SeqId seq = passes_.start();
    passes_.run_in_chunks(seq, row(i), 40);
    const Snapshot snapshot = passes_.session().snapshot(seq);
    for (const SlotId slot : passes_.session().slots()) {
      const std::string prefix = "oracle.cache." + std::to_string(slot.value);
      const auto keys = oracle_.floats(prefix + ".keys"),
                 values = oracle_.floats(prefix + ".values");
      EXPECT_LT(worst_difference(heads_first(snapshot, slot, kKey),
                                 std::span(keys).subspan(i * kCount, kCount)),
                kTolerance)
          << prefix << " row " << i;
      EXPECT_LT(worst_difference(heads_first(snapshot, slot, kValue),
                                 std::span(values).subspan(i * kCount, kCount)),
                kTolerance)
          << prefix << " row " << i;
    }
  }
}

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
