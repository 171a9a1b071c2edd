#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/apps/program.h"
#include "tests/apps/tiny_chat_model.h"

namespace cairn::testing {
namespace {

using ::testing::HasSubstr;

constexpr const char* kPromptCache = "tests/oracles/mlx_lm/llama.affine4.cache.safetensors";

class ConvertCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    write_tiny_chat_model(model(), 1);
    const Ran ran = run_cairn(
        {"run", model(), "-p", std::string(200, 'z'), "-n", "0", "--state", folder_ / "in.cairn"});
    ASSERT_EQ(ran.code, 0) << ran.err;
  }
  std::string model() const { return folder_ / "tiny.gguf"; }
  // cairn convert IN OUT ..., both in the folder.
  Ran convert(const std::string& in,
              const std::string& out,
              const std::vector<std::string>& options = {}) const {
    std::vector<std::string> words = {"convert", folder_ / in, folder_ / out};
    words.insert(words.end(), options.begin(), options.end());
    return run_cairn(words);
  }
  bool exists(const std::string& name) const { return std::filesystem::exists(folder_ / name); }

  ScratchFolder folder_;
};

TEST_F(ConvertCommand, ReencodesAndSaysWhatWasLost) {
  const Ran made = convert("in.cairn", "out.cairn", {"--kv", "affine8-g32"});
  EXPECT_EQ(made.code, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr("checkpoint of 200 positions, affine8-g32 (f16 before)"));
  EXPECT_THAT(made.out, HasSubstr("derived"));
  EXPECT_THAT(made.err, HasSubstr("warning: "));
  EXPECT_THAT(made.err, HasSubstr("key, value from f16: what that encoding lost stays lost"));
  const auto info = run_cairn({"inspect", folder_ / "out.cairn", "--json"}).json();
  EXPECT_EQ(info["scheme"], "affine8-g32");
  EXPECT_EQ(info["is_derived"], true);
  EXPECT_EQ(run_cairn({"verify", folder_ / "out.cairn"}).code, 0);

  // The state goes on, with a warning.
  const Ran run =
      run_cairn({"run", model(), "--state", folder_ / "out.cairn", "--continue", "-n", "4"});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("derived"));
}

TEST_F(ConvertCommand, ToMlxLmAndBackGivesTheSameRecords) {
  const auto there =
      convert("in.cairn", "cache", {"--to", "mlx-lm", "--model", model(), "--json"}).json();
  EXPECT_EQ(there["from"], "checkpoint");
  EXPECT_EQ(there["to"], "mlx-lm prompt cache");
  EXPECT_EQ(there["scheme"], nullptr);
  EXPECT_EQ(there["warnings"].size(), 0u);
  const auto back = convert("cache", "back.cairn", {"--model", model(), "--json"}).json();
  EXPECT_EQ(back["from"], "mlx-lm prompt cache");
  EXPECT_EQ(back["scheme"], "f16");
  EXPECT_EQ(back["is_derived"], true);
  EXPECT_EQ(back["positions"], 200);
  const std::string before = read_file(folder_ / "in.cairn"),
                    after = read_file(folder_ / "back.cairn");
  constexpr size_t kDataBytes = 200 * (2 * 2 * 2 * 16 * 2 + 4);
  ASSERT_GT(before.size(), kDataBytes);
  EXPECT_TRUE(before.substr(before.size() - kDataBytes) == after.substr(after.size() - kDataBytes));
  const Ran text = run_cairn({"inspect", folder_ / "back.cairn", "--text", "--model", model()});
  EXPECT_EQ(text.out, std::string(200, 'z') + "\n");
}

TEST_F(ConvertCommand, AnImportBelongsToNoModelUntilItIsGivenOne) {
  const Ran made = run_cairn({"convert", kPromptCache, folder_ / "out.cairn"});
  EXPECT_EQ(made.code, 0) << made.err;
  EXPECT_EQ(run_cairn({"verify", folder_ / "out.cairn"}).code, 0);
  const auto info = run_cairn({"inspect", folder_ / "out.cairn", "--json"}).json();
  EXPECT_EQ(info["identity"], std::string(64, '0'));
  EXPECT_EQ(info["scheme"], "affine4-g32-f32");
  const Ran run =
      run_cairn({"run", model(), "--state", folder_ / "out.cairn", "--continue", "-n", "1"});
  EXPECT_EQ(run.code, 3);
  EXPECT_THAT(run.err, HasSubstr("--model"));
  const Ran other = convert("out.cairn", "own.cairn", {"--model", model()});
  EXPECT_EQ(other.code, 3);
  EXPECT_THAT(other.err, HasSubstr("slots: 3, expected 2"));
  EXPECT_FALSE(exists("own.cairn"));
}

TEST_F(ConvertCommand, ReplacesNothingUnawares) {
  const std::string sound = read_file(folder_ / "in.cairn");
  write_file(folder_ / "poem", "a rose is a rose is a rose");
  std::filesystem::create_hard_link(folder_ / "in.cairn", folder_ / "link");
  ASSERT_EQ(convert("in.cairn", "out.cairn").code, 0);
  const Ran exists = convert("in.cairn", "out.cairn", {"--kv", "f32"});
  EXPECT_EQ(exists.code, 2);
  EXPECT_THAT(exists.err, HasSubstr("--overwrite"));
  EXPECT_TRUE(read_file(folder_ / "out.cairn") == sound);
  for (const char* out : {"in.cairn", "link", "poem"}) {
    EXPECT_EQ(convert("in.cairn", out, {"--overwrite"}).code, 2) << out;
    EXPECT_EQ(convert("in.cairn", out).code, 2) << out;
  }
  EXPECT_TRUE(read_file(folder_ / "in.cairn") == sound);
  EXPECT_EQ(read_file(folder_ / "poem"), "a rose is a rose is a rose");
  EXPECT_EQ(convert("in.cairn", "out.cairn", {"--kv", "f32", "--overwrite"}).code, 0);
  EXPECT_EQ(run_cairn({"inspect", folder_ / "out.cairn", "--json"}).json()["scheme"], "f32");
}

TEST_F(ConvertCommand, SaysWhatIsWrong) {
  write_file(folder_ / "poem", "a rose is a rose is a rose");
  EXPECT_EQ(convert("absent", "out").code, 2);
  const Ran poem = convert("poem", "out");
  EXPECT_EQ(poem.code, 2);
  EXPECT_THAT(poem.err, HasSubstr("poem"));
  const Ran scheme = convert("in.cairn", "out", {"--kv", "f17"});
  EXPECT_EQ(scheme.code, 2);
  EXPECT_THAT(scheme.err, HasSubstr("f17"));
  const Ran weights = run_cairn({"convert", "tests/oracles/llama.safetensors", folder_ / "out"});
  EXPECT_EQ(weights.code, 2);
  EXPECT_THAT(weights.err, HasSubstr("neither a checkpoint nor a prompt cache"));
  const Ran nobody = convert("in.cairn", "out", {"--to", "mlx-lm"});
  EXPECT_EQ(nobody.code, 2);
  EXPECT_THAT(nobody.err, HasSubstr("--model"));
  EXPECT_EQ(convert("in.cairn", "out", {"--to", "elsewhere"}).code, 2);
  std::string damaged = read_file(folder_ / "in.cairn");
  damaged.back() ^= 1;
  write_file(folder_ / "in.cairn", damaged);
  EXPECT_EQ(convert("in.cairn", "out").code, 4);
  EXPECT_FALSE(exists("out"));
}

TEST(ConvertHelp, TeachesWithExamples) {
  const Ran help = run_cairn({"convert", "--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out, HasSubstr("cairn convert chat.cairn small.cairn --kv affine8"));
}

}  // namespace
}  // namespace cairn::testing
