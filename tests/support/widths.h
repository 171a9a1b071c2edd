// Attention at the widths of real models and at every length around pages and blocks.
#ifndef CAIRN_TESTS_SUPPORT_WIDTHS_H_
#define CAIRN_TESTS_SUPPORT_WIDTHS_H_

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "tests/support/feed.h"
#include "tests/support/must.h"
#include "tests/support/targets.h"

namespace cairn::testing {

inline std::string describe(const SlotSpec& slot) {
  std::string text(slot.kind->name);
  for (const FamilySpec& family : slot.families)
    text += fmt::format(" {} [{}, {}]", family.family->name, family.heads, family.width);
  return text + fmt::format(", window {}", slot.retention.window);
}

inline void expect_double(const SlotSpec& slot, std::string_view scheme, const How& how) {
  Feed feed(slot, scheme, how);
  const Fed fed = feed.feed();
  const std::vector<double> expected = feed.last_row();
  const float* got = fed.out.data() + fed.out.size() - expected.size();
  for (size_t i = 0; i < expected.size(); ++i)
    ASSERT_NEAR(got[i], expected[i], 2e-3)
        << describe(slot) << ", " << scheme << ", " << how.length << " positions, " << i;
}

// One of the shapes of attention at every length around pages and blocks: what a step of three
// positions after it gives.
inline void expect_shape(const SlotSpec& slot, std::string_view scheme) {
  if (!resolve(must(parse_scheme(scheme)), {.identity = sha256("model"), .slots = {slot}})) return;
  for (const Pos length : {0, 1, 63, 64, 65, 1000, 3000}) {
    const How how = {.length = length + 3, .heads = 2, .runs = {length}, .attend_from = length};
    expect_double(slot, scheme, how);
    if (length > 1000) continue;
    const Fed fast = Feed(slot, scheme, how).feed();
    const TargetScope forced("scalar");
    const Fed slow = Feed(slot, scheme, how).feed();
    ASSERT_EQ(std::memcmp(fast.out.data(), slow.out.data(), fast.out.size() * sizeof(float)), 0)
        << describe(slot) << ", " << scheme << ", " << length;
  }
}

inline void expect_every_width(std::string_view scheme) {
  for (const uint32_t width : {64, 80, 96, 128, 192, 256})
    expect_shape(attention({.heads = 1, .head_dim = width}), scheme);
  // Absorbed: all query heads against latent and rope, values are the latent.
  expect_shape(latent({.latent_dim = 512, .rope_dim = 64}), scheme);
}

}  // namespace cairn::testing

#endif  // CAIRN_TESTS_SUPPORT_WIDTHS_H_
