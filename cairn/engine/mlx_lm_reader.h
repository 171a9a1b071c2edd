// mlx-lm's prompt caches as sequences (mlx_lm_writer.h goes the other way).
//
//   mlx-lm                                     Cairn
//   KVCache                                    attention, or latent (keys are latents, values
//   ropes) QuantizedKVCache                           attention in affine encodings, record for
//   record RotatingKVCache(max size, keep)            window of max size - keep, keep sinks
//   ArraysCache of conv [1, a, b] and
//     recurrent state [1, a, b, c]             recurrent: [a, b] and [a, b * c], in f32
//   CacheList of two KVCaches                  latent with index keys, which the second one holds
//                                              as keys, beside zeros
//
// Arrays of f32, f16 and bf16 keep their type. A ring is put into the order of time. A prompt cache
// does not say whose it is: what is read from one is derived and has the zero identity, until
// whoever knows the model gives it one.
#ifndef CAIRN_ENGINE_MLX_LM_READER_H_
#define CAIRN_ENGINE_MLX_LM_READER_H_

#include <memory>
#include <string>
#include <vector>

#include "cairn/engine/stored_sequence.h"

namespace cairn {

inline constexpr std::string_view kMlxLmArithmetic = "mlx-lm";
// Our key in the metadata: the ids as a JSON list.
inline constexpr std::string_view kMlxLmTokens = "tokens";

// `model` tells attention from latents where it is known; else a single head whose values are
// narrower than its keys holds latents. Errors as read_prompt_cache(); Unsupported or BadInput for
// caches that no kind of the registry can hold, whose lengths differ, or in which nothing was
// cached yet.
Result<std::unique_ptr<StoredSequence>> open_prompt_cache(FileSystem& fs,
                                                          const std::string& path,
                                                          const ModelSpec* model,
                                                          const Registry& registry);

}  // namespace cairn

#endif  // CAIRN_ENGINE_MLX_LM_READER_H_
