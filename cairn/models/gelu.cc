// With t = 2 sqrt(2 / pi) (1 + 0.044715 x^2) the definition x / 2 (1 + tanh(x t / 2)) is
// x sigmoid(x t), and silu(y) = y sigmoid(y), so that gelu(x) = silu(x t) / t. t is never near 0.
#include "cairn/models/gelu.h"

namespace cairn {

ggml_tensor* gelu_gate(ggml_context* context, ggml_tensor* gate, ggml_tensor* up) {
  constexpr float kTwice = 1.5957691216057308f;  // 2 sqrt(2 / pi)
  ggml_tensor* square = ggml_mul(context, gate, gate);
  ggml_tensor* t = ggml_scale_bias(context, square, 0.044715f * kTwice, kTwice);
  ggml_tensor* gated = ggml_swiglu_split(context, ggml_mul(context, gate, t), up);
  return ggml_div(context, gated, t);
}

}  // namespace cairn
