// The gate of a feed-forward network whose activation is GELU in its tanh form.
//
// ggml's own operations look it up in a table of f16 numbers: the keys of a model of six layers are
// then up to 1e-3 off. This is built of operations that are exact to f32's rounding.
#ifndef CAIRN_MODELS_GELU_H_
#define CAIRN_MODELS_GELU_H_

#include <ggml.h>

namespace cairn {

// gelu(gate) * up; both contiguous f32 of one shape. Five nodes.
ggml_tensor* gelu_gate(ggml_context* context, ggml_tensor* gate, ggml_tensor* up);

}  // namespace cairn

#endif  // CAIRN_MODELS_GELU_H_
