#include "cairn/io/aligned.h"

#include <sys/mman.h>

#include <algorithm>

#include "cairn/core/bytes.h"

namespace cairn {

namespace {

constexpr uint64_t kHugePage = 2 * kLargeBuffer;

}  // namespace

Result<std::span<std::byte>> AlignedBuffer::reserve(uint64_t bytes) {
  const uint64_t alignment = bytes < kLargeBuffer ? kDirectAlignment : kHugePage;
  const uint64_t wanted = std::max(round_up(bytes, alignment), kDirectAlignment);
  if (wanted > bytes_) {
    data_.reset();
    bytes_ = 0;
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, wanted)));
    if (data_ == nullptr)
      return fail(Code::NoSpace, "memory: {} bytes wanted for a buffer", wanted);
    bytes_ = wanted;
    if (alignment == kHugePage) ::madvise(data_.get(), wanted, MADV_HUGEPAGE);  // may be refused
  }
  return std::span(data_.get(), wanted);
}

Result<std::span<const std::byte>> read_aligned(File& file,
                                                uint64_t offset,
                                                uint64_t bytes,
                                                AlignedBuffer& buffer) {
  const uint64_t begin = offset / kDirectAlignment * kDirectAlignment;
  const uint64_t skipped = offset - begin;
  const uint64_t wanted = round_up(skipped + bytes, kDirectAlignment);  // a buffer may have more
  const std::span<std::byte> blocks = CAIRN_TRY(buffer.reserve(wanted)).first(wanted);
  const uint64_t got = CAIRN_TRY(file.read_at(begin, blocks));
  const uint64_t available = got > skipped ? std::min(got - skipped, bytes) : 0;
  return std::span<const std::byte>(blocks).subspan(skipped, available);
}

}  // namespace cairn
