// Sequences as mlx-lm's prompt caches; mlx_lm_reader.h says what becomes what.
#ifndef CAIRN_ENGINE_MLX_LM_WRITER_H_
#define CAIRN_ENGINE_MLX_LM_WRITER_H_

#include <string>

#include "cairn/engine/stored_sequence.h"

namespace cairn {

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

#endif  // CAIRN_ENGINE_MLX_LM_WRITER_H_
