// Affine groups as MLX's CPU code makes them: a number is scale * code + bias, with one scale and
// one bias for a group of neighbours, and codes of 2, 3, 4, 5, 6 or 8 bits.
//
//   text: affine<bits>[-g<group>][-<dtype of scales and biases>]; without the rest: -g64-f16, and
//   -f32 for latents, of which one vector serves all heads
//
//   plane     word                record
//   "codes"   u32                 codes from the lowest bit on, across words; ends in zero bits
//   "scales"  f16, f32 or bf16    one per group
//   "biases"  the same            one per group
//
// A group that is wider than the vector is the vector. Keys lie words by position where words hold
// whole codes (2, 4 and 8 bits), so that the lanes of a vector are positions.
//
// A score needs no decoded number: integers sum exactly, so a group costs one integer dot product
// with a 16-bit query, and its scale and bias enter once (docs/numbers.md).
//
//   prepared: f32 steps[groups], f32 sums[groups], padding to 64; i16 query, in pairs
//   (Shape::arrange) partial:  f32 sums[width], padding to 16 floats; f32 biases[groups][16], by
//   position mod 16
//
// A group with a NaN or an infinity reads as NaN, and no other group notices. Finite numbers beyond
// the range of the scales' dtype saturate. Both are counted.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "cairn/core/bytes.h"
#include "cairn/core/half.h"
#include "cairn/encodings/registry.h"
#include "cairn/kernels/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cairn/encodings/affine.cc"
#include "cairn/kernels/simd.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

// After highway.h, which opens the target.
#include "cairn/kernels/tile-inl.h"

// What the scalar definition and every target share.
#ifndef CAIRN_ENCODINGS_AFFINE_ONCE_
#define CAIRN_ENCODINGS_AFFINE_ONCE_
namespace cairn::affine {

constexpr uint32_t kMaxWidth = 1024;
constexpr uint32_t kMaxGroup = 128;
constexpr uint32_t kMaxGroups = kMaxWidth / 32;
constexpr uint32_t kSums = 16;            // partial sums of the biases, by position mod 16
constexpr float kLargestQuery = 32639.f;  // 127 * 256 + 127: splits into two signed bytes
constexpr float kLeastStep = 1e-7f;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

enum Plane : size_t { kCodes, kScales, kBiases };
enum class Dtype : int32_t { F16, F32, Bf16 };
constexpr uint32_t bytes_of(Dtype dtype) { return dtype == Dtype::F32 ? 4 : 2; }
// Larger magnitudes saturate: f16's own range; else such that no group's range is infinite.
constexpr float limit_of(Dtype dtype) { return dtype == Dtype::F16 ? 65504.f : 0x1p125f; }

struct Shape {
  uint32_t bits, group, groups, width;
  Dtype dtype;

  Shape(const Params& params, uint32_t width_)
      : bits(static_cast<uint32_t>(params.values[0])),
        group(std::min(static_cast<uint32_t>(params.values[1]), width_)),
        groups(width_ / std::max(group, 1u)),
        width(width_),
        dtype(static_cast<Dtype>(params.values[2])) {}
  explicit Shape(const Codec& codec) : Shape(codec.params, codec.width) {}

  float top() const { return static_cast<float>((1u << bits) - 1); }
  uint32_t record_words() const { return static_cast<uint32_t>(ceil_div(width * bits, 32)); }

  // Codes meet the query in words of 2, 4 or 8 bits a code; the others are made bytes first.
  bool is_native() const { return 32 % bits == 0; }
  uint32_t codes_in_word() const { return is_native() ? 32 / bits : 4; }
  uint32_t group_words() const { return static_cast<uint32_t>(ceil_div(group, codes_in_word())); }

  uint32_t query_offset() const {  // bytes, in the prepared form
    return static_cast<uint32_t>(round_up(2 * groups * sizeof(float), 64));
  }
  uint32_t query_numbers() const { return groups * group_words() * codes_in_word(); }
  // One shift and one mask take two codes out of a word, half a word apart: as pairs they meet the
  // query. Puts one group's numbers in that order; `from` goes on with zeros up to a whole word.
  template <class T>
  void arrange(const T* from, T* to) const {
    const uint32_t n = codes_in_word(), half = n / 2;
    for (uint32_t w = 0; w < group_words(); ++w, from += n, to += n)
      for (uint32_t k = 0; k < half; ++k) {
        to[2 * k] = from[k];
        to[2 * k + 1] = from[k + half];
      }
  }
  uint32_t bias_offset() const { return static_cast<uint32_t>(round_up(width, 16)); }  // floats
};

struct Quantizer {
  float scale, bias;
};

// The end of larger magnitude is exact, and zero nearly so, because the scale divides that end.
inline Quantizer quantizer_of(float lo, float hi, float top) {
  const bool is_low_end = std::abs(lo) > std::abs(hi);
  const float step = std::max((hi - lo) / top, kLeastStep);
  const float scale = is_low_end ? step : -step;
  const float end = is_low_end ? lo : hi;
  const float end_code = std::nearbyint(end / scale);
  if (end_code == 0) return {scale, 0.f};
  return {end / end_code, end};
}

inline void store_number(Dtype dtype, float value, std::byte* to) {
  if (dtype == Dtype::F32) {
    const float x = canonical(value);
    std::memcpy(to, &x, sizeof(x));
  } else {
    const uint16_t x = dtype == Dtype::F16 ? f16_from_f32(value) : bf16_from_f32(value);
    std::memcpy(to, &x, sizeof(x));
  }
}

inline void store_quantizer(
    const Shape& shape, const Quantizer& quantizer, const Records& out, uint32_t p, uint32_t g) {
  const auto store = [&](Plane plane, float value) {
    store_number(shape.dtype, value,
                 out.at(plane, out.first + p) + g * out.planes[plane].word_stride);
  };
  store(kScales, quantizer.scale);
  store(kBiases, quantizer.bias);
}

// Eight codes are `bits` bytes, whatever the number of bits.
inline void pack(const Shape& shape, const uint8_t* codes, const Records& out, uint32_t p) {
  uint8_t stream[kMaxWidth + 8];
  const uint32_t bytes = shape.width / 8 * shape.bits;
  if (shape.bits == 8) {
    std::memcpy(stream, codes, bytes);
  } else {
    for (uint32_t i = 0; i < shape.width; i += 8) {
      uint64_t eight = 0;
      for (uint32_t k = 0; k < 8; ++k) eight |= uint64_t{codes[i + k]} << (k * shape.bits);
      std::memcpy(stream + i / 8 * shape.bits, &eight, sizeof(eight));
    }
  }
  std::memset(stream + bytes, 0, 4);
  std::byte* record = out.at(kCodes, out.first + p);
  for (uint32_t w = 0; w < shape.record_words(); ++w)
    std::memcpy(record + w * out.planes[kCodes].word_stride, stream + w * 4, 4);
}

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

}  // namespace cairn::affine
#endif

HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {

#if CAIRN_NO_SIMD

const RecordFunctions* affine_table() { return nullptr; }

#else
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using namespace affine;  // NOLINT: this file's own

// Positions are taken this many at a time, so that what is unpacked stays near.
constexpr uint32_t kChunk = 64;

// Calls f(tag, index) for vectors of f32 that cover `count` numbers, a multiple of 8.
template <class F>
HWY_INLINE void each_vector(uint32_t count, F f) {
  const hn::ScalableTag<float> whole;
  const hn::CappedTag<float, 8> eight;
  uint32_t i = 0;
  for (; i + hn::Lanes(whole) <= count; i += static_cast<uint32_t>(hn::Lanes(whole))) f(whole, i);
  for (; i < count; i += static_cast<uint32_t>(hn::Lanes(eight))) f(eight, i);
}

// Codes as bytes: what a product reads.
struct CodeBytes {
  static constexpr size_t kBytes = 1;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* from) {
    const hn::Rebind<uint8_t, D> bytes;
    const hn::Rebind<int32_t, D> integers;
    const auto codes = hn::LoadU(bytes, reinterpret_cast<const uint8_t*>(from));
    return hn::ConvertTo(d, hn::PromoteTo(integers, codes));
  }
};

// `count` codes, rounded up to 32, from a stream of which 16 bytes more may be read. Each code is
// found in the 16 bits that start at its first byte: what is above it is multiplied out of the
// word, what is below it shifted out.
template <uint32_t kBits>
HWY_INLINE void unpack_bits(const uint8_t* stream, uint32_t count, uint8_t* codes) {
  const hn::FixedTag<uint8_t, 16> bytes;
  const hn::FixedTag<uint16_t, 8> pairs;
  if constexpr (kBits == 4) {
    const auto mask = hn::Set(bytes, 15);
    for (uint32_t i = 0; i < count; i += 32) {
      const auto two = hn::LoadU(bytes, stream + i / 2);
      const auto low = hn::And(two, mask);
      const auto high =
          hn::And(hn::BitCast(bytes, hn::ShiftRight<4>(hn::BitCast(pairs, two))), mask);
      hn::StoreU(hn::InterleaveLower(bytes, low, high), bytes, codes + i);
      hn::StoreU(hn::InterleaveUpper(bytes, low, high), bytes, codes + i + 16);
    }
    return;
  }
  alignas(16) uint8_t at[2][16];  // of even codes, of odd codes
  alignas(16) uint16_t factor[2][8];
  for (uint32_t k = 0; k < 16; ++k) {
    const uint32_t bit = k * kBits;
    at[k % 2][k / 2 * 2] = static_cast<uint8_t>(bit / 8);
    at[k % 2][k / 2 * 2 + 1] = static_cast<uint8_t>(bit / 8 + 1);
    factor[k % 2][k / 2] = static_cast<uint16_t>(1u << (16 - kBits - bit % 8));
  }
  const auto even_at = hn::Load(bytes, at[0]), odd_at = hn::Load(bytes, at[1]);
  const auto even_factor = hn::Load(pairs, factor[0]), odd_factor = hn::Load(pairs, factor[1]);
  for (uint32_t i = 0; i < count; i += 16) {
    const auto sixteen = hn::LoadU(bytes, stream + i / 8 * kBits);
    const auto even = hn::BitCast(pairs, hn::TableLookupBytes(sixteen, even_at));
    const auto odd = hn::BitCast(pairs, hn::TableLookupBytes(sixteen, odd_at));
    const auto low = hn::ShiftRight<16 - kBits>(hn::Mul(even, even_factor));
    const auto high = hn::ShiftRight<16 - kBits>(hn::Mul(odd, odd_factor));
    const auto both = hn::Or(low, hn::ShiftLeft<8>(high));
    hn::StoreU(hn::BitCast(bytes, both), bytes, codes + i);
  }
}

// Bytes of one record's codes, with what unpacking writes and reads beyond.
constexpr uint32_t kStreamBytes = kMaxWidth + 32;
constexpr uint32_t row_bytes(const Shape& shape) {
  return static_cast<uint32_t>(round_up(shape.width, 32));
}

template <uint32_t kBits>
HWY_INLINE void unpack_record(const uint8_t* stream, uint32_t width, uint8_t* codes) {
  if constexpr (kBits == 8)
    std::memcpy(codes, stream, width);
  else
    unpack_bits<kBits>(stream, width, codes);
}

template <uint32_t kBits>
void unpack_records(
    const Shape& shape, const Records& in, uint32_t p, uint32_t count, uint8_t* codes) {
  const PlaneRun& plane = in.planes[kCodes];
  const uint32_t begin = in.first + p, record_bytes = shape.record_words() * 4;
  const bool is_dense = plane.word_stride == 4 && plane.position_stride == record_bytes;
  if (is_dense && plane.next != nullptr)
    for (uint32_t line = 0; line < count * record_bytes; line += 64)
      __builtin_prefetch(plane.next + begin * record_bytes + line, 0, 2);
  // Records without a gap are one stream, but for those whose unpacking would read beyond the page.
  const uint32_t beyond = static_cast<uint32_t>(ceil_div(16, record_bytes));
  uint32_t done = 0;
  if (is_dense && row_bytes(shape) == shape.width && begin + beyond < in.capacity) {
    done = std::min(count, in.capacity - beyond - begin);
    unpack_record<kBits>(reinterpret_cast<const uint8_t*>(in.at(kCodes, begin)), done * shape.width,
                         codes);
  }
  for (; done < count; ++done) {
    uint8_t stream[kStreamBytes];
    gather(shape, in, p + done, stream);
    std::memset(stream + record_bytes, 0, kStreamBytes - kMaxWidth);
    unpack_record<kBits>(stream, shape.width, codes + done * row_bytes(shape));
  }
}

// Codes of positions [p, p + count) as bytes, row_bytes(shape) apart.
void unpack(const Shape& shape, const Records& in, uint32_t p, uint32_t count, uint8_t* codes) {
  switch (shape.bits) {
    case 2:
      return unpack_records<2>(shape, in, p, count, codes);
    case 3:
      return unpack_records<3>(shape, in, p, count, codes);
    case 4:
      return unpack_records<4>(shape, in, p, count, codes);
    case 5:
      return unpack_records<5>(shape, in, p, count, codes);
    case 6:
      return unpack_records<6>(shape, in, p, count, codes);
    default:
      return unpack_records<8>(shape, in, p, count, codes);
  }
}

struct F16Numbers {
  using Word = uint16_t;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const void* from) {
    const hn::Rebind<hwy::float16_t, D> halves;
    return hn::PromoteTo(d, hn::LoadU(halves, static_cast<const hwy::float16_t*>(from)));
  }
};
struct Bf16Numbers {
  using Word = uint16_t;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const void* from) {
    const hn::Rebind<uint16_t, D> halves;
    const hn::Rebind<uint32_t, D> bits;
    const auto x = hn::PromoteTo(bits, hn::LoadU(halves, static_cast<const uint16_t*>(from)));
    return hn::BitCast(d, hn::ShiftLeft<16>(x));
  }
};
struct F32Numbers {
  using Word = float;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const void* from) {
    return hn::LoadU(d, static_cast<const float*>(from));
  }
};

template <class Numbers>
void read_numbers_as(const std::byte* from, size_t stride, uint32_t count, float* numbers) {
  using Word = typename Numbers::Word;
  const hn::CappedTag<float, 8> d;
  uint32_t done = 0;
  if (stride == sizeof(Word)) {
    for (; done + 8 <= count; done += 8)
      for (uint32_t i = done; i < done + 8; i += static_cast<uint32_t>(hn::Lanes(d)))
        hn::StoreU(Numbers::load(d, from + i * sizeof(Word)), d, numbers + i);
  }
  if (done == count) return;
  Word words[kChunk] = {};
  for (uint32_t i = done; i < count; ++i) std::memcpy(words + i, from + i * stride, sizeof(Word));
  for (; done < count; done += static_cast<uint32_t>(hn::Lanes(d)))
    hn::StoreU(Numbers::load(d, words + done), d, numbers + done);
}

// One group's scales or biases at positions [p, p + count) as f32; up to a whole chunk is written.
void read_numbers(const Shape& shape,
                  const Records& in,
                  Plane plane,
                  uint32_t group,
                  uint32_t p,
                  uint32_t count,
                  float* numbers) {
  const PlaneRun& run = in.planes[plane];
  const size_t stride = run.position_stride, offset = group * run.word_stride;
  const std::byte* from = in.at(plane, in.first + p) + offset;
  if (run.next != nullptr && (group == 0 || stride == bytes_of(shape.dtype))) {
    const std::byte* next = run.next + (in.first + p) * stride + offset;
    for (uint32_t line = 0; line < count * stride; line += 64)
      __builtin_prefetch(next + line, 0, 2);
  }
  switch (shape.dtype) {
    case Dtype::F16:
      return read_numbers_as<F16Numbers>(from, stride, count, numbers);
    case Dtype::F32:
      return read_numbers_as<F32Numbers>(from, stride, count, numbers);
    case Dtype::Bf16:
      return read_numbers_as<Bf16Numbers>(from, stride, count, numbers);
  }
}

// Codes of one group of finite numbers, already inside the range.
HWY_INLINE void quantize(
    const float* x, uint32_t count, const Quantizer& quantizer, float top, uint8_t* codes) {
  each_vector(count, [&](auto d, uint32_t i) HWY_ATTR {
    const hn::Rebind<int32_t, decltype(d)> integers;
    const hn::Rebind<uint8_t, decltype(d)> bytes;
    const auto steps = hn::Div(hn::Sub(hn::LoadU(d, x + i), hn::Set(d, quantizer.bias)),
                               hn::Set(d, quantizer.scale));
    const auto code = hn::Round(hn::Min(hn::Max(steps, hn::Zero(d)), hn::Set(d, top)));
    hn::StoreU(hn::DemoteTo(bytes, hn::ConvertTo(integers, code)), bytes, codes + i);
  });
}

uint64_t encode(const Codec& codec, const float* x, const Records& out) {
  const Shape shape(codec);
  uint64_t misfits = 0;
  for (uint32_t p = 0; p < out.count; ++p, x += shape.width) {
    uint8_t codes[kMaxWidth];
    for (uint32_t g = 0; g < shape.groups; ++g) {
      float inside[kMaxGroup];
      float lo = kInfinity, hi = -kInfinity;
      bool is_finite = true;
      each_vector(shape.group, [&](auto d, uint32_t i) HWY_ATTR {
        const auto raw = hn::LoadU(d, x + g * shape.group + i);
        const auto limit = hn::Set(d, limit_of(shape.dtype));
        const auto magnitude = hn::Abs(raw);
        misfits += hn::Lanes(d) - hn::CountTrue(d, hn::Le(magnitude, limit));
        is_finite &= hn::AllTrue(d, hn::Lt(magnitude, hn::Set(d, kInfinity)));
        const auto value = hn::Min(hn::Max(raw, hn::Neg(limit)), limit);
        hn::StoreU(value, d, inside + i);
        lo = std::min(lo, hn::GetLane(hn::MinOfLanes(d, value)));
        hi = std::max(hi, hn::GetLane(hn::MaxOfLanes(d, value)));
      });
      Quantizer quantizer{kNan, kNan};
      if (is_finite) {
        quantizer = quantizer_of(lo, hi, shape.top());
        quantize(inside, shape.group, quantizer, shape.top(), codes + g * shape.group);
      } else {
        std::memset(codes + g * shape.group, 0, shape.group);
      }
      store_quantizer(shape, quantizer, out, p, g);
    }
    pack(shape, codes, out, p);
  }
  return misfits;
}

void decode(const Codec& codec, const Records& in, float* x) {
  const Shape shape(codec);
  alignas(64) float scales[kChunk], biases[kChunk];
  uint8_t codes[kStreamBytes * kChunk];
  for (uint32_t p = 0; p < in.count; p += kChunk, x += uint64_t{kChunk} * shape.width) {
    const uint32_t count = std::min(kChunk, in.count - p);
    unpack(shape, in, p, count, codes);
    for (uint32_t g = 0; g < shape.groups; ++g) {
      read_numbers(shape, in, kScales, g, p, count, scales);
      read_numbers(shape, in, kBiases, g, p, count, biases);
      for (uint32_t k = 0; k < count; ++k)
        each_vector(shape.group, [&](auto d, uint32_t i) HWY_ATTR {
          const uint8_t* from = codes + k * row_bytes(shape) + g * shape.group + i;
          const auto code = CodeBytes::load(d, reinterpret_cast<const std::byte*>(from));
          const auto product = hn::Mul(code, hn::Set(d, scales[k]));
          hn::StoreU(hn::Add(product, hn::Set(d, biases[k])), d,
                     x + k * shape.width + g * shape.group + i);
        });
    }
  }
}

void prepare(const Codec& codec, const float* query, std::byte* prepared) {
  const Shape shape(codec);
  auto* steps = reinterpret_cast<float*>(prepared);
  float* sums = steps + shape.groups;
  auto* numbers = reinterpret_cast<int16_t*>(prepared + shape.query_offset());
  const uint32_t group_numbers = shape.group_words() * shape.codes_in_word();
  for (uint32_t g = 0; g < shape.groups; ++g, numbers += group_numbers) {
    const float* x = query + g * shape.group;
    float largest = 0;
    bool is_finite = true;
    each_vector(shape.group, [&](auto d, uint32_t i) HWY_ATTR {
      const auto magnitude = hn::Abs(hn::LoadU(d, x + i));
      is_finite &= hn::AllTrue(d, hn::Lt(magnitude, hn::Set(d, kInfinity)));
      largest = std::max(largest, hn::GetLane(hn::MaxOfLanes(d, magnitude)));
    });
    if (!is_finite) {
      steps[g] = sums[g] = kNan;
      std::memset(numbers, 0, group_numbers * sizeof(int16_t));
      continue;
    }
    float inverse = kLargestQuery / largest;
    if (!(inverse < kInfinity)) inverse = 0;
    int16_t rounded[kMaxGroup] = {};
    int32_t sum = 0;
    each_vector(shape.group, [&](auto d, uint32_t i) HWY_ATTR {
      const hn::Rebind<int32_t, decltype(d)> integers;
      const auto most = hn::Set(d, kLargestQuery);
      const auto number = hn::Round(hn::Mul(hn::LoadU(d, x + i), hn::Set(d, inverse)));
      const auto clamped = hn::Min(hn::Max(number, hn::Neg(most)), most);
      const auto whole = hn::ConvertTo(integers, clamped);
      const hn::Rebind<int16_t, decltype(d)> halves;
      hn::StoreU(hn::DemoteTo(halves, whole), halves, rounded + i);
      sum += hn::GetLane(hn::SumOfLanes(integers, whole));
    });
    shape.arrange(rounded, numbers);
    steps[g] = largest / kLargestQuery;
    sums[g] = steps[g] * static_cast<float>(sum);
  }
}

// A chunk of keys as [word][position], and its scales and biases as [group][position].
struct Keys {
  const std::byte* words;
  size_t word_stride;     // bytes
  const std::byte* next;  // the same words of what is read next; null: unknown
  alignas(64) float scales[kMaxGroups * kChunk];
  alignas(64) float biases[kMaxGroups * kChunk];
};

struct Scored {
  const Shape& shape;
  const std::byte* prepared;
  size_t prepared_bytes;
  float* out;
  size_t stride;  // floats between rows
};

// Code `pair` of each half word. The last one has nothing above it.
template <uint32_t kBits, class H>
HWY_INLINE H codes_of_pair(size_t pair, H words, H mask) {
  const hn::RebindToUnsigned<hn::DFromV<H> > bits;
  const auto x = hn::BitCast(bits, words);
  const auto shifted =
      hn::BitCast(hn::DFromV<H>(), hn::ShiftRightSame(x, static_cast<int>(pair * kBits)));
  return pair == 16 / kBits - 1 ? shifted : hn::And(shifted, mask);
}

// Rows [row, row + kRows) x kVectors vectors of positions. kBits: of a code in the words.
template <uint32_t kBits, size_t kRows, size_t kVectors>
HWY_NOINLINE void score_tile(
    const Scored& scored, const Keys& keys, size_t row, size_t from, size_t to) {
  constexpr size_t kPairs = 16 / kBits;  // in a word
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> integers;
  const hn::Repartition<int16_t, decltype(d)> halves;
  constexpr size_t kLanes = hn::MaxLanes(hn::ScalableTag<float>());
  using V = hn::Vec<decltype(d)>;
  using Z = hn::Vec<decltype(integers)>;
  using H = hn::Vec<decltype(halves)>;
  const Shape& shape = scored.shape;
  const auto mask = hn::Set(halves, (1 << kBits) - 1);
  const std::byte* prepared = scored.prepared + row * scored.prepared_bytes;
  const std::byte* query = prepared + shape.query_offset();
  const std::byte* word = keys.words + from * sizeof(uint32_t);
  const std::byte* next = keys.next == nullptr ? nullptr : keys.next + from * sizeof(uint32_t);
  const uint32_t group_words = shape.group_words();
  V scores[kRows][kVectors];
  for (uint32_t g = 0; g < shape.groups; ++g) {
    Z sums[kRows][kVectors], sums_of_odd[kRows][kVectors];
    HWY_UNROLL(8)
    for (size_t r = 0; r < kRows; ++r) HWY_UNROLL(8)
    for (size_t v = 0; v < kVectors; ++v) sums[r][v] = sums_of_odd[r][v] = hn::Zero(integers);
    for (uint32_t w = 0; w < group_words; ++w) {
      if (next != nullptr) {
        HWY_UNROLL(4)
        for (size_t line = 0; line < kVectors * kLanes * 4; line += 64)
          __builtin_prefetch(next + line, 0, 2);
        next += keys.word_stride;
      }
      H codes[kVectors];
      HWY_UNROLL(8)
      for (size_t v = 0; v < kVectors; ++v)
        codes[v] = hn::LoadU(halves, reinterpret_cast<const int16_t*>(word) + v * kLanes * 2);
      HWY_UNROLL(8)
      for (size_t pair = 0; pair < kPairs; ++pair) {
        H two[kVectors];
        HWY_UNROLL(8)
        for (size_t v = 0; v < kVectors; ++v) two[v] = codes_of_pair<kBits>(pair, codes[v], mask);
        HWY_UNROLL(8)
        for (size_t r = 0; r < kRows; ++r) {
          int32_t numbers;
          std::memcpy(&numbers, query + r * scored.prepared_bytes + pair * 4, sizeof(numbers));
          const H factors = hn::BitCast(halves, hn::Set(integers, numbers));
          HWY_UNROLL(8)
          for (size_t v = 0; v < kVectors; ++v)
            sums[r][v] = hn::ReorderWidenMulAccumulate(integers, two[v], factors, sums[r][v],
                                                       sums_of_odd[r][v]);
        }
      }
      word += keys.word_stride;
      query += kPairs * 4;
    }
    HWY_UNROLL(8)
    for (size_t v = 0; v < kVectors; ++v) {
      const V scale = hn::LoadU(d, keys.scales + g * kChunk + from + v * kLanes);
      const V bias = hn::LoadU(d, keys.biases + g * kChunk + from + v * kLanes);
      HWY_UNROLL(8)
      for (size_t r = 0; r < kRows; ++r) {
        const auto* steps = reinterpret_cast<const float*>(prepared + r * scored.prepared_bytes);
        const V sum = hn::Set(d, steps[shape.groups + g]);
        const V dot =
            hn::Mul(hn::Set(d, steps[g]),
                    hn::ConvertTo(d, hn::RearrangeToOddPlusEven(sums[r][v], sums_of_odd[r][v])));
        const V base = g == 0 ? hn::Mul(bias, sum) : hn::MulAdd(bias, sum, scores[r][v]);
        scores[r][v] = hn::MulAdd(scale, dot, base);
      }
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    float* out = scored.out + (row + r) * scored.stride;
    if (from + kVectors * kLanes <= to) {
      for (size_t v = 0; v < kVectors; ++v) hn::StoreU(scores[r][v], d, out + from + v * kLanes);
    } else {
      alignas(64) float all[kVectors * kLanes];
      for (size_t v = 0; v < kVectors; ++v) hn::Store(scores[r][v], d, all + v * kLanes);
      std::memcpy(out + from, all, (to - from) * sizeof(float));
    }
  }
}

template <uint32_t kBits, size_t kRows>
void score_rows(const Scored& scored, const Keys& keys, size_t row, size_t count) {
  constexpr size_t kLanes = hn::MaxLanes(hn::ScalableTag<float>());
  size_t from = 0;
  for (; from + kLanes < count; from += 2 * kLanes)
    score_tile<kBits, kRows, 2>(scored, keys, row, from, count);
  if (from < count) score_tile<kBits, kRows, 1>(scored, keys, row, from, count);
}

// Reads whole vectors of positions.
template <uint32_t kBits>
void score_chunk(const Scored& scored, Keys& keys, size_t rows, size_t count) {
  for (size_t row = 0; row < rows;) {
    const size_t rest = rows - row;
    if (rest == 4 || rest >= 7) {
      score_rows<kBits, 4>(scored, keys, row, count);
      row += 4;
    } else if (rest >= 3) {
      score_rows<kBits, 3>(scored, keys, row, count);
      row += 3;
    } else if (rest == 2) {
      score_rows<kBits, 2>(scored, keys, row, count);
      row += 2;
    } else {
      score_rows<kBits, 1>(scored, keys, row, count);
      row += 1;
    }
    keys.next = nullptr;  // asked for once
  }
}

// Positions [p, p + count) turned into [word][position], of bytes where codes cross words.
void turn(const Shape& shape, const Records& in, uint32_t p, uint32_t count, uint32_t* turned) {
  uint8_t codes[kStreamBytes * kChunk];
  const std::byte* from = in.at(kCodes, in.first + p);
  size_t position_stride = in.planes[kCodes].position_stride;
  size_t word_stride = in.planes[kCodes].word_stride;
  uint32_t words = shape.record_words();
  if (!shape.is_native()) {
    unpack(shape, in, p, count, codes);
    from = reinterpret_cast<const std::byte*>(codes);
    position_stride = row_bytes(shape);
    word_stride = 4;
    words = shape.width / 4;
  }
  for (uint32_t w = 0; w < words; ++w, turned += kChunk) {
    for (uint32_t i = 0; i < count; ++i)
      std::memcpy(turned + i, from + i * position_stride + w * word_stride, 4);
    std::fill(turned + count, turned + round_up(count, 16), 0u);  // to a whole vector
  }
}

void scores(const Codec& codec,
            const std::byte* prepared,
            uint32_t rows,
            const Records& in,
            float* out,
            size_t score_stride) {
  const Shape shape(codec);
  const PlaneRun& plane = in.planes[kCodes];
  const uint32_t lanes = static_cast<uint32_t>(hn::Lanes(hn::ScalableTag<float>()));
  Keys keys;
  uint32_t turned[kMaxWidth / 4 * kChunk];
  for (uint32_t p = 0; p < in.count; p += kChunk) {
    const uint32_t count = std::min(kChunk, in.count - p);
    for (uint32_t g = 0; g < shape.groups; ++g) {
      read_numbers(shape, in, kScales, g, p, count, keys.scales + g * kChunk);
      read_numbers(shape, in, kBiases, g, p, count, keys.biases + g * kChunk);
    }
    const uint64_t read = round_up(count, lanes);
    if (shape.is_native() && plane.position_stride == 4 && in.first + p + read <= in.capacity) {
      keys.words = in.at(kCodes, in.first + p);
      keys.word_stride = plane.word_stride;
      keys.next = plane.next == nullptr ? nullptr : plane.next + (in.first + p) * 4;
    } else {
      turn(shape, in, p, count, turned);
      keys.words = reinterpret_cast<const std::byte*>(turned);
      keys.word_stride = kChunk * 4;
      keys.next = nullptr;
    }
    const Scored scored{shape, prepared, codec.geometry.prepared_bytes, out + p, score_stride};
    switch (shape.bits) {
      case 2:
        score_chunk<2>(scored, keys, rows, count);
        break;
      case 4:
        score_chunk<4>(scored, keys, rows, count);
        break;
      default:
        score_chunk<8>(scored, keys, rows, count);
    }
  }
}

// scaled = weight * scale, and sums[position mod 16] += weight * bias in ascending positions.
HWY_INLINE void weigh(const float* weights,
                      const float* scales,
                      const float* biases,
                      Pos first,
                      uint32_t count,
                      float* scaled,
                      float* sums) {
  const hn::CappedTag<float, kSums> d;
  constexpr uint32_t kLanes = hn::MaxLanes(hn::CappedTag<float, kSums>());
  uint32_t p = 0;
  const auto one = [&]() HWY_ATTR {
    float& sum = sums[(first + p) % kSums];
    scaled[p] = weights[p] * scales[p];
    sum = std::fma(weights[p], biases[p], sum);
    ++p;
  };
  while (p < count && (first + p) % kSums != 0) one();
  hn::Vec<decltype(d)> all[kSums / kLanes];
  for (uint32_t v = 0; v < kSums / kLanes; ++v) all[v] = hn::LoadU(d, sums + v * kLanes);
  for (; p + kSums <= count; p += kSums)
    for (uint32_t v = 0; v < kSums / kLanes; ++v) {
      const uint32_t at = p + v * kLanes;
      const auto weight = hn::LoadU(d, weights + at);
      hn::StoreU(hn::Mul(weight, hn::LoadU(d, scales + at)), d, scaled + at);
      all[v] = hn::MulAdd(weight, hn::LoadU(d, biases + at), all[v]);
    }
  for (uint32_t v = 0; v < kSums / kLanes; ++v) hn::StoreU(all[v], d, sums + v * kLanes);
  while (p < count) one();
}

// Columns [begin, end) of a product.
void multiply_columns(const Product& product, size_t begin, size_t end) {
  const hn::ScalableTag<float> whole;
  const hn::CappedTag<float, 8> eight;
  const size_t middle = begin + (end - begin) / hn::Lanes(whole) * hn::Lanes(whole);
  multiply<CodeBytes>(whole, product, begin, middle);
  if (middle < end) multiply<CodeBytes>(eight, product, middle, end);
}

void accumulate(const Codec& codec,
                const float* weights,
                size_t weight_stride,
                uint32_t rows,
                Pos first,
                const Records& in,
                float* partial) {
  constexpr uint32_t kRowsAtOnce = 24;
  const Shape shape(codec);
  const PlaneRun& plane = in.planes[kCodes];
  const bool is_direct = shape.bits == 8 && plane.word_stride == 4;
  const size_t partial_floats = codec.geometry.partial_floats;
  alignas(64) float scaled[kRowsAtOnce * kChunk], scales[kChunk], biases[kChunk];
  uint8_t unpacked[kStreamBytes * kChunk];
  for (uint32_t p = 0; p < in.count; p += kChunk) {
    const uint32_t count = std::min(kChunk, in.count - p);
    const std::byte* codes = in.at(kCodes, in.first + p);
    size_t code_stride = plane.position_stride;
    const std::byte* next = is_direct && plane.next != nullptr
                                ? plane.next + (in.first + p) * plane.position_stride
                                : nullptr;
    if (!is_direct) {
      unpack(shape, in, p, count, unpacked);
      codes = reinterpret_cast<const std::byte*>(unpacked);
      code_stride = row_bytes(shape);
    }
    for (uint32_t g = 0; g < shape.groups; ++g) {
      const uint32_t column = g * shape.group;
      read_numbers(shape, in, kScales, g, p, count, scales);
      read_numbers(shape, in, kBiases, g, p, count, biases);
      for (uint32_t row = 0; row < rows; row += kRowsAtOnce) {
        float* sums = partial + row * partial_floats;
        const uint32_t some = std::min(kRowsAtOnce, rows - row);
        for (uint32_t r = 0; r < some; ++r) {
          const float* w = weights + (row + r) * weight_stride + p;
          weigh(w, scales, biases, first + p, count, scaled + r * kChunk,
                sums + r * partial_floats + shape.bias_offset() + g * kSums);
        }
        multiply_columns({.a = scaled,
                          .a_stride = kChunk,
                          .rows = some,
                          .b = codes,
                          .b_stride = code_stride,
                          .steps = count,
                          .next = row == 0 ? next : nullptr,
                          .c = sums,
                          .c_stride = partial_floats,
                          .from_zero = false},
                         column, column + shape.group);
      }
    }
  }
}

void finish_block(const Codec& codec, uint32_t rows, float* partial) {
  const Shape shape(codec);
  for (uint32_t row = 0; row < rows; ++row, partial += codec.geometry.partial_floats)
    for (uint32_t g = 0; g < shape.groups; ++g) {
      const float* from = partial + shape.bias_offset() + g * kSums;
      float sums[kSums];
      std::memcpy(sums, from, sizeof(sums));
      for (uint32_t half = kSums / 2; half != 0; half /= 2)
        for (uint32_t i = 0; i < half; ++i) sums[i] += sums[i + half];
      each_vector(shape.group, [&](auto d, uint32_t i) HWY_ATTR {
        float* at = partial + g * shape.group + i;
        hn::StoreU(hn::Add(hn::LoadU(d, at), hn::Set(d, sums[0])), d, at);
      });
    }
}

}  // namespace

const RecordFunctions* affine_table() {
  static constexpr RecordFunctions kTable = {encode,     decode,       prepare, scores,
                                             accumulate, finish_block, nullptr};
  return &kTable;
}

#endif

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cairn {
HWY_EXPORT(affine_table);

namespace affine {
namespace {

// The scalar functions: they define every bit.

// Codes of the record at in.first + p.
void unpack(const Shape& shape, const Records& in, uint32_t p, uint8_t* codes) {
  uint8_t stream[kMaxWidth + 8] = {};
  gather(shape, in, p, stream);
  for (uint32_t i = 0; i < shape.width; i += 8) {
    uint64_t eight;
    std::memcpy(&eight, stream + i / 8 * shape.bits, sizeof(eight));
    for (uint32_t k = 0; k < 8; ++k)
      codes[i + k] = static_cast<uint8_t>(eight >> (k * shape.bits) & ((1u << shape.bits) - 1));
  }
}

float load_number(const Shape& shape, const Records& in, Plane plane, uint32_t p, uint32_t group) {
  const std::byte* from = in.at(plane, in.first + p) + group * in.planes[plane].word_stride;
  if (shape.dtype == Dtype::F32) {
    float x;
    std::memcpy(&x, from, sizeof(x));
    return x;
  }
  uint16_t x;
  std::memcpy(&x, from, sizeof(x));
  return shape.dtype == Dtype::F16 ? f32_from_f16(x) : f32_from_bf16(x);
}

uint64_t encode(const Codec& codec, const float* x, const Records& out) {
  const Shape shape(codec);
  const float limit = limit_of(shape.dtype), top = shape.top();
  uint64_t misfits = 0;
  for (uint32_t p = 0; p < out.count; ++p) {
    uint8_t codes[kMaxWidth] = {};
    for (uint32_t g = 0; g < shape.groups; ++g, x += shape.group) {
      float lo = kInfinity, hi = -kInfinity;
      bool is_finite = true;
      for (uint32_t i = 0; i < shape.group; ++i) {
        misfits += !(std::abs(x[i]) <= limit);
        is_finite &= std::isfinite(x[i]);
        lo = std::min(lo, std::clamp(x[i], -limit, limit));
        hi = std::max(hi, std::clamp(x[i], -limit, limit));
      }
      Quantizer quantizer{kNan, kNan};
      if (is_finite) {
        quantizer = quantizer_of(lo, hi, top);
        for (uint32_t i = 0; i < shape.group; ++i) {
          const float value = std::clamp(x[i], -limit, limit);
          const float code = std::nearbyint((value - quantizer.bias) / quantizer.scale);
          codes[g * shape.group + i] = static_cast<uint8_t>(std::clamp(code, 0.f, top));
        }
      }
      store_quantizer(shape, quantizer, out, p, g);
    }
    pack(shape, codes, out, p);
  }
  return misfits;
}

void decode(const Codec& codec, const Records& in, float* x) {
  const Shape shape(codec);
  uint8_t codes[kMaxWidth];
  for (uint32_t p = 0; p < in.count; ++p, x += shape.width) {
    unpack(shape, in, p, codes);
    for (uint32_t i = 0; i < shape.width; ++i) {
      const float product = codes[i] * load_number(shape, in, kScales, p, i / shape.group);
      x[i] = product + load_number(shape, in, kBiases, p, i / shape.group);
    }
  }
}

void prepare(const Codec& codec, const float* query, std::byte* prepared) {
  const Shape shape(codec);
  auto* steps = reinterpret_cast<float*>(prepared);
  float* sums = steps + shape.groups;
  auto* numbers = reinterpret_cast<int16_t*>(prepared + shape.query_offset());
  const uint32_t group_numbers = shape.group_words() * shape.codes_in_word();
  for (uint32_t g = 0; g < shape.groups; ++g, numbers += group_numbers) {
    const float* x = query + g * shape.group;
    float largest = 0;
    bool is_finite = true;
    for (uint32_t i = 0; i < shape.group; ++i) {
      largest = std::max(largest, std::abs(x[i]));
      is_finite &= std::isfinite(x[i]);
    }
    if (!is_finite) {
      steps[g] = sums[g] = kNan;
      std::memset(numbers, 0, group_numbers * sizeof(int16_t));
      continue;
    }
    float inverse = kLargestQuery / largest;
    if (!(inverse < kInfinity)) inverse = 0;  // nothing, or so small that the score is 0
    int16_t rounded[kMaxGroup] = {};
    int32_t sum = 0;
    for (uint32_t i = 0; i < shape.group; ++i) {
      const float number =
          std::clamp(std::nearbyint(x[i] * inverse), -kLargestQuery, kLargestQuery);
      sum += static_cast<int32_t>(number);
      rounded[i] = static_cast<int16_t>(number);
    }
    shape.arrange(rounded, numbers);
    steps[g] = largest / kLargestQuery;
    sums[g] = steps[g] * static_cast<float>(sum);
  }
}

void scores(const Codec& codec,
            const std::byte* prepared,
            uint32_t rows,
            const Records& in,
            float* out,
            size_t score_stride) {
  const Shape shape(codec);
  const uint32_t group_numbers = shape.group_words() * shape.codes_in_word();
  for (uint32_t p = 0; p < in.count; ++p) {
    uint8_t codes[kMaxWidth + 16] = {}, arranged[kMaxWidth + 16];
    unpack(shape, in, p, codes);
    for (uint32_t g = 0; g < shape.groups; ++g)
      shape.arrange(codes + g * shape.group, arranged + g * group_numbers);
    for (uint32_t row = 0; row < rows; ++row) {
      const std::byte* query = prepared + uint64_t{row} * codec.geometry.prepared_bytes;
      const auto* steps = reinterpret_cast<const float*>(query);
      const float* sums = steps + shape.groups;
      const auto* numbers = reinterpret_cast<const int16_t*>(query + shape.query_offset());
      float score = 0;
      for (uint32_t g = 0; g < shape.groups; ++g) {
        int32_t dot = 0;
        for (uint32_t i = g * group_numbers; i < (g + 1) * group_numbers; ++i)
          dot += arranged[i] * numbers[i];
        const float bias = load_number(shape, in, kBiases, p, g);
        score = g == 0 ? bias * sums[g] : std::fma(bias, sums[g], score);
        const float scale = load_number(shape, in, kScales, p, g);
        score = std::fma(scale, steps[g] * static_cast<float>(dot), score);
      }
      out[row * score_stride + p] = score;
    }
  }
}

void accumulate(const Codec& codec,
                const float* weights,
                size_t weight_stride,
                uint32_t rows,
                Pos first,
                const Records& in,
                float* partial) {
  const Shape shape(codec);
  uint8_t codes[kMaxWidth];
  for (uint32_t p = 0; p < in.count; ++p) {
    unpack(shape, in, p, codes);
    for (uint32_t row = 0; row < rows; ++row) {
      float* sums = partial + uint64_t{row} * codec.geometry.partial_floats;
      float* biases = sums + shape.bias_offset() + (first + p) % kSums;
      const float weight = weights[row * weight_stride + p];
      for (uint32_t g = 0; g < shape.groups; ++g) {
        const float scaled = weight * load_number(shape, in, kScales, p, g);
        for (uint32_t i = g * shape.group; i < (g + 1) * shape.group; ++i)
          sums[i] = std::fma(codes[i], scaled, sums[i]);
        float& bias = biases[g * kSums];
        bias = std::fma(weight, load_number(shape, in, kBiases, p, g), bias);
      }
    }
  }
}

void finish_block(const Codec& codec, uint32_t rows, float* partial) {
  const Shape shape(codec);
  for (uint32_t row = 0; row < rows; ++row, partial += codec.geometry.partial_floats)
    for (uint32_t g = 0; g < shape.groups; ++g) {
      float sums[kSums];
      std::memcpy(sums, partial + shape.bias_offset() + g * kSums, sizeof(sums));
      for (uint32_t half = kSums / 2; half != 0; half /= 2)
        for (uint32_t i = 0; i < half; ++i) sums[i] += sums[i + half];
      for (uint32_t i = 0; i < shape.group; ++i) partial[g * shape.group + i] += sums[0];
    }
}

constexpr RecordFunctions kScalarTable = {encode,     decode,       prepare, scores,
                                          accumulate, finish_block, nullptr};

// The row.

constexpr std::string_view kName = "affine";
constexpr int32_t kDefaultGroup = 64;
constexpr std::string_view kDtypeNames[] = {"f16", "f32", "bf16"};  // by Dtype
constexpr std::string_view kDtypeTensors[] = {"F16", "F32", "BF16"};

// Takes digits off the text's front; -1: none.
int32_t take_number(std::string_view& text) {
  int32_t value = -1;
  if (text.empty() || text[0] < '1' || text[0] > '9') return value;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return -1;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

Params params_of(int32_t bits, int32_t group, Dtype dtype, bool is_dtype_named) {
  return {{bits, group, static_cast<int32_t>(dtype), is_dtype_named}};
}

Result<Params> parse(std::string_view text) {
  if (!text.starts_with(kName))
    return fail(Code::NotFound, "encoding: {}, expected {}", text, kName);
  std::string_view rest = text.substr(kName.size());
  const int32_t bits = take_number(rest);
  if (bits < 2 || bits > 8 || bits == 7)
    return fail(Code::BadInput, "{}: expected affine and 2, 3, 4, 5, 6 or 8 bits", text);
  int32_t group = kDefaultGroup;
  if (rest.starts_with("-g")) {
    rest.remove_prefix(2);
    group = take_number(rest);
    if (group != 32 && group != 64 && group != 128)
      return fail(Code::BadInput, "{}: expected a group of 32, 64 or 128 numbers", text);
  }
  if (rest.empty()) return params_of(bits, group, Dtype::F16, false);
  const auto* dtype = std::find(std::begin(kDtypeNames), std::end(kDtypeNames), rest.substr(1));
  if (rest[0] != '-' || dtype == std::end(kDtypeNames))
    return fail(Code::BadInput, "{}: \"{}\" found, expected -g<group>, -f16, -f32 or -bf16", text,
                rest);
  return params_of(bits, group, static_cast<Dtype>(dtype - kDtypeNames), true);
}

// What was named, but for the default group; a dtype always follows its group.
std::string print(const Params& params) {
  const auto [bits, group, dtype, is_dtype_named] = params.values;
  std::string text = fmt::format("{}{}", kName, bits);
  if (group != kDefaultGroup || is_dtype_named) text += fmt::format("-g{}", group);
  if (is_dtype_named) text += fmt::format("-{}", kDtypeNames[dtype]);
  return text;
}

// The usual dtype is the one that goes without a name.
Params settle(const Params& params, Precision precision) {
  const auto [bits, group, dtype, is_dtype_named] = params.values;
  if (is_dtype_named)
    return params_of(bits, group, static_cast<Dtype>(dtype),
                     precision == Precision::fine || static_cast<Dtype>(dtype) != Dtype::F16);
  return precision == Precision::fine ? params_of(bits, group, Dtype::F32, true) : params;
}

// Of an element against its vector's largest magnitude: the end that is exact gets a whole number
// of steps, so up to half a step of the range lies beyond the last code; then the rounding of scale
// and bias. f16 keeps it from magnitudes of 2^-9 on: below, scales lose bits.
double error_bound(const Shape& shape) {
  constexpr double kRounding[] = {0x1p-7, 0x1p-20, 0x1p-6};  // by Dtype
  return std::ldexp(2., -static_cast<int>(shape.bits)) +
         kRounding[static_cast<size_t>(shape.dtype)];
}

Result<Geometry> geometry(const Params& params, uint32_t width) {
  const Shape shape(params, width);
  if (width == 0 || width % 8 != 0 || width > kMaxWidth)
    return fail(Code::BadInput, "{}: vectors of {} numbers, expected a multiple of 8 up to {}",
                print(params), width, kMaxWidth);
  if (width % shape.group != 0)
    return fail(Code::BadInput, "{}: vectors of {} numbers, expected a multiple of the group's {}",
                print(params), width, shape.group);
  const auto plane = [&](std::string_view name, std::string_view dtype, uint32_t words,
                         uint32_t word_bytes) {
    return PlaneGeometry{.name = name,
                         .dtype = dtype,
                         .record_bytes = words * word_bytes,
                         .word_bytes = word_bytes,
                         .words_first = shape.is_native()};
  };
  const std::string_view dtype = kDtypeTensors[static_cast<size_t>(shape.dtype)];
  const uint64_t prepared = shape.query_offset() + shape.query_numbers() * sizeof(int16_t);
  return Geometry{
      .planes = {plane("codes", "U32", shape.record_words(), 4),
                 plane("scales", dtype, shape.groups, bytes_of(shape.dtype)),
                 plane("biases", dtype, shape.groups, bytes_of(shape.dtype))},
      .error_bound = error_bound(shape),
      .prepared_bytes = static_cast<uint32_t>(round_up(prepared, 64)),
      .partial_floats = shape.bias_offset() + shape.groups * kSums,
  };
}

const RecordFunctions& functions() {
  return use_scalar() ? kScalarTable : *HWY_DYNAMIC_DISPATCH(affine_table)();
}

// Every number of bits, every group, every dtype, and a group wider than small vectors.
constexpr std::string_view kSamples[] = {"affine8",          "affine4",         "affine2-g32",
                                         "affine3-g64-bf16", "affine5-g32-f32", "affine6-g128",
                                         "affine8-g128-f32", "affine4-g32-bf16"};

}  // namespace
}  // namespace affine

constinit const Encoding kAffine = {
    .id = {3},
    .name = affine::kName,
    .parse = affine::parse,
    .print = affine::print,
    .settle = affine::settle,
    .samples = affine::kSamples,
    .geometry = affine::geometry,
    .functions = affine::functions,
};

}  // namespace cairn
#endif  // HWY_ONCE
