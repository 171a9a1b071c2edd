#include "cairn/store/record.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "cairn/core/bytes.h"

namespace cairn {
namespace {

static_assert(std::endian::native == std::endian::little, "headers are little-endian");

constexpr std::string_view kMagic = "cairnrec";
constexpr uint32_t kVersion = 1;
constexpr uint64_t kTokensAt = 168;
constexpr uint64_t kChecksumAt = 24;  // of the payload

// The fields, in order, for both directions.
struct Fields {
  std::array<char, 8> magic{};
  uint32_t version = kVersion;
  uint32_t header_bytes = 0;
  uint64_t payload_bytes = 0;
  uint64_t payload_checksum = 0;
  Digest name, parent, owner;
  uint64_t length = 0;
  uint32_t part = 0;
  uint32_t kind = 0;
  uint64_t segment = 0;
  uint64_t offset = 0;
  uint64_t token_count = 0;
};
static_assert(sizeof(Fields) == kTokensAt && std::is_trivially_copyable_v<Fields>);
static_assert(offsetof(Fields, payload_checksum) == kChecksumAt);

uint64_t header_bytes_for(uint64_t token_count) {
  return round_up(kTokensAt + 4 * token_count + sizeof(uint64_t), kRecordAlignment);
}

uint64_t checksum_of_header(std::span<const std::byte> header) {
  return xxh3(header.first(header.size() - sizeof(uint64_t)));
}

}  // namespace

uint64_t header_bytes(const RecordInfo& info) { return header_bytes_for(info.tokens.size()); }

uint64_t stored_bytes(const RecordInfo& info) {
  return header_bytes(info) + round_up(info.payload_bytes, kRecordAlignment);
}

void put_header(const RecordInfo& info,
                const Place& place,
                uint64_t payload_checksum,
                std::span<std::byte> out) {
  Fields fields{.header_bytes = static_cast<uint32_t>(header_bytes(info)),
                .payload_bytes = info.payload_bytes,
                .payload_checksum = payload_checksum,
                .name = info.key.name,
                .parent = info.parent,
                .owner = info.owner,
                .length = info.length,
                .part = info.key.part,
                .kind = static_cast<uint32_t>(info.kind),
                .segment = place.segment,
                .offset = place.offset,
                .token_count = info.tokens.size()};
  std::ranges::copy(kMagic, fields.magic.begin());
  const std::span<std::byte> header = out.first(fields.header_bytes);
  std::ranges::fill(header, std::byte{0});
  std::memcpy(header.data(), &fields, sizeof(fields));
  std::ranges::copy(std::as_bytes(std::span(info.tokens)), header.begin() + kTokensAt);
  const uint64_t checksum = checksum_of_header(header);
  std::memcpy(header.data() + header.size() - sizeof(checksum), &checksum, sizeof(checksum));
}

uint64_t claimed_header_bytes(std::span<const std::byte> block) {
  Fields fields;
  if (block.size() < sizeof(fields)) return 0;
  std::memcpy(&fields, block.data(), sizeof(fields));
  const bool is_header = std::string_view(fields.magic.data(), fields.magic.size()) == kMagic &&
                         fields.token_count <= kMaxRecordTokens;
  return is_header ? header_bytes_for(fields.token_count) : 0;
}

std::optional<RecordHeader> parse_header(std::span<const std::byte> bytes, const Place& place) {
  Fields fields;
  if (bytes.size() < kRecordAlignment) return std::nullopt;
  std::memcpy(&fields, bytes.data(), sizeof(fields));
  if (fields.token_count > kMaxRecordTokens || fields.payload_bytes > kMaxPayloadBytes ||
      header_bytes_for(fields.token_count) > bytes.size())
    return std::nullopt;
  RecordHeader found{.info = {.key = {.name = fields.name, .part = fields.part},
                              .kind = static_cast<RecordKind>(fields.kind),
                              .parent = fields.parent,
                              .owner = fields.owner,
                              .tokens = std::vector<int32_t>(fields.token_count),
                              .length = fields.length,
                              .payload_bytes = fields.payload_bytes},
                     .payload_checksum = fields.payload_checksum};
  std::ranges::copy(bytes.subspan(kTokensAt, 4 * fields.token_count),
                    std::as_writable_bytes(std::span(found.info.tokens)).begin());
  if (found.info.kind < RecordKind::Span || found.info.kind > RecordKind::Object ||
      fields.kind > 0xff)
    return std::nullopt;
  // There is one spelling: what was read is a header if it is what would be written.
  std::vector<std::byte> spelled(header_bytes(found.info));
  put_header(found.info, place, found.payload_checksum, spelled);
  if (!std::ranges::equal(spelled, bytes.first(spelled.size()))) return std::nullopt;
  return found;
}

std::optional<std::string> damage_of(std::span<const std::byte> stored,
                                     const RecordInfo& info,
                                     const Place& place) {
  if (stored.size() < stored_bytes(info))
    return fmt::format("{} bytes are there, expected {}", stored.size(), stored_bytes(info));
  uint64_t payload_checksum;
  std::memcpy(&payload_checksum, stored.data() + kChecksumAt, sizeof(payload_checksum));
  std::vector<std::byte> expected(header_bytes(info));
  put_header(info, place, payload_checksum, expected);
  if (!std::ranges::equal(expected, stored.first(expected.size())))
    return "its header is not what the index says";
  const std::span payload = stored.first(stored_bytes(info)).subspan(expected.size());
  if (const uint64_t found = xxh3(payload); found != payload_checksum)
    return fmt::format("payload with checksum {}, expected {}", hex(found), hex(payload_checksum));
  return std::nullopt;
}

}  // namespace cairn
