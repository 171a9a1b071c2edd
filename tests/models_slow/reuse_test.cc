// Reuse changes no bit of a real model, 900 tokens over every state. For each SIMD target:
// CAIRN_KERNELS=<target>.
#include "tests/models/reuse.h"

#include <gtest/gtest.h>

#include "tests/models/real_text.h"

namespace cairn {
namespace {

class LongReuse : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(States,
                         LongReuse,
                         ::testing::Values("f16", "f32", "bf16"),
                         [](const auto& scheme) { return std::string(scheme.param); });

TEST_P(LongReuse, ChangesNoBit) {
  testing::expect_no_bit_changes({.model_path = testing::kRealModel,
                                  .scheme = GetParam(),
                                  .text = testing::real_text(900),
                                  .chunks = {1, 7, 64, 512},
                                  .threads = {1, 2, 3}});
}

}  // namespace
}  // namespace cairn
