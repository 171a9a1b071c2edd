// Safetensors files, as a strict reader sees them.
//
//   byte 0   u64, little-endian: the header's bytes, n
//        8   the header: one JSON object, {"<tensor>": {"dtype", "shape", "data_offsets": [begin,
//        end]}, ...,
//            "__metadata__": {"<key>": "<text>", ...}}; spaces may follow it
//    8 + n   the tensors' bytes: offsets count from here, cover the rest of the file, and leave no
//    gap
//
// A header is believed only as far as the file's own size bears it out: every product is checked,
// every tensor's bytes must be what its dtype and shape say, keys must not repeat, and what is kept
// in memory is a small multiple of the header.
#ifndef CAIRN_FORMAT_SAFETENSORS_H_
#define CAIRN_FORMAT_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/core/error.h"
#include "cairn/io/file.h"

namespace cairn {

inline constexpr uint64_t kMaxHeaderBytes = 16 << 20;
inline constexpr size_t kMaxTensorRank = 16;

struct TensorInfo {
  std::string name;
  std::string_view dtype;       // as in the file: "F32", "BF16", "I64", ...
  std::vector<uint64_t> shape;  // empty: one element
  uint64_t begin = 0;           // bytes from the file's start
  uint64_t end = 0;

  uint64_t bytes() const { return end - begin; }
  uint64_t elements() const;  // the shape's product; cannot overflow, it was checked
};

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // in the order of their bytes
  std::map<std::string, std::string, std::less<>> metadata;
  uint64_t data_offset = 0;  // of the first tensor's bytes, from the file's start

  const TensorInfo* find(std::string_view name) const;  // null: none

  std::vector<uint32_t> by_name;  // indices into `tensors`, sorted by name
};

// Bits of one element; none: a dtype that the format does not have.
std::optional<uint32_t> element_bits(std::string_view dtype);

// The header's JSON text without its length. `file_bytes` is the size of the whole file; messages
// begin with `path`.
Result<SafetensorsHeader> parse_safetensors(std::string_view path,
                                            std::string_view json,
                                            uint64_t file_bytes);

// The JSON text of a file's header. Its length is held against the file's size before anything is
// allocated.
Result<std::string> read_header_text(File& file, uint64_t file_bytes);

// Both. BadInput for what is no safetensors file, Corrupt for one that ends early, Unsupported for
// an unknown dtype.
Result<SafetensorsHeader> read_safetensors(File& file);

}  // namespace cairn

#endif  // CAIRN_FORMAT_SAFETENSORS_H_
