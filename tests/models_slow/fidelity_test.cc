// The order of schemes by what they cost, against one that was measured elsewhere: KL from bf16 of
// a model of a billion weights over 8 prompts, 32 tokens decoded after each.
#include "cairn/runtime/fidelity.h"

#include <gtest/gtest.h>

#include "tests/models/real_text.h"
#include "tests/support/must.h"

namespace cairn::testing {
namespace {

struct Elsewhere {
  const char* scheme;
  double kl;
};

// In the order there. The schemes after these cost so much that their order is the model's: here
// affine4, 0.0516 there, costs most but one.
constexpr Elsewhere kElsewhere[] = {{"turbo-k8v8", 0.00214}, {"affine8", 0.00246},
                                    {"turbo-k8v4", 0.00936}, {"turbo-k8v3", 0.0325},
                                    {"turbo-k8v2", 0.175},   {"turbo-k4v2", 0.205}};

TEST(SmolLm2Fidelity, OrdersSchemesAsTheyWereMeasuredElsewhere) {
  const auto model = must(load_model(kRealModel, {.threads = 2, .expand = Expand::f32}));
  std::vector<std::string> schemes;
  for (const Elsewhere& elsewhere : kElsewhere) schemes.emplace_back(elsewhere.scheme);
  const Fidelity measured =
      must(measure_fidelity(*model, real_text(640), schemes, {.context = 640, .drift_tokens = 0}));
  for (size_t i = 0; i < schemes.size(); ++i) {
    const double kl = measured.schemes[i].kl_mean;
    RecordProperty(schemes[i], fmt::format("{:.5f}, elsewhere {}", kl, kElsewhere[i].kl));
    if (i > 0) {
      EXPECT_GT(kl, measured.schemes[i - 1].kl_mean) << schemes[i];
    }
    EXPECT_GT(kl, kElsewhere[i].kl / 4) << schemes[i];
    EXPECT_LT(kl, kElsewhere[i].kl * 2) << schemes[i];
  }
}

}  // namespace
}  // namespace cairn::testing
