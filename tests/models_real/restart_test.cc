// Restarts of Gemma 3 and of a hybrid model, 1,100 tokens long.
#include "tests/models/restart.h"

namespace cairn::testing {
namespace {

class Restart : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models,
                         Restart,
                         ::testing::Values(kRealGemma, kMadeHybrid),
                         [](const auto& model) {
                           return std::string(model.param == kRealGemma ? "gemma3" : "hybrid");
                         });

TEST_P(Restart, ChangesNoBit) { expect_a_restart_changes_no_bit(GetParam(), 1100); }

TEST(RestartChild, GoesOn) { go_on_as_a_child(); }

}  // namespace
}  // namespace cairn::testing
