// Any text as a checkpoint's description. One that makes sense gives a header, and that header
// gives the description back.
#include <cstdlib>

#include "cairn/format/json_fields.h"
#include "cairn/format/layout.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace cairn;
  CheckpointInfo info;
  if (!from_json({reinterpret_cast<const char*>(data), bytes}, info)) return 0;
  CheckpointInfo again;
  if (!from_json(to_json(info), again) || again != info) std::abort();

  info.format = kCheckpointFormat;
  info.fingerprint = fingerprint_of(info);
  const auto layout = make_layout(info);
  constexpr uint64_t kManyChunks = 10000;
  if (!layout || layout->chunks > kManyChunks) return 0;
  const std::string header = header_bytes(info, *layout, std::vector<uint64_t>(layout->chunks));
  const auto parsed = parse_checkpoint("f", std::string_view(header).substr(8), layout->file_bytes);
  if (!parsed || parsed->info != info) std::abort();
  uint64_t next = layout->data_offset;
  for (uint64_t i = 0; i < layout->chunks; ++i) {
    const Chunk chunk = parsed->layout.chunk(i);
    if (chunk.offset != next || describe(info, *layout, chunk).empty()) std::abort();
    next += chunk.bytes;
  }
  if (next != layout->file_bytes) std::abort();
  return 0;
}
