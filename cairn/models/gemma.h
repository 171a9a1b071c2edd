// The gemma3 architecture: most layers see a window and turn by a rotary base of their own, every
// sixth sees everything; norms before and after each half of a layer and on each head's query and
// key, a GELU-gated feed-forward network, embeddings scaled by the root of their width.
#ifndef CAIRN_MODELS_GEMMA_H_
#define CAIRN_MODELS_GEMMA_H_

#include "cairn/models/network.h"

namespace cairn {

Result<std::unique_ptr<Network>> make_gemma(Weights& weights);

}  // namespace cairn

#endif  // CAIRN_MODELS_GEMMA_H_
