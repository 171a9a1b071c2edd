// The architectures of DeepSeek-V3 ("deepseek2" in GGUF files) and of GLM with sparse attention
// ("glm-dsa"): latent attention (latent_attention.h), in the second one over positions that a
// lightning indexer chooses; a gated feed-forward network in the first layers, and in the others
// experts (experts.h) beside a shared one. A file may have a layer more for multi-token prediction,
// which is the model's draft head.
#ifndef CAIRN_MODELS_GLM_H_
#define CAIRN_MODELS_GLM_H_

#include "cairn/models/network.h"

namespace cairn {

Result<std::unique_ptr<Network>> make_glm(Weights& weights);

}  // namespace cairn

#endif  // CAIRN_MODELS_GLM_H_
