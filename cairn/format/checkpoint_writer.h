// Writes a checkpoint file: whole, or not at all.
#ifndef CAIRN_FORMAT_CHECKPOINT_WRITER_H_
#define CAIRN_FORMAT_CHECKPOINT_WRITER_H_

#include <functional>
#include <span>
#include <string>

#include "cairn/format/layout.h"
#include "cairn/io/file.h"

namespace cairn {

// Fills `out` with the rows [first_row, first_row + rows) of one tensor, row_bytes each, dense.
using RowSource = std::function<Result<void>(
    const CheckpointTensor& tensor, uint64_t first_row, uint64_t rows, std::span<std::byte> out)>;

// Asks `source` for every tensor's rows in the file's order, about 1 MiB at a time, and holds no
// more than that and the header. The fingerprint is computed here. On any error `path` is as it was
// before, but for one: when only the folder could not be synced, the new file is in place and may
// not survive a power cut.
Result<void> write_checkpoint(FileSystem& fs,
                              const std::string& path,
                              CheckpointInfo info,
                              const RowSource& source);

}  // namespace cairn

#endif  // CAIRN_FORMAT_CHECKPOINT_WRITER_H_
