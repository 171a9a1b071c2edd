// The number matrix: for every kind that attends, in every encoding that the registry lists and in
// both forms, what attention computes agrees with double precision on the decoded numbers, and not
// a bit of it depends on runs, pages, parts, batch mates or targets.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/support/widths.h"

namespace cairn::testing {
namespace {

class EveryScheme : public ::testing::TestWithParam<std::string> {};

std::vector<std::string> schemes() {
  std::vector<std::string> schemes;
  for (const Encoding* encoding : builtin().encodings)
    for (std::string_view sample : encoding->samples) schemes.emplace_back(sample);
  for (const char* form : {"f16-keep64", "bf16-after300", "f16-keep100-after512"})
    schemes.emplace_back(form);
  return schemes;
}
INSTANTIATE_TEST_SUITE_P(Schemes,
                         EveryScheme,
                         ::testing::ValuesIn(schemes()),
                         [](const ::testing::TestParamInfo<std::string>& scheme) {
                           std::string name = scheme.param;
                           for (char& c : name) c = std::isalnum(c) ? c : '_';
                           return name;
                         });

// In the rows that both attended to.
void expect_same_bits(const Fed& a, const Fed& b, const std::string& what) {
  const auto same = [&](const auto& x, const auto& y, Pos length) {
    const size_t first = std::max(a.attended_from, b.attended_from) * (x.size() / length);
    return std::memcmp(&x[first], &y[first], (x.size() - first) * sizeof(x[0])) == 0;
  };
  const Pos length = How{}.length;
  ASSERT_TRUE(same(a.out, b.out, length)) << what;
  ASSERT_TRUE(same(a.lse, b.lse, length)) << what;
  ASSERT_EQ(a.chosen.size(), b.chosen.size());
  ASSERT_TRUE(a.chosen.empty() || same(a.chosen, b.chosen, length)) << what;
}

TEST_P(EveryScheme, AgreeWithDoublePrecisionForEveryKind) {
  for (const SlotSpec& slot : attending_slots())
    expect_double(slot, GetParam(), {.runs = {519, 1}, .attend_from = 519});
}

TEST(EveryWidth, AgreesWithDoublePrecisionAndScalarBitsAtEveryLength) {
  for (const char* scheme : {"f16", "affine4-g32", "turbo-k8v3"}) expect_every_width(scheme);
}

TEST_P(EveryScheme, KeepEveryBitHoweverTheyAreComputed) {
  const How ways[] = {
      {.runs = {1, 7, 64, 200, 248}, .page_positions = 16, .parts = 3},
      {.runs = {301, 1, 1, 217}, .page_positions = 1, .parts = 2, .beside_another = true},
  };
  const How end = {.runs = {480, 1, 39}, .attend_from = 480};
  for (const SlotSpec& slot : attending_slots()) {
    const Fed whole = Feed(slot, GetParam(), {}).feed();
    for (const How& how : ways)
      expect_same_bits(whole, Feed(slot, GetParam(), how).feed(), describe(slot));
    for (const std::string& target : kernel_targets()) {
      const TargetScope forced(target);
      expect_same_bits(whole, Feed(slot, GetParam(), end).feed(), describe(slot) + " " + target);
    }
  }
}

TEST_P(EveryScheme, AListOfEverythingIsDenseAttention) {
  for (const SlotSpec& slot : attending_slots()) {
    if (!slot.retention.keeps_all()) continue;
    How how = {.runs = {300, 220}, .attend_from = 300};
    const Fed dense = Feed(slot, GetParam(), how).feed();
    how.choose = static_cast<uint32_t>(how.length);
    for (const uint32_t page_positions : {how.page_positions, 4u}) {  // 4: never many in a row
      how.page_positions = page_positions;
      Fed listed = Feed(slot, GetParam(), how).feed();
      listed.chosen.clear();
      expect_same_bits(dense, listed, describe(slot));
    }
  }
}

TEST_P(EveryScheme, AChoiceDoesNotDependOnRunsPagesPartsOrTargets) {
  const How cut = {.runs = {1, 99, 420}, .page_positions = 4, .parts = 3, .choose = 48};
  for (const SlotSpec& slot : attending_slots()) {
    if (std::ranges::none_of(slot.families,
                             [](const FamilySpec& family) { return family.family->is_index; }))
      continue;
    const Fed whole = Feed(slot, GetParam(), {.choose = 48}).feed();
    expect_same_bits(whole, Feed(slot, GetParam(), cut).feed(), describe(slot));
    for (const std::string& target : kernel_targets()) {
      const TargetScope forced(target);
      expect_same_bits(whole, Feed(slot, GetParam(), {.choose = 48}).feed(), target);
    }
  }
}

TEST(Choosing, TakesTheBestAndTheEarlierOfEqualOnes) {
  Memory memory;
  Session session =
      open_session({.identity = sha256("model"),
                    .slots = {latent({.latent_dim = 8, .rope_dim = 8, .index_dim = 8})}},
                   parse_scheme("f32").value(), memory)
          .value();
  const float ranks[] = {1, 5, 5, 2, 5, NAN, 4, -3};  // of the positions' index keys
  std::vector<float> keys, zeros(8 * 8);
  for (float rank : ranks) keys.insert(keys.end(), {rank, 0, 0, 0, 0, 0, 0, 0});
  const SeqId seq = session.start();
  Step step = session.plan({{seq, 8}}).value();
  const SlotId slot{0};
  step.write(slot, kLatent, zeros.data());
  step.write(slot, kRope, zeros.data());
  step.write(slot, kIndex, keys.data());
  std::vector<float> queries(8 * 8), weights(8, 1);
  for (int row = 0; row < 8; ++row) queries[row * 8] = 1;
  std::vector<uint32_t> positions(8 * 3), counts(8);
  choose(step.view(slot), {.data = queries.data(), .weights = weights.data(), .heads = 1}, 3,
         {positions.data(), counts.data(), 3});
  EXPECT_EQ(counts, (std::vector<uint32_t>{1, 2, 3, 3, 3, 3, 3, 3}));
  EXPECT_EQ((std::vector<uint32_t>(positions.end() - 3, positions.end())),
            (std::vector<uint32_t>{1, 2, 4}));
  EXPECT_EQ((std::vector<uint32_t>(positions.begin() + 9, positions.begin() + 12)),
            (std::vector<uint32_t>{1, 2, 3}));
}

}  // namespace
}  // namespace cairn::testing
