// The qwen3next architecture: most layers are a gated delta net, whose state has a fixed size,
// every fourth attends to everything, through a gate on its output and with norms on each head's
// query and key. Each is followed by many experts, of which a row goes to a few, and a shared one
// that all rows go to.
#ifndef CAIRN_MODELS_HYBRID_H_
#define CAIRN_MODELS_HYBRID_H_

#include "cairn/models/network.h"

namespace cairn {

Result<std::unique_ptr<Network>> make_hybrid(Weights& weights);

}  // namespace cairn

#endif  // CAIRN_MODELS_HYBRID_H_
