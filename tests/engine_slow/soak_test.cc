// 100,000 operations.
#include "tests/engine/soak.h"

namespace cairn {
namespace {

using namespace cairn::testing;

class LongSoak : public ::testing::TestWithParam<const char*> {};

TEST_P(LongSoak, GivesNoWrongAnswerAndLosesNothing) { Soak(setting_of(GetParam()), 1).run(50000); }

INSTANTIATE_TEST_SUITE_P(Models,
                         LongSoak,
                         ::testing::Values("window_sinks", "recurrent_window"),
                         [](const auto& name) { return std::string(name.param); });

}  // namespace
}  // namespace cairn
