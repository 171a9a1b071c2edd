// What a model with recurrent layers remembers, in files and in a store: it goes on with the bits
// it would have had, and from mlx-lm's prompt cache.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "cairn/engine/convert.h"
#include "cairn/engine/prefix.h"
#include "cairn/engine/snapshot.h"
#include "cairn/runtime/generate.h"
#include "tests/models/oracle_file.h"
#include "tests/models/passes.h"
#include "tests/support/scratch_folder.h"

namespace cairn::testing {
namespace {

constexpr const char* kModel = "tests/oracles/qwen3_next.safetensors";
constexpr const char* kCache = "tests/oracles/mlx_lm/qwen3_next.plain.cache.safetensors";
constexpr const char* kLogits = "tests/oracles/mlx_lm/qwen3_next.plain.logits.safetensors";
constexpr float kTolerance = 1e-4f;
constexpr size_t kLayers = 4, kCached = 40;  // positions of mlx-lm's file

float worst_difference(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return INFINITY;
  float worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const float difference = std::fabs(a[i] - b[i]);
    worst = difference > worst || std::isnan(difference) ? difference : worst;
  }
  return worst;
}

std::vector<int32_t> text(size_t length) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < length; ++i) tokens.push_back(static_cast<int32_t>((i * i * 7 + 3) % 320));
  return tokens;
}

class HybridState : public ::testing::Test {
 protected:
  StateOwner owner() const { return {.spec = model_->spec(), .adjacent_pairs = 0}; }
  std::string path(const char* name) const { return folder_ / name; }

  ScratchFolder folder_;
  std::unique_ptr<Model> model_ = must(load_model(kModel, {.threads = 2}));
};

// One process: a model, a session, and what the store of a folder has.
struct Process {
  Process(const std::string& folder, const char* scheme)
      : store(must(Store::open(folder))),
        model(must(load_model(kModel, {.threads = 1}))),
        session(must(open_session(model->spec(), must(parse_scheme(scheme)), memory))),
        tiers(memory, store.get()),
        prefixes(must(Prefixes::make(session, tiers))) {}

  // The logits of tokens [first, first + count) after what the sequence has.
  std::vector<float> run(SeqId seq, Tokens tokens) {
    std::vector<uint32_t> wanted(tokens.size());
    std::iota(wanted.begin(), wanted.end(), 0u);
    std::vector<float> logits(tokens.size() * model->vocabulary());
    Step step = must(session.plan({{.seq = seq, .count = tokens.size()}}));
    must(model->forward(step, tokens, wanted, logits.data()));
    step.commit();
    return logits;
  }

  std::unique_ptr<Store> store;
  Memory memory;
  std::unique_ptr<Model> model;
  Session session;
  Tiers tiers;
  Prefixes prefixes;
};

TEST_F(HybridState, ARestartFromTheStoreGivesTheSameBits) {
  const std::vector<int32_t> tokens = text(300);
  constexpr size_t kMarked = 171;  // within a span
  for (const char* scheme : {"f32", "f16", "turbo-k8v3", "affine4-g32-keep64"}) {
    SCOPED_TRACE(scheme);
    const std::string folder = path(scheme);
    std::vector<float> expected;
    {
      Process process(folder, scheme);
      const SeqId seq = process.session.start();
      Published published;
      process.run(seq, Tokens(tokens).first(kMarked));
      process.prefixes.mark(process.session, seq, tokens, published);
      expected = process.run(seq, Tokens(tokens).subspan(kMarked));
      ASSERT_TRUE(process.tiers.flush().is_durable);
    }
    Process process(folder, scheme);
    const Found found = process.prefixes.find(process.session, tokens);
    EXPECT_EQ(found.from_disk, kMarked);
    ASSERT_EQ(found.length, kMarked);
    EXPECT_FALSE(process.session.is_derived(found.seq));
    const auto logits = process.run(found.seq, Tokens(tokens).subspan(kMarked));
    EXPECT_EQ(hash_of(logits), hash_of(expected));
  }
}

TEST_F(HybridState, AFileGivesTheSameBitsAfterRoundsOfDrafts) {
  const std::vector<int32_t> tokens = text(120);
  const Tokens all(tokens);
  Passes passes(*model_, "f16");
  const SeqId seq = passes.start();
  passes.run(seq, all.first(50));
  passes.draft(seq, all.subspan(50, 9), 4);  // a state that was replayed
  must(save(passes.session(), seq, all.first(54), path("chat.cairn")));
  const uint64_t expected = hash_of(passes.run(seq, all.subspan(54)));

  Passes again(*model_, "f16");
  const Loaded loaded = must(load(again.session(), path("chat.cairn")));
  EXPECT_FALSE(loaded.is_derived);
  EXPECT_EQ(hash_of(again.run_in_chunks(loaded.seq, all.subspan(54), 5)), expected);
}

// The logits of the last token are wanted, and its state cannot be taken back.
TEST_F(HybridState, AnAnswerWhereEverythingIsComputedAlreadyIsThatOfAFreshOne) {
  Memory memory;
  Session session = must(open_session(model_->spec(), must(parse_scheme("f16")), memory));
  const auto answer = [&](Conversation& conversation, uint64_t most) {
    Sampler sampler = must(make_sampler({}));
    return must(generate(*model_, session, conversation, sampler, {.max_tokens = most}));
  };
  Conversation fresh{session.start(), text(90)}, read{session.start(), text(90)};
  const std::vector<int32_t> expected = answer(fresh, 20).tokens;
  answer(read, 0);
  ASSERT_EQ(session.length(read.seq), 90u);
  const Generated first = answer(read, 8), rest = answer(read, 12);
  EXPECT_EQ(first.stats.reused, 0u);
  std::vector<int32_t> tokens = first.tokens;
  tokens.insert(tokens.end(), rest.tokens.begin(), rest.tokens.end());
  EXPECT_EQ(tokens, expected);
}

TEST_F(HybridState, TheModelGoesOnFromMlxLmsCache) {
  OracleFile oracle(kLogits);
  const StateOwner state_owner = owner();
  must(convert(kCache, path("chat.cairn"), {.owner = &state_owner}));
  Passes passes(*model_, "f32");
  const Loaded loaded = must(load(passes.session(), path("chat.cairn")));
  EXPECT_TRUE(loaded.is_derived);
  EXPECT_EQ(passes.session().length(loaded.seq), kCached);
  const auto logits = passes.run_in_chunks(loaded.seq, oracle.ids("tokens"), 1);
  EXPECT_LT(worst_difference(logits, oracle.floats("logits")), kTolerance);
}

TEST_F(HybridState, TheModelsStateIsMlxLmsCache) {
  OracleFile theirs(kCache);
  const std::vector<int32_t> ids = OracleFile(kModel).ids("oracle.input_ids");
  const Tokens tokens = Tokens(ids).first(kCached);
  Passes passes(*model_, "f32");
  const SeqId seq = passes.start();
  passes.run(seq, tokens);
  must(save(passes.session(), seq, tokens, path("chat.cairn")));
  const StateOwner state_owner = owner();
  must(convert(path("chat.cairn"), path("cache.safetensors"),
               {.owner = &state_owner, .to = FileKind::prompt_cache}));
  OracleFile ours(path("cache.safetensors"));
  for (size_t layer = 0; layer + 1 < kLayers; ++layer)
    for (const char* array : {".0.0", ".0.1"}) {
      const std::string name = std::to_string(layer) + array;
      EXPECT_EQ(ours.shape(name), theirs.shape(name)) << name;
      EXPECT_LT(worst_difference(ours.floats(name), theirs.floats(name)), kTolerance) << name;
    }
}

}  // namespace
}  // namespace cairn::testing
