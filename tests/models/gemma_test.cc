// The tiny gemma3: its numbers, and the state of layers that see a window.
#include "cairn/models/gemma.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/models/tiny_oracle.h"

namespace cairn {
namespace {

using testing::must;

constexpr Pos kWindow = 16;

class TinyGemma : public testing::TinyOracle {
 protected:
  TinyGemma() : TinyOracle("tests/oracles/gemma3.safetensors") {}
};

TEST_F(TinyGemma, AFullForwardGivesTheOraclesLogits) { expect_the_logits_of_a_full_forward(); }

TEST_F(TinyGemma, APrefillAndThenSingleTokensGiveTheOraclesLogits) {
  expect_the_logits_of_a_prefill_and_single_tokens();
}

TEST_F(TinyGemma, RaggedBatchesOfBothRowsGiveTheOraclesLogits) {
  expect_the_logits_of_ragged_batches();
}

TEST_F(TinyGemma, TheStateHoldsTheOraclesKeysAndValues) { expect_the_keys_and_values(); }

TEST_F(TinyGemma, FiveLayersSeeAWindowAndTheSixthSeesEverything) {
  std::vector<Pos> windows;
  for (const SlotSpec& slot : model_->spec().slots) windows.push_back(slot.retention.window);
  EXPECT_THAT(windows, ::testing::ElementsAre(kWindow, kWindow, kWindow, kWindow, kWindow, 0u));
}

TEST_F(TinyGemma, ALongConversationKeepsWhatItsWindowsNeedAndNoMore) {
  Session& session = passes_.session();
  const SeqId seq = passes_.start();
  const Retention retention = model_->spec().slots.front().retention;
  for (size_t i = 0; i < 7; ++i) passes_.run(seq, row(i % 2));
  ASSERT_EQ(session.length(seq), 7 * kLength);
  const Snapshot snapshot = session.snapshot(seq);
  EXPECT_EQ(snapshot.first_kept(SlotId{0}), 7 * kLength - kWindow - retention.rewind);
  EXPECT_EQ(snapshot.first_kept(SlotId{5}), 0u);
  EXPECT_TRUE(session.can_truncate(seq, 7 * kLength - retention.rewind));
  EXPECT_FALSE(session.can_truncate(seq, 7 * kLength - retention.rewind - 2));
}

}  // namespace
}  // namespace cairn
