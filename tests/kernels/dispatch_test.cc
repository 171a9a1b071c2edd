#include "cairn/kernels/dispatch.h"

#include <gtest/gtest.h>

#include <cfenv>

#include "tests/support/targets.h"

namespace cairn {
namespace {

TEST(Dispatch, ListsTheScalarDefinitionLast) { EXPECT_EQ(kernel_targets().back(), "scalar"); }

TEST(Dispatch, UsesEveryTargetItNames) {
  for (const std::string& target : kernel_targets()) {
    const testing::TargetScope scope(target);
    EXPECT_EQ(kernel_target(), target);
    EXPECT_EQ(use_scalar(), target == "scalar");
  }
}

TEST(Dispatch, NamesWhatThereIsWhenAskedForSomethingElse) {
  const Result<void> result = use_kernel_target("AVX9");
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, Code::BadInput);
  EXPECT_NE(result.error().message.find("scalar"), std::string::npos) << result.error().message;
}

TEST(RoundingScope, RoundsToNearestAndRestoresTheCallersMode) {
  volatile float one = 1, tiny = 0x1p-30f;
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  const bool is_up = one + tiny > one;
  bool is_up_inside = true;
  {
    const RoundingScope scope;
    is_up_inside = one + tiny > one;
  }
  const bool is_up_after = one + tiny > one;
  std::fesetround(FE_TONEAREST);
  EXPECT_TRUE(is_up);
  EXPECT_FALSE(is_up_inside);
  EXPECT_TRUE(is_up_after);
}

#if defined(__x86_64__)
TEST(RoundingScope, TurnsDenormalsOn) {
  const unsigned saved = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(saved | 0x8040);  // flush to zero, denormals are zero
  volatile float tiny = 1e-40f;
  {
    const RoundingScope scope;
    EXPECT_NE(tiny * 0.5f, 0.f);
  }
  EXPECT_EQ(__builtin_ia32_stmxcsr() & 0x8040, 0x8040u);
  EXPECT_EQ(tiny * 0.5f, 0.f);
  __builtin_ia32_ldmxcsr(saved);
}
#endif

}  // namespace
}  // namespace cairn
