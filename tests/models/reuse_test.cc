// Reuse changes no bit: on the tiny models, for state encodings, page size and kernel target.
// (tests/models_real does the same with a real one.)
#include "tests/models/reuse.h"

#include <gtest/gtest.h>

#include "cairn/kernels/dispatch.h"
#include "tests/models/oracle_file.h"
#include "tests/models/passes.h"

namespace cairn {
namespace {

using testing::must;

struct Tiny {
  const char* model;
  const char* scheme;
  std::string path() const { return std::string("tests/oracles/") + model + ".safetensors"; }
};

class TinyReuse : public ::testing::TestWithParam<Tiny> {
 protected:
  std::vector<int32_t> text_ = [] {
    std::vector<int32_t> ids = testing::OracleFile(GetParam().path()).ids("oracle.input_ids");
    for (int i = 0; i < 170; ++i)
      ids.push_back((i * i * 31 + 7) % 320);  // past one block of 256 positions, and what a window
                                              // of 16 and its rewind keep
    return ids;
  }();
};

INSTANTIATE_TEST_SUITE_P(States,
                         TinyReuse,
                         ::testing::Values(Tiny{"llama", "f32"},
                                           Tiny{"llama", "f16"},
                                           Tiny{"llama", "bf16"},
                                           Tiny{"gemma3", "f32"},
                                           Tiny{"gemma3", "f16"},
                                           Tiny{"gemma3", "affine8-g32"},
                                           Tiny{"deepseek_v3", "f32"},
                                           Tiny{"deepseek_v3", "turbo-k8v4"},
                                           Tiny{"glm_moe_dsa", "f32"},
                                           Tiny{"glm_moe_dsa", "f16"},
                                           Tiny{"glm_moe_dsa", "affine4-g32-keep64"},
                                           Tiny{"qwen3_next", "f32"},
                                           Tiny{"qwen3_next", "f16"},
                                           Tiny{"qwen3_next", "turbo-k8v3"},
                                           Tiny{"qwen3_next", "affine4-g32-keep64"}),
                         [](const auto& tiny) {
                           std::string name =
                               tiny.param.model + ("_" + std::string(tiny.param.scheme));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(TinyReuse, ChangesNoBit) {
  testing::expect_no_bit_changes({.model_path = GetParam().path(),
                                  .scheme = GetParam().scheme,
                                  .text = text_,
                                  .chunks = {1, 7, 64, 256},
                                  .threads = {1, 2, 3}});
}

TEST_P(TinyReuse, ChangesNoBitWhateverThePageSizeAndTheKernels) {
  const auto model =
      must(load_model(GetParam().path(), {.threads = 2, .expand = Expand::no, .cache_folder = {}}));
  std::vector<uint64_t> hashes;
  for (const std::string& target : kernel_targets())
    for (const uint32_t page_positions : {64u, 8u, 1u}) {
      must(use_kernel_target(target));
      testing::Passes passes(*model, GetParam().scheme, {.page_positions = page_positions});
      hashes.push_back(testing::hash_of(passes.run_in_chunks(passes.start(), text_, 100)));
      EXPECT_EQ(hashes.back(), hashes.front()) << target << ", pages of " << page_positions;
    }
  must(use_kernel_target(""));
}

}  // namespace
}  // namespace cairn
