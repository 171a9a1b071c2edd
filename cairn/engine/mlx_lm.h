// mlx-lm's prompt caches as sequences, and sequences as prompt caches.
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
#ifndef CAIRN_ENGINE_MLX_LM_H_
#define CAIRN_ENGINE_MLX_LM_H_

#include <memory>
#include <string>
#include <vector>

#include "cairn/engine/stored_sequence.h"

namespace cairn {

inline constexpr std::string_view kMlxLmArithmetic = "mlx-lm";

// `model` tells attention from latents where it is known; else a single head whose values are
// narrower than its keys holds latents. Errors as read_prompt_cache(); Unsupported or BadInput for
// caches that no kind of the registry can hold, whose lengths differ, or in which nothing was
// cached yet.
Result<std::unique_ptr<StoredSequence>> open_prompt_cache(FileSystem& fs,
                                                          const std::string& path,
                                                          const ModelSpec* model,
                                                          const Registry& registry);

// `info` in encodings that mlx-lm has. The others are f32 in it and listed in `unknown`: so are
// families in two forms, affine ones that its keys and values do not share or of which MLX does not
// know the group, and affine windows and latents. Unsupported for kinds that it does not have, for
// an empty sequence, and for windows that lack positions of mlx-lm's ring.
Result<CheckpointInfo> as_mlx_lm(CheckpointInfo info, Losses& unknown);

// Writes a sequence that is described as as_mlx_lm() describes it; whole, or not at all. Returns
// the bytes of the file.
Result<uint64_t> write_prompt_cache(FileSystem& fs,
                                    const std::string& path,
                                    StoredSequence& sequence);

}  // namespace cairn

#endif  // CAIRN_ENGINE_MLX_LM_H_
