#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/apps/program.h"
#include "tests/apps/tiny_chat_model.h"

namespace cairn::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class Files : public ::testing::Test {
 protected:
  void SetUp() override {
    write_tiny_chat_model(folder_ / "tiny.gguf", 1);
    const Ran ran = run_cairn(
        {"run", folder_ / "tiny.gguf", "-p", std::string(200, 'z'), "-n", "0", "--state", state()});
    ASSERT_EQ(ran.code, 0) << ran.err;
  }
  std::string state() const { return folder_ / "z.cairn"; }
  void corrupt_byte(size_t from_end) const {
    std::string bytes = read_file(state());
    bytes[bytes.size() - from_end] ^= 0x10;
    write_file(state(), bytes);
  }

  ScratchFolder folder_;
};

TEST_F(Files, InspectShowsATableAndJson) {
  const Ran table = run_cairn({"inspect", state()});
  EXPECT_EQ(table.code, 0) << table.err;
  for (const char* part : {"positions", "attention", "key", "value", "f16", "0-199", "0-1"})
    EXPECT_THAT(table.out, HasSubstr(part));
  const auto json = run_cairn({"inspect", state(), "--json"}).json();
  EXPECT_EQ(json["positions"], 200);
  EXPECT_EQ(json["resumes_at"], nlohmann::json::array({{{"begin", 0}, {"end", 201}}}));
  EXPECT_EQ(json["slots"].size(), 2u);
  EXPECT_EQ(json["state_bytes"], 200 * 2 * 2 * 2 * 16 * 2);
  EXPECT_EQ(json["slots"][0]["families"][0]["encoding"], "f16");
}

TEST_F(Files, InspectReadsTheTextWithTheRightVocabularyOnly) {
  const Ran text = run_cairn({"inspect", state(), "--text", "--model", folder_ / "tiny.gguf"});
  EXPECT_EQ(text.out, std::string(200, 'z') + "\n");
  const Ran unknown = run_cairn({"inspect", state(), "--text"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("--model"));
}

TEST_F(Files, VerifyPassesASoundFile) {
  const Ran sound = run_cairn({"verify", state()});
  EXPECT_EQ(sound.code, 0) << sound.err;
  EXPECT_THAT(sound.out, HasSubstr("sound"));
  const auto json = run_cairn({"verify", state(), "--json"}).json();
  EXPECT_EQ(json["files"][0]["is_sound"], true);
}

TEST_F(Files, VerifyNamesSlotPlaneAndPositions) {
  corrupt_byte(200 * 4 + 1);  // the token ids come last
  const Ran damaged = run_cairn({"verify", state()});
  EXPECT_EQ(damaged.code, 4);
  for (const char* part : {"slot 1", "value", "values", "positions "})
    EXPECT_THAT(damaged.out, HasSubstr(part));
  const auto json = run_cairn({"verify", state(), "--json"}).json();
  EXPECT_EQ(json["files"][0]["is_sound"], false);
  EXPECT_EQ(json["files"][0]["damage"].size(), 1u);
}

TEST_F(Files, VerifyGoesOnAfterABadFileAndExitsWithTheWorst) {
  write_file(folder_ / "poem", "not a checkpoint at all");
  const std::string good = folder_ / "good.cairn";
  std::filesystem::copy_file(state(), good);
  corrupt_byte(1);
  const Ran all = run_cairn({"verify", folder_ / "poem", state(), good});
  EXPECT_EQ(all.code, 4);
  EXPECT_THAT(all.out, HasSubstr("good.cairn: sound"));
  EXPECT_THAT(all.err, HasSubstr("poem"));
  EXPECT_EQ(run_cairn({"verify", folder_ / "absent"}).code, 2);
  EXPECT_EQ(run_cairn({"verify"}).code, 2);
}

TEST_F(Files, InspectFindsADamagedHeader) {
  std::string bytes = read_file(state());
  bytes[60] ^= 1;
  write_file(state(), bytes);
  const Ran ran = run_cairn({"inspect", state()});
  EXPECT_EQ(ran.code, 4);
  EXPECT_THAT(ran.err, HasSubstr("z.cairn"));
}

TEST(Lists, AreTablesAndJson) {
  for (const char* list : {"models", "kinds", "encodings"}) {
    SCOPED_TRACE(list);
    EXPECT_EQ(run_cairn({list}).code, 0);
    EXPECT_TRUE(run_cairn({list, "--json"}).json().is_array());
  }
}

const auto& named(const nlohmann::json& list, const std::string& name) {
  for (const auto& entry : list)
    if (entry["name"] == name) return entry;
  throw std::runtime_error(name + " is not listed");
}

TEST(Lists, KindsSayWhatAPositionTakes) {
  EXPECT_THAT(run_cairn({"kinds"}).out, ContainsRegex("window +2 +key +f16"));
  const auto kinds = run_cairn({"kinds", "--json"}).json();
  for (const auto& kind : kinds) {
    uint64_t of_position = 0, of_sequence = 0;
    for (const auto& family : kind["families"]) {
      const uint64_t numbers = family["heads"].get<uint64_t>() * family["width"].get<uint64_t>();
      const bool is_fixed = family.contains("bytes_per_sequence");
      (is_fixed ? of_sequence : of_position) += numbers * (is_fixed ? sizeof(float) : 2);
    }
    EXPECT_EQ(kind["bytes_per_position"], of_position) << kind;
    EXPECT_EQ(kind["bytes_per_sequence"], of_sequence) << kind;
    EXPECT_GT(of_position + of_sequence, 0u) << kind;
  }
  EXPECT_EQ(named(kinds, "attention")["families"].size(), 2u);
  EXPECT_EQ(named(named(kinds, "latent")["families"], "index")["encoding"], "f16");
  EXPECT_EQ(named(kinds, "recurrent")["bytes_per_position"], 0);

  const auto fine = run_cairn({"kinds", "--kv", "affine8", "--json"}).json();
  const auto& rope = named(named(fine, "latent-draft")["families"], "rope");
  EXPECT_EQ(rope["encoding"], "affine8-g64-f32");
  EXPECT_EQ(rope["bytes_per_position"], rope["width"].get<uint64_t>() / 64 * (64 + 8));
  EXPECT_EQ(run_cairn({"kinds", "--kv", "f17"}).code, 2);
}

TEST(Lists, EncodingsSayWhatAVectorTakes) {
  EXPECT_THAT(run_cairn({"encodings"}).out, ContainsRegex("bf16 +256 +16"));
  const auto encodings = run_cairn({"encodings", "--json"}).json();
  EXPECT_EQ(named(encodings, "f32")["bytes_per_position"], 512);
  EXPECT_EQ(named(encodings, "f32")["error_bound"], 0);
  EXPECT_EQ(named(encodings, "affine8")["bytes_per_position"], 128 + 2 * (2 + 2));
  EXPECT_EQ(named(encodings, "affine8")["width"], 128);
  EXPECT_EQ(named(encodings, "turbo-value3")["bytes_per_position"], 128 * 3 / 8 + 4 * 2);
}

TEST(Lists, ModelsAreFoundByName) {
  ScratchFolder folder;
  write_tiny_chat_model(folder / "tiny.gguf", 1);
  write_file(folder / "broken.gguf", "GGUF");
  ASSERT_EQ(setenv("CAIRN_MODELS", folder.path().c_str(), 1), 0);
  const auto models = run_cairn({"models", "--json"}).json();
  const Ran by_name = run_cairn({"run", "tiny", "-p", "hello", "-n", "2"});
  ASSERT_EQ(unsetenv("CAIRN_MODELS"), 0);
  EXPECT_EQ(by_name.code, 0) << by_name.err;
  EXPECT_EQ(named(models, "tiny")["architecture"], "llama");
  EXPECT_EQ(named(models, "tiny")["context"], kTinyContext);
  EXPECT_TRUE(named(models, "broken").contains("problem"));
}

TEST(Help, TeachesWithExamplesAndExitCodes) {
  EXPECT_THAT(run_cairn({"--help"}).out, HasSubstr("Exit codes"));
  for (const char* command : {"run", "inspect", "verify", "kinds", "encodings"}) {
    const Ran help = run_cairn({command, "--help"});
    EXPECT_EQ(help.code, 0);
    EXPECT_THAT(help.out, HasSubstr(std::string("cairn ") + command));
  }
  EXPECT_THAT(run_cairn({"--version"}).out, HasSubstr("cairn "));
}

}  // namespace
}  // namespace cairn::testing
