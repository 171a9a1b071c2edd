// A scheme: which encoding each family of each slot gets.
//
// Text: a base encoding, what stays exact, then refinements, each over what stands before it:
//   f16                          every family of every slot
//   turbo-k8v3                   what is scored in turbo-key8, what is only accumulated in
//                                turbo-value3
//   affine8-keep64               the first 64 positions stay exact (f32) for good
//   turbo-k8v3-after512          a sequence stays exact until it is 512 long, then all is encoded
//   f16+value:bf16               values in bf16
//   bf16+slots0-3:f32            slots 0 to 3 in f32
//   affine4+latent:affine8       latents with more bits
// An encoding may leave something open that families differ in: affine's scales are f16 for keys
// and values and f32 for latents, unless the text names a dtype (affine8-g64-f16).
// Fixed tensors of recurrent slots are exact under every scheme.
#ifndef CAIRN_SESSION_SCHEME_H_
#define CAIRN_SESSION_SCHEME_H_

#include <string>
#include <string_view>
#include <vector>

#include "cairn/session/model_spec.h"

namespace cairn {

struct Scheme {
  // One refinement: the slots [first_slot, last_slot], or the family of this name in every slot.
  struct Rule {
    uint32_t first_slot = 0;
    uint32_t last_slot = UINT32_MAX;
    std::string family;  // empty: every family
    EncodingChoice encoding;
    bool operator==(const Rule&) const = default;
  };
  EncodingChoice base;         // of families that are scored (keys, latents, index keys)
  EncodingChoice accumulated;  // of families that are only accumulated (values)
  Pos keep = 0;                // as typed; keeps_exact() is what holds
  Pos after = 0;
  std::vector<Rule> rules;

  Pos keeps_exact() const { return (keep + 63) / 64 * 64; }
  bool has_exact_form() const { return keep > 0 || after > 0; }
  bool operator==(const Scheme&) const = default;
};

Result<Scheme> parse_scheme(std::string_view text, const Registry& registry = builtin());
std::string print(const Scheme& scheme);  // parse_scheme(print(s)) == s

// codecs[i][j]: how family j of slot i is stored. BadInput names the slot, the family and both
// numbers that do not fit, and a rule that no slot or family of the model meets.
Result<std::vector<std::vector<Codec>>> resolve(const Scheme& scheme, const ModelSpec& spec);

}  // namespace cairn

#endif  // CAIRN_SESSION_SCHEME_H_
