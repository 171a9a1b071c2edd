// Any bytes as a safetensors file of somebody else: weights, oracles.
#include <cstdlib>

#include "cairn/format/safetensors.h"
#include "cairn/io/memory_fs.h"
#include "tests/support/sample_checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace cairn;
  MemoryFs fs;
  testing::put_file(fs, "f", {reinterpret_cast<const char*>(data), bytes});
  const auto header = read_safetensors(*fs.open_read("f").value());
  if (!header) return 0;
  uint64_t next = header->data_offset;
  for (const TensorInfo& tensor : header->tensors) {
    if (header->find(tensor.name) != &tensor || tensor.begin != next) std::abort();
    if (tensor.elements() * element_bits(tensor.dtype).value() / 8 != tensor.bytes()) std::abort();
    next = tensor.end;
  }
  if (next != bytes) std::abort();
  return 0;
}
