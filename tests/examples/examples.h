// What docs/add-an-encoding.md and docs/add-a-kind.md add.
#ifndef CAIRN_TESTS_EXAMPLES_EXAMPLES_H_
#define CAIRN_TESTS_EXAMPLES_EXAMPLES_H_

#include "cairn/state/registry.h"

namespace cairn {

extern const Encoding kE5m2;                           // e5m2.cc
extern const StateKind kTied;                          // tied.cc
SlotSpec tied_attention(const AttentionShape& shape);  // heads, head_dim and max_positions count

}  // namespace cairn

#endif  // CAIRN_TESTS_EXAMPLES_EXAMPLES_H_
