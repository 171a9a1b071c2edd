#include "cairn/models/network.h"

namespace cairn {

ggml_tensor* GraphBuilder::rms_norm(ggml_tensor* x, ggml_tensor* weight, float epsilon) {
  return ggml_mul(context, ggml_rms_norm(context, x, epsilon), weight);
}

ggml_tensor* GraphBuilder::as_heads(ggml_tensor* x, int64_t width, int64_t heads) {
  return ggml_reshape_3d(context, x, width, heads, x->ne[1]);
}

ggml_tensor* GraphBuilder::write(SlotId slot, ggml_tensor* key, ggml_tensor* value) {
  ggml_tensor* written = state.write(context, slot, key, value);
  ggml_build_forward_expand(graph, written);
  return written;
}

ggml_tensor* GraphBuilder::attend(SlotId slot,
                                  ggml_tensor* query,
                                  ggml_tensor* written,
                                  float scale) {
  return state.attend(context, slot, query, written, scale);
}

}  // namespace cairn
