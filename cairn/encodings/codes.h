// What encodings of whole codes share: numbers that are code * scale + bias, or a table's entry
// times a scale, with one scale (and one bias) for each group of neighbours.
//
//   plane 0   u32              codes from the lowest bit on, across words; ends in zero bits
//   plane 1   f16, f32, bf16   a scale per group
//   plane 2   the same         a bias per group, if the encoding has them
//
// A score needs no decoded number: integers sum exactly, so a group costs one integer dot product
// with a 16-bit query, and its scale and bias enter once (docs/numbers.md).
//
//   prepared: f32 steps[groups], f32 sums[groups], and i32 offsets[groups] where middles are taken
//   off; padding to 64; the query's 16-bit integers, in the order in which a target's scores meet
//   them (code_scores-inl.h; the scalar ones as they come)
//   partial: f32 sums[width], padding to 16 floats; f32 biases[groups][16], by position mod 16
#ifndef CAIRN_ENCODINGS_CODES_H_
#define CAIRN_ENCODINGS_CODES_H_

#include <bit>
#include <cstdint>
#include <cstring>

#include "cairn/core/bytes.h"
#include "cairn/encodings/encoding.h"

namespace cairn::codes {

inline constexpr uint32_t kMaxWidth = 1024;
inline constexpr uint32_t kMaxGroup = 128;
inline constexpr uint32_t kMaxGroups = kMaxWidth / 32;
inline constexpr uint32_t kSums = 16;            // partial sums of the biases, by position mod 16
inline constexpr float kLargestQuery = 32639.f;  // 127 * 256 + 127: splits into two signed bytes

enum Plane : size_t { kCodes, kScales, kBiases };
enum class Dtype : int32_t { F16, F32, Bf16 };
constexpr uint32_t bytes_of(Dtype dtype) { return dtype == Dtype::F32 ? 4 : 2; }

struct Shape {
  uint32_t bits = 0, group = 0, groups = 0, width = 0;
  Dtype dtype = Dtype::F16;
  bool has_offsets = false;

  float top() const { return static_cast<float>((1u << bits) - 1); }
  uint32_t record_words() const { return static_cast<uint32_t>(ceil_div(width * bits, 32)); }

  // Codes meet the query in words of 2, 4 or 8 bits a code; the others are made bytes first.
  // (Without a division: kernels ask for every page and head.)
  bool is_native() const { return std::has_single_bit(bits); }
  uint32_t codes_in_word() const { return is_native() ? 32u >> std::countr_zero(bits) : 4; }
  uint32_t group_words() const {
    return (group + codes_in_word() - 1) >> std::countr_zero(codes_in_word());
  }

  uint32_t query_offset() const {  // bytes, in the prepared form
    return static_cast<uint32_t>(round_up((has_offsets ? 3 : 2) * groups * sizeof(float), 64));
  }
  uint32_t group_integers() const { return group_words() * codes_in_word(); }  // of a query
  uint32_t prepared_bytes() const {
    return static_cast<uint32_t>(
        round_up(query_offset() + groups * group_integers() * sizeof(int16_t), 64));
  }
  uint32_t bias_offset() const { return static_cast<uint32_t>(round_up(width, 16)); }  // floats
  uint32_t partial_floats() const { return bias_offset() + groups * kSums; }
};

// The record's words one after the other.
inline void gather(const Shape& shape, const Records& in, uint32_t p, uint8_t* stream) {
  const std::byte* record = in.at(kCodes, in.first + p);
  if (in.planes[kCodes].word_stride == 4) {
    std::memcpy(stream, record, shape.record_words() * 4);
    return;
  }
  for (uint32_t w = 0; w < shape.record_words(); ++w)
    std::memcpy(stream + w * 4, record + w * in.planes[kCodes].word_stride, 4);
}

// Adds the block's sums of weight * bias to the row's numbers.
inline void add_biases(const Shape& shape, uint32_t rows, float* partial) {
  for (uint32_t row = 0; row < rows; ++row, partial += shape.partial_floats())
    for (uint32_t g = 0; g < shape.groups; ++g) {
      float sums[kSums];
      std::memcpy(sums, partial + shape.bias_offset() + g * kSums, sizeof(sums));
      for (uint32_t half = kSums / 2; half != 0; half /= 2)
        for (uint32_t i = 0; i < half; ++i) sums[i] += sums[i + half];
      for (uint32_t i = 0; i < shape.group; ++i) partial[g * shape.group + i] += sums[0];
    }
}

}  // namespace cairn::codes

#endif  // CAIRN_ENCODINGS_CODES_H_
