// A record of a segment: a header that says everything about it, and the payload.
//
//   header   a multiple of 4 KiB, zeros between the fields and the checksum
//        0   8  "cairnrec"
//        8   4  version: 1
//       12   4  bytes of the header
//       16   8  bytes of the payload
//       24   8  XXH3 of the payload and the zeros that fill its last 4 KiB
//       32  32  name
//       64  32  parent; zeros: none
//       96  32  owner; zeros: none
//      128   8  length
//      136   4  part
//      140   4  kind
//      144   8  the segment's id: a copy of a record elsewhere is none
//      152   8  the record's offset in it
//      160   8  count of tokens
//      168   4  for each of them
//     end-8  8  XXH3 of the header before it
//   payload  filled up with zeros to 4 KiB
//
// All numbers are little-endian. Exactly one sequence of bytes stands for a record at its place, so
// a record is compared with what the index says of it by building its header anew.
#ifndef CAIRN_STORE_RECORD_H_
#define CAIRN_STORE_RECORD_H_

#include <optional>

#include "cairn/store/store.h"

namespace cairn {

inline constexpr uint64_t kRecordAlignment = kDirectAlignment;
inline constexpr uint64_t kMaxRecordTokens = uint64_t{1} << 24;
inline constexpr uint64_t kMaxPayloadBytes = uint64_t{1} << 40;

struct Place {
  uint64_t segment = 0;  // its id
  uint64_t offset = 0;   // of the header
  auto operator<=>(const Place&) const = default;
};

uint64_t header_bytes(const RecordInfo& info);
uint64_t stored_bytes(const RecordInfo& info);  // header and payload, with their zeros

// Writes header_bytes(info) at the start of `out`.
void put_header(const RecordInfo& info,
                const Place& place,
                uint64_t payload_checksum,
                std::span<std::byte> out);

struct RecordHeader {
  RecordInfo info;
  uint64_t payload_checksum = 0;
};

// What a block says of the length of the header that it begins; 0 if it begins none.
uint64_t claimed_header_bytes(std::span<const std::byte> block);

// The header at the start of `bytes` if one stands there whole, made for this place.
std::optional<RecordHeader> parse_header(std::span<const std::byte> bytes, const Place& place);

// Whether `stored` is this record at this place, whole and unchanged; what is wrong otherwise.
std::optional<std::string> damage_of(std::span<const std::byte> stored,
                                     const RecordInfo& info,
                                     const Place& place);

}  // namespace cairn

#endif  // CAIRN_STORE_RECORD_H_
