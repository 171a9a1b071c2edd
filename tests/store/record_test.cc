#include "cairn/store/record.h"

#include <gtest/gtest.h>

#include "tests/support/stored.h"

namespace cairn::testing {
namespace {

constexpr Place kPlace{.segment = 0x1122334455667788, .offset = 40960};

std::vector<std::byte> stored(const RecordInfo& info, const Place& place = kPlace) {
  std::vector<std::byte> bytes(stored_bytes(info));
  const std::span payload = std::span(bytes).subspan(header_bytes(info));
  fill_numbered(info.key, payload.first(info.payload_bytes));
  put_header(info, place, xxh3(payload), bytes);
  return bytes;
}

RecordInfo full_info() {
  return {.key = numbered(1, 7),
          .kind = RecordKind::Generation,
          .parent = numbered_name(2),
          .owner = numbered_name(3),
          .tokens = {1, -2, 3},
          .length = 0x0102030405060708,
          .payload_bytes = 1000};
}

uint64_t word_at(std::span<const std::byte> bytes, size_t offset, size_t size) {
  uint64_t value = 0;
  std::memcpy(&value, bytes.data() + offset, size);
  return value;
}

TEST(Record, LiesAsItsHeaderDescribesIt) {
  const std::vector<std::byte> bytes = stored(full_info());
  ASSERT_EQ(bytes.size(), 8192u);
  EXPECT_EQ(std::memcmp(bytes.data(), "cairnrec", 8), 0);
  EXPECT_EQ(word_at(bytes, 8, 4), 1u);
  EXPECT_EQ(word_at(bytes, 12, 4), 4096u);
  EXPECT_EQ(word_at(bytes, 16, 8), 1000u);
  EXPECT_EQ(word_at(bytes, 24, 8), xxh3(std::span(bytes).subspan(4096)));
  EXPECT_EQ(std::memcmp(bytes.data() + 32, numbered_name(1).bytes.data(), 32), 0);
  EXPECT_EQ(std::memcmp(bytes.data() + 64, numbered_name(2).bytes.data(), 32), 0);
  EXPECT_EQ(std::memcmp(bytes.data() + 96, numbered_name(3).bytes.data(), 32), 0);
  EXPECT_EQ(word_at(bytes, 128, 8), 0x0102030405060708u);
  EXPECT_EQ(word_at(bytes, 136, 4), 7u);
  EXPECT_EQ(word_at(bytes, 140, 4), 3u);
  EXPECT_EQ(word_at(bytes, 144, 8), kPlace.segment);
  EXPECT_EQ(word_at(bytes, 152, 8), kPlace.offset);
  EXPECT_EQ(word_at(bytes, 160, 8), 3u);
  EXPECT_EQ(word_at(bytes, 172, 4), 0xfffffffeu);
  EXPECT_EQ(word_at(bytes, 4088, 8), xxh3(std::span(bytes).first(4088)));
}

TEST(Record, IsParsedToWhatWasPut) {
  for (size_t tokens : {0, 1, 980, 981, 5000})
    for (uint64_t payload_bytes : {0, 1, 4096, 4097}) {
      RecordInfo info = full_info();
      info.tokens.assign(tokens, 5);
      info.payload_bytes = payload_bytes;
      const std::vector<std::byte> bytes = stored(info);
      EXPECT_EQ(bytes.size() % 4096, 0u);
      EXPECT_EQ(claimed_header_bytes(bytes), header_bytes(info));
      const auto parsed = parse_header(bytes, kPlace);
      ASSERT_TRUE(parsed);
      EXPECT_EQ(parsed->info, info);
      EXPECT_FALSE(damage_of(bytes, info, kPlace));
    }
}

TEST(Record, EveryBitCounts) {
  const RecordInfo info = full_info();
  std::vector<std::byte> bytes = stored(info);
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    const std::byte mask = std::byte{1} << (bit % 8);
    bytes[bit / 8] ^= mask;
    ASSERT_TRUE(damage_of(bytes, info, kPlace)) << "bit " << bit;
    ASSERT_EQ(parse_header(bytes, kPlace).has_value(), bit >= 8 * header_bytes(info)) << bit;
    bytes[bit / 8] ^= mask;
  }
  EXPECT_FALSE(damage_of(bytes, info, kPlace));
}

TEST(Record, IsNoneElsewhereOrInPart) {
  const RecordInfo info = full_info();
  const std::vector<std::byte> bytes = stored(info);
  for (const Place& place : {Place{.segment = kPlace.segment + 1, .offset = kPlace.offset},
                             Place{.segment = kPlace.segment, .offset = kPlace.offset + 4096}}) {
    EXPECT_FALSE(parse_header(bytes, place));
    EXPECT_TRUE(damage_of(bytes, info, place));
  }
  for (size_t length : {0, 1, 167, 4095, 4096, 8191}) {
    EXPECT_TRUE(damage_of(std::span(bytes).first(length), info, kPlace)) << length;
    EXPECT_EQ(parse_header(std::span(bytes).first(length), kPlace).has_value(), length >= 4096);
  }
}

TEST(Record, LengthsOfAStrangerAreNotBelieved) {
  std::vector<std::byte> bytes = stored(full_info());
  for (size_t offset : {12, 16, 140, 160})
    for (uint64_t value :
         {uint64_t{0}, uint64_t{4}, uint64_t{1} << 31, UINT64_MAX, UINT64_MAX / 4}) {
      std::vector<std::byte> hostile = bytes;
      std::memcpy(hostile.data() + offset, &value, offset % 8 == 0 && offset != 140 ? 8 : 4);
      const uint64_t checksum = xxh3(std::span(hostile).first(4088));
      std::memcpy(hostile.data() + 4088, &checksum, 8);
      (void)claimed_header_bytes(hostile);
      const auto parsed = parse_header(hostile, kPlace);
      if (!parsed) continue;
      EXPECT_LE(4 * parsed->info.tokens.size(), hostile.size());
      EXPECT_LE(parsed->info.payload_bytes, kMaxPayloadBytes);
      if (stored_bytes(parsed->info) != hostile.size()) {
        EXPECT_TRUE(damage_of(hostile, parsed->info, kPlace)) << offset << " " << value;
      }
    }
}

}  // namespace
}  // namespace cairn::testing
