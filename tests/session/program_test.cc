// Random programs against the plain model: everything a session does with positions, pages and
// sharing.
#include "tests/support/program.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

namespace cairn::testing {
namespace {

struct Case {
  const char* scheme;
  uint32_t page_positions;
  uint64_t max_bytes;
  uint64_t seed;
};

class Programs : public ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(OfMixedSlots,
                         Programs,
                         ::testing::Values(Case{"f32", 1, 1u << 30, 1},
                                           Case{"f32", 16, 1u << 30, 2},
                                           Case{"bf16", 64, 1u << 30, 3},
                                           Case{"f16", 16, 1u << 30, 4},
                                           Case{"f16", 4, 40'000, 5},
                                           Case{"f32+value:f16", 64, 250'000, 6}),
                         [](const ::testing::TestParamInfo<Case>& program) {
                           return "Seed" + std::to_string(program.param.seed);
                         });

TEST_P(Programs, AgreeWithThePlainModelForTenThousandOperations) {
  Program program{.spec = mixed_spec(),
                  .scheme = GetParam().scheme,
                  .page_positions = GetParam().page_positions,
                  .max_bytes = GetParam().max_bytes,
                  .ops = random_ops(GetParam().seed, 10'000)};
  if (run(program).wrong) {
    const Program smallest = shrink(program);
    FAIL() << "seed " << GetParam().seed << ": " << *run(smallest).wrong << "\n"
           << describe(smallest);
  }
}

TEST(ShortPrograms, AgreeWithThePlainModel) {
  const bool holds = rc::check("short programs", [] {
    const auto op = rc::gen::build<Op>(
        rc::gen::set(&Op::verb, rc::gen::map(rc::gen::inRange(0, static_cast<int>(Op::Verb::count)),
                                             [](int verb) { return static_cast<Op::Verb>(verb); })),
        rc::gen::set(&Op::which, rc::gen::inRange(0u, 8u)),
        rc::gen::set(&Op::amount, rc::gen::inRange(0u, 400u)));
    Program program{
        .spec = mixed_spec(), .page_positions = 4, .ops = *rc::gen::container<std::vector<Op>>(op)};
    const auto wrong = run(program).wrong;
    if (wrong) RC_FAIL(*wrong + "\n" + describe(program));
  });
  EXPECT_TRUE(holds);
}

}  // namespace
}  // namespace cairn::testing
