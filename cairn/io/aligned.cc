#include "cairn/io/aligned.h"

#include <algorithm>

#include "cairn/core/bytes.h"

namespace cairn {

Result<std::span<std::byte>> AlignedBuffer::reserve(uint64_t bytes) {
  const uint64_t wanted = std::max(round_up(bytes, kDirectAlignment), kDirectAlignment);
  if (wanted > bytes_) {
    data_.reset();
    bytes_ = 0;
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(kDirectAlignment, wanted)));
    if (data_ == nullptr)
      return fail(Code::NoSpace, "memory: {} bytes wanted for a buffer", wanted);
    bytes_ = wanted;
  }
  return std::span(data_.get(), wanted);
}

Result<std::span<const std::byte>> read_aligned(File& file,
                                                uint64_t offset,
                                                uint64_t bytes,
                                                AlignedBuffer& buffer) {
  const uint64_t begin = offset / kDirectAlignment * kDirectAlignment;
  const uint64_t skipped = offset - begin;
  const std::span<std::byte> blocks = CAIRN_TRY(buffer.reserve(skipped + bytes));
  const uint64_t got = CAIRN_TRY(file.read_at(begin, blocks));
  const uint64_t available = got > skipped ? std::min(got - skipped, bytes) : 0;
  return std::span<const std::byte>(blocks).subspan(skipped, available);
}

}  // namespace cairn
