// Rotary positions: pairs of a head's numbers turn with the position, each pair at a speed of its
// own. With YaRN (Peng and others 2023, arXiv 2309.00071) a context many times the original one is
// reached by slowing down the pairs that turn less than about once within the original context.
#ifndef CAIRN_MODELS_ROTARY_H_
#define CAIRN_MODELS_ROTARY_H_

#include <cstdint>
#include <optional>
#include <string>

#include "cairn/models/network.h"

namespace cairn {

struct Yarn {
  float factor = 1;               // the context over the original one
  uint32_t original_context = 1;  // positions
  float fast = 32;  // pairs that turn more often within the original context keep their speed
  float slow = 1;   // pairs that turn less often are slowed down by `factor`; between, a mix
  float rotated_factor = 1;  // on what was rotated: keys and queries
  float score_factor = 1;    // on scores
};

struct Rotary {
  float base = 0;
  std::optional<Yarn> yarn;
};

// Where the paper's factor for flatter scores goes, unless the file says otherwise: onto both that
// are rotated, or, for latents, whose scores have a part that is not rotated, onto the sum.
enum class FlatterBy { rotated, scores };

// From the keys "<architecture>.rope.freq_base", "<architecture>.rope.scaling.type", ...
// Unsupported: another sort of scaling; BadInput names what makes no sense.
Result<Rotary> read_rotary(const Metadata& data,
                           const std::string& architecture,
                           FlatterBy flatter_by);

// The first `width` numbers of every head of x, [head, heads, rows], at the rows' positions.
// `pairs`: GGML_ROPE_TYPE_NORMAL or _NEOX; `slower`: f32 [width / 2], by how much each pair is
// slowed down; null: none.
ggml_tensor* rotate(GraphBuilder& builder,
                    ggml_tensor* x,
                    const Rotary& rotary,
                    uint32_t width,
                    int pairs,
                    ggml_tensor* slower = nullptr);

// A key of ours, for what configurations of Hugging Face say and GGUF files have no key for.
inline constexpr const char* kRotatedFactorKey = "rope.scaling.yarn_rotated_factor";

}  // namespace cairn

#endif  // CAIRN_MODELS_ROTARY_H_
