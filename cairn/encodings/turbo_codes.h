// What the TurboQuant encodings share: groups of 32 numbers, and how their codes are packed.
//
//   codes: a stream of bits per vector, least significant bit first; element i occupies bits
//   [i * bits, (i + 1) * bits). So a group of 32 codes is exactly `bits` little-endian 32-bit
//   words.
#ifndef CAIRN_ENCODINGS_TURBO_CODES_H_
#define CAIRN_ENCODINGS_TURBO_CODES_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "cairn/core/error.h"
#include "cairn/encodings/codes.h"
#include "cairn/encodings/encoding.h"

namespace cairn::turbo {

using codes::kMaxGroups, codes::kMaxWidth;
inline constexpr uint32_t kGroup = 32;  // numbers that share a scale
inline constexpr uint32_t kMaxBits = 8;
inline constexpr float kLargestF16 = 65504.f;

// 32 codes as `bits` words, and back.
inline void pack(const uint8_t* codes, uint32_t bits, uint32_t* words) {
  uint64_t waiting = 0;
  uint32_t filled = 0;
  for (uint32_t i = 0; i < kGroup; ++i) {
    waiting |= uint64_t{codes[i]} << filled;
    filled += bits;
    if (filled < 32) continue;
    *words++ = static_cast<uint32_t>(waiting);
    waiting >>= 32;
    filled -= 32;
  }
}

inline void unpack(const uint32_t* words, uint32_t bits, uint8_t* codes) {
  uint64_t waiting = 0;
  uint32_t filled = 0;
  for (uint32_t i = 0; i < kGroup; ++i) {
    if (filled < bits) {
      waiting |= uint64_t{*words++} << filled;
      filled += 32;
    }
    codes[i] = static_cast<uint8_t>(waiting & ((1u << bits) - 1));
    waiting >>= bits;
    filled -= bits;
  }
}

// The words of group `group` of the record at `position` (from the page's start), plane 0.
inline void store_words(const Records& records,
                        uint32_t position,
                        uint32_t group,
                        uint32_t bits,
                        const uint32_t* words) {
  const size_t stride = records.planes[0].word_stride;
  std::byte* to = records.at(0, position) + uint64_t{group} * bits * stride;
  for (uint32_t i = 0; i < bits; ++i, to += stride) std::memcpy(to, words + i, sizeof(uint32_t));
}
inline void load_words(
    const Records& records, uint32_t position, uint32_t group, uint32_t bits, uint32_t* words) {
  const size_t stride = records.planes[0].word_stride;
  const std::byte* from = records.at(0, position) + uint64_t{group} * bits * stride;
  for (uint32_t i = 0; i < bits; ++i, from += stride)
    std::memcpy(words + i, from, sizeof(uint32_t));
}
inline void store_codes(const Records& records,
                        uint32_t position,
                        uint32_t group,
                        uint32_t bits,
                        const uint8_t* codes) {
  uint32_t words[kMaxBits];
  pack(codes, bits, words);
  store_words(records, position, group, bits, words);
}
inline void load_codes(
    const Records& records, uint32_t position, uint32_t group, uint32_t bits, uint8_t* codes) {
  uint32_t words[kMaxBits];
  load_words(records, position, group, bits, words);
  unpack(words, bits, codes);
}

// One f16 per group, in `plane`.
inline void store_half(
    const Records& records, size_t plane, uint32_t position, uint32_t group, uint16_t value) {
  std::memcpy(records.at(plane, position) + group * records.planes[plane].word_stride, &value,
              sizeof(value));
}
inline uint16_t load_half(const Records& records, size_t plane, uint32_t position, uint32_t group) {
  uint16_t value;
  std::memcpy(&value, records.at(plane, position) + group * records.planes[plane].word_stride,
              sizeof(value));
  return value;
}

// "turbo-key4" is name and bits; another text that starts with the name names another encoding.
inline Result<Params> parse_bits(std::string_view text,
                                 std::string_view name,
                                 std::span<const uint32_t> allowed,
                                 std::string_view expected) {
  const bool starts = text.substr(0, name.size()) == name;
  const std::string_view digits = starts ? text.substr(name.size()) : std::string_view();
  const auto is_digit = [](char c) { return '0' <= c && c <= '9'; };
  if (!starts || !std::all_of(digits.begin(), digits.end(), is_digit))
    return fail(Code::NotFound, "encoding: {}, expected {} and its bits", text, name);
  for (const uint32_t bits : allowed)
    if (digits == std::string_view(fmt::format("{}", bits)))
      return Params{{static_cast<int32_t>(bits)}};
  return fail(Code::BadInput, "{}: {} bits, expected {}", name, digits.empty() ? "no" : digits,
              expected);
}

inline Result<void> check_width(std::string_view name, uint32_t width) {
  if (width == 0 || width % kGroup != 0 || width > kMaxWidth)
    return fail(Code::BadInput, "{}: vectors of {} numbers, expected a multiple of {} up to {}",
                name, width, kGroup, kMaxWidth);
  return {};
}

inline uint32_t bits_of(const Codec& codec) {
  return static_cast<uint32_t>(codec.params.values[0]);
}

inline codes::Shape plain_shape(uint32_t bits, uint32_t width) {
  return {.bits = bits, .group = kGroup, .groups = width / kGroup, .width = width};
}

// A table whose functions go to the one for the codec's bits, Tables::of(codec).
template <class Tables>
inline constexpr RecordFunctions kByBits = {
    [](const Codec& codec, const float* x, const Records& out) {
      return Tables::of(codec).encode(codec, x, out);
    },
    [](const Codec& codec, const Records& in, float* x) { Tables::of(codec).decode(codec, in, x); },
    [](const Codec& codec, const float* query, std::byte* prepared) {
      Tables::of(codec).prepare(codec, query, prepared);
    },
    [](const Codec& codec,
       const std::byte* prepared,
       uint32_t rows,
       const Records& in,
       float* scores,
       size_t score_stride) {
      Tables::of(codec).scores(codec, prepared, rows, in, scores, score_stride);
    },
    [](const Codec& codec,
       const float* weights,
       size_t weight_stride,
       uint32_t rows,
       Pos first,
       const Records& in,
       float* partial) {
      Tables::of(codec).accumulate(codec, weights, weight_stride, rows, first, in, partial);
    },
    Tables::finish_block,
    Tables::finish,
};

}  // namespace cairn::turbo

#endif  // CAIRN_ENCODINGS_TURBO_CODES_H_
