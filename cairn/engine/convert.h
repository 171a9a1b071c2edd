// A sequence in one file becomes a sequence in another: in other encodings, as a file of mlx-lm or
// out of one, or as the state of a model.
//
//   CAIRN_TRY(convert("chat.cairn", "small.cairn", {.scheme = parse_scheme("affine8").value()}));
//
// Nothing is held as a whole but the token ids: whatever the length, memory holds a few stretches
// of about a MiB of the tensors that are being read and written.
//
// The result is marked derived unless its records are what a run under its scheme would have
// stored: what is re-encoded is not, because such a run would have attended to encoded records
// from the first layer on.
#ifndef CAIRN_ENGINE_CONVERT_H_
#define CAIRN_ENGINE_CONVERT_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cairn/engine/mlx_lm_reader.h"
#include "cairn/engine/mlx_lm_writer.h"
#include "cairn/session/scheme.h"

namespace cairn {

// Whose state a sequence is.
struct StateOwner {
  ModelSpec spec;
  // mlx-lm keeps the rotated pairs of a key as halves. A model that keeps them side by side says
  // how many numbers of a key are rotated; 0: as mlx-lm.
  uint32_t adjacent_pairs = 0;
};

enum class FileKind { checkpoint, prompt_cache };

struct ConvertOptions {
  FileSystem* fs = &posix_fs();
  const Registry* registry = &builtin();
  std::optional<Scheme> scheme;       // none: every family keeps its encoding
  const StateOwner* owner = nullptr;  // null: as the file says
  FileKind to = FileKind::checkpoint;
  // Called now and then with the bytes of records that are written, and that will be.
  std::function<void(uint64_t done, uint64_t total)> progress;
};

struct Conversion {
  CheckpointInfo from, to;  // what was read and what was written
  FileKind from_kind = FileKind::checkpoint;
  uint64_t file_bytes = 0;
  std::vector<std::string> warnings;  // what was lost, for whoever asked for the file
};

// Whether a file is a sequence, of whatever kind, sound or damaged; by its content.
bool is_sequence_file(FileSystem& fs, const std::string& path);

// `in` is recognized by its content. `out` is written whole, replacing what is there, or not at
// all. Mismatch: the file is of another model than the owner, or its slots are not the owner's;
// Unsupported: mlx-lm has no counterpart; BadInput: a scheme that does not fit the slots, or a
// model's state for mlx-lm without its owner, who alone knows the order of its keys. Else as
// CheckpointReader::open() and open_prompt_cache().
Result<Conversion> convert(const std::string& in,
                           const std::string& out,
                           const ConvertOptions& options);

}  // namespace cairn

#endif  // CAIRN_ENGINE_CONVERT_H_
