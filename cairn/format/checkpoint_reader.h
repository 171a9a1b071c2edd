// Reads a checkpoint file. What it hands out has been verified.
//
// Opening reads and checks the header. The data is read in jobs of about 1 MiB of consecutive
// chunks, each of which any thread may take; a reader owns no threads.
#ifndef CAIRN_FORMAT_CHECKPOINT_READER_H_
#define CAIRN_FORMAT_CHECKPOINT_READER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cairn/format/layout.h"
#include "cairn/io/aligned.h"

namespace cairn {

class CheckpointReader {
 public:
  // NotFound, or as parse_checkpoint().
  static Result<CheckpointReader> open(FileSystem& fs, const std::string& path);

  const std::string& path() const { return file_->path(); }
  const CheckpointInfo& info() const { return header_.info; }
  const CheckpointLayout& layout() const { return header_.layout; }

  size_t jobs() const { return first_chunks_.size() - 1; }

  // True when the predicate holds for a chunk of the job.
  bool any_in_job(size_t job, const std::function<bool(const Chunk&)>& predicate) const;

  // Reads one job, calls `sound` with every chunk whose checksum is right, and returns the others.
  // The bytes lie in `buffer`, one per thread, and are gone after the call. Thread-safe.
  using Visitor = std::function<void(const Chunk& chunk, std::span<const std::byte> bytes)>;
  Result<std::vector<Chunk>> read_job(size_t job,
                                      AlignedBuffer& buffer,
                                      const Visitor& sound) const;

  // The bytes of one chunk, in `buffer` until it is used again; Corrupt when the checksum is wrong.
  Result<std::span<const std::byte>> read_chunk(const Chunk& chunk, AlignedBuffer& buffer) const;

  // "<path>: slot 3, key, values, positions 0-63: ..."
  Error damage(const Chunk& chunk) const;

 private:
  CheckpointReader(std::unique_ptr<File> file, CheckpointHeader header);
  Result<std::span<const std::byte>> read_bytes(uint64_t offset,
                                                uint64_t bytes,
                                                AlignedBuffer& buffer) const;

  std::unique_ptr<File> file_;
  CheckpointHeader header_;
  std::vector<uint64_t> first_chunks_;  // of every job, and one more
};

}  // namespace cairn

#endif  // CAIRN_FORMAT_CHECKPOINT_READER_H_
