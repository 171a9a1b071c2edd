// TurboQuant for values: rotate the vector, then give every number the nearest of 2^bits centroids
// that suit a unit normal, times the root mean square of its group of 32.
//
//   planes: codes (bits per number, packed), rms (one f16 per group)
//   number, rotated: centroid[code] * rms; the vector: signs * H(rotated)
//
// The rotation is H(signs * x), H the normalized Walsh-Hadamard transform. It is linear, so
// weighted sums are built from rotated numbers, and a row of output is turned back once. A width
// that is no power of two, or more than 512, is rotated by parts: the greatest powers of two first
// (96 = 64 + 32). Everything is in docs/numbers.md, "TurboQuant".
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "cairn/core/bytes.h"
#include "cairn/core/half.h"
#include "cairn/encodings/registry.h"
#include "cairn/encodings/turbo_codes.h"
#include "cairn/encodings/turbo_tables.h"
#include "cairn/kernels/dispatch.h"
#include "cairn/kernels/hadamard.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cairn/encodings/turbo_value.cc"
#include "cairn/kernels/simd.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

// After highway.h, which opens the target.
#include "cairn/encodings/turbo_codes-inl.h"

// What the definition and every target share.
#ifndef CAIRN_ENCODINGS_TURBO_VALUE_ONCE_
#define CAIRN_ENCODINGS_TURBO_VALUE_ONCE_
namespace cairn::turbo_value {
using namespace turbo;  // NOLINT: of the same family of files

constexpr size_t kRms = 1;  // plane
constexpr float kTiny = 1e-8f;
constexpr uint32_t kSquareSums = 16;  // partial sums of squares, by element mod 16

// The width of the part that begins a vector of `width` numbers.
inline uint32_t first_part(uint32_t width) { return std::min(kMaxRotation, std::bit_floor(width)); }

inline void flip_signs(float* x, uint32_t width) {
  const uint32_t* signs = signs_of(width);
  for (uint32_t i = 0; i < width; ++i) {
    uint32_t bits;
    std::memcpy(&bits, x + i, sizeof(bits));
    bits ^= signs[i];
    std::memcpy(x + i, &bits, sizeof(bits));
  }
}

inline void rotate(float* x, uint32_t width) {
  for (uint32_t part; width != 0; x += part, width -= part) {
    part = first_part(width);
    flip_signs(x, part);
    hadamard(x, part);
  }
}

inline void rotate_back(float* x, uint32_t width) {
  for (uint32_t part; width != 0; x += part, width -= part) {
    part = first_part(width);
    hadamard(x, part);
    flip_signs(x, part);
  }
}

// What is rotated in place of x: numbers that are not finite as 0, because they would spread over
// the whole vector; others no larger than f16's. Returns how many were changed.
inline uint64_t tame(const float* x, uint32_t width, float* tamed) {
  uint64_t inside = 0;
  for (uint32_t i = 0; i < width; ++i) {
    const float magnitude = std::abs(x[i]);
    inside += magnitude <= kLargestF16;
    const float number = magnitude <= std::numeric_limits<float>::max() ? x[i] : 0.f;
    tamed[i] = std::min(std::max(number, -kLargestF16), kLargestF16);
  }
  return width - inside;
}

struct Rms {
  uint16_t bits;
  float value;       // before it is rounded to f16
  uint64_t outside;  // how many numbers it is too large for
};
inline Rms rms_of(float sum_of_squares) {
  const float rms = std::sqrt(sum_of_squares * (1.f / kGroup));
  const bool fits = rms <= kLargestF16;
  const float value = fits ? rms : kLargestF16;
  return {f16_from_f32(value), value, fits ? 0 : kGroup};
}

inline void prepare(const Codec& codec, const float* query, std::byte* prepared) {
  auto* to = reinterpret_cast<float*>(prepared);
  std::memcpy(to, query, codec.width * sizeof(float));
  rotate(to, codec.width);
}

inline void finish(const Codec& codec, float* output) { rotate_back(output, codec.width); }

}  // namespace cairn::turbo_value
#endif

HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {

#if CAIRN_NO_SIMD

const RecordFunctions* turbo_value_table() { return nullptr; }

#else
namespace {

using namespace turbo_value;  // NOLINT: this file's own

// Entry `index` of table[kSize] in every lane; a whole vector can be read there.
template <size_t kSize, class Tag, class Index>
HWY_INLINE hn::Vec<Tag> look_up(Tag tag, const float* table, Index index) {
  constexpr size_t kTagLanes = hn::MaxLanes(Tag());
  const hn::Rebind<int32_t, Tag> integers;
  if constexpr (kSize <= kTagLanes) {
    return hn::TableLookupLanes(hn::LoadU(tag, table), hn::IndicesFromVec(tag, index));
  } else if constexpr (kSize <= 4 * kTagLanes) {
    // Half of the table each, and the upper one where the index says so.
    constexpr size_t kHalf = kSize / 2;
    const auto last = hn::Set(integers, static_cast<int32_t>(kHalf - 1));
    const auto within = hn::And(index, last);
    const auto low = look_up<kHalf>(tag, table, within);
    const auto high = look_up<kHalf>(tag, table + kHalf, within);
    return hn::IfThenElse(hn::RebindMask(tag, hn::Gt(index, last)), high, low);
  } else {
    return hn::GatherIndex(tag, table, index);
  }
}

template <uint32_t kBits>
struct Centroid {
  HWY_INLINE V operator()(VI codes) const {
    return look_up<Table<kBits>::kCodes>(d, kTable<kBits>.centroids, codes);
  }
};
// The same of codes as bytes, for codes-inl.h.
template <uint32_t kBits>
struct CentroidBytes {
  static constexpr size_t kBytes = 1;
  template <class Tag>
  static HWY_INLINE hn::Vec<Tag> load(Tag tag, const std::byte* from) {
    return look_up<Table<kBits>::kCodes>(tag, kTable<kBits>.centroids, load_codes(tag, from));
  }
};

// The same of packed codes, where vectors look them up at once.
template <uint32_t kBitCount>
struct PackedCentroids {
  static constexpr size_t kBits = kBitCount;
  template <class Tag>
  static HWY_INLINE hn::Vec<Tag> load(Tag tag, const std::byte* from) {
    static constexpr RepeatedTable<kBits> kCentroids{
        [](uint32_t code) { return kTable<kBits>.centroids[code]; }};
    const hn::Rebind<uint32_t, Tag> words;
    return look_up_bits<kBits>(tag, kCentroids.numbers, spread_bits<kBits>(words, from));
  }
};
template <uint32_t kBits>
using Packed =
    std::conditional_t<kLooksUpBits<kBits>, PackedCentroids<kBits>, CentroidBytes<kBits> >;

// How many boundaries are less than u: each bit of the answer is a comparison.
template <uint32_t kBits>
HWY_INLINE VI codes_of(V u) {
  VI code = hn::Zero(di);
  for (int32_t step = 1 << (kBits - 1); step != 0; step /= 2) {
    const VI next = hn::Add(code, hn::Set(di, step));
    const VI asked = hn::Sub(next, hn::Set(di, 1));
    const V boundary = look_up<Table<kBits>::kCodes>(d, kTable<kBits>.boundaries, asked);
    code = hn::IfThenElse(hn::RebindMask(di, hn::Gt(u, boundary)), next, code);
  }
  return code;
}

// Sixteen partial sums, by element mod 16, halved until one is left.
HWY_INLINE float sum_of_squares(const float* y) {
  alignas(64) float sums[kSquareSums];
  for (uint32_t i = 0; i < kSquareSums; i += kLanes) {
    const V first = hn::LoadU(d, y + i), second = hn::LoadU(d, y + kSquareSums + i);
    hn::Store(hn::MulAdd(second, second, hn::Mul(first, first)), d, sums + i);
  }
  for (uint32_t half = kSquareSums / 2; half != 0; half /= 2)
    for (uint32_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  return sums[0];
}

template <uint32_t kBits>
uint64_t encode(const Codec& codec, const float* x, const Records& out) {
  alignas(64) float y[kMaxWidth];
  uint64_t outside = 0;
  for (uint32_t p = out.first; p < out.first + out.count; ++p, x += codec.width) {
    outside += tame(x, codec.width, y);
    rotate(y, codec.width);
    for (uint32_t group = 0; group < codec.width / kGroup; ++group) {
      const float* numbers = y + group * kGroup;
      const Rms rms = rms_of(sum_of_squares(numbers));
      outside += rms.outside;
      const V divisor = hn::Set(d, rms.value + kTiny);
      const hn::Rebind<uint8_t, D> d8;
      uint8_t codes[kGroup];
      for (uint32_t i = 0; i < kGroup; i += kLanes) {
        const VI code = codes_of<kBits>(hn::Div(hn::Load(d, numbers + i), divisor));
        hn::StoreU(hn::DemoteTo(d8, code), d8, codes + i);
      }
      store_codes(out, p, group, kBits, codes);
      store_half(out, kRms, p, group, rms.bits);
    }
  }
  return outside;
}

template <uint32_t kBits>
void decode(const Codec& codec, const Records& in, float* x) {
  for (uint32_t p = in.first; p < in.first + in.count; ++p, x += codec.width) {
    expand<kBits>(in, p, codec.width, Centroid<kBits>(), x);
    for (uint32_t group = 0; group < codec.width / kGroup; ++group) {
      const V rms = hn::Set(d, f32_from_f16(load_half(in, kRms, p, group)));
      for (uint32_t i = group * kGroup; i < (group + 1) * kGroup; i += kLanes)
        hn::StoreU(hn::Mul(hn::LoadU(d, x + i), rms), d, x + i);
    }
    rotate_back(x, codec.width);
  }
}

template <uint32_t kBits>
void scores(const Codec& codec,
            const std::byte* prepared,
            uint32_t rows,
            const Records& in,
            float* out,
            size_t score_stride) {
  const uint32_t width = codec.width, groups = width / kGroup;
  const size_t query_stride = codec.geometry.prepared_bytes / sizeof(float);
  alignas(64) float numbers[kTurned * kMaxWidth], turned[kTurned * kMaxWidth];
  alignas(64) float scales[kMaxGroups][kTurned];
  alignas(64) float sums[kRowsAtOnce][kTurned], products[kRowsAtOnce][kTurned];
  for (uint32_t p = 0; p < in.count; p += kTurned) {
    const uint32_t count = std::min(kTurned, in.count - p);
    for (uint32_t i = 0; i < count; ++i)
      expand<kBits>(in, in.first + p + i, width, Centroid<kBits>(), numbers + i * width);
    turn(numbers, count, width, turned);
    load_halves(in, kRms, in.first + p, count, groups, scales);
    for (uint32_t row = 0; row < rows; row += kRowsAtOnce) {
      const uint32_t row_count = std::min(kRowsAtOnce, rows - row);
      std::memset(sums, 0, row_count * sizeof(sums[0]));
      for (uint32_t group = 0; group < groups; ++group) {
        const Product product{
            .a = reinterpret_cast<const float*>(prepared) + row * query_stride + group * kGroup,
            .a_stride = query_stride,
            .rows = row_count,
            .b = reinterpret_cast<const std::byte*>(turned + group * kGroup * kTurned),
            .b_stride = kTurned * sizeof(float),
            .steps = kGroup,
            .next = nullptr,
            .c = products[0],
            .c_stride = kTurned,
            .from_zero = true};
        multiply<Floats>(d, product, 0, kTurned);
        for (uint32_t r = 0; r < row_count; ++r)
          for (uint32_t i = 0; i < kTurned; i += kLanes)
            hn::Store(hn::MulAdd(hn::Load(d, scales[group] + i), hn::Load(d, products[r] + i),
                                 hn::Load(d, sums[r] + i)),
                      d, sums[r] + i);
      }
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
                Pos first,
                const Records& in,
                float* partial) {
  add_codes<CentroidBytes<kBits>, false, Packed<kBits> >(plain_shape(kBits, codec.width), weights,
                                                         weight_stride, rows, first, in, partial,
                                                         codec.geometry.partial_floats);
}

template <uint32_t kBits>
constexpr RecordFunctions kTableOf = {encode<kBits>,     decode<kBits>, prepare, scores<kBits>,
                                      accumulate<kBits>, nullptr,       finish};

struct Tables {
  static constexpr std::nullptr_t finish_block = nullptr;
  static constexpr auto finish = turbo_value::finish;
  static const RecordFunctions& of(const Codec& codec) {
    switch (bits_of(codec)) {
      case 2:
        return kTableOf<2>;
      case 3:
        return kTableOf<3>;
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

const RecordFunctions* turbo_value_table() { return &kByBits<Tables>; }

#endif

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cairn {
HWY_EXPORT(turbo_value_table);

namespace {

using namespace turbo_value;  // NOLINT: this file's own

// The scalar functions: they define every bit.

struct Entries {
  std::span<const float> centroids;
  std::span<const float> boundaries;
};
template <uint32_t kBits>
Entries entries() {
  constexpr const Table<kBits>& table = kTable<kBits>;
  return {std::span(table.centroids).first(table.kCodes),
          std::span(table.boundaries).first(table.kCodes - 1)};
}
Entries table_of(uint32_t bits) {
  switch (bits) {
    case 2:
      return entries<2>();
    case 3:
      return entries<3>();
    case 4:
      return entries<4>();
    case 5:
      return entries<5>();
    default:
      return entries<8>();
  }
}

uint8_t code_of(float u, std::span<const float> boundaries) {
  return static_cast<uint8_t>(std::lower_bound(boundaries.begin(), boundaries.end(), u) -
                              boundaries.begin());
}

float sum_of_squares(const float* y) {
  float sums[kSquareSums];
  for (uint32_t i = 0; i < kSquareSums; ++i)
    sums[i] = std::fma(y[kSquareSums + i], y[kSquareSums + i], y[i] * y[i]);
  for (uint32_t half = kSquareSums / 2; half != 0; half /= 2)
    for (uint32_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  return sums[0];
}

uint64_t encode(const Codec& codec, const float* x, const Records& out) {
  const Entries table = table_of(bits_of(codec));
  float y[kMaxWidth];
  uint64_t outside = 0;
  for (uint32_t p = out.first; p < out.first + out.count; ++p, x += codec.width) {
    outside += tame(x, codec.width, y);
    rotate(y, codec.width);
    for (uint32_t group = 0; group < codec.width / kGroup; ++group) {
      const float* numbers = y + group * kGroup;
      const Rms rms = rms_of(sum_of_squares(numbers));
      outside += rms.outside;
      uint8_t codes[kGroup];
      for (uint32_t i = 0; i < kGroup; ++i)
        codes[i] = code_of(numbers[i] / (rms.value + kTiny), table.boundaries);
      store_codes(out, p, group, bits_of(codec), codes);
      store_half(out, kRms, p, group, rms.bits);
    }
  }
  return outside;
}

// One group, rotated: the centroids of its codes, and its rms.
struct Group {
  float centroids[kGroup];
  float rms;
};
Group load_group(const Codec& codec, const Records& in, uint32_t position, uint32_t group) {
  const Entries table = table_of(bits_of(codec));
  uint8_t codes[kGroup];
  load_codes(in, position, group, bits_of(codec), codes);
  Group g;
  for (uint32_t i = 0; i < kGroup; ++i) g.centroids[i] = table.centroids[codes[i]];
  g.rms = f32_from_f16(load_half(in, kRms, position, group));
  return g;
}

void decode(const Codec& codec, const Records& in, float* x) {
  for (uint32_t p = in.first; p < in.first + in.count; ++p, x += codec.width) {
    for (uint32_t group = 0; group < codec.width / kGroup; ++group) {
      const Group g = load_group(codec, in, p, group);
      for (uint32_t i = 0; i < kGroup; ++i) x[group * kGroup + i] = g.centroids[i] * g.rms;
    }
    rotate_back(x, codec.width);
  }
}

void scores(const Codec& codec,
            const std::byte* prepared,
            uint32_t rows,
            const Records& in,
            float* out,
            size_t score_stride) {
  const size_t query_stride = codec.geometry.prepared_bytes / sizeof(float);
  for (uint32_t p = 0; p < in.count; ++p) {
    for (uint32_t row = 0; row < rows; ++row) out[row * score_stride + p] = 0;
    for (uint32_t group = 0; group < codec.width / kGroup; ++group) {
      const Group g = load_group(codec, in, in.first + p, group);
      for (uint32_t row = 0; row < rows; ++row) {
        const float* query =
            reinterpret_cast<const float*>(prepared) + row * query_stride + group * kGroup;
        float product = 0;
        for (uint32_t i = 0; i < kGroup; ++i) product = std::fma(g.centroids[i], query[i], product);
        float& score = out[row * score_stride + p];
        score = std::fma(g.rms, product, score);
      }
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
  for (uint32_t p = 0; p < in.count; ++p)
    for (uint32_t group = 0; group < codec.width / kGroup; ++group) {
      const Group g = load_group(codec, in, in.first + p, group);
      for (uint32_t row = 0; row < rows; ++row) {
        const float scaled = weights[row * weight_stride + p] * g.rms;
        float* sums = partial + uint64_t{row} * codec.geometry.partial_floats + group * kGroup;
        for (uint32_t i = 0; i < kGroup; ++i) sums[i] = std::fma(g.centroids[i], scaled, sums[i]);
      }
    }
}

constexpr RecordFunctions kScalarTable = {encode,     decode,  prepare, scores,
                                          accumulate, nullptr, finish};

// The row.

constexpr std::string_view kName = "turbo-value";
constexpr uint32_t kBits[] = {2, 3, 4, 5, 8};
constexpr std::string_view kSamples[] = {"turbo-value8", "turbo-value5", "turbo-value4",
                                         "turbo-value3", "turbo-value2"};

// The largest |u' - u| / |u| of a group u of 32 numbers whose mean square is 1, u' their centroids,
// as vectors: min over t of (t + max over |u_i| <= sqrt(32) of (u'_i - u_i)^2 - t u_i^2), rounded
// up. Reached by spikes, far from what a normal vector meets.
constexpr double kWorst[] = {0, 0, 0.8580, 0.6651, 0.5347, 0.4334, 0, 0, 0.2336};

Result<Params> parse(std::string_view text) {
  return parse_bits(text, kName, kBits, "2, 3, 4, 5 or 8");
}

std::string print(const Params& params) { return fmt::format("{}{}", kName, params.values[0]); }

Result<Geometry> geometry(const Params& params, uint32_t width) {
  CAIRN_TRY(check_width(kName, width));
  const auto bits = static_cast<uint32_t>(params.values[0]);
  return Geometry{
      .planes =
          {{.name = "codes", .dtype = "U32", .record_bytes = width / 8 * bits, .word_bytes = 4},
           {.name = "rms",
            .dtype = "F16",
            .record_bytes = width / kGroup * 2,
            .word_bytes = 2,
            .order = PlaneOrder::Words}},
      // One number can take all of its part's error, whose norm the rotation keeps, and the part's
      // norm is at most sqrt(width) times its largest number. 2^-10 covers the rounding of rms and
      // f32, while the vector's largest magnitude is at least 2^-10.
      .error_bound = (kWorst[bits] + 0x1p-10) * std::sqrt(static_cast<double>(first_part(width))),
      // A chain per group, one over the groups, and the rotations of query and key, of at most
      // nine stages each.
      .score_error = 72 + 1. * width / kGroup,
      .prepared_bytes = static_cast<uint32_t>(round_up(uint64_t{width} * sizeof(float), 64)),
      .partial_floats = width,
  };
}

const RecordFunctions& functions() {
  return use_scalar() ? kScalarTable : *HWY_DYNAMIC_DISPATCH(turbo_value_table)();
}

}  // namespace

constinit const Encoding kTurboValue = {
    .id = {5},
    .name = kName,
    .parse = parse,
    .print = print,
    .samples = kSamples,
    .geometry = geometry,
    .functions = functions,
};

}  // namespace cairn
#endif  // HWY_ONCE
