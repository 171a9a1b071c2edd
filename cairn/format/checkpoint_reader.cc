#include "cairn/format/checkpoint_reader.h"

#include "cairn/format/safetensors.h"

namespace cairn {
namespace {

constexpr uint64_t kJobBytes = 1 << 20;

// Cuts the chunks into jobs of at most kJobBytes, or one chunk.
std::vector<uint64_t> cut_jobs(const CheckpointLayout& layout) {
  std::vector<uint64_t> first_chunks = {0};
  uint64_t job_bytes = 0;
  for (uint64_t i = 0; i < layout.chunks; ++i) {
    const uint64_t bytes = layout.chunk(i).bytes;
    if (job_bytes > 0 && job_bytes + bytes > kJobBytes) {
      first_chunks.push_back(i);
      job_bytes = 0;
    }
    job_bytes += bytes;
  }
  if (layout.chunks > 0) first_chunks.push_back(layout.chunks);
  return first_chunks;
}

}  // namespace

CheckpointReader::CheckpointReader(std::unique_ptr<File> file, CheckpointHeader header)
    : file_(std::move(file)), header_(std::move(header)), first_chunks_(cut_jobs(header_.layout)) {}

Result<CheckpointReader> CheckpointReader::open(FileSystem& fs, const std::string& path) {
  std::unique_ptr<File> file = CAIRN_TRY(fs.open_read(path, Access::direct));
  const uint64_t file_bytes = CAIRN_TRY(file->size());
  const std::string text = CAIRN_TRY(read_header_text(*file, file_bytes));
  CheckpointHeader header = CAIRN_TRY(parse_checkpoint(path, text, file_bytes));
  return CheckpointReader(std::move(file), std::move(header));
}

bool CheckpointReader::any_in_job(size_t job,
                                  const std::function<bool(const Chunk&)>& predicate) const {
  for (uint64_t i = first_chunks_[job]; i < first_chunks_[job + 1]; ++i)
    if (predicate(layout().chunk(i))) return true;
  return false;
}

Result<std::span<const std::byte>> CheckpointReader::read_bytes(uint64_t offset,
                                                                uint64_t bytes,
                                                                AlignedBuffer& buffer) const {
  const std::span<const std::byte> data = CAIRN_TRY(read_aligned(*file_, offset, bytes, buffer));
  if (data.size() < bytes)
    return fail(Code::Corrupt, "{}: ends at byte {}, expected {}", path(), offset + data.size(),
                layout().file_bytes);
  return data;
}

Result<std::span<const std::byte>> CheckpointReader::read_chunk(const Chunk& chunk,
                                                                AlignedBuffer& buffer) const {
  const std::span<const std::byte> rows = CAIRN_TRY(read_bytes(chunk.offset, chunk.bytes, buffer));
  if (xxh3(rows) != header_.checksums[chunk.index]) return tl::unexpected<Error>(damage(chunk));
  return rows;
}

Result<std::vector<Chunk>> CheckpointReader::read_job(size_t job,
                                                      AlignedBuffer& buffer,
                                                      const Visitor& sound) const {
  const Chunk first = layout().chunk(first_chunks_[job]);
  const Chunk last = layout().chunk(first_chunks_[job + 1] - 1);
  const uint64_t bytes = last.offset + last.bytes - first.offset;
  const std::span<const std::byte> data = CAIRN_TRY(read_bytes(first.offset, bytes, buffer));
  std::vector<Chunk> damaged;
  for (uint64_t i = first.index; i <= last.index; ++i) {
    const Chunk chunk = layout().chunk(i);
    const std::span<const std::byte> rows = data.subspan(chunk.offset - first.offset, chunk.bytes);
    if (xxh3(rows) == header_.checksums[i])
      sound(chunk, rows);
    else
      damaged.push_back(chunk);
  }
  return damaged;
}

Error CheckpointReader::damage(const Chunk& chunk) const {
  return {Code::Corrupt, fmt::format("{}: {}: the bytes are not those that were written", path(),
                                     describe(info(), layout(), chunk))};
}

}  // namespace cairn
