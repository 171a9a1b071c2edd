#include "cairn/models/network.h"

namespace cairn {

ggml_tensor* GraphBuilder::rms_norm(ggml_tensor* x, ggml_tensor* weight, float epsilon) {
  return ggml_mul(context, ggml_rms_norm(context, x, epsilon), weight);
}

ggml_tensor* GraphBuilder::as_heads(ggml_tensor* x, int64_t width, int64_t heads) {
  return ggml_reshape_3d(context, x, width, heads, x->ne[1]);
}

ggml_tensor* GraphBuilder::write(SlotId slot, std::initializer_list<ggml_tensor*> numbers) {
  ggml_tensor* written = state.write(context, slot, {numbers.begin(), numbers.size()});
  ggml_build_forward_expand(graph, written);
  return written;
}

ggml_tensor* GraphBuilder::attend(
    SlotId slot, ggml_tensor* query, ggml_tensor* written, float scale, ggml_tensor* chosen) {
  return state.attend(context, slot, query, written, scale, chosen);
}

ggml_tensor* GraphBuilder::advance(SlotId slot,
                                   const DeltaNet& net,
                                   ggml_tensor* mixed,
                                   ggml_tensor* gates) {
  ggml_tensor* answers = state.advance(context, slot, net, mixed, gates);
  ggml_build_forward_expand(graph, answers);
  return answers;
}

}  // namespace cairn
