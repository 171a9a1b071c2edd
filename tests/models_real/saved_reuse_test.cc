// A conversation that is saved and resumed in another process goes on with the bits it would have
// had: this program starts itself again for the second half, and the hashes over all logits of that
// half are compared.
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

using testing::kRealModel;
using testing::must;
using testing::Passes;
using testing::real_text;

constexpr size_t kText = 300, kSaved = 181;
constexpr const char* kChildState = "CAIRN_TEST_STATE";    // the file that the child resumes
constexpr const char* kChildScheme = "CAIRN_TEST_SCHEME";  // and under which scheme

std::unique_ptr<Model> load_real(uint32_t threads) {
  return must(
      load_model(kRealModel, {.threads = threads, .expand = Expand::no, .cache_folder = {}}));
}

// Runs the child below; what it wrote beside the state.
std::string hash_in_another_process(const std::string& state, const std::string& scheme) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv(kChildState, state.c_str(), 1);
    ::setenv(kChildScheme, scheme.c_str(), 1);
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

class SavedReuse : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(
    States,
    SavedReuse,
    ::testing::Values("f16", "f32", "bf16", "affine8", "turbo-k8v3", "affine4-keep64-after128"),
    [](const ::testing::TestParamInfo<const char*>& scheme) {
      std::string name = scheme.param;
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

TEST_P(SavedReuse, AnotherProcessGivesTheSameBits) {
  const testing::ScratchFolder folder;
  const std::string state = folder / "chat.cairn";
  const std::vector<int32_t> text = real_text(kText);
  const auto model = load_real(2);
  Passes passes(*model, GetParam());
  const SeqId seq = passes.start();
  const testing::Tokens all(text);
  passes.run_in_chunks(seq, all.first(128), 64);
  passes.run(seq, all.subspan(128, kSaved - 128));
  must(save(passes.session(), seq, all.first(kSaved), state));
  const uint64_t cold = testing::hash_of(passes.run(seq, all.subspan(kSaved)));
  EXPECT_EQ(hash_in_another_process(state, GetParam()), hex(cold));
}

// Started by the test above in a process of its own; alone it has nothing to do.
TEST(SavedReuseChild, GoesOn) {
  const char* state = std::getenv(kChildState);
  if (state == nullptr) GTEST_SKIP() << "runs as a child only";
  const std::vector<int32_t> text = real_text(kText);
  const auto model = load_real(1);
  Passes passes(*model, std::getenv(kChildScheme));
  const Loaded loaded = must(load(passes.session(), state));
  EXPECT_FALSE(loaded.is_derived);
  EXPECT_EQ(loaded.tokens, std::vector<int32_t>(text.begin(), text.begin() + kSaved));
  const uint64_t hash =
      testing::hash_of(passes.run_in_chunks(loaded.seq, testing::Tokens(text).subspan(kSaved), 7));
  std::ofstream(std::string(state) + ".hash") << hex(hash);
}

}  // namespace
}  // namespace cairn
