// The SIMD of encodings of whole codes (codes.h): codes and their numbers out of records, and
// weighted sums of any codes. Scores are in code_scores-inl.h.
// Included once per target: between hwy/highway.h and the file's own HWY_NAMESPACE code.
#if defined(CAIRN_ENCODINGS_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CAIRN_ENCODINGS_CODES_INL_H_
#undef CAIRN_ENCODINGS_CODES_INL_H_
#else
#define CAIRN_ENCODINGS_CODES_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "cairn/encodings/bits-inl.h"
#include "cairn/encodings/codes.h"
#include "cairn/kernels/sums-inl.h"
#include "cairn/kernels/tile-inl.h"
#include "hwy/highway.h"

#if !CAIRN_NO_SIMD
HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using namespace codes;  // NOLINT: of the same family of files

constexpr uint32_t kRowsAtOnce = 96;  // rows that meet a chunk's codes at a time

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
template <class D>
HWY_INLINE auto load_codes(D d, const std::byte* from) {
  const hn::Rebind<uint8_t, D> bytes;
  const hn::Rebind<int32_t, D> integers;
  (void)d;
  return hn::PromoteTo(integers, hn::LoadU(bytes, reinterpret_cast<const uint8_t*>(from)));
}
struct CodeBytes {
  static constexpr size_t kBytes = 1;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* from) {
    return hn::ConvertTo(d, load_codes(d, from));
  }
};

// `count` codes, from a stream of which more may be read: what fills `count` up to 64 codes, or 16
// bytes if that is more. As many codes may be written.
template <uint32_t kBits>
HWY_INLINE void unpack_bits(const uint8_t* stream, uint32_t count, uint8_t* codes) {
  if constexpr (kBits == 4) {
    const hn::ScalableTag<uint16_t> pairs;
    const hn::Rebind<uint8_t, decltype(pairs)> narrow;
    const hn::Repartition<uint8_t, decltype(pairs)> bytes;
    for (uint32_t i = 0; i < count; i += hn::MaxLanes(bytes)) {
      const auto two = hn::PromoteTo(pairs, hn::LoadU(narrow, stream + i / 2));
      const auto apart = hn::And(hn::Or(two, hn::ShiftLeft<4>(two)), hn::Set(pairs, 0x0f0f));
      hn::StoreU(hn::BitCast(bytes, apart), bytes, codes + i);
    }
    return;
  }
#if HWY_TARGET == HWY_AVX3_DL
  // Eight codes come out of the eight bytes that begin with the first one's.
  const hn::ScalableTag<uint8_t> bytes;
  alignas(64) uint8_t places[64], shifts[64];
  for (uint32_t k = 0; k < 64; ++k) {
    places[k] = static_cast<uint8_t>(k / 8 * kBits + k % 8);
    shifts[k] = static_cast<uint8_t>(k % 8 * kBits);
  }
  const auto mask = hn::Set(bytes, (1 << kBits) - 1);
  for (uint32_t i = 0; i < count; i += 64) {
    const auto all = hn::MaskedLoad(hn::FirstN(bytes, 8 * kBits), bytes, stream + i / 8 * kBits);
    const __m512i eights = _mm512_permutexvar_epi8(hn::Load(bytes, places).raw, all.raw);
    const hn::Vec<decltype(bytes)> apart{
        _mm512_multishift_epi64_epi8(hn::Load(bytes, shifts).raw, eights)};
    hn::StoreU(hn::And(apart, mask), bytes, codes + i);
  }
#else
  // Each code is found in the 16 bits that start at its first byte: what is above it is multiplied
  // out of the word, what is below it shifted out.
  const hn::FixedTag<uint8_t, 16> bytes;
  const hn::FixedTag<uint16_t, 8> pairs;
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
#endif
}

// Bytes of one record's codes, with what unpacking writes and reads beyond.
constexpr uint32_t kStreamBytes = kMaxWidth + 64;
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

// Four rows of four words, turned: to[word * to_stride + row]. from_stride in bytes.
HWY_INLINE void turn_tile(const std::byte* from,
                          size_t from_stride,
                          uint32_t* to,
                          size_t to_stride) {
  const hn::FixedTag<uint32_t, 4> d;
  const hn::FixedTag<uint64_t, 2> pairs;
  const auto row = [&](size_t i) HWY_ATTR {
    return hn::LoadU(d, reinterpret_cast<const uint32_t*>(from + i * from_stride));
  };
  const auto row0 = row(0), row1 = row(1), row2 = row(2), row3 = row(3);
  const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(d, row0, row1));
  const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(d, row2, row3));
  const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(d, row0, row1));
  const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(d, row2, row3));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, low01, low23)), d, to);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, low01, low23)), d, to + to_stride);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, high01, high23)), d, to + 2 * to_stride);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, high01, high23)), d, to + 3 * to_stride);
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
  // Records without a gap are one stream, but for those whose unpacking would read beyond the page:
  // by 16 bytes, or by up to 32 codes, which a record of such a width has.
  const uint32_t beyond = static_cast<uint32_t>(ceil_div(16, record_bytes));
  uint32_t done = 0;
  if (is_dense && row_bytes(shape) == shape.width && begin + beyond < in.capacity) {
    done = std::min(count, in.capacity - beyond - begin);
    unpack_record<kBits>(reinterpret_cast<const uint8_t*>(in.at(kCodes, begin)), done * shape.width,
                         codes);
  }
  // Words by position: four by four, as far as they go.
  const uint32_t words = shape.record_words();
  if (plane.position_stride == 4 && words % 4 == 0)
    for (; done + 4 <= count; done += 4) {
      alignas(64) uint32_t streams[kMaxWidth + 8];  // the four, and what is read beyond
      for (uint32_t w = 0; w < words; w += 4)
        turn_tile(in.at(kCodes, begin + done) + w * plane.word_stride, plane.word_stride,
                  streams + w, words);
      for (uint32_t i = 0; i < 4; ++i)
        unpack_record<kBits>(reinterpret_cast<const uint8_t*>(streams + i * words), shape.width,
                             codes + (done + i) * row_bytes(shape));
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
HWY_INLINE void read_numbers_as(const std::byte* from,
                                size_t stride,
                                uint32_t count,
                                float* numbers) {
  using Word = typename Numbers::Word;
  const hn::ScalableTag<float> d;
  constexpr uint32_t kLanes = hn::MaxLanes(hn::ScalableTag<float>());
  if (stride == sizeof(Word) && count == kChunk) {  // without a loop
    HWY_UNROLL(16)
    for (uint32_t i = 0; i < kChunk; i += kLanes)
      hn::StoreU(Numbers::load(d, from + i * sizeof(Word)), d, numbers + i);
    return;
  }
  uint32_t done = 0;
  if (stride == sizeof(Word))
    for (; done + kLanes <= count; done += kLanes)
      hn::StoreU(Numbers::load(d, from + done * sizeof(Word)), d, numbers + done);
  if (done == count) return;
  Word words[kChunk] = {};
  for (uint32_t i = done; i < count; ++i) std::memcpy(words + i, from + i * stride, sizeof(Word));
  for (; done < count; done += kLanes)
    hn::StoreU(Numbers::load(d, words + done), d, numbers + done);
}

// Groups' scales or biases at positions [p, p + count) as f32: numbers[group * kChunk + position],
// of each up to a whole chunk is written.
template <class Numbers>
HWY_INLINE void read_groups_as(const Shape& shape,
                               const Records& in,
                               Plane plane,
                               uint32_t p,
                               uint32_t count,
                               float* numbers) {
  const PlaneRun& run = in.planes[plane];
  const size_t stride = run.position_stride;
  const bool is_apart = stride == sizeof(typename Numbers::Word);  // groups: in lines of their own
  for (uint32_t g = 0; g < shape.groups; ++g) {
    const size_t offset = g * run.word_stride;
    if (run.next != nullptr && (g == 0 || is_apart)) {
      const std::byte* next = run.next + (in.first + p) * stride + offset;
      for (uint32_t line = 0; line < count * stride; line += 64)
        __builtin_prefetch(next + line, 0, 2);
    }
    read_numbers_as<Numbers>(in.at(plane, in.first + p) + offset, stride, count,
                             numbers + g * kChunk);
  }
}

// Four by four where numbers of all groups lie together.
HWY_INLINE void read_turned(const Shape& shape,
                            const Records& in,
                            Plane plane,
                            uint32_t p,
                            uint32_t count,
                            float* numbers) {
  constexpr uint32_t kTile = 4;
  const PlaneRun& run = in.planes[plane];
  const std::byte* from = in.at(plane, in.first + p);
  if (run.next != nullptr)
    for (uint32_t line = 0; line < count * run.position_stride; line += 64)
      __builtin_prefetch(run.next + (in.first + p) * run.position_stride + line, 0, 2);
  const uint32_t tiled = count / kTile * kTile;
  for (uint32_t i = 0; i < tiled; i += kTile)
    for (uint32_t g = 0; g < shape.groups; g += kTile)
      turn_tile(from + i * run.position_stride + g * sizeof(float), run.position_stride,
                reinterpret_cast<uint32_t*>(numbers + g * kChunk + i), kChunk);
  for (uint32_t i = tiled; i < count; ++i)
    for (uint32_t g = 0; g < shape.groups; ++g)
      std::memcpy(numbers + g * kChunk + i, from + i * run.position_stride + g * sizeof(float),
                  sizeof(float));
}

HWY_INLINE void read_groups(const Shape& shape,
                            const Records& in,
                            Plane plane,
                            uint32_t p,
                            uint32_t count,
                            float* numbers) {
  switch (shape.dtype) {
    case Dtype::F16:
      return read_groups_as<F16Numbers>(shape, in, plane, p, count, numbers);
    case Dtype::F32:
      if (in.planes[plane].word_stride == sizeof(float) && shape.groups % 4 == 0)
        return read_turned(shape, in, plane, p, count, numbers);
      return read_groups_as<F32Numbers>(shape, in, plane, p, count, numbers);
    case Dtype::Bf16:
      return read_groups_as<Bf16Numbers>(shape, in, plane, p, count, numbers);
  }
}

// Of kRows rows: scaled = weight * scale, and sums[position mod 16] += weight * bias in ascending
// positions. Strides are in floats; scaled numbers of a row are kChunk.
template <size_t kRows, bool kHasBiases>
HWY_INLINE void weigh(const float* weights,
                      size_t weight_stride,
                      const float* scales,
                      const float* biases,
                      Pos first,
                      uint32_t count,
                      float* scaled,
                      float* sums,
                      size_t sum_stride) {
  const hn::CappedTag<float, kSums> d;
  using V = hn::Vec<decltype(d)>;
  constexpr uint32_t kLanes = hn::MaxLanes(hn::CappedTag<float, kSums>());
  uint32_t p = 0;
  const auto one = [&]() HWY_ATTR {
    for (size_t r = 0; r < kRows; ++r) {
      const float weight = weights[r * weight_stride + p];
      scaled[r * kChunk + p] = weight * scales[p];
      if (!kHasBiases) continue;
      float& sum = sums[r * sum_stride + (first + p) % kSums];
      sum = std::fma(weight, biases[p], sum);
    }
    ++p;
  };
  while (p < count && (first + p) % kSums != 0) one();
  V all[kRows][kSums / kLanes];
  if (kHasBiases)
    for (size_t r = 0; r < kRows; ++r)
      for (uint32_t v = 0; v < kSums / kLanes; ++v)
        all[r][v] = hn::LoadU(d, sums + r * sum_stride + v * kLanes);
  for (; p + kSums <= count; p += kSums) {
    HWY_UNROLL(4)
    for (uint32_t v = 0; v < kSums / kLanes; ++v) {
      const uint32_t at = p + v * kLanes;
      const V scale = hn::LoadU(d, scales + at);
      const V bias = kHasBiases ? hn::LoadU(d, biases + at) : scale;
      HWY_UNROLL(4)
      for (size_t r = 0; r < kRows; ++r) {
        const V weight = hn::LoadU(d, weights + r * weight_stride + at);
        hn::StoreU(hn::Mul(weight, scale), d, scaled + r * kChunk + at);
        if (kHasBiases) all[r][v] = hn::MulAdd(weight, bias, all[r][v]);
      }
    }
  }
  if (kHasBiases)
    for (size_t r = 0; r < kRows; ++r)
      for (uint32_t v = 0; v < kSums / kLanes; ++v)
        hn::StoreU(all[r][v], d, sums + r * sum_stride + v * kLanes);
  while (p < count) one();
}

// Columns [begin, end) of a product.
template <class Numbers>
void multiply_columns(const Product& product, size_t begin, size_t end) {
  const hn::ScalableTag<float> whole;
  const hn::CappedTag<float, 8> eight;
  const size_t middle = begin + (end - begin) / hn::Lanes(whole) * hn::Lanes(whole);
  multiply<Numbers>(whole, product, begin, middle);
  if (middle < end) multiply<Numbers>(eight, product, middle, end);
}

// Whether two groups of `shape` are a tile whose halves have weights of their own.
HWY_INLINE bool has_tiles_of_two(const Shape& shape, uint32_t rows) {
  constexpr uint32_t kTile = 4 * hn::MaxLanes(hn::ScalableTag<float>());
  return 2 * shape.group == kTile && shape.groups % 2 == 0 && rows < 8;
}

// Adds columns [begin, end) of packed codes, in place; of one group, or of two. Where nothing more
// may be read behind them, the last record is copied first.
template <class Packed>
void multiply_codes(const Product& product, uint32_t begin, uint32_t end, bool is_end_readable) {
  const hn::ScalableTag<float> d;
  const auto take = [&](const Product& part, uint32_t from, uint32_t to) HWY_ATTR {
    if (part.a_upper != 0)
      multiply_halves<Packed>(d, part, from);
    else
      multiply<Packed, 4>(d, part, from, to);
  };
  if (!kReadsBeyond<Packed::kBits> || is_end_readable) {
    take(product, begin, end);
    return;
  }
  Product part = product;
  const size_t last = --part.steps;
  take(part, begin, end);
  std::byte codes[kMaxGroup + kBeyondBits] = {};
  std::memcpy(codes, part.b + last * part.b_stride + bytes_of<Packed>(begin),
              bytes_of<Packed>(end - begin));
  part.a += last;
  part.b = codes;
  part.next = nullptr;
  part.c += begin;
  part.steps = 1;
  take(part, 0, end - begin);
}

// accumulate of RecordFunctions. Numbers: what a code is before its scale, as in tile-inl.h; what
// takes more than a conversion is done once for all rows, unless Packed reads it from packed codes
// at once (codes of bytes are their own packed form). kHasBiases: plane 2 is there.
template <class Numbers, bool kHasBiases, class Packed = Numbers>
void add_codes(const Shape& shape,
               const float* weights,
               size_t weight_stride,
               uint32_t rows,
               Pos first,
               const Records& in,
               float* partial,
               size_t partial_floats) {
  constexpr bool kInPlace = std::is_same_v<Numbers, CodeBytes>;
  const PlaneRun& plane = in.planes[kCodes];
  constexpr bool kHasPacked = kSpreadsBits && !std::is_same_v<Packed, Numbers>;
  const bool is_packed = kHasPacked && plane.word_stride == 4 &&
                         shape.group % hn::Lanes(hn::ScalableTag<float>()) == 0;
  const bool is_direct = (shape.bits == 8 || is_packed) && plane.word_stride == 4;
  alignas(64) float numbers[kInPlace ? 1 : kChunk * kMaxGroup];
  alignas(64) float scaled[2][kRowsAtOnce * kChunk];  // of a group, or of two
  alignas(64) float all_scales[kMaxGroups * kChunk], all_biases[kMaxGroups * kChunk];
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
    read_groups(shape, in, kScales, p, count, all_scales);
    if constexpr (kHasBiases) read_groups(shape, in, kBiases, p, count, all_biases);
    const uint32_t step = (is_packed || kInPlace) && has_tiles_of_two(shape, rows) ? 2 : 1;
    for (uint32_t g = 0; g < shape.groups; g += step) {
      const uint32_t column = g * shape.group;
      if constexpr (!kInPlace)
        for (uint32_t k = 0; !is_packed && k < count; ++k)
          each_vector(shape.group, [&](auto d, uint32_t i) HWY_ATTR {
            hn::StoreU(Numbers::load(d, codes + k * code_stride + column + i), d,
                       numbers + k * shape.group + i);
          });
      for (uint32_t row = 0; row < rows; row += kRowsAtOnce) {
        float* sums = partial + row * partial_floats;
        const uint32_t some = std::min(kRowsAtOnce, rows - row);
        for (uint32_t half = 0; half < step; ++half) {
          const auto take = [&]<size_t kRows>(uint32_t& r) HWY_ATTR {
            float* bias_sums = nullptr;
            if (kHasBiases)
              bias_sums = sums + r * partial_floats + shape.bias_offset() + (g + half) * kSums;
            weigh<kRows, kHasBiases>(weights + (row + r) * weight_stride + p, weight_stride,
                                     all_scales + (g + half) * kChunk,
                                     all_biases + (g + half) * kChunk, first + p, count,
                                     scaled[half] + r * kChunk, bias_sums, partial_floats);
            r += kRows;
          };
          uint32_t r = 0;
          while (r + 4 <= some) take.template operator()<4>(r);
          if (some - r == 3) take.template operator()<3>(r);
          while (r < some) take.template operator()<1>(r);
        }
        Product product{.a = scaled[0],
                        .a_stride = kChunk,
                        .rows = some,
                        .b = codes,
                        .b_stride = code_stride,
                        .steps = count,
                        .next = row == 0 ? next : nullptr,
                        .c = sums,
                        .c_stride = partial_floats,
                        .from_zero = false,
                        .a_upper = step == 2 ? static_cast<size_t>(scaled[1] - scaled[0]) : 0};
        if constexpr (kHasPacked) {
          if (is_packed) {
            multiply_codes<Packed>(product, column, column + step * shape.group,
                                   in.first + p + count < in.capacity);
            continue;
          }
        }
        if constexpr (kInPlace) {
          if (step == 2)
            multiply_halves<Numbers>(hn::ScalableTag<float>(), product, column);
          else
            multiply_columns<Numbers>(product, column, column + shape.group);
        } else {
          product.b = reinterpret_cast<const std::byte*>(numbers);
          product.b_stride = shape.group * sizeof(float);
          product.next = nullptr;
          product.c += column;
          multiply_columns<Floats>(product, 0, shape.group);
        }
      }
    }
  }
}

// codes.h's add_biases.
HWY_INLINE void finish_codes(const Shape& shape, uint32_t rows, float* partial) {
  const hn::CappedTag<float, kSums> d;
  constexpr uint32_t kLanes = hn::MaxLanes(hn::CappedTag<float, kSums>());
  for (uint32_t row = 0; row < rows; ++row, partial += shape.partial_floats())
    for (uint32_t g = 0; g < shape.groups; ++g) {
      hn::Vec<decltype(d)> sums[kSums / kLanes];
      for (uint32_t v = 0; v < kSums / kLanes; ++v)
        sums[v] = hn::LoadU(d, partial + shape.bias_offset() + g * kSums + v * kLanes);
      for (uint32_t half = kSums / kLanes / 2; half != 0; half /= 2)
        for (uint32_t v = 0; v < half; ++v) sums[v] = hn::Add(sums[v], sums[v + half]);
      const float sum = halving_sum(d, sums[0]);
      each_vector(shape.group, [&](auto tag, uint32_t i) HWY_ATTR {
        float* at = partial + g * shape.group + i;
        hn::StoreU(hn::Add(hn::LoadU(tag, at), hn::Set(tag, sum)), tag, at);
      });
    }
}

}  // namespace
}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // !CAIRN_NO_SIMD

#endif  // per-target include guard
