// The program on a model with latents, chosen positions and a draft head: whatever the state went
// through, the words are those of a run that computed everything.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/apps/program.h"
#include "tests/apps/tiny_chat_model.h"

namespace cairn::testing {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

std::string letters(size_t count) {
  std::string text;
  for (uint64_t i = 0; i < count; ++i) text += "abcdefghijklmnopqrstuvwxyz "[scatter(i) % 27];
  return text;
}

class LatentRun : public ::testing::Test {
 protected:
  void SetUp() override { write_tiny_latent_model(model(), 1); }
  std::string model() const { return folder_ / "latent.gguf"; }
  json answer(const std::string& text, const Words& more, const std::string& tokens = "40") const {
    Words words{"run", model(), "-p", text, "-n", tokens, "--threads", "1", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const Ran ran = run_cairn(words);
    EXPECT_EQ(ran.code, 0) << ran.err;
    return ran.json();
  }

  ScratchFolder folder_;
};

// A text in which nothing repeats: only the head can guess.
TEST_F(LatentRun, TheDraftHeadGuessesAndChangesNoWord) {
  const json plain = answer(letters(80), {});
  EXPECT_EQ(plain["tokens"].size(), 40u);
  EXPECT_EQ(answer(letters(80), {"--speculate", "4"})["tokens"], plain["tokens"]);
  EXPECT_EQ(answer(letters(80), {"--speculate", "4"}, "3")["speculation"]["drafted"], 1);
}

TEST_F(LatentRun, ANewProcessGoesOnFromTheStateFileAndFromTheStore) {
  const std::string text = letters(150), longer = text + letters(30);
  const json whole = answer(longer, {});
  for (const Words& place :
       {Words{"--state", folder_ / "chat.cairn"}, Words{"--store", folder_ / "cache"}}) {
    answer(text, place, "1");
    Words again = place;
    again.insert(again.end(), {"--speculate", "4"});
    const json resumed = answer(longer, again);
    EXPECT_GE(resumed["reused"], 149) << place.front();
    EXPECT_EQ(resumed["tokens"], whole["tokens"]) << place.front();
  }
}

}  // namespace
}  // namespace cairn::testing
