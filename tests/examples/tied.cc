// Attention whose values are its keys: one vector per position and head, which queries meet and
// weights sum.
#include <array>

#include "tests/examples/examples.h"

namespace cairn {
namespace {

constexpr Family kTiedFamily{
    .id = {1000}, .name = "tied", .is_scored = true, .is_accumulated = true};
constexpr std::array<const Family*, 1> kFamilies = {&kTiedFamily};

Result<void> validate(const SlotSpec& slot) {
  if (slot.families.size() != 1 || slot.families[0].family != &kTiedFamily)
    return fail(Code::BadInput, "tied: {} families, expected tied alone", slot.families.size());
  const FamilySpec& tied = slot.families[0];
  if (tied.heads == 0 || tied.width == 0 || tied.width % 8 != 0)
    return fail(Code::BadInput,
                "tied: [{}, {}], expected at least one head and a width that is a multiple of 8",
                tied.heads, tied.width);
  if (!slot.retention.keeps_all())
    return fail(Code::BadInput, "tied: a window of {} positions, expected none",
                slot.retention.window);
  return {};
}

std::vector<SlotSpec> samples() {
  return {tied_attention({.heads = 1, .head_dim = 64}),
          tied_attention({.heads = 2, .head_dim = 128})};
}

}  // namespace

const StateKind kTied = {
    .id = {1000}, .name = "tied", .families = kFamilies, .validate = validate, .samples = samples};

SlotSpec tied_attention(const AttentionShape& shape) {
  return {.kind = &kTied,
          .families = {{&kTiedFamily, shape.heads, shape.head_dim}},
          .max_positions = shape.max_positions};
}

}  // namespace cairn
