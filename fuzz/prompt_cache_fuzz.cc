// Any bytes as a prompt cache of mlx-lm. What is read lies inside the file, and can be laid out
// again.
#include <cstdlib>

#include "cairn/format/prompt_cache.h"
#include "cairn/io/memory_fs.h"
#include "tests/support/sample_checkpoint.h"

namespace {

using namespace cairn;

void check(const PromptCache& cache, uint64_t file_bytes) {
  for (const std::vector<TensorInfo>& list : cache.arrays)
    for (const TensorInfo& array : list)
      if (array.begin > array.end || array.end > file_bytes) std::abort();
  for (const PromptCache& member : cache.members) check(member, file_bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  MemoryFs fs;
  testing::put_file(fs, "f", {reinterpret_cast<const char*>(data), bytes});
  auto content = read_prompt_cache(*fs.open_read("f").value());
  if (!content) return 0;
  for (const PromptCache& cache : content->caches) check(cache, bytes);
  (void)lay_out_prompt_cache(*content);
  return 0;
}
