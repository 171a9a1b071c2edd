// What a model with latent attention remembers, in files: it goes on with the bits it would have
// had, and from mlx-lm's prompt caches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cairn/engine/convert.h"
#include "cairn/engine/mlx_lm_reader.h"
#include "cairn/engine/mlx_lm_writer.h"
#include "cairn/engine/snapshot.h"
#include "tests/models/oracle_file.h"
#include "tests/models/passes.h"
#include "tests/support/scratch_folder.h"

namespace cairn::testing {
namespace {

constexpr float kTolerance = 1e-4f;
constexpr size_t kCached = 40;  // positions of mlx-lm's files
constexpr size_t kLatentDim = 64, kRopeDim = 32, kIndexDim = 64;

float worst_difference(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return INFINITY;
  float worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const float difference = std::fabs(a[i] - b[i]);
    worst = difference > worst || std::isnan(difference) ? difference : worst;
  }
  return worst;
}

std::string model_path(const std::string& name) { return "tests/oracles/" + name + ".safetensors"; }
std::string cache_path(const std::string& name) {
  return "tests/oracles/mlx_lm/" + name + ".plain.cache.safetensors";
}

class LatentState : public ::testing::Test {
 protected:
  void use(const std::string& name) {
    model_ = must(load_model(model_path(name), {.threads = 1}));
    ids_ = OracleFile(model_path(name)).ids("oracle.input_ids");
  }
  StateOwner owner() const { return {.spec = model_->spec(), .adjacent_pairs = 0}; }
  std::string path(const char* name) const { return folder_ / name; }

  ScratchFolder folder_;
  std::unique_ptr<Model> model_;
  std::vector<int32_t> ids_;
};

TEST_F(LatentState, AFileGivesTheSameBits) {
  for (const char* name : {"deepseek_v3", "glm_moe_dsa"}) {
    use(name);
    const Tokens all(ids_);
    for (const char* scheme : {"f32", "f16", "turbo-k8v3", "affine4-g32-keep64"}) {
      SCOPED_TRACE(std::string(name) + " " + scheme);
      Passes passes(*model_, scheme);
      const SeqId seq = passes.start();
      passes.run(seq, all.first(75));
      passes.draft(seq, all.subspan(75, 9), 4);
      must(save(passes.session(), seq, all.first(79), path("chat.cairn")));
      const uint64_t expected = hash_of(passes.run(seq, all.subspan(79)));

      Passes again(*model_, scheme);
      const Loaded loaded = must(load(again.session(), path("chat.cairn")));
      EXPECT_FALSE(loaded.is_derived);
      EXPECT_EQ(hash_of(again.run_in_chunks(loaded.seq, all.subspan(79), 5)), expected);
    }
  }
}

TEST_F(LatentState, DeepseekGoesOnFromMlxLmsCache) {
  use("deepseek_v3");
  OracleFile oracle("tests/oracles/mlx_lm/deepseek_v3.plain.logits.safetensors");
  const StateOwner state_owner = owner();
  must(convert(cache_path("deepseek_v3"), path("chat.cairn"), {.owner = &state_owner}));
  Passes passes(*model_, "f32");
  const Loaded loaded = must(load(passes.session(), path("chat.cairn")));
  EXPECT_TRUE(loaded.is_derived);
  EXPECT_EQ(passes.session().length(loaded.seq), kCached);
  const auto logits = passes.run_in_chunks(loaded.seq, oracle.ids("tokens"), 1);
  EXPECT_LT(worst_difference(logits, oracle.floats("logits")), kTolerance);
}

TEST_F(LatentState, DeepseeksStateIsMlxLmsCache) {
  use("deepseek_v3");
  OracleFile theirs(cache_path("deepseek_v3"));
  const Tokens tokens = Tokens(ids_).first(kCached);
  Passes passes(*model_, "f32");
  const SeqId seq = passes.start();
  passes.run(seq, tokens);
  must(save(passes.session(), seq, tokens, path("chat.cairn")));
  const StateOwner state_owner = owner();
  must(convert(path("chat.cairn"), path("cache.safetensors"),
               {.owner = &state_owner, .to = FileKind::prompt_cache}));
  OracleFile ours(path("cache.safetensors"));
  for (size_t layer = 0; layer < 3; ++layer)
    for (const auto& [array, width] : {std::pair{".0", kLatentDim}, {".1", kRopeDim}}) {
      const std::string name = std::to_string(layer) + array;
      const auto a = ours.floats(name), b = theirs.floats(name);  // room for more positions
      EXPECT_LT(worst_difference(std::span(a).first(kCached * width),
                                 std::span(b).first(kCached * width)),
                kTolerance)
          << name;
    }
}

// mlx-lm knows no layers that share a choice: it gives every one an indexer, and from the first
// that should share on it computes something else. Up to there its cache is the model's state.
TEST_F(LatentState, OfGlmMlxLmsCacheIsTheModelsUpToTheFirstSharedIndexer) {
  use("glm_moe_dsa");
  const auto theirs =
      must(open_prompt_cache(posix_fs(), cache_path("glm_moe_dsa"), &model_->spec(), builtin()));
  ASSERT_EQ(theirs->info().length, kCached);
  Passes passes(*model_, "f32");
  const SeqId seq = passes.start();
  passes.run(seq, Tokens(ids_).first(kCached));
  const Snapshot ours = passes.session().snapshot(seq);
  struct Part {
    uint32_t slot;
    uint32_t family;
    FamilyId id;
    size_t width;
  };
  for (const Part& part :
       {Part{0, 0, kLatent, kLatentDim}, Part{0, 1, kRope, kRopeDim}, Part{0, 2, kIndex, kIndexDim},
        Part{1, 0, kLatent, kLatentDim}, Part{1, 1, kRope, kRopeDim}, Part{1, 2, kIndex, kIndexDim},
        Part{2, 0, kLatent, kLatentDim}, Part{2, 1, kRope, kRopeDim}}) {
    std::vector<float> a(kCached * part.width), b(a.size());
    must(theirs->read({part.slot, part.family, 0}, 0, kCached,
                      std::as_writable_bytes(std::span(a))));
    decode(ours.view(SlotId{part.slot}), 0, part.id, 0, kCached, b.data());
    EXPECT_LT(worst_difference(a, b), kTolerance) << part.slot << " " << part.family;
  }
  const StateOwner state_owner = owner();
  const auto refused =
      convert(cache_path("glm_moe_dsa"), path("chat.cairn"), {.owner = &state_owner});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::Mismatch);
  EXPECT_THAT(refused.error().message, ::testing::HasSubstr("slot 2"));
}

}  // namespace
}  // namespace cairn::testing
