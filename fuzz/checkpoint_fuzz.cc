// Any bytes as a checkpoint file: as they are, and with the header's checksum made right, so that
// damage behind it is met.
#include <cstdlib>
#include <cstring>

#include "cairn/io/memory_fs.h"
#include "tests/support/sample_checkpoint.h"

namespace {

using namespace cairn;

void read(const std::string& bytes) {
  MemoryFs fs;
  testing::put_file(fs, "f", bytes);
  const auto reader = CheckpointReader::open(fs, "f");
  if (!reader) return;
  uint64_t data_bytes = 0;
  AlignedBuffer buffer;
  for (size_t job = 0; job < reader->jobs(); ++job) {
    const auto count = [&](const Chunk&, std::span<const std::byte> rows) {
      data_bytes += rows.size();
    };
    const auto damaged = reader->read_job(job, buffer, count);
    if (!damaged) std::abort();  // the file's size was checked
    for (const Chunk& chunk : *damaged)
      data_bytes += chunk.bytes + 0 * reader->damage(chunk).message.size();
  }
  if (reader->layout().data_offset + data_bytes != bytes.size()) std::abort();
  for (Pos position : {Pos{0}, reader->info().length / 2, reader->info().length})
    (void)can_resume_at(reader->info(), position);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const std::string file(reinterpret_cast<const char*>(data), bytes);
  read(file);
  if (const auto repaired = testing::with_header_checksum(file)) read(*repaired);
  return 0;
}
