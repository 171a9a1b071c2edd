// Where everything lies in a checkpoint file; a function of its CheckpointInfo alone.
//
//   byte 0        u64: bytes of the header text
//        8        the header text, spaces up to a multiple of 4,096
//   data_offset   tensors, one after the other without a gap (the safetensors format allows none)
//
// Tensors are ordered by the largest power of two, up to 64, that divides their bytes; within one
// power by slot, family and plane, the token ids first. So everything in front of a tensor is a
// multiple of its own power of two: it is aligned as well as it can be without padding, always to
// its element, and to 64 bytes whenever its bytes are a multiple of 64.
//
// A tensor is checked in chunks of stored positions, about 256 KiB each, so that damage has an
// address.
#ifndef CAIRN_FORMAT_LAYOUT_H_
#define CAIRN_FORMAT_LAYOUT_H_

#include <string>
#include <string_view>
#include <vector>

#include "cairn/format/checkpoint.h"

namespace cairn {

inline constexpr uint64_t kChunkBytes = 256 << 10;
inline constexpr uint64_t kMaxRowBytes =
    1 << 30;  // of one position in one tensor: bounds what a chunk can take

struct CheckpointTensor {
  static constexpr uint32_t kTokens = UINT32_MAX;
  uint32_t slot = kTokens;  // kTokens: the token ids, one row each
  uint32_t family = 0;      // indices into CheckpointInfo
  uint32_t plane = 0;
  uint64_t rows = 0;  // stored positions
  uint64_t row_bytes = 0;
  uint64_t begin = 0;       // bytes from the file's start
  uint64_t chunk_rows = 0;  // of every chunk but the last; 0: no bytes, no chunks
  uint64_t first_chunk = 0;

  uint64_t bytes() const { return rows * row_bytes; }
  uint64_t chunks() const { return chunk_rows == 0 ? 0 : (rows + chunk_rows - 1) / chunk_rows; }
};

// Rows of one tensor with one checksum.
struct Chunk {
  uint64_t index = 0;   // into the file's checksums
  uint32_t tensor = 0;  // into CheckpointLayout::tensors
  uint64_t first_row = 0;
  uint64_t rows = 0;
  uint64_t offset = 0;  // bytes from the file's start
  uint64_t bytes = 0;
};

struct CheckpointLayout {
  std::vector<CheckpointTensor> tensors;  // as they lie in the file
  uint64_t data_offset = 0;
  uint64_t file_bytes = 0;
  uint64_t chunks = 0;

  Chunk chunk(uint64_t index) const;
};

// BadInput when the description contradicts itself or cannot be a file.
Result<CheckpointLayout> make_layout(const CheckpointInfo& info);

// The first data_offset bytes of the file.
std::string header_bytes(const CheckpointInfo& info,
                         const CheckpointLayout& layout,
                         const std::vector<uint64_t>& checksums);

struct CheckpointHeader {
  CheckpointInfo info;
  CheckpointLayout layout;
  std::vector<uint64_t> checksums;  // one per chunk
};

// `text` is the header without its length. Accepts exactly what header_bytes() gives: BadInput for
// what is no checkpoint, Corrupt for changed bytes, Unsupported for another format version.
Result<CheckpointHeader> parse_checkpoint(std::string_view path,
                                          std::string_view text,
                                          uint64_t file_bytes);

// "slot 3, key, values, positions 0-63", "token ids 0-99".
std::string describe(const CheckpointInfo& info,
                     const CheckpointLayout& layout,
                     const Chunk& chunk);

}  // namespace cairn

#endif  // CAIRN_FORMAT_LAYOUT_H_
