// Records for tests of a store: everything in one follows from its name, so that a byte that lands
// under another name shows at once.
#ifndef CAIRN_TESTS_SUPPORT_STORED_H_
#define CAIRN_TESTS_SUPPORT_STORED_H_

#include <cstring>
#include <string>

#include "cairn/store/store.h"
#include "tests/support/random.h"

namespace cairn::testing {

// The name of record `number`; parts of one name differ in their payload.
inline Digest numbered_name(uint64_t number) { return sha256("record " + std::to_string(number)); }

inline RecordKey numbered(uint64_t number, uint32_t part = 0) {
  return {.name = numbered_name(number), .part = part};
}

inline RecordInfo numbered_info(uint64_t number, uint32_t part = 0, const Digest& parent = {}) {
  Random random(scatter(number));
  RecordInfo info{.key = numbered(number, part), .parent = parent};
  info.tokens.resize(random.below(80));
  for (int32_t& token : info.tokens) token = static_cast<int32_t>(random.below(128'256));
  info.length = random.below(1'000'000);
  info.payload_bytes = random.below(30'000);
  return info;
}

inline void fill_numbered(const RecordKey& key, std::span<std::byte> out) {
  uint64_t seed;
  std::memcpy(&seed, key.name.bytes.data(), sizeof(seed));
  Random random(seed + key.part);
  for (size_t at = 0; at < out.size(); at += sizeof(uint64_t)) {
    const uint64_t bits = random.bits();
    std::memcpy(out.data() + at, &bits, std::min(sizeof(bits), out.size() - at));
  }
}

inline bool is_filled_right(const RecordKey& key, std::span<const std::byte> payload) {
  std::vector<std::byte> expected(payload.size());
  fill_numbered(key, expected);
  return std::ranges::equal(expected, payload);
}

inline NewRecord filled(const RecordInfo& info) {
  return {.info = info,
          .fill = [key = info.key](std::span<std::byte> out) { fill_numbered(key, out); }};
}

inline NewRecord record(uint64_t number, uint32_t part = 0, const Digest& parent = {}) {
  return filled(numbered_info(number, part, parent));
}

// Of exactly so many bytes.
inline NewRecord record_of(uint64_t number, uint64_t payload_bytes, const Digest& parent = {}) {
  RecordInfo info = numbered_info(number, 0, parent);
  info.payload_bytes = payload_bytes;
  return filled(info);
}

}  // namespace cairn::testing

#endif  // CAIRN_TESTS_SUPPORT_STORED_H_
