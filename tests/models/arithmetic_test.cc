#include "cairn/models/arithmetic.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(Arithmetic, AColumnIsTheSameInEveryBatchAndOnAnyNumberOfThreads) {
  const auto report = verify_arithmetic();
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->types, weight_types().size());
}

TEST(Arithmetic, ItsNameTellsTheLibraryItsBuildAndTheWeightsApart) {
  const std::string name = arithmetic_name(Expand::no);
  EXPECT_TRUE(name.starts_with("ggml-")) << name;
  EXPECT_TRUE(name.ends_with("/quantized")) << name;
  EXPECT_NE(name, arithmetic_name(Expand::f32));
}

}  // namespace
}  // namespace cairn
