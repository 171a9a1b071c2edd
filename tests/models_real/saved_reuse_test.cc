// A conversation that is saved and resumed in another process goes on with the bits it would have
// had: this program starts itself again for the second half, and the hashes over all logits of that
// half are compared.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "cairn/engine/snapshot.h"
#include "tests/models/passes.h"
#include "tests/models/real_text.h"
#include "tests/support/scratch_folder.h"

namespace cairn {
namespace {

using testing::must;
using testing::Passes;
using testing::real_text;

constexpr const char* kTinyGemma = "tests/oracles/gemma3.safetensors";
constexpr const char* kTinyHybrid = "tests/oracles/qwen3_next.safetensors";
constexpr const char* kChildState = "CAIRN_TEST_STATE";  // the file that the child resumes
constexpr const char* kChildTrial = "CAIRN_TEST_TRIAL";  // and which trial it belongs to

struct Trial {
  const char* model;
  const char* scheme;
  size_t saved = 181;  // positions, of 300
};

constexpr Trial kTrials[] = {
    {testing::kRealModel, "f16"},
    {testing::kRealModel, "f32"},
    {testing::kRealModel, "bf16"},
    {testing::kRealModel, "affine8"},
    {testing::kRealModel, "turbo-k8v3"},
    {testing::kRealModel, "affine4-keep64-after128"},
    // Its windows of 16 and their rewind have let go of the first positions by then.
    {kTinyGemma, "f16", 290},
    {kTinyGemma, "turbo-k8v3", 290},
    {kTinyHybrid, "f32"},
    {kTinyHybrid, "affine4-g32-keep64-after128"},
};

std::unique_ptr<Model> load_with(const Trial& trial, uint32_t threads) {
  return must(
      load_model(trial.model, {.threads = threads, .expand = Expand::no, .cache_folder = {}}));
}

std::vector<int32_t> text_for(const Model& model) {
  std::vector<int32_t> ids = real_text(300);
  for (int32_t& id : ids) id %= static_cast<int32_t>(model.vocabulary());
  return ids;
}

// Runs the child below; what it wrote beside the state.
std::string hash_in_another_process(const std::string& state, size_t trial) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv(kChildState, state.c_str(), 1);
    ::setenv(kChildTrial, std::to_string(trial).c_str(), 1);
    ::execl("/proc/self/exe", "child", "--gtest_filter=SavedReuseChild.GoesOn", nullptr);
    ::_exit(127);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  std::string hash;
  std::ifstream(state + ".hash") >> hash;
  return hash;
}

class SavedReuse : public ::testing::TestWithParam<size_t> {};

INSTANTIATE_TEST_SUITE_P(Trials,
                         SavedReuse,
                         ::testing::Range(size_t{0}, std::size(kTrials)),
                         [](const ::testing::TestParamInfo<size_t>& trial) {
                           std::string name = kTrials[trial.param].scheme;
                           if (kTrials[trial.param].model == kTinyGemma) name += "_windows";
                           if (kTrials[trial.param].model == kTinyHybrid) name += "_recurrent";
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(SavedReuse, AnotherProcessGivesTheSameBits) {
  const testing::ScratchFolder folder;
  const std::string state = folder / "chat.cairn";
  const Trial& trial = kTrials[GetParam()];
  const auto model = load_with(trial, 2);
  const std::vector<int32_t> text = text_for(*model);
  Passes passes(*model, trial.scheme);
  const SeqId seq = passes.start();
  const testing::Tokens all(text);
  passes.run_in_chunks(seq, all.first(128), 64);
  passes.run(seq, all.subspan(128, trial.saved - 128));
  must(save(passes.session(), seq, all.first(trial.saved), state));
  const uint64_t cold = testing::hash_of(passes.run(seq, all.subspan(trial.saved)));
  EXPECT_EQ(hash_in_another_process(state, GetParam()), hex(cold));
}

// Started by the test above in a process of its own; alone it has nothing to do.
TEST(SavedReuseChild, GoesOn) {
  const char* state = std::getenv(kChildState);
  if (state == nullptr) GTEST_SKIP() << "runs as a child only";
  const Trial& trial = kTrials[std::stoul(std::getenv(kChildTrial))];
  const auto model = load_with(trial, 1);
  const std::vector<int32_t> text = text_for(*model);
  Passes passes(*model, trial.scheme);
  const Loaded loaded = must(load(passes.session(), state));
  EXPECT_FALSE(loaded.is_derived);
  const testing::Tokens all(text);
  EXPECT_THAT(loaded.tokens, ::testing::ElementsAreArray(all.first(trial.saved)));
  const uint64_t hash =
      testing::hash_of(passes.run_in_chunks(loaded.seq, all.subspan(trial.saved), 7));
  std::ofstream(std::string(state) + ".hash") << hex(hash);
}

}  // namespace
}  // namespace cairn
