// The program on a model with recurrent layers: whatever the state went through, the words are
// those of a run that computed everything.
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

class HybridRun : public ::testing::Test {
 protected:
  void SetUp() override { write_tiny_hybrid_model(model(), 1); }
  std::string model() const { return folder_ / "hybrid.gguf"; }
  json answer(const std::string& text,
              const Words& more,
              const std::string& tokens = "40",
              const std::string& threads = "1") const {
    Words words{"run", model(), "-p", text, "-n", tokens, "--threads", threads, "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const Ran ran = run_cairn(words);
    EXPECT_EQ(ran.code, 0) << ran.err;
    return ran.json();
  }

  ScratchFolder folder_;
};

TEST_F(HybridRun, ThreadsAndSpeculationChangeNoWord) {
  const std::string text = "abc abc abc abc abc abc abc abc";
  const json plain = answer(text, {});
  EXPECT_EQ(plain["tokens"].size(), 40u);
  EXPECT_EQ(answer(text, {"--speculate", "6"})["tokens"], plain["tokens"]);
  EXPECT_EQ(answer(text, {}, "40", "2")["tokens"], plain["tokens"]);
}

TEST_F(HybridRun, ANewProcessGoesOnFromTheStateFile) {
  const Words state{"--state", folder_ / "chat.cairn"};
  const std::string text = letters(150), longer = text + letters(30);
  const json whole = answer(longer, {});
  const json read = answer(text, state, "0");
  EXPECT_EQ(read["prompt_tokens"], 150);
  EXPECT_EQ(read["positions"], 149) << "the last token waits";
  const json resumed = answer(longer, state);
  EXPECT_EQ(resumed["reused"], 149);
  EXPECT_EQ(resumed["tokens"], whole["tokens"]);
}

// There is no way back to the state before the last token: of a text that was only read it waits,
// and a text that was answered is computed again.
TEST_F(HybridRun, TheSameTextAgainIsAnsweredAlike) {
  const Words state{"--state", folder_ / "chat.cairn"};
  const json whole = answer(letters(150), {});
  answer(letters(150), state, "0");
  answer(letters(150), state, "0");
  for (const int reused : {149, 0}) {
    const json again = answer(letters(150), state);
    EXPECT_EQ(again["reused"], reused);
    EXPECT_EQ(again["tokens"], whole["tokens"]);
  }
}

TEST_F(HybridRun, WhatWasOnlyReadGoesOnLater) {
  const Words state{"--state", folder_ / "chat.cairn"};
  for (const size_t length : {1, 2, 150}) {
    const json whole = answer(letters(length), {});
    Words again = state;
    again.push_back("--overwrite");
    answer(letters(length), again, "0");
    again.back() = "--continue";
    EXPECT_EQ(answer("", again)["tokens"], whole["tokens"]) << length;
  }
}

TEST_F(HybridRun, ANewProcessGoesOnFromTheStore) {
  const Words store{"--store", folder_ / "cache"};
  const std::string text = letters(150), longer = text + letters(30);
  const json whole = answer(longer, {});
  EXPECT_EQ(answer(text, store)["reused"], 0);
  const json resumed = answer(longer, store);
  EXPECT_EQ(resumed["reused"], 149) << "at the mark before the prompt's last token";
  EXPECT_EQ(resumed["tokens"], whole["tokens"]);
}

TEST_F(HybridRun, FidelityMeasuresIt) {
  write_file(folder_ / "text", letters(600));
  const Ran ran = run_cairn({"fidelity", model(), "-f", folder_ / "text", "--kv",
                             "f32,affine8,affine4", "--threads", "1", "--json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const json list = ran.json();
  EXPECT_EQ(list[0]["kl_mean"], 0);
  EXPECT_GT(list[1]["kl_mean"], 0);
  EXPECT_GT(list[2]["kl_mean"], list[1]["kl_mean"]);
}

}  // namespace
}  // namespace cairn::testing
