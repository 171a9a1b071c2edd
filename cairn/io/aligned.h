// Reads at any offset through a file that may only be read in whole blocks.
#ifndef CAIRN_IO_ALIGNED_H_
#define CAIRN_IO_ALIGNED_H_

#include <cstdlib>
#include <memory>
#include <span>

#include "cairn/io/file.h"

namespace cairn {

// From here on buffers lie in the system's huge pages: bytes that lie together in memory take fewer
// requests to the disk. In pages of 4 KiB, twice the time has been seen.
inline constexpr uint64_t kLargeBuffer = uint64_t{1} << 20;

// Memory that direct reads may fill. Grows, never shrinks; growing drops the contents.
class AlignedBuffer {
 public:
  // At least `bytes`, a multiple of kDirectAlignment, valid until the next call; or NoSpace.
  Result<std::span<std::byte>> reserve(uint64_t bytes);

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
  uint64_t bytes_ = 0;
};

// The bytes [offset, offset + bytes) of the file, by way of the blocks around them; fewer only at
// the file's end. They lie in `buffer` until it is used again. REQUIRES: offset + bytes does not
// overflow.
Result<std::span<const std::byte>> read_aligned(File& file,
                                                uint64_t offset,
                                                uint64_t bytes,
                                                AlignedBuffer& buffer);

}  // namespace cairn

#endif  // CAIRN_IO_ALIGNED_H_
