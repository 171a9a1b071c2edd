// Reuse changes no bit of a real model: 600 tokens over f16 state, 200 over the others, 100 where
// the kernels are scalar; and on 100 tokens all of the machine's targets agree. (tests/models_slow
// has 900 tokens over every state.)
#include "tests/models/reuse.h"

#include <gtest/gtest.h>

#include "cairn/kernels/dispatch.h"
#include "tests/models/real_text.h"

namespace cairn {
namespace {

using testing::kRealModel;
using testing::must;
using testing::real_text;

class RealReuse : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(States,
                         RealReuse,
                         ::testing::Values("f16", "f32", "bf16"),
                         [](const auto& scheme) { return std::string(scheme.param); });

size_t length_for(std::string_view scheme) {
  if (use_scalar()) return 100;
  return scheme == "f16" ? 600 : 200;
}

TEST_P(RealReuse, ChangesNoBit) {
  testing::expect_no_bit_changes({.model_path = kRealModel,
                                  .scheme = GetParam(),
                                  .text = real_text(length_for(GetParam())),
                                  .chunks = {1, 7, 64, 512},
                                  .threads = {1, 2, 3}});
}

// Other types of weights, heads of 256 numbers, one key head. (The tiny model of its architecture
// crosses a window.)
TEST(RealGemmaReuse, ChangesNoBit) {
  testing::expect_no_bit_changes({.model_path = "models/gemma3.gguf",
                                  .scheme = "f16",
                                  .text = real_text(64),
                                  .chunks = {1, 7},
                                  .threads = {1, 2, 3}});
}

TEST_P(RealReuse, EveryKernelTargetGivesTheSameBits) {
  const auto model =
      must(load_model(kRealModel, {.threads = 2, .expand = Expand::no, .cache_folder = {}}));
  const std::vector<int32_t> text = real_text(100);
  std::optional<uint64_t> first;
  for (const std::string& target : kernel_targets()) {
    must(use_kernel_target(target));
    testing::Passes passes(*model, GetParam());
    const uint64_t hash = testing::hash_of(passes.run_in_chunks(passes.start(), text, 64));
    if (!first) first = hash;
    EXPECT_EQ(hash, *first) << target;
  }
  must(use_kernel_target(""));
}

}  // namespace
}  // namespace cairn
