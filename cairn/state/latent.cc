// The kinds of multi-head latent attention: a layer's latents with their rotary keys and, where a
// sparse indexer chooses positions, its keys; and the latents of a draft head.
#include <array>

#include "cairn/state/registry.h"

namespace cairn {
namespace {

constexpr std::array<const Family*, 3> kFamilies = {&kLatentFamily, &kRopeFamily, &kIndexFamily};
constexpr std::array<const Family*, 2> kDraftFamilies = {&kLatentFamily, &kRopeFamily};

Result<void> validate_latent(const SlotSpec& slot) {
  const auto allowed = slot.kind->families;
  if (slot.families.size() < kDraftFamilies.size() || slot.families.size() > allowed.size())
    return fail(Code::BadInput, "{}: {} families, expected latent and rope{}", slot.kind->name,
                slot.families.size(),
                allowed.size() == kFamilies.size() ? ", or an index too" : "");
  for (size_t i = 0; i < slot.families.size(); ++i) {
    const FamilySpec& family = slot.families[i];
    if (family.family != allowed[i])
      return fail(Code::BadInput, "{}: family {} is {}, expected {}", slot.kind->name, i,
                  family.family->name, allowed[i]->name);
    if (family.heads != 1 || family.width == 0 || family.width % 8 != 0)
      return fail(Code::BadInput,
                  "{}: {} is [{}, {}], expected one head and a width that is a multiple of 8",
                  slot.kind->name, family.family->name, family.heads, family.width);
  }
  if (!slot.retention.keeps_all())
    return fail(Code::BadInput, "{}: a window of {} positions, expected none", slot.kind->name,
                slot.retention.window);
  return {};
}

SlotSpec make_slot(const StateKind& kind, const LatentShape& shape) {
  SlotSpec slot{.kind = &kind, .max_positions = shape.max_positions};
  slot.families = {{&kLatentFamily, 1, shape.latent_dim}, {&kRopeFamily, 1, shape.rope_dim}};
  if (shape.index_dim != 0) slot.families.push_back({&kIndexFamily, 1, shape.index_dim});
  return slot;
}

std::vector<SlotSpec> latent_samples() {
  return {latent({.latent_dim = 128, .rope_dim = 64}),
          latent({.latent_dim = 64, .rope_dim = 64, .index_dim = 128})};
}

std::vector<SlotSpec> latent_draft_samples() {
  return {latent_draft({.latent_dim = 128, .rope_dim = 64})};
}

}  // namespace

const StateKind kLatentKind = {.id = {3},
                               .name = "latent",
                               .families = kFamilies,
                               .validate = validate_latent,
                               .samples = latent_samples};

const StateKind kLatentDraftKind = {.id = {4},
                                    .name = "latent-draft",
                                    .families = kDraftFamilies,
                                    .validate = validate_latent,
                                    .samples = latent_draft_samples};

SlotSpec latent(const LatentShape& shape) { return make_slot(kLatentKind, shape); }

SlotSpec latent_draft(const LatentShape& shape) { return make_slot(kLatentDraftKind, shape); }

}  // namespace cairn
