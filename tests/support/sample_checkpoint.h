// A small checkpoint with one of everything: plain, windowed and fixed slots, records in two forms,
// of one and of several planes.
#ifndef CAIRN_TESTS_SUPPORT_SAMPLE_CHECKPOINT_H_
#define CAIRN_TESTS_SUPPORT_SAMPLE_CHECKPOINT_H_

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "cairn/format/checkpoint_reader.h"
#include "cairn/format/checkpoint_writer.h"

namespace cairn::testing {

inline constexpr Pos kSampleExact = 4;  // positions that stay exact
inline constexpr Pos kSampleEncodedAfter = 10;

inline CheckpointFamily sample_exact(const CheckpointFamily& encoded) {
  return {.name = encoded.name,
          .encoding = "f32",
          .heads = encoded.heads,
          .width = encoded.width,
          .begin = 0,
          .end = encoded.begin,
          .planes = {
              {.name = "values", .dtype = "F32", .record_bytes = encoded.width * sizeof(float)}}};
}

inline CheckpointInfo sample_checkpoint(Pos length) {
  const Pos split = length < kSampleEncodedAfter ? length : kSampleExact;
  const CheckpointFamily key{.name = "key",
                             .encoding = "f16",
                             .heads = 2,
                             .width = 8,
                             .begin = split,
                             .end = length,
                             .planes = {{.name = "values", .dtype = "F16", .record_bytes = 16}}};
  const CheckpointFamily value{.name = "value",
                               .encoding = "affine8-g8",
                               .heads = 1,
                               .width = 8,
                               .begin = split,
                               .end = length,
                               .planes = {{.name = "codes", .dtype = "U32", .record_bytes = 8},
                                          {.name = "scales", .dtype = "F16", .record_bytes = 2},
                                          {.name = "biases", .dtype = "F16", .record_bytes = 2}}};
  const CheckpointFamily conv{.name = "conv",
                              .encoding = "f32",
                              .heads = 3,
                              .width = 5,
                              .end = std::min<Pos>(1, length),
                              .planes = {{.name = "values", .dtype = "F32", .record_bytes = 20}}};
  CheckpointInfo info;
  info.registry = "builtin";
  info.identity = sha256("weights");
  info.tokenizer = sha256("tokenizer");
  info.arithmetic = "cairn-1/test";
  info.name_space = "tenant \"7\"\n\u00e9";
  info.scheme = "f16-keep4-after10+value:affine8-g8";
  info.encoded_after = kSampleEncodedAfter;
  info.length = length;
  info.tokens = length + 1;
  info.slots.push_back(
      {.kind = "attention", .families = {sample_exact(key), key, sample_exact(value), value}});
  info.slots.push_back({.kind = "window",
                        .window = 8,
                        .sinks = 2,
                        .rewind = 4,
                        .max_positions = 4096,
                        .first_kept = length > 14 ? length - 12 : 0,
                        .families = {sample_exact(key), key}});
  info.slots.push_back({.kind = "recurrent", .is_fixed = true, .families = {conv}});
  info.fingerprint = fingerprint_of(info);
  return info;
}

// Bytes that say where they belong.
inline std::byte sample_byte(const CheckpointTensor& tensor, uint64_t row, uint64_t index) {
  return static_cast<std::byte>(tensor.slot * 101 + tensor.family * 41 + tensor.plane * 17 +
                                row * 7 + index);
}

inline RowSource sample_rows(uint64_t salt = 0) {
  return [salt](const CheckpointTensor& tensor, uint64_t first_row, uint64_t rows,
                std::span<std::byte> out) -> Result<void> {
    for (uint64_t row = 0; row < rows; ++row)
      for (uint64_t i = 0; i < tensor.row_bytes; ++i)
        out[row * tensor.row_bytes + i] = sample_byte(tensor, first_row + row, i + salt);
    return {};
  };
}

inline std::string file_bytes(FileSystem& fs, const std::string& path) {
  auto file = fs.open_read(path).value();
  std::string bytes(file->size().value(), '\0');
  (void)file->read_at(0, std::as_writable_bytes(std::span(bytes))).value();
  return bytes;
}

// A new file of these bytes.
inline void put_file(FileSystem& fs, const std::string& path, std::string_view bytes) {
  if (fs.exists(path)) (void)fs.remove(path);
  (void)fs.create(path).value()->write_at(0, std::as_bytes(std::span(bytes)));
}

// Everything in the file, in its order; or the first error.
inline Result<std::string> read_everything(FileSystem& fs, const std::string& path) {
  const CheckpointReader reader = CAIRN_TRY(CheckpointReader::open(fs, path));
  std::string data;
  AlignedBuffer buffer;
  for (size_t job = 0; job < reader.jobs(); ++job) {
    const auto append = [&](const Chunk&, std::span<const std::byte> bytes) {
      data.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    };
    const std::vector<Chunk> damaged = CAIRN_TRY(reader.read_job(job, buffer, append));
    if (!damaged.empty()) return tl::unexpected<Error>(reader.damage(damaged.front()));
  }
  return data;
}

// The file with the checksum that its header should have, as somebody would change it who knows the
// rule; none: the header's length reaches beyond the file.
inline std::optional<std::string> with_header_checksum(std::string bytes) {
  constexpr size_t kAt = 8 + std::string_view(R"({"__metadata__":{"header_checksum":")").size();
  constexpr size_t kDigits = 16;
  if (bytes.size() < kAt + kDigits) return std::nullopt;
  uint64_t text_bytes = 0;
  std::memcpy(&text_bytes, bytes.data(), sizeof(text_bytes));
  if (text_bytes > bytes.size() - sizeof(text_bytes) ||
      text_bytes + sizeof(text_bytes) < kAt + kDigits)
    return std::nullopt;
  bytes.replace(kAt, kDigits, kDigits, '0');
  return bytes.replace(
      kAt, kDigits, hex(xxh3(std::string_view(bytes).substr(0, sizeof(text_bytes) + text_bytes))));
}

}  // namespace cairn::testing

#endif  // CAIRN_TESTS_SUPPORT_SAMPLE_CHECKPOINT_H_
