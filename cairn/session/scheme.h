// A scheme: which encoding each family of each slot gets.
//
// Text: a base encoding, then refinements, each over what stands before it:
//   f16                          every family of every slot
//   f16+value:bf16               values in bf16
//   bf16+slots0-3:f32            slots 0 to 3 in f32
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
  EncodingChoice base;
  std::vector<Rule> rules;
  bool operator==(const Scheme&) const = default;
};

Result<Scheme> parse_scheme(std::string_view text, const Registry& registry = builtin());
std::string print(const Scheme& scheme);  // parse_scheme(print(s)) == s

// codecs[i][j]: how family j of slot i is stored. BadInput names the slot, the family and both
// numbers that do not fit, and a rule that no slot or family of the model meets.
Result<std::vector<std::vector<Codec>>> resolve(const Scheme& scheme, const ModelSpec& spec);

}  // namespace cairn

#endif  // CAIRN_SESSION_SCHEME_H_
