// Affine groups as MLX's CPU code makes them: a number is scale * code + bias, with one scale and
// one bias for a group of neighbours, and codes of 2, 3, 4, 5, 6 or 8 bits.
//
//   text: affine<bits>[-g<group>][-<dtype of scales and biases>]; without the rest: -g64-f16, and
//   -f32 for latents, of which one vector serves all heads
//
//   planes "codes", "scales", "biases" and all that attention does with them: codes.h
//
// A group that is wider than the vector is the vector. Keys lie words by position where words hold
// whole codes (2, 4 and 8 bits), so that the lanes of a vector are positions.
//
// A group with a NaN or an infinity reads as NaN, and no other group notices. Finite numbers beyond
// the range of the scales' dtype saturate. Both are counted.
#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "cairn/core/half.h"
#include "cairn/encodings/codes.h"
#include "cairn/encodings/registry.h"
#include "cairn/kernels/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cairn/encodings/affine.cc"
#include "cairn/kernels/simd.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

// After highway.h, which opens the target.
#include "cairn/encodings/code_scores-inl.h"
#include "cairn/encodings/codes-inl.h"

// What the scalar definition and every target share.
#ifndef CAIRN_ENCODINGS_AFFINE_ONCE_
#define CAIRN_ENCODINGS_AFFINE_ONCE_
namespace cairn::affine {
using namespace codes;  // NOLINT: this encoding is the plain one of the family

constexpr float kLeastStep = 1e-7f;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Larger magnitudes saturate: f16's own range; else such that no group's range is infinite.
constexpr float limit_of(Dtype dtype) { return dtype == Dtype::F16 ? 65504.f : 0x1p125f; }

inline Shape shape_of(const Params& params, uint32_t width) {
  const auto bits = static_cast<uint32_t>(params.values[0]);
  const uint32_t group = std::min(static_cast<uint32_t>(params.values[1]), width);
  return {.bits = bits,
          .group = group,
          .groups = width / std::max(group, 1u),
          .width = width,
          .dtype = static_cast<Dtype>(params.values[2])};
}
inline Shape shape_of(const Codec& codec) {
  const auto [bits, group, dtype, is_dtype_named] = codec.params.values;
  const uint32_t scale_bytes = codec.geometry.planes[kScales].record_bytes;
  return {.bits = static_cast<uint32_t>(bits),
          .group = std::min(static_cast<uint32_t>(group), codec.width),
          .groups = static_cast<Dtype>(dtype) == Dtype::F32 ? scale_bytes / 4 : scale_bytes / 2,
          .width = codec.width,
          .dtype = static_cast<Dtype>(dtype)};
}

struct Quantizer {
  float scale, bias;
};

// To the nearest whole number, ties to even; without a call, which base x86-64 takes for it.
inline float rounded(float x) {
  constexpr double kRound = 0x1.8p52;  // a sum with it has no fraction
  return std::abs(x) < 0x1p23f ? static_cast<float>(x + kRound - kRound) : x;
}

// The end of larger magnitude is exact, and zero nearly so, because the scale divides that end.
inline Quantizer quantizer_of(float lo, float hi, float top) {
  const bool is_low_end = std::abs(lo) > std::abs(hi);
  const float step = std::max((hi - lo) / top, kLeastStep);
  const float scale = is_low_end ? step : -step;
  const float end = is_low_end ? lo : hi;
  const float end_code = rounded(end / scale);
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

// Codes of one group of finite numbers, already inside the range.
HWY_INLINE void quantize(
    const float* x, uint32_t count, const Quantizer& quantizer, float top, uint8_t* codes) {
  each_vector(count, [&](auto d, uint32_t i) HWY_ATTR {
    const hn::Rebind<uint8_t, decltype(d)> bytes;
    const auto steps = hn::Div(hn::Sub(hn::LoadU(d, x + i), hn::Set(d, quantizer.bias)),
                               hn::Set(d, quantizer.scale));
    const auto code = hn::NearestInt(hn::Min(hn::Max(steps, hn::Zero(d)), hn::Set(d, top)));
    hn::StoreU(hn::DemoteTo(bytes, code), bytes, codes + i);
  });
}

struct Ends {
  float lo = kInfinity, hi = -kInfinity;
};

// Of numbers of which some may lie outside; all of them brought `inside`, misfits counted. False:
// one is not finite.
bool bring_inside(
    const float* x, uint32_t count, float limit, float* inside, Ends& ends, uint64_t& misfits) {
  bool is_finite = true;
  each_vector(count, [&](auto d, uint32_t i) HWY_ATTR {
    const auto raw = hn::LoadU(d, x + i), most = hn::Set(d, limit);
    const auto magnitude = hn::Abs(raw);
    misfits += hn::Lanes(d) - hn::CountTrue(d, hn::Le(magnitude, most));
    is_finite &= hn::AllTrue(d, hn::Lt(magnitude, hn::Set(d, kInfinity)));
    const auto value = hn::Min(hn::Max(raw, hn::Neg(most)), most);
    hn::StoreU(value, d, inside + i);
    ends.lo = std::min(ends.lo, hn::GetLane(hn::MinOfLanes(d, value)));
    ends.hi = std::max(ends.hi, hn::GetLane(hn::MaxOfLanes(d, value)));
  });
  return is_finite;
}

// False, and nothing known, unless the numbers are whole vectors and all inside.
HWY_INLINE bool find_ends(const float* x, uint32_t count, float limit, Ends& ends) {
  const hn::ScalableTag<float> d;
  constexpr uint32_t kLanes = hn::MaxLanes(hn::ScalableTag<float>());
  if (count % kLanes != 0) return false;
  auto lo = hn::LoadU(d, x), hi = lo;
  auto fits = hn::Le(hn::Abs(lo), hn::Set(d, limit));
  for (uint32_t i = kLanes; i < count; i += kLanes) {
    const auto value = hn::LoadU(d, x + i);
    fits = hn::And(fits, hn::Le(hn::Abs(value), hn::Set(d, limit)));
    lo = hn::Min(lo, value);
    hi = hn::Max(hi, value);
  }
  if (!hn::AllTrue(d, fits)) return false;
  ends = {hn::GetLane(hn::MinOfLanes(d, lo)), hn::GetLane(hn::MaxOfLanes(d, hi))};
  return true;
}

HWY_INLINE void store_in_place(
    const Shape& shape, const Quantizer& quantizer, const Records& out, uint32_t p, uint32_t g) {
  if (shape.dtype != Dtype::F16) return store_quantizer(shape, quantizer, out, p, g);
  const hn::FixedTag<float, 4> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> half;
  hwy::float16_t halves[4];
  const auto both = hn::InterleaveLower(hn::Set(d, quantizer.scale), hn::Set(d, quantizer.bias));
  hn::StoreU(hn::DemoteTo(half, both), half, halves);
  for (const Plane plane : {kScales, kBiases})
    std::memcpy(out.at(plane, out.first + p) + g * out.planes[plane].word_stride,
                halves + (plane - kScales), sizeof(halves[0]));
}

uint64_t encode(const Codec& codec, const float* x, const Records& out) {
  const Shape shape = shape_of(codec);
  const float limit = limit_of(shape.dtype), top = shape.top();
  uint64_t misfits = 0;
  for (uint32_t p = 0; p < out.count; ++p) {
    uint8_t codes[kMaxWidth];
    for (uint32_t g = 0; g < shape.groups; ++g, x += shape.group) {
      float inside[kMaxGroup];
      Ends ends;
      const float* numbers = x;
      bool is_finite = true;
      if (!find_ends(x, shape.group, limit, ends)) {
        is_finite = bring_inside(x, shape.group, limit, inside, ends, misfits);
        numbers = inside;
      }
      Quantizer quantizer{kNan, kNan};
      if (is_finite) {
        quantizer = quantizer_of(ends.lo, ends.hi, top);
        quantize(numbers, shape.group, quantizer, top, codes + g * shape.group);
      } else {
        std::memset(codes + g * shape.group, 0, shape.group);
      }
      store_in_place(shape, quantizer, out, p, g);
    }
    pack(shape, codes, out, p);
  }
  return misfits;
}

void decode(const Codec& codec, const Records& in, float* x) {
  const Shape shape = shape_of(codec);
  alignas(64) float scales[kMaxGroups * kChunk], biases[kMaxGroups * kChunk];
  uint8_t codes[kStreamBytes * kChunk];
  for (uint32_t p = 0; p < in.count; p += kChunk) {
    const uint32_t count = std::min(kChunk, in.count - p);
    unpack(shape, in, p, count, codes);
    read_groups(shape, in, kScales, p, count, scales);
    read_groups(shape, in, kBiases, p, count, biases);
    for (uint32_t k = 0; k < count; ++k)
      for (uint32_t g = 0; g < shape.groups; ++g, x += shape.group) {
        const uint8_t* from = codes + k * row_bytes(shape) + g * shape.group;
        const float scale = scales[g * kChunk + k], bias = biases[g * kChunk + k];
        each_vector(shape.group, [&](auto d, uint32_t i) HWY_ATTR {
          const auto code = CodeBytes::load(d, reinterpret_cast<const std::byte*>(from + i));
          const auto product = hn::Mul(code, hn::Set(d, scale));
          hn::StoreU(hn::Add(product, hn::Set(d, bias)), d, x + i);
        });
      }
  }
}

void prepare(const Codec& codec, const float* query, std::byte* prepared) {
  const Shape shape = shape_of(codec);
  auto* steps = reinterpret_cast<float*>(prepared);
  auto* integers = reinterpret_cast<int16_t*>(prepared + shape.query_offset());
  for (uint32_t g = 0; g < shape.groups; ++g, integers += shape.group_integers()) {
    const QueryGroup group = prepare_group(shape, query + g * shape.group, 0, integers);
    steps[g] = group.step;
    steps[shape.groups + g] = group.step * static_cast<float>(group.sum);
  }
}

void scores(const Codec& codec,
            const std::byte* prepared,
            uint32_t rows,
            const Records& in,
            float* out,
            size_t score_stride) {
  score_codes<false>(shape_of(codec), prepared, rows, in, out, score_stride);
}

void accumulate(const Codec& codec,
                const float* weights,
                size_t weight_stride,
                uint32_t rows,
                Pos first,
                const Records& in,
                float* partial) {
  const auto add = [&]<class Packed>(Packed) {
    add_codes<CodeBytes, true, Packed>(shape_of(codec), weights, weight_stride, rows, first, in,
                                       partial, codec.geometry.partial_floats);
  };
  switch (shape_of(codec).bits) {
    case 2:
      return add(PackedCodes<2>());
    case 3:
      return add(PackedCodes<3>());
    case 4:
      return add(PackedCodes<4>());
    case 5:
      return add(PackedCodes<5>());
    case 6:
      return add(PackedCodes<6>());
    default:
      return add(CodeBytes());
  }
}

void finish_block(const Codec& codec, uint32_t rows, float* partial) {
  finish_codes(shape_of(codec), rows, partial);
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
  const Shape shape = shape_of(codec);
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
  const Shape shape = shape_of(codec);
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
  const Shape shape = shape_of(codec);
  auto* steps = reinterpret_cast<float*>(prepared);
  float* sums = steps + shape.groups;
  auto* numbers = reinterpret_cast<int16_t*>(prepared + shape.query_offset());
  for (uint32_t g = 0; g < shape.groups; ++g, numbers += shape.group) {
    const float* x = query + g * shape.group;
    float largest = 0;
    bool is_finite = true;
    for (uint32_t i = 0; i < shape.group; ++i) {
      largest = std::max(largest, std::abs(x[i]));
      is_finite &= std::isfinite(x[i]);
    }
    if (!is_finite) {
      steps[g] = sums[g] = kNan;
      std::memset(numbers, 0, shape.group * sizeof(int16_t));
      continue;
    }
    float inverse = kLargestQuery / largest;
    if (!(inverse < kInfinity)) inverse = 0;  // nothing, or so small that the score is 0
    int32_t sum = 0;
    for (uint32_t i = 0; i < shape.group; ++i) {
      const float number =
          std::clamp(std::nearbyint(x[i] * inverse), -kLargestQuery, kLargestQuery);
      sum += static_cast<int32_t>(number);
      numbers[i] = static_cast<int16_t>(number);
    }
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
  const Shape shape = shape_of(codec);
  for (uint32_t p = 0; p < in.count; ++p) {
    uint8_t codes[kMaxWidth];
    unpack(shape, in, p, codes);
    for (uint32_t row = 0; row < rows; ++row) {
      const std::byte* query = prepared + uint64_t{row} * codec.geometry.prepared_bytes;
      const auto* steps = reinterpret_cast<const float*>(query);
      const float* sums = steps + shape.groups;
      const auto* numbers = reinterpret_cast<const int16_t*>(query + shape.query_offset());
      float score = 0;
      for (uint32_t g = 0; g < shape.groups; ++g) {
        int32_t dot = 0;
        for (uint32_t i = g * shape.group; i < (g + 1) * shape.group; ++i)
          dot += codes[i] * numbers[i];
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
  const Shape shape = shape_of(codec);
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
  add_biases(shape_of(codec), rows, partial);
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

// A group's query is rounded to 16 bits, half a step of which is 257 * 2^-24 of its largest number;
// then f32: two terms per group, together at most three times its largest numbers' product.
double score_error(const Shape& shape) {
  return std::sqrt(1. * shape.group) * (257 + 3 * (2. * shape.groups + 9));
}

Result<Geometry> geometry(const Params& params, uint32_t width) {
  const Shape shape = shape_of(params, width);
  if (width == 0 || width % 8 != 0 || width > kMaxWidth)
    return fail(Code::BadInput, "{}: vectors of {} numbers, expected a multiple of 8 up to {}",
                print(params), width, kMaxWidth);
  if (width % shape.group != 0)
    return fail(Code::BadInput, "{}: vectors of {} numbers, expected a multiple of the group's {}",
                print(params), width, shape.group);
  const auto numbers = [&](std::string_view name) {
    return PlaneGeometry{.name = name,
                         .dtype = kDtypeTensors[static_cast<size_t>(shape.dtype)],
                         .record_bytes = shape.groups * bytes_of(shape.dtype),
                         .word_bytes = bytes_of(shape.dtype),
                         .order = PlaneOrder::Words};
  };
  return Geometry{
      .planes = {{.name = "codes",
                  .dtype = "U32",
                  .record_bytes = shape.record_words() * 4,
                  .word_bytes = 4,
                  .order = shape.is_native() ? PlaneOrder::WordsIfScored : PlaneOrder::Records},
                 numbers("scales"),
                 numbers("biases")},
      .error_bound = error_bound(shape),
      .score_error = score_error(shape),
      .prepared_bytes = shape.prepared_bytes(),
      .partial_floats = shape.partial_floats(),
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
