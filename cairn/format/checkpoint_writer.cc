#include "cairn/format/checkpoint_writer.h"

#include "cairn/io/replacement.h"

namespace cairn {
namespace {

constexpr uint64_t kWriteBytes = 1 << 20;

// Chunks go into a buffer and leave it in writes of about kWriteBytes.
class DataWriter {
 public:
  DataWriter(File& file, uint64_t offset) : file_(file), offset_(offset) {}

  std::span<std::byte> room(uint64_t bytes) {
    const size_t used = buffer_.size();
    buffer_.resize(used + bytes);
    return std::span(buffer_).subspan(used);
  }
  Result<void> flush_if_full() {
    if (buffer_.size() < kWriteBytes) return {};
    return flush();
  }
  Result<void> flush() {
    if (buffer_.empty()) return {};
    CAIRN_TRY(file_.write_at(offset_, buffer_));
    offset_ += buffer_.size();
    buffer_.clear();
    return {};
  }

 private:
  File& file_;
  uint64_t offset_;
  std::vector<std::byte> buffer_;
};

Result<std::vector<uint64_t>> write_data(File& file,
                                         const CheckpointLayout& layout,
                                         const RowSource& source) {
  std::vector<uint64_t> checksums;
  checksums.reserve(layout.chunks);
  DataWriter data(file, layout.data_offset);
  for (uint64_t i = 0; i < layout.chunks; ++i) {
    const Chunk chunk = layout.chunk(i);
    const std::span<std::byte> rows = data.room(chunk.bytes);
    CAIRN_TRY(source(layout.tensors[chunk.tensor], chunk.first_row, chunk.rows, rows));
    checksums.push_back(xxh3(rows));
    CAIRN_TRY(data.flush_if_full());
  }
  CAIRN_TRY(data.flush());
  return checksums;
}

}  // namespace

Result<void> write_checkpoint(FileSystem& fs,
                              const std::string& path,
                              CheckpointInfo info,
                              const RowSource& source) {
  info.fingerprint = fingerprint_of(info);
  const auto layout = make_layout(info);
  if (!layout) return fail(layout.error().code, "{}: {}", path, layout.error().message);
  Replacement next = CAIRN_TRY(Replacement::make(fs, path));
  const std::vector<uint64_t> checksums = CAIRN_TRY(write_data(next.file(), *layout, source));
  const std::string header = header_bytes(info, *layout, checksums);
  CAIRN_TRY(next.file().write_at(0, std::as_bytes(std::span(header))));
  return next.commit();
}

}  // namespace cairn
