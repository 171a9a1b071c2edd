// TurboQuant for keys (and latents): groups of 32 numbers, a centre and a scale each, repaired.
//
//   planes: codes (bits per number, packed), scales and centres (one f16 per group)
//   number: centre + scale * (code - middle), middle = 127 at 8 bits, (2^bits - 1) / 2 below
//
// The original stores centre / scale as a rounded f16, which loses groups that lie far from 0 and
// turns constant ones into NaN. Here the centre is stored itself, the scale is rounded up so that
// every number has a code, and codes are chosen from the stored numbers: a number is at most
// scale / 2 off. Everything is in docs/numbers.md, "TurboQuant".
#include <cmath>
#include <cstring>
#include <limits>

#include "cairn/core/bytes.h"
#include "cairn/core/half.h"
#include "cairn/encodings/registry.h"
#include "cairn/encodings/turbo_codes.h"
#include "cairn/kernels/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cairn/encodings/turbo_key.cc"
#include "cairn/kernels/simd.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

// After highway.h, which opens the target.
#include "cairn/encodings/code_scores-inl.h"
#include "cairn/encodings/turbo_codes-inl.h"

// What the definition and every target share.
#ifndef CAIRN_ENCODINGS_TURBO_KEY_ONCE_
#define CAIRN_ENCODINGS_TURBO_KEY_ONCE_
namespace cairn::turbo_key {
using namespace turbo;  // NOLINT: of the same family of files

using codes::kLargestQuery, codes::kScales, codes::Shape;
constexpr size_t kCentres = codes::kBiases;

constexpr float kMiddles[] = {0, 0, 1.5f, 0, 7.5f, 15.5f, 0, 0, 127.f};
constexpr float middle_of(uint32_t bits) { return kMiddles[bits]; }

struct Scale {
  uint16_t scale_bits;
  uint16_t centre_bits;
  float scale;
  float centre;
};

// low <= high, both within f16's range.
inline Scale scale_of(float low, float high, float middle) {
  Scale s;
  s.centre_bits =
      f16_from_f32(low * 0.5f + high * 0.5f + 0.f);  // + 0: never the zero of low's sign
  s.centre = f32_from_f16(s.centre_bits);
  const float reach = std::max(high - s.centre, s.centre - low);
  // The least f16 that reaches both ends; the product is exact.
  s.scale_bits = f16_from_f32(reach / middle);
  if (f32_from_f16(s.scale_bits) * middle < reach) ++s.scale_bits;
  s.scale = f32_from_f16(s.scale_bits);
  return s;
}

// Twice the distance from the middle is a whole number below 8 bits, the distance itself at 8.
constexpr int32_t factor_of(uint32_t bits) { return bits == 8 ? 1 : 2; }

inline Shape shape_of(uint32_t bits, uint32_t width) {
  Shape shape = plain_shape(bits, width);
  shape.has_offsets = true;
  return shape;
}
inline Shape shape_of(const Codec& codec) { return shape_of(bits_of(codec), codec.width); }

// A query whose largest magnitude is below counts as 0: the quotient would overflow.
constexpr float kLeastQuery = 0x1p-100f;

// What a group's scores need of its query beside its integers. Steps are of the integers' products
// with codes, half of that where middles are halves.
inline void store_group(
    const Shape& shape, uint32_t group, float step, int32_t sum, std::byte* prepared) {
  const int32_t factor = factor_of(shape.bits);
  const auto whole = static_cast<float>(factor);
  const auto offset = static_cast<int32_t>(middle_of(shape.bits) * whole);
  auto* steps = reinterpret_cast<float*>(prepared);
  steps[group] = step / whole;
  steps[shape.groups + group] = step * static_cast<float>(sum);
  const int32_t middles = offset * sum;
  std::memcpy(steps + 2 * shape.groups + group, &middles, sizeof(middles));
}

}  // namespace cairn::turbo_key
#endif

HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {

#if CAIRN_NO_SIMD

const RecordFunctions* turbo_key_table() { return nullptr; }

#else
namespace {

using namespace turbo_key;  // NOLINT: this file's own

template <uint32_t kBits>
struct Distance {  // code - middle
  HWY_INLINE V operator()(VI codes) const {
    return hn::Sub(hn::ConvertTo(d, codes), hn::Set(d, middle_of(kBits)));
  }
};
// The same of codes as bytes, for codes-inl.h.
template <uint32_t kBits>
struct DistanceBytes {
  static constexpr size_t kBytes = 1;
  template <class Tag>
  static HWY_INLINE hn::Vec<Tag> load(Tag tag, const std::byte* from) {
    return hn::Sub(hn::ConvertTo(tag, load_codes(tag, from)), hn::Set(tag, middle_of(kBits)));
  }
};

template <uint32_t kBits>
uint64_t encode(const Codec& codec, const float* x, const Records& out) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const V largest = hn::Set(d, kLargestF16), smallest = hn::Neg(largest);
  const V middle = hn::Set(d, middle_of(kBits)), top = hn::Add(middle, middle);
  constexpr uint32_t kVectors = kGroup / kLanes;
  uint64_t inside = 0;
  for (uint32_t p = out.first; p < out.first + out.count; ++p)
    for (uint32_t group = 0; group < codec.width / kGroup; ++group, x += kGroup) {
      V numbers[kVectors];
      V low = hn::Set(d, kInfinity), high = hn::Neg(low);
      for (uint32_t i = 0; i < kVectors; ++i) {
        const V raw = hn::LoadU(d, x + i * kLanes);
        const auto is_finite = hn::Lt(hn::Abs(raw), hn::Set(d, kInfinity));
        inside += hn::CountTrue(d, hn::Le(hn::Abs(raw), largest));
        const V number = hn::IfThenElseZero(hn::Eq(raw, raw), raw);
        numbers[i] = hn::Min(hn::Max(number, smallest), largest);
        low = hn::Min(low, hn::IfThenElse(is_finite, numbers[i], low));
        high = hn::Max(high, hn::IfThenElse(is_finite, numbers[i], high));
      }
      float least = hn::GetLane(hn::MinOfLanes(d, low));
      float most = hn::GetLane(hn::MaxOfLanes(d, high));
      if (least > most) least = most = 0;  // nothing finite
      const Scale scale = scale_of(least, most, middle_of(kBits));
      const V centre = hn::Set(d, scale.centre);
      const V divisor = hn::Set(d, scale.scale == 0 ? 1 : scale.scale);
      const hn::Rebind<uint8_t, D> d8;
      uint8_t codes[kGroup];
      for (uint32_t i = 0; i < kVectors; ++i) {
        const V number = hn::Min(hn::Max(numbers[i], hn::Set(d, least)), hn::Set(d, most));
        const V place = hn::Add(hn::Div(hn::Sub(number, centre), divisor), middle);
        const V code = hn::Min(hn::Max(place, hn::Zero(d)), top);
        hn::StoreU(hn::DemoteTo(d8, hn::NearestInt(code)), d8, codes + i * kLanes);
      }
      store_codes(out, p, group, kBits, codes);
      store_half(out, kScales, p, group, scale.scale_bits);
      store_half(out, kCentres, p, group, scale.centre_bits);
    }
  return uint64_t{out.count} * codec.width - inside;
}

template <uint32_t kBits>
void decode(const Codec& codec, const Records& in, float* x) {
  const uint32_t groups = codec.width / kGroup;
  for (uint32_t p = in.first; p < in.first + in.count; ++p, x += codec.width) {
    expand<kBits>(in, p, codec.width, Distance<kBits>(), x);
    for (uint32_t group = 0; group < groups; ++group) {
      const V scale = hn::Set(d, f32_from_f16(load_half(in, kScales, p, group)));
      const V centre = hn::Set(d, f32_from_f16(load_half(in, kCentres, p, group)));
      for (uint32_t i = 0; i < kGroup; i += kLanes) {
        float* number = x + group * kGroup + i;
        hn::StoreU(hn::MulAdd(hn::LoadU(d, number), scale, centre), d, number);
      }
    }
  }
}

void prepare(const Codec& codec, const float* query, std::byte* prepared) {
  const Shape shape = shape_of(codec);
  auto* integers = reinterpret_cast<int16_t*>(prepared + shape.query_offset());
  for (uint32_t g = 0; g < shape.groups; ++g, integers += shape.group_integers()) {
    const QueryGroup group = prepare_group(shape, query + g * kGroup, kLeastQuery, integers);
    store_group(shape, g, group.step, group.sum, prepared);
  }
}

void scores(const Codec& codec,
            const std::byte* prepared,
            uint32_t rows,
            const Records& in,
            float* out,
            size_t score_stride) {
  score_codes<true>(shape_of(codec), prepared, rows, in, out, score_stride,
                    factor_of(bits_of(codec)) == 2 ? 1 : 0);
}

template <uint32_t kBits>
void accumulate(const Codec& codec,
                const float* weights,
                size_t weight_stride,
                uint32_t rows,
                Pos first,
                const Records& in,
                float* partial) {
  add_codes<DistanceBytes<kBits>, true>(shape_of(codec), weights, weight_stride, rows, first, in,
                                        partial, codec.geometry.partial_floats);
}

void finish_block(const Codec& codec, uint32_t rows, float* partial) {
  finish_codes(shape_of(codec), rows, partial);
}

template <uint32_t kBits>
constexpr RecordFunctions kTableOf = {encode<kBits>,     decode<kBits>, prepare, scores,
                                      accumulate<kBits>, finish_block,  nullptr};

struct Tables {
  static constexpr auto finish_block = HWY_NAMESPACE::finish_block;
  static constexpr std::nullptr_t finish = nullptr;
  static const RecordFunctions& of(const Codec& codec) {
    switch (bits_of(codec)) {
      case 2:
        return kTableOf<2>;
      case 4:
        return kTableOf<4>;
      case 5:
        return kTableOf<5>;
      default:
        return kTableOf<8>;
    }
  }
};

}  // namespace

const RecordFunctions* turbo_key_table() { return &kByBits<Tables>; }

#endif

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cairn {
HWY_EXPORT(turbo_key_table);

namespace {

using namespace turbo_key;  // NOLINT: this file's own

// The scalar functions: they define every bit.

uint64_t encode_group(const float* x, uint32_t bits, uint8_t* codes, Scale& scale) {
  const float middle = middle_of(bits);
  float numbers[kGroup];
  float low = std::numeric_limits<float>::infinity(), high = -low;
  uint64_t outside = 0;
  for (uint32_t i = 0; i < kGroup; ++i) {
    outside += !(std::abs(x[i]) <= kLargestF16);
    numbers[i] = std::isnan(x[i]) ? 0.f : std::clamp(x[i], -kLargestF16, kLargestF16);
    if (!std::isfinite(x[i])) continue;
    low = std::min(low, numbers[i]);
    high = std::max(high, numbers[i]);
  }
  if (low > high) low = high = 0;  // nothing finite
  scale = scale_of(low, high, middle);
  const float divisor = scale.scale == 0 ? 1 : scale.scale;
  for (uint32_t i = 0; i < kGroup; ++i) {
    const float place = (std::clamp(numbers[i], low, high) - scale.centre) / divisor + middle;
    codes[i] = static_cast<uint8_t>(std::nearbyint(std::clamp(place, 0.f, 2 * middle)));
  }
  return outside;
}

uint64_t encode(const Codec& codec, const float* x, const Records& out) {
  uint64_t outside = 0;
  for (uint32_t p = out.first; p < out.first + out.count; ++p)
    for (uint32_t group = 0; group < codec.width / kGroup; ++group, x += kGroup) {
      uint8_t codes[kGroup];
      Scale scale;
      outside += encode_group(x, bits_of(codec), codes, scale);
      store_codes(out, p, group, bits_of(codec), codes);
      store_half(out, kScales, p, group, scale.scale_bits);
      store_half(out, kCentres, p, group, scale.centre_bits);
    }
  return outside;
}

struct Group {
  uint8_t codes[kGroup];
  float scale;
  float centre;
};
Group load_group(const Codec& codec, const Records& in, uint32_t position, uint32_t group) {
  Group g;
  load_codes(in, position, group, bits_of(codec), g.codes);
  g.scale = f32_from_f16(load_half(in, kScales, position, group));
  g.centre = f32_from_f16(load_half(in, kCentres, position, group));
  return g;
}

void decode(const Codec& codec, const Records& in, float* x) {
  const float middle = middle_of(bits_of(codec));
  for (uint32_t p = in.first; p < in.first + in.count; ++p)
    for (uint32_t group = 0; group < codec.width / kGroup; ++group) {
      const Group g = load_group(codec, in, p, group);
      for (const uint8_t code : g.codes) *x++ = std::fma(code - middle, g.scale, g.centre);
    }
}

void prepare(const Codec& codec, const float* query, std::byte* prepared) {
  const Shape shape = shape_of(codec);
  auto* numbers = reinterpret_cast<int16_t*>(prepared + shape.query_offset());
  for (uint32_t group = 0; group < shape.groups; ++group, query += kGroup, numbers += kGroup) {
    float largest = 0;
    bool is_finite = true;
    for (uint32_t i = 0; i < kGroup; ++i) {
      const float magnitude = std::abs(query[i]);
      is_finite &= magnitude <= std::numeric_limits<float>::max();
      largest = std::max(largest, magnitude);
    }
    const float inverse = is_finite && largest >= kLeastQuery ? kLargestQuery / largest : 0.f;
    int32_t sum = 0;
    for (uint32_t i = 0; i < kGroup; ++i) {
      const float number = is_finite ? std::nearbyint(query[i] * inverse) : 0.f;
      numbers[i] = static_cast<int16_t>(std::clamp(number, -kLargestQuery, kLargestQuery));
      sum += numbers[i];
    }
    const float step =
        is_finite ? largest / kLargestQuery : std::numeric_limits<float>::quiet_NaN();
    store_group(shape, group, step, sum, prepared);
  }
}

void scores(const Codec& codec,
            const std::byte* prepared,
            uint32_t rows,
            const Records& in,
            float* out,
            size_t score_stride) {
  const Shape shape = shape_of(codec);
  const int32_t factor = factor_of(shape.bits);
  for (uint32_t p = 0; p < in.count; ++p)
    for (uint32_t group = 0; group < shape.groups; ++group) {
      const Group g = load_group(codec, in, in.first + p, group);
      for (uint32_t row = 0; row < rows; ++row) {
        const std::byte* query = prepared + uint64_t{row} * codec.geometry.prepared_bytes;
        const auto* steps = reinterpret_cast<const float*>(query);
        const float* sums = steps + shape.groups;
        const auto* offsets = reinterpret_cast<const int32_t*>(sums + shape.groups);
        const auto* numbers =
            reinterpret_cast<const int16_t*>(query + shape.query_offset()) + group * kGroup;
        int32_t product = 0;
        for (uint32_t i = 0; i < kGroup; ++i) product += g.codes[i] * numbers[i];
        product = factor * product - offsets[group];
        const float f = steps[group] * static_cast<float>(product);
        float& score = out[row * score_stride + p];
        score = group == 0 ? g.centre * sums[0] : std::fma(g.centre, sums[group], score);
        score = std::fma(g.scale, f, score);
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
  const float middle = middle_of(bits_of(codec));
  for (uint32_t p = 0; p < in.count; ++p)
    for (uint32_t group = 0; group < codec.width / kGroup; ++group) {
      const Group g = load_group(codec, in, in.first + p, group);
      for (uint32_t row = 0; row < rows; ++row) {
        const float weight = weights[row * weight_stride + p], scaled = weight * g.scale;
        float* sums = partial + uint64_t{row} * codec.geometry.partial_floats;
        for (uint32_t i = 0; i < kGroup; ++i) {
          float& sum = sums[group * kGroup + i];
          sum = std::fma(g.codes[i] - middle, scaled, sum);
        }
        float& centres = sums[codec.width + group * codes::kSums + (first + p) % codes::kSums];
        centres = std::fma(weight, g.centre, centres);
      }
    }
}

void finish_block(const Codec& codec, uint32_t rows, float* partial) {
  codes::add_biases(shape_of(codec), rows, partial);
}

constexpr RecordFunctions kScalarTable = {encode,     decode,       prepare, scores,
                                          accumulate, finish_block, nullptr};

// The row.

constexpr std::string_view kName = "turbo-key";
constexpr uint32_t kBits[] = {2, 4, 5, 8};
constexpr std::string_view kSamples[] = {"turbo-key8", "turbo-key5", "turbo-key4", "turbo-key2"};

Result<Params> parse(std::string_view text) {
  return parse_bits(text, kName, kBits, "2, 4, 5 or 8");
}

std::string print(const Params& params) { return fmt::format("{}{}", kName, params.values[0]); }

Result<Geometry> geometry(const Params& params, uint32_t width) {
  CAIRN_TRY(check_width(kName, width));
  const auto bits = static_cast<uint32_t>(params.values[0]);
  const Shape shape = shape_of(bits, width);
  const auto halves = [&](std::string_view name) {
    return PlaneGeometry{.name = name,
                         .dtype = "F16",
                         .record_bytes = shape.groups * 2,
                         .word_bytes = 2,
                         .order = PlaneOrder::Words};
  };
  return Geometry{
      .planes = {{.name = "codes",
                  .dtype = "U32",
                  .record_bytes = width / 8 * bits,
                  .word_bytes = 4,
                  .order = shape.is_native() ? PlaneOrder::WordsIfScored : PlaneOrder::Records},
                 halves("scales"),
                 halves("centres")},
      // Half a scale, which f16 rounds up by up to 2^-10 of itself, or by 2^-24: while the vector's
      // largest magnitude is at least 2^-10, 2^-6 covers that and the rounding of f32.
      .error_bound = (1 + 0x1p-6) / (2 * double{middle_of(bits)}),
      // The 16-bit query, as in affine.cc; then two terms per group, of which the centre's can be
      // twice the group's largest number.
      .score_error = std::sqrt(1. * kGroup) * (257 + 5 * (2. * shape.groups + 9)),
      .prepared_bytes = shape.prepared_bytes(),
      .partial_floats = shape.partial_floats(),
  };
}

const RecordFunctions& functions() {
  return use_scalar() ? kScalarTable : *HWY_DYNAMIC_DISPATCH(turbo_key_table)();
}

}  // namespace

constinit const Encoding kTurboKey = {
    .id = {4},
    .name = kName,
    .parse = parse,
    .print = print,
    .samples = kSamples,
    .geometry = geometry,
    .functions = functions,
};

}  // namespace cairn
#endif  // HWY_ONCE
