// Model files that are sound, wrong, and hostile.
#include "cairn/models/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cairn/models/model.h"
#include "tests/models/gguf_file.h"
#include "tests/models/passes.h"
#include "tests/support/scratch_folder.h"

namespace cairn {
namespace {

using testing::GgufFile;
using ::testing::HasSubstr;
using testing::must;
using testing::Passes;
using testing::ScratchFolder;

class ModelFile : public ::testing::Test {
 protected:
  Result<std::unique_ptr<Model>> load(const std::string& path, Expand expand = Expand::no) {
    return load_model(path, {.threads = 1, .expand = expand, .cache_folder = {}});
  }
  Error error_of(const GgufFile& file) {
    file.write(path_);
    auto loaded = load(path_);
    if (loaded) return {Code::Io, "it was loaded"};
    return loaded.error();
  }

  ScratchFolder folder_;
  std::string path_ = folder_ / "model.gguf";
  GgufFile file_;
};

TEST_F(ModelFile, ASoundOneLoadsAndRuns) {
  file_.write(path_);
  const auto model = must(load(path_));
  EXPECT_EQ(model->vocabulary(), 40u);
  EXPECT_EQ(model->context_length(), 128u);
  EXPECT_EQ(model->spec().slots.size(), 1u);
  EXPECT_EQ(model->tokenizer(), nullptr);
  Passes passes(*model, "f32");
  const std::vector<int32_t> tokens = {1, 2, 3};
  EXPECT_EQ(passes.run(passes.start(), tokens).size(), 120u);
}

TEST_F(ModelFile, TheIdentityIsTheSha256OfTheFile) {
  file_.write(path_);
  EXPECT_EQ(must(load(path_))->spec().identity, sha256(testing::read_bytes(path_)));
}

TEST_F(ModelFile, TensorsPointIntoTheMappedFile) {
  file_.write(path_);
  Weights weights = must(open_weights(path_));
  const ggml_tensor* tensor = must(weights.matrix("blk.0.ffn_up.weight", 64, 96));
  const auto bytes = weights.file().bytes();
  EXPECT_GE(tensor->data, static_cast<void*>(bytes.data()));
  EXPECT_LE(static_cast<std::byte*>(tensor->data) + ggml_nbytes(tensor),
            bytes.data() + bytes.size());
}

TEST_F(ModelFile, AnAbsentOneIsNotFound) {
  const auto loaded = load(folder_ / "nothing.gguf");
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, Code::NotFound);
}

TEST_F(ModelFile, WhatIsNoModelIsBadInput) {
  for (const std::string bytes : {"", "GG", "a text", "GGUF", "GGUF\x03\x00\x00\x00"}) {
    testing::write_bytes(path_, bytes);
    const auto loaded = load(path_);
    ASSERT_FALSE(loaded) << bytes;
    EXPECT_EQ(loaded.error().code, Code::BadInput) << loaded.error().message;
    EXPECT_THAT(loaded.error().message, HasSubstr(path_));
  }
  EXPECT_EQ(load(folder_.path()).error().code, Code::BadInput);
}

TEST_F(ModelFile, AnUnknownArchitectureNamesThoseKnown) {
  file_.text("general.architecture", "mamba");
  const Error error = error_of(file_);
  EXPECT_EQ(error.code, Code::Unsupported);
  EXPECT_THAT(error.message, HasSubstr("architecture mamba, expected one of: llama"));
}

TEST_F(ModelFile, AMissingKeyIsNamed) {
  file_.remove("llama.block_count");
  const Error error = error_of(file_);
  EXPECT_EQ(error.code, Code::BadInput);
  EXPECT_THAT(error.message, HasSubstr("llama.block_count is missing"));
}

TEST_F(ModelFile, AKeyOfTheWrongTypeIsNamed) {
  file_.text("llama.block_count", "one");
  const Error error = error_of(file_);
  EXPECT_EQ(error.code, Code::BadInput);
  EXPECT_THAT(error.message, HasSubstr("llama.block_count is str, expected a whole number"));
}

TEST_F(ModelFile, ATensorOfTheWrongShapeIsNamed) {
  file_.number("llama.feed_forward_length", 97);
  EXPECT_THAT(error_of(file_).message,
              HasSubstr("tensor blk.0.ffn_gate.weight has shape [96, 64], expected [97, 64]"));
}

TEST_F(ModelFile, AMissingTensorIsNamed) {
  file_.number("llama.block_count", 2);
  EXPECT_THAT(error_of(file_).message, HasSubstr("tensor blk.1.attn_norm.weight is missing"));
}

TEST_F(ModelFile, ATensorThatWouldBeLeftOutIsRefused) {
  file_.tensor("blk.0.attn_q.bias", 64, 1);
  const Error error = error_of(file_);
  EXPECT_EQ(error.code, Code::Unsupported);
  EXPECT_THAT(error.message,
              HasSubstr("tensor blk.0.attn_q.bias has no place in this architecture"));
}

TEST_F(ModelFile, RopeScalingThatWouldBeLeftOutIsRefused) {
  file_.text("llama.rope.scaling.type", "longrope");
  EXPECT_EQ(error_of(file_).code, Code::Unsupported);
}

TEST_F(ModelFile, ZeroHeadsAreRefused) {
  for (const char* key :
       {"llama.attention.head_count", "llama.attention.head_count_kv", "llama.rope.dimension_count",
        "llama.context_length", "llama.vocab_size"}) {
    GgufFile file;
    file.number(key, 0);
    EXPECT_EQ(error_of(file).code, Code::BadInput) << key;
  }
}

TEST_F(ModelFile, OneThatIsCutAnywhereIsRefused) {
  file_.write(path_);
  const std::string whole = testing::read_bytes(path_);
  const std::string cut = folder_ / "cut.gguf";
  for (size_t length = 0; length < whole.size(); length += length < 2000 ? 1 : 911) {
    testing::write_bytes(cut, whole.substr(0, length));
    const auto loaded = load(cut);
    ASSERT_FALSE(loaded) << "cut at " << length;
    EXPECT_EQ(loaded.error().code, Code::BadInput) << loaded.error().message;
  }
}

// A changed header may still be a sound file with other numbers, but it must not crash, and what
// loads must run.
TEST_F(ModelFile, OneWithAnyByteOfItsHeaderChangedDoesNotCrash) {
  file_.write(path_);
  const std::string whole = testing::read_bytes(path_);
  const size_t header =
      whole.size() - (64 * 40 + 64 * 3 + 64 * 64 * 2 + 64 * 32 * 2 + 64 * 96 * 3) * sizeof(float);
  const std::string changed = folder_ / "changed.gguf";
  const std::vector<int32_t> tokens = {0};
  for (size_t place = 0; place < header; ++place)
    for (const uint8_t flip : {0x01, 0x80, 0xff}) {
      std::string bytes = whole;
      bytes[place] = static_cast<char>(bytes[place] ^ flip);
      testing::write_bytes(changed, bytes);
      const auto loaded = load(changed);
      if (!loaded) continue;
      Memory memory({.max_bytes = uint64_t{1} << 30});
      auto session = open_session((*loaded)->spec(), must(parse_scheme("f16")), memory);
      if (!session) continue;
      auto step = session->plan({{.seq = session->start(), .count = 1}});
      if (step) (void)(*loaded)->forward(*step, tokens, {}, nullptr);
    }
}

TEST(Threads, ZeroIsRefused) {
  const auto executor = Executor::make(0);
  ASSERT_FALSE(executor);
  EXPECT_EQ(executor.error().code, Code::BadInput);
}

}  // namespace
}  // namespace cairn
