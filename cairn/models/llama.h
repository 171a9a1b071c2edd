// The llama architecture: RMS norms, rotary embedding, grouped queries, a SiLU-gated feed-forward
// network.
#ifndef CAIRN_MODELS_LLAMA_H_
#define CAIRN_MODELS_LLAMA_H_

#include "cairn/models/network.h"

namespace cairn {

Result<std::unique_ptr<Network>> make_llama(Weights& weights);

}  // namespace cairn

#endif  // CAIRN_MODELS_LLAMA_H_
