#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/apps/program.h"
#include "tests/apps/tiny_chat_model.h"

namespace cairn::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

const std::string kText = "It was a dark and stormy night; the rain fell in torrents, except at";

class Run : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    models_ = new ScratchFolder;
    write_tiny_chat_model(model(), 1);
    write_tiny_chat_model(other_model(), 2);
  }
  static void TearDownTestSuite() { delete models_; }

  static std::string model() { return *models_ / "tiny.gguf"; }
  static std::string other_model() { return *models_ / "other.gguf"; }
  std::string state() const { return folder_ / "chat.cairn"; }

  // cairn run on the tiny model with --state.
  Ran answer(const std::string& text, Words more = {}) const {
    Words words{"run", model(), "-p", text, "--state", state(), "--threads", "1"};
    words.insert(words.end(), more.begin(), more.end());
    return run_cairn(words);
  }
  nlohmann::json json(const std::string& text, Words more = {}) const {
    more.push_back("--json");
    const Ran ran = answer(text, more);
    EXPECT_EQ(ran.code, 0) << ran.err;
    return ran.json();
  }

  ScratchFolder folder_;

 private:
  static ScratchFolder* models_;
};
ScratchFolder* Run::models_ = nullptr;

// One line on stderr that begins with the program's name.
void expect_error(const Ran& ran, int code, const std::string& part) {
  EXPECT_EQ(ran.code, code) << ran.err;
  EXPECT_THAT(ran.err, AllOf(::testing::StartsWith("cairn: "), HasSubstr(part)));
  EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
  EXPECT_EQ(ran.out, "");
}

// --- what it says ---

TEST_F(Run, PrintsTheTextThatJsonHolds) {
  const Words words{"run", model(), "-p", kText, "-n", "20"};
  const Ran plain = run_cairn(words);
  const auto json = run_cairn({"run", model(), "-p", kText, "-n", "20", "--json"}).json();
  EXPECT_EQ(plain.code, 0);
  EXPECT_EQ(json["tokens"].size(), 20u);
  EXPECT_EQ(json["prompt_tokens"], json["computed"]);
  EXPECT_EQ(json["reused"], 0);
  EXPECT_GT(json["ttft_ms"], 0);
  EXPECT_GT(json["decode_tokens_per_s"], 0);
  EXPECT_GT(json["state_bytes"], 0);
  EXPECT_EQ(json["finish"], "length");
}

TEST_F(Run, StatsGoToStderrAndNameTheParts) {
  const Ran ran = answer(kText, {"-n", "4", "--stats"});
  for (const char* part : {"first token", "process start", "model", "state", "first step", "reused",
                           "computed", "generated", "positions"})
    EXPECT_THAT(ran.err, HasSubstr(part));
  EXPECT_EQ(run_cairn({"run", model(), "-p", kText, "-n", "4"}).out, ran.out);
}

TEST_F(Run, ReadsAFileAndStdin) {
  write_file(folder_ / "text", kText);
  const Ran by_option = run_cairn({"run", model(), "-p", kText, "-n", "8"});
  EXPECT_EQ(run_cairn({"run", model(), "-f", folder_ / "text", "-n", "8"}).out, by_option.out);
  EXPECT_EQ(run_cairn({"run", model(), "-f", "-", "-n", "8"}, kText).out, by_option.out);
}

TEST_F(Run, TheSameSeedGivesTheSameWordsAndThreadsChangeNone) {
  const Words words{"run",    model(), "-p",     kText, "-n",    "24",
                    "--temp", "0.9",   "--seed", "7",   "--json"};
  const auto first = run_cairn(words).json(), second = run_cairn(words).json();
  EXPECT_EQ(first["tokens"], second["tokens"]);
  Words threads = words, seed = words;
  threads.insert(threads.end(), {"--threads", "3"});
  seed[9] = "8";
  EXPECT_EQ(run_cairn(threads).json()["tokens"], first["tokens"]);
  EXPECT_NE(run_cairn(seed).json()["tokens"], first["tokens"]);
}

// --- the state file ---

TEST_F(Run, ANewProcessGoesOnWithTheSameTokens) {
  for (const Words& sampling : {Words{}, Words{"--temp", "1", "--seed", "3"}}) {
    Words words{"run", model(), "-p", kText, "-n", "64", "--json"};
    words.insert(words.end(), sampling.begin(), sampling.end());
    const auto whole = run_cairn(words).json();

    Words read{"-n", "0", "--overwrite"}, resume{"-n", "64"};
    read.insert(read.end(), sampling.begin(), sampling.end());
    resume.insert(resume.end(), sampling.begin(), sampling.end());
    EXPECT_EQ(json(kText, read)["tokens"].size(), 0u);
    const auto resumed = json(kText, resume);
    EXPECT_EQ(resumed["tokens"], whole["tokens"]);
    EXPECT_EQ(resumed["computed"], 1);
    EXPECT_EQ(resumed["reused"], whole["prompt_tokens"].get<int>() - 1);
  }
}

TEST_F(Run, ContinuingWithoutATextGoesOnGenerating) {
  for (const Words& sampling : {Words{}, Words{"--temp", "1", "--seed", "3"}}) {
    Words more{"-n", "40", "--overwrite"}, half{"-n", "20", "--overwrite"};
    Words rest{"run", model(), "--state", state(), "--continue", "-n", "20", "--json"};
    for (Words* words : {&more, &half, &rest})
      words->insert(words->end(), sampling.begin(), sampling.end());
    const auto whole = json(kText, more)["tokens"];
    auto tokens = json(kText, half)["tokens"];
    const auto more_tokens = run_cairn(rest).json()["tokens"];
    for (const auto& token : more_tokens) tokens.push_back(token);
    EXPECT_EQ(tokens, whole);
  }
}

TEST_F(Run, ContinueAppendsWhatMatchingTheWholeTextComputes) {
  const auto whole =
      run_cairn({"run", model(), "-p", kText + " -- and so", "-n", "16", "--json"}).json();
  json(kText, {"-n", "0"});
  const auto appended = json(" -- and so", {"-n", "16", "--continue"});
  EXPECT_EQ(appended["tokens"], whole["tokens"]);
  EXPECT_EQ(appended["prompt_tokens"], whole["prompt_tokens"]);
  EXPECT_EQ(appended["computed"], 10);
}

TEST_F(Run, ALongerTextReusesTheSharedPrefix) {
  json(kText, {"-n", "0"});
  const auto longer = json(kText + "!?", {"-n", "4"});
  EXPECT_EQ(longer["computed"], 2);
  const std::string changed = kText.substr(0, kText.size() - 6) + "abcdef";
  const auto cut = json(changed, {"-n", "4"});
  EXPECT_EQ(cut["computed"], 6);
  EXPECT_EQ(cut["tokens"],
            run_cairn({"run", model(), "-p", changed, "-n", "4", "--json"}).json()["tokens"]);
}

TEST_F(Run, ATextThatCutsMoreThanHalfIsRefused) {
  json(kText, {"-n", "0"});
  const std::string before = read_file(state());
  const std::string text = kText.substr(0, 20) + " something else";
  const Ran refused = answer(text, {"-n", "4"});
  expect_error(refused, 2, "--continue");
  EXPECT_THAT(refused.err, HasSubstr("--overwrite"));
  EXPECT_EQ(read_file(state()), before);
  EXPECT_EQ(answer(text, {"-n", "4", "--overwrite"}).code, 0);
  EXPECT_NE(read_file(state()), before);
}

TEST_F(Run, TheFilesSchemeIsKeptAndAnotherIsAMismatch) {
  json(kText, {"-n", "0", "--kv", "bf16"});
  EXPECT_EQ(answer(kText, {"-n", "1"}).code, 0);
  EXPECT_EQ(run_cairn({"inspect", state(), "--json"}).json()["scheme"], "bf16");
  const Ran other = answer(kText, {"-n", "1", "--kv", "f32"});
  expect_error(other, 3, "bf16");
  EXPECT_THAT(other.err, HasSubstr("f32"));
  EXPECT_EQ(answer(kText, {"-n", "1", "--kv", "f32", "--overwrite"}).code, 0);
  EXPECT_EQ(run_cairn({"inspect", state(), "--json"}).json()["scheme"], "f32");
}

TEST_F(Run, AnotherModelsStateIsAMismatch) {
  json(kText, {"-n", "0"});
  const std::string before = read_file(state());
  expect_error(run_cairn({"run", other_model(), "-p", kText, "--state", state()}), 3, "model");
  EXPECT_EQ(read_file(state()), before);
}

TEST_F(Run, ADamagedStateIsFoundAndReplacedOnlyWhenTold) {
  json(kText, {"-n", "0"});
  std::string bytes = read_file(state());
  bytes[bytes.size() - 100] ^= 1;
  write_file(state(), bytes);
  const Ran damaged = answer(kText, {"-n", "1"});
  expect_error(damaged, 4, "--overwrite");
  EXPECT_EQ(read_file(state()), bytes);
  EXPECT_EQ(answer(kText, {"-n", "1", "--overwrite"}).code, 0);
  EXPECT_EQ(run_cairn({"verify", state()}).code, 0);
}

TEST_F(Run, AFileThatIsNoCheckpointIsNeverReplaced) {
  write_file(state(), "my only copy of a poem\n");
  expect_error(answer(kText), 2, "left alone");
  expect_error(answer(kText, {"--overwrite"}), 2, "left alone");
  EXPECT_EQ(read_file(state()), "my only copy of a poem\n");
}

TEST_F(Run, OfTwoProcessesTheLastCompleteSaveWins) {
  const Words words{"run", model(), "-p", kText, "--state", state(), "-n"};
  Words ten = words, twenty = words;
  ten.push_back("10");
  twenty.push_back("20");
  const int prompt =
      run_cairn({"run", model(), "-p", kText, "-n", "0", "--json"}).json()["prompt_tokens"];
  for (int round = 0; round < 5; ++round) {
    std::filesystem::remove(state());
    Process first(ten), second(twenty);
    const Ran a = first.wait(), b = second.wait();
    EXPECT_EQ(a.code, 0) << a.err;
    EXPECT_EQ(b.code, 0) << b.err;
    EXPECT_EQ(run_cairn({"verify", state()}).code, 0);
    const int tokens = run_cairn({"inspect", state(), "--json"}).json()["tokens"];
    EXPECT_TRUE(tokens == prompt + 10 || tokens == prompt + 20) << tokens;
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1);
}

// --- wrong use ---

TEST_F(Run, WrongUseIsSaidInOneLine) {
  expect_error(run_cairn({"run", "no-such-model", "-p", "x"}), 2, "no-such-model");
  write_file(folder_ / "text.gguf", "this is no model");
  expect_error(run_cairn({"run", folder_ / "text.gguf", "-p", "x"}), 2, "no GGUF file");
  expect_error(run_cairn({"run", model()}), 2, "-p TEXT");
  expect_error(run_cairn({"run", model(), "-p", "x", "-f", "y"}), 2, "--help");
  expect_error(run_cairn({"run", model(), "-f", folder_ / "absent"}), 2, "absent");
  expect_error(run_cairn({"run", model(), "-p", "x", "--continue"}), 2, "--state");
  expect_error(run_cairn({"run", model(), "-p", "x", "--kv", "f17"}), 2, "f17");
  expect_error(run_cairn({"run", model(), "-p", "x", "-n", "-3"}), 2, "-3");
  expect_error(run_cairn({"run", model(), "-p", "x", "--temp", "-1"}), 2, "temperature");
  expect_error(run_cairn({"run", model(), "-p", "x", "--threads", "0"}), 2, "threads");
  expect_error(run_cairn({"run", model(), "--chat", "--json"}), 2, "--json");
  expect_error(run_cairn({"run", model(), "-p", ""}), 2, "empty");
  expect_error(run_cairn({"walk"}), 2, "--help");
  expect_error(run_cairn({}), 2, "--help");
}

TEST_F(Run, ATextBeyondTheContextIsRefusedBeforeAnythingIsComputed) {
  expect_error(answer(kText, {"--ctx", "32"}), 2, "32");
  expect_error(run_cairn({"run", model(), "-p", std::string(5000, 'x')}), 2, "4096");
  expect_error(answer(kText, {"--ctx", "999999"}), 2, "4096");
  EXPECT_FALSE(std::filesystem::exists(state()));
}

TEST_F(Run, AFullContextEndsTheAnswerAndIsSaved) {
  const Ran ran = answer(kText, {"--ctx", "80", "-n", "100", "--json"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_THAT(ran.err, HasSubstr("80"));
  EXPECT_EQ(ran.json()["finish"], "context_full");
  EXPECT_EQ(run_cairn({"inspect", state(), "--json"}).json()["positions"], 80);
}

TEST_F(Run, AFolderThatCannotBeWrittenIsAnErrorBeforeAndAfterComputing) {
  expect_error(run_cairn({"run", model(), "-p", "x", "--state", folder_ / "no/chat"}), 2, "no");
  const Ran late = run_cairn({"run", model(), "-p", "x", "-n", "2", "--state", "/proc/chat.cairn"});
  EXPECT_NE(late.code, 0);
  EXPECT_THAT(late.err, HasSubstr("/proc"));
}

// --- interruption ---

TEST_F(Run, InterruptedItFinishesTheTokenSavesAndExits130) {
  Process process({"run", model(), "-p", kText, "-n", "4000", "--state", state()});
  ASSERT_TRUE(process.wait_for_output());
  process.send(SIGINT);
  const Ran ran = process.wait();
  EXPECT_EQ(ran.code, 130) << ran.err;
  EXPECT_EQ(run_cairn({"verify", state()}).code, 0);

  const int held = run_cairn({"inspect", state(), "--json"}).json()["positions"];
  const int prompt =
      run_cairn({"run", model(), "-p", kText, "-n", "0", "--json"}).json()["prompt_tokens"];
  const int done = held - prompt;
  EXPECT_GT(done, 0);
  const auto rest =
      run_cairn({"run", model(), "--state", state(), "--continue", "-n", "8", "--json"}).json();
  const auto whole =
      run_cairn({"run", model(), "-p", kText, "-n", std::to_string(done + 8), "--json"}).json();
  ASSERT_EQ(rest["tokens"].size(), 8u);
  EXPECT_TRUE(std::equal(rest["tokens"].begin(), rest["tokens"].end(), whole["tokens"].end() - 8));
}

TEST_F(Run, InterruptedWhileReadingItKeepsWhatWasComputed) {
  if (access("/dev/ptmx", R_OK | W_OK) != 0) GTEST_SKIP() << "no terminal can be opened here";
  const std::string text(4000, 'a');
  // The bar has a first piece when some of the text is read. On a busy machine the signal may come
  // after the last of it: then once more.
  int code = 0;
  for (int attempt = 0; attempt < 20 && code == 0; ++attempt) {
    std::filesystem::remove(state());
    Process process({"run", model(), "-p", text, "-n", "1", "--state", state(), "--threads", "1"},
                    "", Watched::on_a_terminal);
    ASSERT_TRUE(process.wait_for_sight_of("━"));
    process.send(SIGINT);
    code = process.wait().code;
  }
  ASSERT_EQ(code, 130);
  EXPECT_GT(run_cairn({"inspect", state(), "--json"}).json()["positions"], 0);
  EXPECT_LT(run_cairn({"inspect", state(), "--json"}).json()["positions"], 4000);
  const auto resumed = json(text, {"-n", "3"});
  EXPECT_EQ(resumed["tokens"],
            run_cairn({"run", model(), "-p", text, "-n", "3", "--json"}).json()["tokens"]);
}

// --- chat ---

TEST_F(Run, AChatIsSavedAfterEveryTurnAndResumed) {
  const Words chat{"run", model(), "--chat", "--state", state(), "-n", "12"};
  const Ran whole = run_cairn({"run", model(), "--chat", "-n", "12"}, "hello\nand again\n");
  const Ran first = run_cairn(chat, "hello\n"), second = run_cairn(chat, "and again\n");
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(first.out + second.out, whole.out);
  const std::string text = run_cairn({"inspect", state(), "--text", "--model", model()}).out;
  EXPECT_THAT(text, AllOf(HasSubstr("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"),
                          HasSubstr("<|im_start|>user\nand again<|im_end|>\n")));
}

TEST_F(Run, AMessageTooLongLeavesTheChatUsable) {
  const Ran ran =
      run_cairn({"run", model(), "--chat", "-n", "4", "--ctx", "120", "--state", state()},
                "hello\n" + std::string(300, 'x') + "\nstill there?\n");
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("120 positions"));
  const std::string text = run_cairn({"inspect", state(), "--text", "--model", model()}).out;
  EXPECT_THAT(text, HasSubstr("still there?"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("xxx")));
}

TEST_F(Run, OneMessageIsAnsweredAsALineOfAChat) {
  const Words one{"run", model(), "--chat", "-p", "hello", "-n", "12"};
  EXPECT_EQ(run_cairn(one).out, run_cairn({"run", model(), "--chat", "-n", "12"}, "hello\n").out);
  Words json = one;
  json.push_back("--json");
  EXPECT_EQ(run_cairn(json).json()["tokens"].size(), 12u);
}

}  // namespace
}  // namespace cairn::testing
