// What every row of the list of kinds promises, and what each kind refuses.
#include "cairn/state/kind.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "cairn/state/registry.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;

TEST(Kinds, HaveIdsNamesAndFamiliesOfTheirOwn) {
  std::set<KindId> ids;
  std::set<std::string_view> names, family_names;
  std::set<FamilyId> family_ids;
  std::set<const Family*> families;
  for (const StateKind* kind : kKinds) {
    EXPECT_TRUE(ids.insert(kind->id).second) << kind->name;
    EXPECT_TRUE(names.insert(kind->name).second) << kind->name;
    EXPECT_EQ(builtin().kind_named(kind->name), kind);
    families.insert(kind->families.begin(), kind->families.end());
  }
  EXPECT_EQ(builtin().kind_named("future"), nullptr);
  for (const Family* family : families) {
    EXPECT_TRUE(family_ids.insert(family->id).second) << family->name;
    EXPECT_TRUE(family_names.insert(family->name).second) << family->name;
  }
}

TEST(Kinds, HaveSamplesThatTheyAcceptAndThatUseAllTheirFamilies) {
  for (const StateKind* kind : kKinds) {
    std::set<const Family*> used;
    ASSERT_FALSE(kind->samples().empty()) << kind->name;
    for (const SlotSpec& slot : kind->samples()) {
      EXPECT_EQ(slot.kind, kind) << kind->name;
      EXPECT_TRUE(kind->validate(slot)) << kind->name;
      for (const FamilySpec& family : slot.families) {
        used.insert(family.family);
        EXPECT_TRUE(family.family->is_fixed || family.width % 64 == 0) << kind->name;
      }
    }
    EXPECT_EQ(used, std::set(kind->families.begin(), kind->families.end())) << kind->name;
  }
}

std::string refusal(const SlotSpec& slot) {
  const auto valid = slot.kind->validate(slot);
  if (valid) return "accepted";
  EXPECT_EQ(valid.error().code, Code::BadInput);
  return valid.error().message;
}

TEST(Kinds, OfLatentsSayWhatTheyRefuse) {
  EXPECT_EQ(refusal(latent({.latent_dim = 512, .rope_dim = 64, .index_dim = 128})), "accepted");
  EXPECT_THAT(refusal(latent({.latent_dim = 0, .rope_dim = 64})),
              HasSubstr("latent: latent is [1, 0], expected one head and a width that is"));
  EXPECT_THAT(refusal(latent({.latent_dim = 512, .rope_dim = 60})),
              HasSubstr("latent: rope is [1, 60], expected"));
  EXPECT_THAT(refusal(latent({.latent_dim = 512, .rope_dim = 64, .index_dim = 4})),
              HasSubstr("latent: index is [1, 4], expected"));
  SlotSpec slot = latent({.latent_dim = 512, .rope_dim = 64});
  slot.families[0].heads = 2;
  EXPECT_THAT(refusal(slot), HasSubstr("latent: latent is [2, 512], expected one head"));
  slot = latent({.latent_dim = 512, .rope_dim = 64});
  std::swap(slot.families[0], slot.families[1]);
  EXPECT_THAT(refusal(slot), HasSubstr("latent: family 0 is rope, expected latent"));
  slot.families.resize(1);
  EXPECT_THAT(refusal(slot), HasSubstr("1 families, expected latent and rope, or an index too"));
  slot = latent({.latent_dim = 512, .rope_dim = 64});
  slot.retention.window = 100;
  EXPECT_THAT(refusal(slot), HasSubstr("a window of 100 positions, expected none"));
}

TEST(Kinds, OfADraftHeadTakeNoIndex) {
  EXPECT_EQ(refusal(latent_draft({.latent_dim = 512, .rope_dim = 64})), "accepted");
  EXPECT_EQ(refusal(latent_draft({.latent_dim = 512, .rope_dim = 64, .index_dim = 128})),
            "latent-draft: 3 families, expected latent and rope");
}

void nothing(const void*, const float* const*, const std::byte*, Pos, float* const*) {}

TEST(Kinds, OfFixedTensorsSayWhatTheyRefuse) {
  EXPECT_EQ(refusal(recurrent({{&kConvFamily, 3, 40}})), "accepted");
  EXPECT_THAT(refusal(recurrent({})), HasSubstr("recurrent: 0 tensors, expected 1 to 16"));
  EXPECT_THAT(refusal(recurrent({{&kConvFamily, 0, 40}})), HasSubstr("conv is [0, 40], expected"));
  EXPECT_THAT(refusal(recurrent({{&kRecurrentFamily, 2, 0}})), HasSubstr("recurrent is [2, 0]"));
  EXPECT_THAT(refusal(recurrent({{&kKeyFamily, 2, 64}})),
              HasSubstr("key is [2, 64], expected a fixed tensor"));
  EXPECT_THAT(refusal(recurrent({{&kConvFamily, 3, 40}, {&kConvFamily, 2, 8}})),
              HasSubstr("conv appears twice"));
  EXPECT_EQ(refusal(recurrent({{&kRecurrentFamily, 1 << 14, 1 << 14}})), "accepted");
  EXPECT_THAT(refusal(recurrent({{&kRecurrentFamily, 1 << 14, (1 << 14) + 1}})),
              HasSubstr("[16384, 16385], expected at most 268435456 numbers"));
  EXPECT_THAT(refusal(recurrent({{&kConvFamily, 3, 40}}, {.function = nothing})),
              HasSubstr("advances from inputs of 0 bytes"));
  SlotSpec slot = recurrent({{&kConvFamily, 3, 40}});
  slot.retention.window = 9;
  EXPECT_THAT(refusal(slot), HasSubstr("a window of 9 positions, expected none"));
}

}  // namespace
}  // namespace cairn
