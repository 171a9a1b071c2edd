// affine_records ENCODING WIDTH: reads vectors of f32 and writes their records, plane after plane,
// and then the numbers that the records decode to. For whoever compares both with another library.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "cairn/state/registry.h"

namespace cairn {
namespace {

std::vector<std::byte> read_all() {
  std::vector<std::byte> bytes;
  std::byte block[65536];
  for (size_t count; (count = std::fread(block, 1, sizeof(block), stdin)) > 0;)
    bytes.insert(bytes.end(), block, block + count);
  return bytes;
}

bool write_all(const void* bytes, size_t count) {
  return std::fwrite(bytes, 1, count, stdout) == count;
}

Result<bool> run(const char* text, uint32_t width) {
  const EncodingChoice choice = CAIRN_TRY(parse_encoding(builtin(), text));
  const Codec codec = CAIRN_TRY(make_codec(*choice.encoding, choice.params, width));
  const std::vector<std::byte> bytes = read_all();
  std::vector<float> numbers(bytes.size() / sizeof(float));
  std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(float));

  const uint32_t count = static_cast<uint32_t>(numbers.size() / width);
  Records records{.first = 0, .count = count, .capacity = count};
  std::vector<std::vector<std::byte>> planes;
  for (const PlaneGeometry& plane : codec.geometry.planes) {
    planes.emplace_back(uint64_t{count} * plane.record_bytes);
    records.planes[planes.size() - 1] = {planes.back().data(), plane.record_bytes,
                                         plane.word_bytes};
  }
  codec.encoding->functions().encode(codec, numbers.data(), records);
  codec.encoding->functions().decode(codec, records, numbers.data());
  bool is_written = true;
  for (const std::vector<std::byte>& plane : planes)
    is_written = is_written && write_all(plane.data(), plane.size());
  return is_written && write_all(numbers.data(), numbers.size() * sizeof(float));
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: affine_records ENCODING WIDTH\n");
    return 2;
  }
  const auto done = cairn::run(argv[1], static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 10)));
  if (!done) std::fprintf(stderr, "%s\n", done.error().message.c_str());
  return done && *done ? 0 : 1;
}
