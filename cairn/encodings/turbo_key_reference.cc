// TurboQuant for keys as first published in code: groups of 32 numbers, a scale and a zero point
// each. Kept to read what others wrote; turbo-key is the repaired form.
//
//   planes: codes (bits per number, packed; signed at 8 bits), scales and zeros (one f16 per group)
//   number: bf16((code + zero) * scale)
//
// The zero point is about centre / scale and is stored as f16: groups that lie far from 0 lose
// accuracy or decode to infinity, constant ones decode to NaN. That is the format; encode counts
// such groups' numbers.
#include <cmath>
#include <cstring>
#include <limits>

#include "cairn/core/bytes.h"
#include "cairn/core/half.h"
#include "cairn/encodings/registry.h"
#include "cairn/encodings/turbo_codes.h"
#include "cairn/kernels/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cairn/encodings/turbo_key_reference.cc"
#include "cairn/kernels/simd.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

// After highway.h, which opens the target.
#include "cairn/encodings/turbo_codes-inl.h"

// What the definition and every target share.
#ifndef CAIRN_ENCODINGS_TURBO_KEY_REFERENCE_ONCE_
#define CAIRN_ENCODINGS_TURBO_KEY_REFERENCE_ONCE_
namespace cairn::turbo_key_reference {
using namespace turbo;  // NOLINT: of the same family of files

using codes::kScales;
constexpr size_t kZeros = 2;  // plane
constexpr float kTiny = 1e-8f;

constexpr float lowest_code(uint32_t bits) { return bits == 8 ? -127.f : 0.f; }
constexpr float highest_code(uint32_t bits) {
  return bits == 8 ? 127.f : static_cast<float>((1u << bits) - 1);
}

struct Scale {
  uint16_t scale_bits;
  uint16_t zero_bits;
  float divisor;  // neither is rounded to f16 while encoding
  float zero;
  bool fits;
};

inline Scale scale_of(float low, float high, uint32_t bits) {
  const float scale = (high - low) / (bits == 8 ? 254.f : highest_code(bits));
  Scale s;
  s.divisor = scale + kTiny;
  const float ratio = bits == 8 ? (high + low) / (2 * s.divisor) : low / s.divisor;
  s.zero = std::nearbyint(ratio) + 0.f;  // + 0: never -0
  s.scale_bits = f16_from_f32(scale);
  s.zero_bits = f16_from_f32(s.zero);
  s.fits = std::isfinite(f32_from_f16(s.scale_bits)) && std::isfinite(f32_from_f16(s.zero_bits));
  return s;
}

inline void prepare(const Codec& codec, const float* query, std::byte* prepared) {
  std::memcpy(prepared, query, codec.width * sizeof(float));
}

}  // namespace cairn::turbo_key_reference
#endif

HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {

#if CAIRN_NO_SIMD

const RecordFunctions* turbo_key_reference_table() { return nullptr; }

#else
namespace {

using namespace turbo_key_reference;  // NOLINT: this file's own

template <uint32_t kBits>
struct Code {
  HWY_INLINE V operator()(VI codes) const {
    if constexpr (kBits == 8) codes = hn::ShiftRight<24>(hn::ShiftLeft<24>(codes));
    return hn::ConvertTo(d, codes);
  }
};

template <uint32_t kBits>
uint64_t encode(const Codec& codec, const float* x, const Records& out) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr uint32_t kVectors = kGroup / kLanes;
  uint64_t outside = 0;
  for (uint32_t p = out.first; p < out.first + out.count; ++p)
    for (uint32_t group = 0; group < codec.width / kGroup; ++group, x += kGroup) {
      V numbers[kVectors];
      V low = hn::Set(d, kInfinity), high = hn::Neg(low);
      uint64_t finite = 0;
      for (uint32_t i = 0; i < kVectors; ++i) {
        const V raw = hn::LoadU(d, x + i * kLanes);
        const auto is_finite = hn::Lt(hn::Abs(raw), hn::Set(d, kInfinity));
        finite += hn::CountTrue(d, is_finite);
        numbers[i] = hn::IfThenElseZero(hn::Eq(raw, raw), raw);
        low = hn::Min(low, hn::IfThenElse(is_finite, raw, low));
        high = hn::Max(high, hn::IfThenElse(is_finite, raw, high));
      }
      float least = hn::GetLane(hn::MinOfLanes(d, low));
      float most = hn::GetLane(hn::MaxOfLanes(d, high));
      if (least > most) least = most = 0;  // nothing finite
      const Scale scale = scale_of(least, most, kBits);
      outside += scale.fits ? kGroup - finite : kGroup;
      const hn::Rebind<uint8_t, D> d8;
      uint8_t codes[kGroup];
      for (uint32_t i = 0; i < kVectors; ++i) {
        const V number = hn::Min(hn::Max(numbers[i], hn::Set(d, least)), hn::Set(d, most));
        const V place = hn::Sub(hn::Div(number, hn::Set(d, scale.divisor)), hn::Set(d, scale.zero));
        const V known = hn::IfThenElseZero(hn::Eq(place, place), place);
        const V code = hn::Min(hn::Max(known, hn::Set(d, lowest_code(kBits))),
                               hn::Set(d, highest_code(kBits)));
        const VI byte = hn::And(hn::NearestInt(code), hn::Set(di, 0xff));
        hn::StoreU(hn::DemoteTo(d8, byte), d8, codes + i * kLanes);
      }
      store_codes(out, p, group, kBits, codes);
      store_half(out, kScales, p, group, scale.scale_bits);
      store_half(out, kZeros, p, group, scale.zero_bits);
    }
  return outside;
}

HWY_INLINE V round_to_bf16(V x) {
  const hn::Rebind<uint32_t, D> du;
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto up = hn::Add(hn::Add(bits, hn::Set(du, 0x7fff)), odd);
  const V rounded = hn::BitCast(d, hn::And(up, hn::Set(du, 0xffff0000)));
  return hn::IfThenElse(hn::Eq(x, x), rounded, hn::BitCast(d, hn::Set(du, kNanF32)));
}

template <uint32_t kBits>
void decode_record(const Codec& codec, const Records& in, uint32_t position, float* x) {
  expand<kBits>(in, position, codec.width, Code<kBits>(), x);
  for (uint32_t group = 0; group < codec.width / kGroup; ++group) {
    const V scale = hn::Set(d, f32_from_f16(load_half(in, kScales, position, group)));
    const V zero = hn::Set(d, f32_from_f16(load_half(in, kZeros, position, group)));
    for (uint32_t i = group * kGroup; i < (group + 1) * kGroup; i += kLanes) {
      const V sum = hn::Add(hn::LoadU(d, x + i), zero);
      hn::StoreU(round_to_bf16(hn::Mul(sum, scale)), d, x + i);
    }
  }
}

template <uint32_t kBits>
void decode(const Codec& codec, const Records& in, float* x) {
  for (uint32_t p = in.first; p < in.first + in.count; ++p, x += codec.width)
    decode_record<kBits>(codec, in, p, x);
}

template <uint32_t kBits>
void scores(const Codec& codec,
            const std::byte* prepared,
            uint32_t rows,
            const Records& in,
            float* out,
            size_t score_stride) {
  const uint32_t width = codec.width;
  const size_t query_stride = codec.geometry.prepared_bytes / sizeof(float);
  alignas(64) float numbers[kTurned * kMaxWidth], turned[kTurned * kMaxWidth];
  alignas(64) float sums[kRowsAtOnce][kTurned];
  for (uint32_t p = 0; p < in.count; p += kTurned) {
    const uint32_t count = std::min(kTurned, in.count - p);
    for (uint32_t i = 0; i < count; ++i)
      decode_record<kBits>(codec, in, in.first + p + i, numbers + i * width);
    turn(numbers, count, width, turned);
    for (uint32_t row = 0; row < rows; row += kRowsAtOnce) {
      const uint32_t row_count = std::min(kRowsAtOnce, rows - row);
      const Product product{.a = reinterpret_cast<const float*>(prepared) + row * query_stride,
                            .a_stride = query_stride,
                            .rows = row_count,
                            .b = reinterpret_cast<const std::byte*>(turned),
                            .b_stride = kTurned * sizeof(float),
                            .steps = width,
                            .next = nullptr,
                            .c = sums[0],
                            .c_stride = kTurned,
                            .from_zero = true};
      multiply<Floats>(d, product, 0, kTurned);
      for (uint32_t r = 0; r < row_count; ++r)
        std::memcpy(out + (row + r) * score_stride + p, sums[r], count * sizeof(float));
    }
  }
}

template <uint32_t kBits>
void accumulate(const Codec& codec,
                const float* weights,
                size_t weight_stride,
                uint32_t rows,
                Pos,
                const Records& in,
                float* partial) {
  alignas(64) float numbers[kTurned * kMaxWidth];
  for (uint32_t p = 0; p < in.count; p += kTurned) {
    const uint32_t count = std::min(kTurned, in.count - p);
    for (uint32_t i = 0; i < count; ++i)
      decode_record<kBits>(codec, in, in.first + p + i, numbers + i * codec.width);
    const Product product{.a = weights + p,
                          .a_stride = weight_stride,
                          .rows = rows,
                          .b = reinterpret_cast<const std::byte*>(numbers),
                          .b_stride = codec.width * sizeof(float),
                          .steps = count,
                          .next = nullptr,
                          .c = partial,
                          .c_stride = codec.geometry.partial_floats,
                          .from_zero = false};
    multiply<Floats>(d, product, 0, codec.width);
  }
}

template <uint32_t kBits>
constexpr RecordFunctions kTableOf = {encode<kBits>,     decode<kBits>, prepare, scores<kBits>,
                                      accumulate<kBits>, nullptr,       nullptr};

struct Tables {
  static constexpr std::nullptr_t finish_block = nullptr;
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

const RecordFunctions* turbo_key_reference_table() { return &kByBits<Tables>; }

#endif

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cairn {
HWY_EXPORT(turbo_key_reference_table);

namespace {

using namespace turbo_key_reference;  // NOLINT: this file's own

// The scalar functions: they define every bit.

uint64_t encode_group(const float* x, uint32_t bits, uint8_t* codes, Scale& scale) {
  float low = std::numeric_limits<float>::infinity(), high = -low;
  uint64_t infinite = 0;
  for (uint32_t i = 0; i < kGroup; ++i) {
    infinite += !std::isfinite(x[i]);
    if (!std::isfinite(x[i])) continue;
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
  }
  if (low > high) low = high = 0;  // nothing finite
  scale = scale_of(low, high, bits);
  for (uint32_t i = 0; i < kGroup; ++i) {
    const float number = std::clamp(std::isnan(x[i]) ? 0.f : x[i], low, high);
    const float place = number / scale.divisor - scale.zero;
    const float known = std::isnan(place) ? 0.f : place;
    const float code = std::nearbyint(std::clamp(known, lowest_code(bits), highest_code(bits)));
    codes[i] = static_cast<uint8_t>(static_cast<int32_t>(code));
  }
  return scale.fits ? infinite : kGroup;
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
      store_half(out, kZeros, p, group, scale.zero_bits);
    }
  return outside;
}

void decode_record(const Codec& codec, const Records& in, uint32_t position, float* x) {
  const uint32_t bits = bits_of(codec);
  for (uint32_t group = 0; group < codec.width / kGroup; ++group) {
    uint8_t codes[kGroup];
    load_codes(in, position, group, bits, codes);
    const float scale = f32_from_f16(load_half(in, kScales, position, group));
    const float zero = f32_from_f16(load_half(in, kZeros, position, group));
    for (const uint8_t byte : codes) {
      const auto code = static_cast<float>(bits == 8 ? static_cast<int8_t>(byte) : byte);
      *x++ = f32_from_bf16(bf16_from_f32((code + zero) * scale));
    }
  }
}

void decode(const Codec& codec, const Records& in, float* x) {
  for (uint32_t p = 0; p < in.count; ++p)
    decode_record(codec, in, in.first + p, x + uint64_t{p} * codec.width);
}

void scores(const Codec& codec,
            const std::byte* prepared,
            uint32_t rows,
            const Records& in,
            float* out,
            size_t score_stride) {
  float numbers[kMaxWidth];
  for (uint32_t p = 0; p < in.count; ++p) {
    decode_record(codec, in, in.first + p, numbers);
    for (uint32_t row = 0; row < rows; ++row) {
      const auto* query =
          reinterpret_cast<const float*>(prepared + uint64_t{row} * codec.geometry.prepared_bytes);
      float score = 0;
      for (uint32_t i = 0; i < codec.width; ++i) score = std::fma(numbers[i], query[i], score);
      out[row * score_stride + p] = score;
    }
  }
}

void accumulate(const Codec& codec,
                const float* weights,
                size_t weight_stride,
                uint32_t rows,
                Pos,
                const Records& in,
                float* partial) {
  float numbers[kMaxWidth];
  for (uint32_t p = 0; p < in.count; ++p) {
    decode_record(codec, in, in.first + p, numbers);
    for (uint32_t row = 0; row < rows; ++row) {
      float* sums = partial + uint64_t{row} * codec.geometry.partial_floats;
      for (uint32_t i = 0; i < codec.width; ++i)
        sums[i] = std::fma(numbers[i], weights[row * weight_stride + p], sums[i]);
    }
  }
}

constexpr RecordFunctions kScalarTable = {encode,     decode,  prepare, scores,
                                          accumulate, nullptr, nullptr};

// The row.

constexpr std::string_view kName = "turbo-key-reference";
constexpr uint32_t kBits[] = {2, 4, 5, 8};
constexpr std::string_view kSamples[] = {"turbo-key-reference8", "turbo-key-reference5",
                                         "turbo-key-reference4", "turbo-key-reference2"};

Result<Params> parse(std::string_view text) {
  return parse_bits(text, kName, kBits, "2, 4, 5 or 8");
}

std::string print(const Params& params) { return fmt::format("{}{}", kName, params.values[0]); }

Result<Geometry> geometry(const Params& params, uint32_t width) {
  CAIRN_TRY(check_width(kName, width));
  const auto bits = static_cast<uint32_t>(params.values[0]);
  const uint32_t groups = width / kGroup;
  return Geometry{
      .planes = {{.name = "codes",
                  .dtype = bits == 8 ? "I8" : "U8",
                  .record_bytes = width / 8 * bits,
                  .word_bytes = 4},
                 {.name = "scales", .dtype = "F16", .record_bytes = groups * 2, .word_bytes = 2},
                 {.name = "zeros", .dtype = "F16", .record_bytes = groups * 2, .word_bytes = 2}},
      // A whole step (the zero point is rounded too), bf16, and f16 scales; for groups that spread
      // around 0 and whose largest magnitude is at least 2^-10. Others have no bound: see above.
      .error_bound = 2 / double{highest_code(bits) - lowest_code(bits)} + 0x1p-7,
      .score_error = width + 8.,  // one chain of fma, as in raw.cc
      .prepared_bytes = static_cast<uint32_t>(round_up(uint64_t{width} * sizeof(float), 64)),
      .partial_floats = width,
  };
}

const RecordFunctions& functions() {
  return use_scalar() ? kScalarTable : *HWY_DYNAMIC_DISPATCH(turbo_key_reference_table)();
}

}  // namespace

constinit const Encoding kTurboKeyReference = {
    .id = {6},
    .name = kName,
    .parse = parse,
    .print = print,
    .samples = kSamples,
    .geometry = geometry,
    .functions = functions,
};

}  // namespace cairn
#endif  // HWY_ONCE
