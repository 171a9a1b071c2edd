// The structure matrix: every kind that the registry lists in records of different shapes, page
// sizes, exact forms and numbers of sequences, through seeded programs of 2,000 operations against
// the plain model. Structure moves records, so a few encodings stand for all; what encodings
// compute is tested with them.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/support/program.h"
#include "tests/support/random.h"

namespace cairn::testing {
namespace {

const char* const kShapes[] = {"f32", "affine4-g32", "affine3-g64-bf16", "turbo-value3"};
const uint32_t kPageSizes[] = {1, 16, 64};
const char* const kExactForms[] = {"", "-keep64", "-after512"};
const size_t kSequences[] = {1, 3};

void check(const Program& program, const std::string& model, uint64_t seed) {
  const Outcome outcome = run(program);
  if (outcome.wrong) {
    const Program smallest = shrink(program);
    FAIL() << model << ", seed " << seed << ": " << *run(smallest).wrong << "\n"
           << describe(smallest);
  }
  const bool is_encoded = program.scheme.ends_with("-after512") && !model.starts_with("recurrent");
  const size_t expected = is_encoded ? 3 : 0;
  ASSERT_GE(outcome.encodings, expected) << model << ", seed " << seed << ", " << program.scheme;
}

class Structure : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(OfShapes,
                         Structure,
                         ::testing::ValuesIn(kShapes),
                         [](const ::testing::TestParamInfo<const char*>& shape) {
                           std::string name = shape.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(Structure, HoldsForEveryKindPageSizeAndExactForm) {
  uint64_t seed = 1;
  for (const KindModel& model : kind_models())
    for (uint32_t page_positions : kPageSizes)
      for (const char* form : kExactForms)
        for (size_t sequences : kSequences) {
          const Program program{.spec = model.spec,
                                .scheme = std::string(GetParam()) + form,
                                .page_positions = page_positions,
                                .most_sequences = sequences,
                                .longest = 700,
                                .ops = random_ops(++seed, 2'000)};
          check(program, model.name, seed);
          if (HasFatalFailure()) return;
        }
}

// One point of the full product per run: any encoding that the registry lists.
TEST(Structure, HoldsAtARandomPoint) {
  const uint64_t seed = std::random_device()();
  RecordProperty("seed", std::to_string(seed));
  Random random(seed);
  const auto any = [&](const auto& list) { return list[random.below(std::size(list))]; };
  const Encoding& encoding = *any(builtin().encodings);
  const KindModel model = any(kind_models());
  const Program program{.spec = model.spec,
                        .scheme = std::string(any(encoding.samples)) + any(kExactForms),
                        .page_positions = any(kPageSizes),
                        .most_sequences = 1 + random.below(5),
                        .longest = 700,
                        .ops = random_ops(seed, 2'000)};
  check(program, model.name, seed);
}

}  // namespace
}  // namespace cairn::testing
