// The main job with a real model and real processes: read, exit, resume, the same words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "tests/apps/program.h"

namespace cairn::testing {
namespace {

const std::string kModel = "models/smollm2.gguf";

// A text that every Debian system has.
std::string license(size_t bytes) { return read_file("LICENSE").substr(0, bytes); }

TEST(Restart, ANewProcessSaysWhatAnUninterruptedOneSays) {
  ScratchFolder folder;
  write_file(folder / "text", license(2400));
  const std::string text = folder / "text", state = folder / "state.cairn";
  const auto whole = run_cairn({"run", kModel, "-f", text, "-n", "64", "--json"}).json();
  ASSERT_EQ(run_cairn({"run", kModel, "-f", text, "-n", "0", "--state", state}).code, 0);
  const auto resumed =
      run_cairn({"run", kModel, "-f", text, "-n", "64", "--state", state, "--json"}).json();
  EXPECT_EQ(resumed["tokens"], whole["tokens"]);
  EXPECT_EQ(resumed["text"], whole["text"]);
  EXPECT_EQ(resumed["computed"], 1);
}

TEST(Restart, AChatRemembersAName) {
  ScratchFolder folder;
  const std::string state = folder / "chat.cairn";
  const auto say = [&](const std::string& text) {
    return run_cairn({"run", kModel, "--chat", "-p", text, "-n", "24", "--state", state, "--json"});
  };
  ASSERT_EQ(say("My name is Ada. Please remember it.").code, 0);
  EXPECT_THAT(say("What is my name?").json()["text"].get<std::string>(),
              ::testing::HasSubstr("Ada"));
}

// Two vocabularies: what one guesses the other cannot check.
TEST(RealDraft, AModelOfAnotherVocabularyIsRefused) {
  for (const auto& [model, small, part] :
       {std::tuple{"models/smollm2.gguf", "models/gemma3.gguf",
                   "gemma3.gguf: 262144 tokens, "
                   "expected the 49152 of models/smollm2.gguf"},
        std::tuple{"models/gemma3.gguf", "models/smollm2.gguf",
                   "smollm2.gguf: 49152 tokens, "
                   "expected the 262144 of models/gemma3.gguf"}}) {
    const Ran ran = run_cairn({"run", model, "-p", "Once", "-n", "4", "--draft", small});
    EXPECT_EQ(ran.code, 2);
    EXPECT_THAT(ran.err, ::testing::HasSubstr(part));
    EXPECT_EQ(ran.out, "");
  }
}

TEST(RealDraft, AModelGuessesForItself) {
  const std::vector<std::string> words{"run", kModel, "-p",    "The capital of France is",
                                       "-n",  "24",   "--json"};
  std::vector<std::string> drafted = words;
  drafted.insert(drafted.end(), {"--draft", kModel});
  const auto plain = run_cairn(words).json(), with = run_cairn(drafted).json();
  EXPECT_EQ(with["tokens"], plain["tokens"]);
  EXPECT_GT(with["speculation"]["accepted"], 10);
  EXPECT_EQ(with["speculation"]["accepted"], with["speculation"]["drafted"]);
}

}  // namespace
}  // namespace cairn::testing
