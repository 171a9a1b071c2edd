// cairn run with several texts: each is answered as it would be alone, in the order they were
// given.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/apps/program.h"
#include "tests/apps/tiny_chat_model.h"

namespace cairn::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

class TogetherRun : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    models_ = new ScratchFolder;
    write_tiny_chat_model(model("llama"), 1);
    write_tiny_chat_model(model("other"), 2);
    write_tiny_hybrid_model(model("hybrid"), 1);
    write_tiny_latent_model(model("latent"), 1);
  }
  static void TearDownTestSuite() { delete models_; }
  static std::string model(const std::string& name) { return *models_ / (name + ".gguf"); }

  static Words with(Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  Words texts() const {
    Words all;
    for (const std::string& text : texts_) all.insert(all.end(), {"-p", text});
    return all;
  }
  static Words run(const Words& more, const std::string& of = "llama") {
    return with({"run", model(of), "--threads", "1"},
                std::count(more.begin(), more.end(), "-n") > 0 ? more : with({"-n", "30"}, more));
  }
  static json answer(const Words& more, const std::string& of = "llama") {
    const Ran ran = run_cairn(run(with({"--json"}, more), of));
    EXPECT_EQ(ran.code, 0) << ran.err;
    return ran.json();
  }
  // Each alone, without a drafter.
  std::vector<json> alone(const std::string& of, const Words& more = {}) const {
    std::vector<json> all;
    for (const std::string& text : texts_) all.push_back(answer(with({"-p", text}, more), of));
    return all;
  }
  void expect_refused(const Words& more, const std::string& part) const {
    const Ran ran = run_cairn(run(more));
    EXPECT_EQ(ran.code, 2) << ran.err;
    EXPECT_THAT(ran.err, HasSubstr(part));
    EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
    EXPECT_EQ(ran.out, "");
  }

  const Words texts_{"abc abc abc abc abc abc abc", "No two words of this are the same.", "x",
                     "and a last one that is longer than the others " + std::string(200, 'z')};
  ScratchFolder folder_;

 private:
  static ScratchFolder* models_;
};
ScratchFolder* TogetherRun::models_ = nullptr;

TEST_F(TogetherRun, EachTextIsAnsweredAsAloneWhoeverGuesses) {
  for (const std::string of : {"llama", "hybrid", "latent"})
    for (const Words& sampling : {Words{}, Words{"--temp", "0.8", "--seed", "3"}}) {
      const std::vector<json> expected = alone(of, sampling);
      for (const Words& drafts :
           {Words{}, Words{"--speculate", "5"}, Words{"--draft", model("other")}}) {
        const json all = answer(with(with(texts(), sampling), drafts), of);
        ASSERT_EQ(all.size(), texts_.size());
        uint64_t drafted = 0;
        for (size_t i = 0; i < texts_.size(); ++i) {
          EXPECT_EQ(all[i]["tokens"], expected[i]["tokens"]) << of << ", text " << i;
          for (const char* key : {"text", "prompt_tokens", "finish", "positions", "state_bytes"})
            EXPECT_EQ(all[i][key], expected[i][key]) << key;
          drafted += all[i]["speculation"]["drafted"].get<uint64_t>();
        }
        if (drafts.empty()) {
          EXPECT_EQ(drafted, 0u);
        } else if (drafts[0] == "--draft") {  // look-up needs words that repeat
          EXPECT_GT(drafted, 0u) << of;
        }
      }
    }
}

TEST_F(TogetherRun, AnotherProcessReusesWhatAllOfThemStored) {
  const std::string beginning = "What all of these texts begin with, and then go on without. ";
  Words plain, longer;
  for (const std::string& text : texts_) {
    plain.insert(plain.end(), {"-p", beginning + text});
    longer.insert(longer.end(), {"-p", beginning + text + " And more"});
  }
  for (const std::string of : {"llama", "hybrid", "latent"}) {
    const Words store{"--store", folder_ / (of + "-cache"), "--speculate", "4"};
    const json first = answer(with(plain, store), of), expected = answer(longer, of);
    for (size_t i = 1; i < texts_.size(); ++i) EXPECT_GE(first[i]["reused"], 50) << of;
    EXPECT_EQ(first[0]["reused"], 0);
    const json again = answer(with(longer, store), of);
    for (size_t i = 0; i < texts_.size(); ++i) {
      SCOPED_TRACE(of + ", text " + std::to_string(i));
      EXPECT_EQ(again[i]["tokens"], expected[i]["tokens"]);
      EXPECT_GE(again[i]["reused"], first[i]["prompt_tokens"].get<int>() - 1);
      EXPECT_EQ(again[i]["reused_from_disk"], again[i]["reused"]);
    }
  }
}

TEST_F(TogetherRun, InterruptedTheyAllGoOnWithTheSameWords) {
  const auto command = [&](const Words& more) {
    return run(with(with(texts(), {"-n", "2500"}), more));
  };
  const json whole = run_cairn(command({"--json"})).json();
  const Words store{"--store", folder_ / "cache", "--checkpoint-every", "8"};
  {
    Process killed(command(store));
    ASSERT_TRUE(killed.wait_for_output());
    ASSERT_TRUE(
        wait_for_unfinished_answers(killed, folder_ / "cache", static_cast<int>(texts_.size())));
    killed.send(SIGINT);
    EXPECT_EQ(killed.wait().code, 130);
  }
  const json resumed = run_cairn(command(with(store, {"--json"}))).json();
  uint64_t kept = 0;
  for (size_t i = 0; i < texts_.size(); ++i) {
    EXPECT_EQ(resumed[i]["tokens"], whole[i]["tokens"]) << i;
    kept += resumed[i]["resumed"].get<uint64_t>();
  }
  EXPECT_GT(kept, 0u);
}

TEST_F(TogetherRun, TheAnswersComeInOrderUnderTheirNames) {
  std::string expected;
  Words files;
  for (size_t i = 0; i < texts_.size(); ++i) {
    const std::string path = folder_ / ("text " + std::to_string(i));
    write_file(path, texts_[i]);
    files.insert(files.end(), {"-f", path});
    expected +=
        (i == 0 ? "==> " : "\n==> ") + path + " <==\n" + run_cairn(run({"-p", texts_[i]})).out;
  }
  const Ran ran = run_cairn(run(files));
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.out, expected);
  EXPECT_THAT(run_cairn(run(texts())).out, ::testing::StartsWith("==> text 1 <==\n"));
}

TEST_F(TogetherRun, EachIsTheFirstMessageOfAChat) {
  const json all = answer(with(texts(), {"--chat"}));
  for (size_t i = 0; i < texts_.size(); ++i)
    EXPECT_EQ(all[i]["tokens"], answer({"--chat", "-p", texts_[i]})["tokens"]) << i;
}

TEST_F(TogetherRun, StatsHaveALineForEachAndOneForAll) {
  const Ran ran = run_cairn(run(with(texts(), {"--stats", "--draft", model("llama")})));
  EXPECT_EQ(ran.code, 0);
  for (const char* part : {"text 1 ", "text 4 ", "all ", "accepted", "tokens/s", "first token"})
    EXPECT_THAT(ran.err, HasSubstr(part));
}

TEST_F(TogetherRun, WithoutTokensTheyAreReadOnly) {
  const json all = answer(with(texts(), {"-n", "0"}));
  for (const json& each : all) {
    EXPECT_EQ(each["tokens"].size(), 0u);
    EXPECT_EQ(each["positions"], each["prompt_tokens"]);
    EXPECT_EQ(each["ttft_ms"], nullptr);
  }
}

TEST_F(TogetherRun, WhatDoesNotFitIsSaidInOneLine) {
  expect_refused(with(texts(), {"--state", folder_ / "chat.cairn"}), "--state with 4 texts");
  expect_refused({"-f", "-", "-f", "-"}, "stdin to be read once");
  expect_refused({"-p", "a", "-f", "b"}, "-");
  expect_refused({"-p", "abc", "-p", std::string(5000, 'a')}, "text 2: prompt: 5000 tokens");
  expect_refused({"-p", "abc", "-p", ""}, "text 2: prompt: empty");
}

}  // namespace
}  // namespace cairn::testing
