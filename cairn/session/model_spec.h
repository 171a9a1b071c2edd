// What Cairn needs to know of a model: its name and what each of its layers remembers.
#ifndef CAIRN_SESSION_MODEL_SPEC_H_
#define CAIRN_SESSION_MODEL_SPEC_H_

#include <string>
#include <vector>

#include "cairn/core/hash.h"
#include "cairn/state/registry.h"

namespace cairn {

struct ModelSpec {
  Digest identity;         // names the weights; required
  Digest tokenizer;        // names the vocabulary and its rules; zero: none
  Digest adapter;          // names an adapter and its scale; zero: none
  std::string arithmetic;  // names whatever else decides the numbers' bits: the matrix library and
                           // its build
  std::vector<SlotSpec> slots;  // in model order
};

// Every slot against its kind's rules; the identity must not be zero.
Result<void> validate(const ModelSpec& spec, const Registry& registry);

// Version of the arithmetic that docs/numbers.md defines; part of every fingerprint.
inline constexpr std::string_view kArithmeticVersion = "cairn-1";
std::string arithmetic_id(const ModelSpec& spec);  // "cairn-1/<spec.arithmetic>"

}  // namespace cairn

#endif  // CAIRN_SESSION_MODEL_SPEC_H_
