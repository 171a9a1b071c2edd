// The program with a second model that guesses: the same words, and what it says where the two do
// not fit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/apps/program.h"
#include "tests/apps/tiny_chat_model.h"

namespace cairn::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

class DraftRun : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    models_ = new ScratchFolder;
    write_tiny_chat_model(model("model"), 1);
    write_tiny_chat_model(model("same"), 1);
    write_tiny_chat_model(model("other"), 2);
    write_tiny_hybrid_model(model("hybrid"), 3);
  }
  static void TearDownTestSuite() { delete models_; }
  static std::string model(const std::string& name) { return *models_ / (name + ".gguf"); }

  Ran run(const Words& more, const std::string& of = "model") const {
    Words words{"run", model(of), "-n", "40", "--threads", "1"};
    words.insert(words.end(), more.begin(), more.end());
    return run_cairn(words);
  }
  json answer(Words more, const std::string& text, const std::string& of = "model") const {
    more.insert(more.end(), {"-p", text, "--json"});
    const Ran ran = run(more, of);
    EXPECT_EQ(ran.code, 0) << ran.err;
    return ran.json();
  }
  void expect_refused(const Words& more, const std::string& part) const {
    Words words{"-p", "abc"};
    words.insert(words.end(), more.begin(), more.end());
    const Ran ran = run(words);
    EXPECT_EQ(ran.code, 2) << ran.err;
    EXPECT_THAT(ran.err, HasSubstr(part));
    EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
    EXPECT_EQ(ran.out, "");
  }

  ScratchFolder folder_;
  const std::string text_ = "No two words of this sentence are the same, or nearly.";

 private:
  static ScratchFolder* models_;
};
ScratchFolder* DraftRun::models_ = nullptr;

TEST_F(DraftRun, ChangesNoWordWhoeverGuesses) {
  for (const Words& sampling : {Words{}, Words{"--temp", "0.8", "--seed", "5", "--top-p", "0.95"}})
    for (const std::string of : {"model", "hybrid"}) {
      const json plain = answer(sampling, text_, of);
      EXPECT_EQ(plain["speculation"]["drafted"], 0);
      for (const std::string small : {"same", "other", "hybrid"}) {
        Words more = sampling;
        more.insert(more.end(), {"--speculate", "6", "--draft", model(small)});
        const json drafted = answer(more, text_, of);
        EXPECT_EQ(drafted["tokens"], plain["tokens"]) << of << ", drafts of " << small;
        EXPECT_EQ(drafted["positions"], plain["positions"]);
        EXPECT_GT(drafted["speculation"]["drafted"], 0);
        const bool is_itself = (small == "same") == (of == "model") && small != "other";
        if (is_itself) {
          EXPECT_EQ(drafted["speculation"]["accepted"], drafted["speculation"]["drafted"]);
          EXPECT_GE(drafted["speculation"]["accepted"], 30);
        }
      }
    }
}

TEST_F(DraftRun, GuessesSeveralTokensUnlessToldHowMany) {
  const json some = answer({"--draft", model("same")}, text_)["speculation"];
  const json one = answer({"--draft", model("same"), "--speculate", "1"}, text_)["speculation"];
  EXPECT_GT(some["drafted"], some["rounds"]);
  EXPECT_EQ(one["drafted"], one["rounds"]);
}

TEST_F(DraftRun, StatsSayHowManyWereRight) {
  const Ran ran = run({"-p", text_, "--draft", model("same"), "--stats"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_THAT(ran.err, HasSubstr("drafts, "));
  EXPECT_THAT(ran.err, HasSubstr("in each of "));
}

TEST_F(DraftRun, GoesOnFromAStateFileAndFromAStore) {
  const std::string longer = text_ + " And so it goes on";
  const json whole = answer({}, longer);
  for (const Words& place :
       {Words{"--state", folder_ / "chat.cairn"}, Words{"--store", folder_ / "cache"}}) {
    answer(place, text_);
    Words again = place;
    again.insert(again.end(), {"--draft", model("same")});
    const json resumed = answer(again, longer);
    EXPECT_GT(resumed["reused"], 0) << place.front();
    EXPECT_EQ(resumed["tokens"], whole["tokens"]) << place.front();
    EXPECT_EQ(resumed["speculation"]["accepted"], resumed["speculation"]["drafted"]);
  }
}

TEST_F(DraftRun, AChatHasItInEveryTurn) {
  const Words chat{"run", model("model"), "--chat", "-n", "20", "--threads", "1"};
  Words drafted = chat;
  drafted.insert(drafted.end(), {"--draft", model("same"), "--stats"});
  const std::string messages = "first\nand a second one\n";
  const Ran plain = run_cairn(chat, messages), with = run_cairn(drafted, messages);
  EXPECT_EQ(with.code, 0) << with.err;
  EXPECT_EQ(with.out, plain.out);
  const size_t once = with.err.find("drafts, ");
  ASSERT_NE(once, std::string::npos);
  EXPECT_NE(with.err.find("drafts, ", once + 1), std::string::npos) << with.err;
}

TEST_F(DraftRun, WhatDoesNotFitIsSaidInOneLine) {
  expect_refused({"--draft", folder_ / "absent.gguf"}, "absent.gguf");
  expect_refused({"--draft", ""}, "--draft");
  write_file(folder_ / "text.gguf", "this is no model");
  expect_refused({"--draft", folder_ / "text.gguf"}, "no GGUF file");
  expect_refused({"--draft", model("same"), "--speculate", "0"}, "--speculate 0");
  expect_refused({"--draft", model("same"), "--speculate", "65"}, "--speculate");
  write_tiny_chat_model(folder_ / "more.gguf", 1, "tu");
  expect_refused({"--draft", folder_ / "more.gguf"}, "261 tokens, expected the 260");
  write_tiny_chat_model(folder_ / "text.gguf", 1, "u");
  expect_refused({"--draft", folder_ / "text.gguf"}, "token 256");
  write_file(folder_ / "cut.gguf", read_file(model("same")).substr(0, 20000));
  expect_refused({"--draft", folder_ / "cut.gguf"}, "cut.gguf");
}

}  // namespace
}  // namespace cairn::testing
