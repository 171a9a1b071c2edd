// Does the matrix library keep one arithmetic? Cairn promises that reuse changes no bit, and that
// needs matrix products whose every column is the same whatever stands beside it and however many
// threads work. ggml's are, as the wheel ships them; a build with llamafile's kernels is not. So it
// is checked, and its version and build are part of what a checkpoint is made under.
#ifndef CAIRN_MODELS_ARITHMETIC_H_
#define CAIRN_MODELS_ARITHMETIC_H_

#include <span>
#include <string>
#include <vector>

#include "cairn/core/error.h"
#include "cairn/models/weights.h"

namespace cairn {

// Whatever besides the weights decides the bits of a model: "ggml-0.20.2+avx2+fma+f16c/quantized".
// Threads do not.
std::string arithmetic_name(Expand expand);

// Types that weights come in and that ggml can make test data for.
std::vector<ggml_type> weight_types();

struct ArithmeticReport {
  uint64_t products = 0;  // columns compared, bit for bit
  uint32_t types = 0;     // weight types
};

// Multiplies by weights of each type: columns alone and beside others, plain and chosen by expert
// (mul_mat_id), on one to three threads; and runs the other operations of our networks in several
// batches. Unsupported names the first that differs.
Result<ArithmeticReport> verify_arithmetic(std::span<const ggml_type> types);
inline Result<ArithmeticReport> verify_arithmetic() { return verify_arithmetic(weight_types()); }

}  // namespace cairn

#endif  // CAIRN_MODELS_ARITHMETIC_H_
