// Reuse changes no bit of a real model: 900 tokens where the kernels are SIMD, 100 where they are
// scalar, and on 100 tokens all of the machine's targets agree.
#include "tests/models/reuse.h"

#include <gtest/gtest.h>

#include "cairn/kernels/dispatch.h"
#include "tests/models/oracle_file.h"

namespace cairn {
namespace {

using testing::must;

constexpr const char* kModel = "models/smollm2.gguf";

std::vector<int32_t> text_of(size_t length) {
  testing::OracleFile oracle("tests/oracles/real/smollm2.safetensors");
  std::vector<int32_t> ids = oracle.ids("gpl3_4000.ids");
  const std::vector<int32_t> more = oracle.ids("gpl3_4000.greedy");
  ids.insert(ids.end(), more.begin(), more.end());
  ids.resize(length);
  return ids;
}

class RealReuse : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(States,
                         RealReuse,
                         ::testing::Values("f32", "f16", "bf16"),
                         [](const auto& scheme) { return std::string(scheme.param); });

TEST_P(RealReuse, ChangesNoBit) {
  testing::expect_no_bit_changes({.model_path = kModel,
                                  .scheme = GetParam(),
                                  .text = text_of(use_scalar() ? 100 : 900),
                                  .chunks = {1, 7, 64, 512},
                                  .threads = {1, 2, 3}});
}

TEST_P(RealReuse, EveryKernelTargetGivesTheSameBits) {
  const auto model =
      must(load_model(kModel, {.threads = 2, .expand = Expand::no, .cache_folder = {}}));
  const std::vector<int32_t> text = text_of(100);
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
