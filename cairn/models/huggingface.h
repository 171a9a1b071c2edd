// Weights in a safetensors file whose metadata holds a Hugging Face configuration ("config"): the
// oracles of the tests.
//
// Names and configuration are translated to GGUF's, so that an architecture is written once.
// Tensors that start with "oracle." are left out.
#ifndef CAIRN_MODELS_HUGGINGFACE_H_
#define CAIRN_MODELS_HUGGINGFACE_H_

#include <string>

#include "cairn/models/weights.h"

namespace cairn {

bool is_safetensors_path(const std::string& path);  // by its extension

// BadInput names what is missing or does not fit; Unsupported an architecture that has no
// translation.
Result<Weights> open_huggingface(const std::string& path);

}  // namespace cairn

#endif  // CAIRN_MODELS_HUGGINGFACE_H_
