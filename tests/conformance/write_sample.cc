// write_sample PATH POSITIONS: the sample checkpoint of that length. Seeds for fuzzers, input for
// other readers.
#include <cstdio>
#include <cstdlib>

#include "tests/support/sample_checkpoint.h"

int main(int argc, char** argv) {
  using namespace cairn;
  if (argc != 3) {
    std::fprintf(stderr, "usage: write_sample PATH POSITIONS\n");
    return 2;
  }
  const CheckpointInfo info = testing::sample_checkpoint(std::strtoull(argv[2], nullptr, 10));
  const auto written = write_checkpoint(posix_fs(), argv[1], info, testing::sample_rows());
  if (!written) {
    std::fprintf(stderr, "%s\n", written.error().message.c_str());
    return 1;
  }
}
