// The main job with a real model and real processes: read, exit, resume, the same words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace cairn::testing
