// Writes small sound files into a folder: seeds for the fuzzers.
#include <cstdio>

#include "tests/support/sample_checkpoint.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_seeds FOLDER\n");
    return 2;
  }
  for (cairn::Pos length : {0, 1, 15, 100}) {
    const std::string path = fmt::format("{}/sample-{}.cairn", argv[1], length);
    const auto written = cairn::write_checkpoint(
        cairn::posix_fs(), path, cairn::testing::sample_checkpoint(length), cairn::testing::sample_rows());
    if (!written) {
      std::fprintf(stderr, "%s\n", written.error().message.c_str());
      return 1;
    }
  }
}
