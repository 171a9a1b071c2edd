// The structure matrix: every kind and retention in records of different shapes, page sizes, exact
// forms and numbers of sequences, through seeded programs of 2,000 operations against the plain
// model. Structure moves records, so a few encodings stand for all; what encodings compute is
// tested with them.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/support/program.h"
#include "tests/support/random.h"

namespace cairn::testing {
namespace {

struct Kinds {
  const char* name;
  ModelSpec (*spec)();
};
const Kinds kAllKinds[] = {
    {"attention and windows", wide_spec},
    {"latents", latent_spec},
    {"recurrent, rounds hold states", [] { return hybrid_spec(Rounds::held); }},
    {"recurrent, rounds are replayed", [] { return hybrid_spec(Rounds::replayed); }},
};
const char* const kShapes[] = {"f32", "affine4-g32", "affine3-g64-bf16", "turbo-value3"};
const uint32_t kPageSizes[] = {1, 16, 64};
const char* const kExactForms[] = {"", "-keep64", "-after512"};
const size_t kSequences[] = {1, 3};

void check(const Program& program, const char* kinds, uint64_t seed) {
  if (!run(program)) return;
  const Program smallest = shrink(program);
  FAIL() << kinds << ", seed " << seed << ": " << *run(smallest) << "\n" << describe(smallest);
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
  for (const Kinds& kinds : kAllKinds)
    for (uint32_t page_positions : kPageSizes)
      for (const char* form : kExactForms)
        for (size_t sequences : kSequences) {
          const Program program{.spec = kinds.spec(),
                                .scheme = std::string(GetParam()) + form,
                                .page_positions = page_positions,
                                .most_sequences = sequences,
                                .longest = 700,
                                .ops = random_ops(++seed, 2'000)};
          check(program, kinds.name, seed);
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
  const Kinds& kinds = kAllKinds[random.below(std::size(kAllKinds))];
  const Program program{.spec = kinds.spec(),
                        .scheme = std::string(any(encoding.samples)) + any(kExactForms),
                        .page_positions = any(kPageSizes),
                        .most_sequences = 1 + random.below(5),
                        .longest = 700,
                        .ops = random_ops(seed, 2'000)};
  check(program, kinds.name, seed);
}

}  // namespace
}  // namespace cairn::testing
