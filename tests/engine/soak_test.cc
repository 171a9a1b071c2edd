#include "tests/engine/soak.h"

#include <random>

namespace cairn {
namespace {

using namespace cairn::testing;

class ShortSoak : public ::testing::TestWithParam<const char*> {};

TEST_P(ShortSoak, GivesNoWrongAnswerAndLosesNothing) {
  const uint64_t seed = std::random_device()();
  RecordProperty("seed", std::to_string(seed));
  SCOPED_TRACE(fmt::format("seed {}", seed));
  Soak(setting_of(GetParam()), seed).run(1000);
}

INSTANTIATE_TEST_SUITE_P(Models,
                         ShortSoak,
                         ::testing::Values("window_sinks", "recurrent_window", "latent"),
                         [](const auto& name) { return std::string(name.param); });

}  // namespace
}  // namespace cairn
