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
#include "cairn/encodings/turbo_codes-inl.h"

// What the definition and every target share.
#ifndef CAIRN_ENCODINGS_TURBO_KEY_ONCE_
#define CAIRN_ENCODINGS_TURBO_KEY_ONCE_
namespace cairn::turbo_key {
using namespace turbo;  // NOLINT: of the same family of files

constexpr size_t kScales = 1;  // planes
constexpr size_t kCentres = 2;
constexpr uint32_t kSums = 16;  // partial sums of weight * centre, by position mod 16

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

// A query as integers of 16 bits per group, [group][pair], number i in the lower half of pair i and
// number i + 16 in the upper; then per group the step of its integers (half of it where middles are
// halves), the sum of its numbers, and what to take from an integer product.
struct Query {
  int32_t* pairs;
  float* steps;
  float* sums;
  int32_t* offsets;
};
constexpr uint32_t kPairs = kGroup / 2;
constexpr float kLargestInteger = 32639.f;  // 127 * 256 + 127: two signed bytes hold it

inline uint32_t query_bytes(uint32_t groups) {
  return static_cast<uint32_t>(round_up(uint64_t{groups} * (kPairs + 3) * sizeof(int32_t), 64));
}
inline Query query_at(std::byte* prepared, uint32_t groups) {
  auto* pairs = reinterpret_cast<int32_t*>(prepared);
  auto* steps = reinterpret_cast<float*>(pairs + groups * kPairs);
  return {pairs, steps, steps + groups, reinterpret_cast<int32_t*>(steps + 2 * groups)};
}
inline Query query_at(const std::byte* prepared, uint32_t groups) {
  return query_at(const_cast<std::byte*>(prepared), groups);
}

// Twice the distance from the middle is a whole number below 8 bits, the distance itself at 8.
constexpr int32_t factor_of(uint32_t bits) { return bits == 8 ? 1 : 2; }

inline void prepare(const Codec& codec, const float* query, std::byte* prepared) {
  const uint32_t groups = codec.width / kGroup, bits = bits_of(codec);
  const auto factor = static_cast<float>(factor_of(bits));
  const auto offset = static_cast<int32_t>(middle_of(bits) * factor);
  const Query to = query_at(prepared, groups);
  for (uint32_t group = 0; group < groups; ++group, query += kGroup) {
    float largest = 0;
    bool is_finite = true;
    for (uint32_t i = 0; i < kGroup; ++i) {
      const float magnitude = std::abs(query[i]);
      is_finite &= magnitude <= std::numeric_limits<float>::max();
      largest = std::max(largest, magnitude);
    }
    // Below 2^-100 a query counts as 0: the quotient would overflow.
    const float inverse = is_finite && largest >= 0x1p-100f ? kLargestInteger / largest : 0.f;
    int32_t integers[kGroup], sum = 0;
    for (uint32_t i = 0; i < kGroup; ++i) {
      constexpr float kRound = 12582912.f;  // 1.5 * 2^23: a sum with it has no fraction
      const float scaled = is_finite ? query[i] * inverse : 0.f;
      const float whole = std::clamp(scaled + kRound - kRound, -kLargestInteger, kLargestInteger);
      integers[i] = static_cast<int32_t>(whole);
      sum += integers[i];
    }
    for (uint32_t i = 0; i < kPairs; ++i)
      to.pairs[group * kPairs + i] =
          static_cast<int32_t>((static_cast<uint32_t>(integers[i]) & 0xffff) |
                               static_cast<uint32_t>(integers[i + kPairs]) << 16);
    const float step =
        is_finite ? largest / kLargestInteger : std::numeric_limits<float>::quiet_NaN();
    to.steps[group] = step / factor;
    to.sums[group] = step * static_cast<float>(sum);
    to.offsets[group] = offset * sum;
  }
}

// Adds the block's sums of weight * centre, kept behind the row's numbers.
inline void finish_block(const Codec& codec, uint32_t rows, float* partial) {
  const uint32_t groups = codec.width / kGroup;
  for (uint32_t row = 0; row < rows; ++row, partial += codec.geometry.partial_floats)
    for (uint32_t group = 0; group < groups; ++group) {
      float sums[kSums];
      std::memcpy(sums, partial + codec.width + group * kSums, sizeof(sums));
      for (uint32_t half = kSums / 2; half != 0; half /= 2)
        for (uint32_t i = 0; i < half; ++i) sums[i] += sums[i + half];
      for (uint32_t i = 0; i < kGroup; ++i) partial[group * kGroup + i] += sums[0];
    }
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

// Scores: lanes are positions.

// Columns of positions: word (or group) w of a position at data + w * stride.
struct Columns {
  const std::byte* planes[3];
  size_t strides[3];
};

// Half-words h and h + kBits of every position's group, the latter above: codes i and i + 16 lie at
// the same bits of both.
template <uint32_t kBits, size_t kHalf>
HWY_INLINE VI halves(const VI* words) {
  const VI lower = words[kHalf / 2], upper = words[(kHalf + kBits) / 2];
  const VI low =
      kHalf % 2 == 0
          ? hn::And(lower, hn::Set(di, 0xffff))
          : hn::BitCast(di, hn::ShiftRight<16>(hn::BitCast(hn::RebindToUnsigned<DI>(), lower)));
  const VI high =
      (kHalf + kBits) % 2 == 0 ? hn::ShiftLeft<16>(upper) : hn::AndNot(hn::Set(di, 0xffff), upper);
  return hn::Or(low, high);
}

// Codes i and i + 16, one in each half of a lane.
template <uint32_t kBits, size_t kCode>
HWY_INLINE VI code_pair(const VI* halves) {
  const hn::RebindToUnsigned<DI> du;
  constexpr size_t kHalf = kCode * kBits / 16;
  constexpr int kShift = kCode * kBits % 16;
  constexpr uint32_t kBoth = 0x10001;
  const auto shifted = hn::ShiftRight<kShift>(hn::BitCast(du, halves[kHalf]));
  if constexpr (kShift + kBits <= 16) {
    return hn::BitCast(di, hn::And(shifted, hn::Set(du, ((1u << kBits) - 1) * kBoth)));
  } else {
    constexpr int kLow = 16 - kShift;  // bits in this half-word; the others begin the next
    const auto low = hn::And(shifted, hn::Set(du, ((1u << kLow) - 1) * kBoth));
    const auto rest = hn::And(hn::BitCast(du, halves[kHalf + 1]),
                              hn::Set(du, ((1u << (kBits - kLow)) - 1) * kBoth));
    return hn::BitCast(di, hn::Or(low, hn::ShiftLeft<kLow>(rest)));
  }
}

template <uint32_t kBits, size_t... kHalf, size_t... kCode>
HWY_INLINE void code_pairs(const VI* words,
                           VI* pairs,
                           std::index_sequence<kHalf...>,
                           std::index_sequence<kCode...>) {
  const VI all_halves[] = {halves<kBits, kHalf>(words)...};
  ((pairs[kCode] = code_pair<kBits, kCode>(all_halves)), ...);
}

// sum + the products of the lanes' lower halves + those of their upper halves.
HWY_INLINE VI add_products(VI codes, VI query, VI sum) {
#if HWY_ARCH_X86  // where pairs stay in their lane
  const hn::Repartition<int16_t, DI> d16;
  VI unused = hn::Zero(di);
  return hn::ReorderWidenMulAccumulate(di, hn::BitCast(d16, codes), hn::BitCast(d16, query), sum,
                                       unused);
#else
  const VI low =
      hn::Mul(hn::And(codes, hn::Set(di, 0xffff)), hn::ShiftRight<16>(hn::ShiftLeft<16>(query)));
  const VI high = hn::Mul(hn::ShiftRight<16>(codes), hn::ShiftRight<16>(query));
  return hn::Add(sum, hn::Add(low, high));
#endif
}

// scores[row][lane] of kLanes positions.
template <uint32_t kBits>
HWY_INLINE void score_lanes(const std::byte* prepared,
                            size_t prepared_bytes,
                            uint32_t rows,
                            uint32_t groups,
                            const Columns& columns,
                            float (*scores)[kLanes]) {
  const hn::Rebind<hwy::float16_t, D> half;
  const auto load_plane = [&](size_t plane, uint32_t group) HWY_ATTR {
    const std::byte* from = columns.planes[plane] + group * columns.strides[plane];
    return hn::PromoteTo(d, hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(from)));
  };
  for (uint32_t group = 0; group < groups; ++group) {
    VI words[kBits], pairs[kPairs];
    for (uint32_t i = 0; i < kBits; ++i)
      words[i] = hn::LoadU(di, reinterpret_cast<const int32_t*>(
                                   columns.planes[0] + (group * kBits + i) * columns.strides[0]));
    code_pairs<kBits>(words, pairs, std::make_index_sequence<kBits>(),
                      std::make_index_sequence<kPairs>());
    const V scale = load_plane(kScales, group), centre = load_plane(kCentres, group);
    for (uint32_t row = 0; row < rows; ++row) {
      const Query query = query_at(prepared + row * prepared_bytes, groups);
      VI even = hn::Zero(di), odd = hn::Zero(di);
      for (uint32_t i = 0; i < kPairs; i += 2) {
        const int32_t* pair = query.pairs + group * kPairs + i;
        even = add_products(pairs[i], hn::Set(di, pair[0]), even);
        odd = add_products(pairs[i + 1], hn::Set(di, pair[1]), odd);
      }
      VI product = hn::Add(even, odd);
      if constexpr (factor_of(kBits) == 2) product = hn::Add(product, product);
      product = hn::Sub(product, hn::Set(di, query.offsets[group]));
      const V f = hn::Mul(hn::Set(d, query.steps[group]), hn::ConvertTo(d, product));
      const V sum = hn::Set(d, query.sums[group]);
      V score =
          group == 0 ? hn::Mul(centre, sum) : hn::MulAdd(centre, sum, hn::LoadU(d, scores[row]));
      score = hn::MulAdd(scale, f, score);
      hn::StoreU(score, d, scores[row]);
    }
  }
}

// A copy of up to kLanes positions as columns, for layouts that a kernel does not read directly and
// for pages that end too early.
template <uint32_t kBits>
struct Turned {
  alignas(64) uint32_t words[kMaxGroups * kBits][kLanes];
  alignas(64) uint16_t halves[2][kMaxGroups][kLanes];

  Columns fill(const Records& in, uint32_t position, uint32_t count, uint32_t groups) {
    for (uint32_t i = 0; i < count; ++i) {
      const std::byte* from = in.at(0, position + i);
      for (uint32_t word = 0; word < groups * kBits; ++word, from += in.planes[0].word_stride)
        std::memcpy(&words[word][i], from, sizeof(uint32_t));
      for (uint32_t group = 0; group < groups; ++group) {
        halves[0][group][i] = load_half(in, kScales, position + i, group);
        halves[1][group][i] = load_half(in, kCentres, position + i, group);
      }
    }
    const auto bytes = [](auto* data) { return reinterpret_cast<const std::byte*>(data); };
    return {{bytes(words), bytes(halves[0]), bytes(halves[1])},
            {sizeof(words[0]), sizeof(halves[0][0]), sizeof(halves[0][0])}};
  }
};

bool lies_by_words(const Records& in) {
  return in.planes[0].position_stride == sizeof(uint32_t) &&
         in.planes[kScales].position_stride == sizeof(uint16_t) &&
         in.planes[kCentres].position_stride == sizeof(uint16_t);
}

template <uint32_t kBits>
void scores(const Codec& codec,
            const std::byte* prepared,
            uint32_t rows,
            const Records& in,
            float* out,
            size_t score_stride) {
  const uint32_t groups = codec.width / kGroup;
  const size_t prepared_bytes = codec.geometry.prepared_bytes;
  const bool is_direct = lies_by_words(in);
  Turned<kBits> turned;
  std::memset(&turned, 0, in.count % kLanes == 0 ? 0 : sizeof(turned));
  float lanes[kRowsAtOnce][kLanes];
  for (uint32_t p = 0; p < in.count; p += kLanes) {
    const uint32_t position = in.first + p, count = std::min(kLanes, in.count - p);
    Columns columns;
    if (is_direct && position + kLanes <= in.capacity)
      for (size_t plane = 0; plane < 3; ++plane) {
        columns.planes[plane] = in.at(plane, position);
        columns.strides[plane] = in.planes[plane].word_stride;
      }
    else
      columns = turned.fill(in, position, count, groups);
    for (uint32_t row = 0; row < rows; row += kRowsAtOnce) {
      const uint32_t row_count = std::min(kRowsAtOnce, rows - row);
      score_lanes<kBits>(prepared + row * prepared_bytes, prepared_bytes, row_count, groups,
                         columns, lanes);
      for (uint32_t r = 0; r < row_count; ++r)
        std::memcpy(out + (row + r) * score_stride + p, lanes[r], count * sizeof(float));
    }
  }
}

// sums[position mod 16] <- fma(weight, centre, sums), for every row and group.
void add_centres(const Codec& codec,
                 const float* weights,
                 size_t weight_stride,
                 uint32_t rows,
                 Pos first,
                 const Records& in,
                 float* partial) {
  const uint32_t groups = codec.width / kGroup;
  alignas(64) float centres[kMaxGroups][kChunk];
  static_assert(kChunk == kSums);
  for (uint32_t p = 0; p < in.count;) {
    const auto lane = static_cast<uint32_t>((first + p) % kSums);
    const uint32_t count = std::min(kSums - lane, in.count - p);
    load_halves(in, kCentres, in.first + p, count, groups, centres);
    for (uint32_t row = 0; row < rows; ++row) {
      const float* weight = weights + row * weight_stride + p;
      float* sums = partial + row * codec.geometry.partial_floats + codec.width;
      for (uint32_t group = 0; group < groups; ++group, sums += kSums)
        if (count == kSums)
          for (uint32_t i = 0; i < kSums; i += kLanes)
            hn::StoreU(hn::MulAdd(hn::LoadU(d, weight + i), hn::Load(d, centres[group] + i),
                                  hn::LoadU(d, sums + i)),
                       d, sums + i);
        else
          for (uint32_t i = 0; i < count; ++i)
            sums[lane + i] = std::fma(weight[i], centres[group][i], sums[lane + i]);
    }
    p += count;
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
  add_weighted<kBits>(codec, weights, weight_stride, rows, in, Distance<kBits>(), partial);
  add_centres(codec, weights, weight_stride, rows, first, in, partial);
}

template <uint32_t kBits>
constexpr RecordFunctions kTableOf = {encode<kBits>,     decode<kBits>, prepare, scores<kBits>,
                                      accumulate<kBits>, finish_block,  nullptr};

struct Tables {
  static constexpr auto finish_block = turbo_key::finish_block;
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

void scores(const Codec& codec,
            const std::byte* prepared,
            uint32_t rows,
            const Records& in,
            float* out,
            size_t score_stride) {
  const uint32_t groups = codec.width / kGroup;
  const int32_t factor = factor_of(bits_of(codec));
  for (uint32_t p = 0; p < in.count; ++p)
    for (uint32_t group = 0; group < groups; ++group) {
      const Group g = load_group(codec, in, in.first + p, group);
      for (uint32_t row = 0; row < rows; ++row) {
        const Query query =
            query_at(prepared + uint64_t{row} * codec.geometry.prepared_bytes, groups);
        int32_t product = 0;
        for (uint32_t i = 0; i < kPairs; ++i) {
          const auto pair = static_cast<uint32_t>(query.pairs[group * kPairs + i]);
          product += g.codes[i] * static_cast<int16_t>(pair);
          product += g.codes[i + kPairs] * static_cast<int16_t>(pair >> 16);
        }
        product = factor * product - query.offsets[group];
        const float f = query.steps[group] * static_cast<float>(product);
        float& score = out[row * score_stride + p];
        score =
            group == 0 ? g.centre * query.sums[0] : std::fma(g.centre, query.sums[group], score);
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
        float& centres = sums[codec.width + group * kSums + (first + p) % kSums];
        centres = std::fma(weight, g.centre, centres);
      }
    }
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
  const uint32_t groups = width / kGroup;
  const auto halves = [&](std::string_view name) {
    return PlaneGeometry{.name = name,
                         .dtype = "F16",
                         .record_bytes = groups * 2,
                         .word_bytes = 2,
                         .words_first = true};
  };
  return Geometry{
      .planes = {{.name = "codes",
                  .dtype = "U32",
                  .record_bytes = width / 8 * bits,
                  .word_bytes = 4,
                  .words_first = true},
                 halves("scales"),
                 halves("centres")},
      // Half a scale, which f16 rounds up by up to 2^-10 of itself, or by 2^-24: while the vector's
      // largest magnitude is at least 2^-10, 2^-6 covers that and the rounding of f32.
      .error_bound = (1 + 0x1p-6) / (2 * double{middle_of(bits)}),
      .prepared_bytes = query_bytes(groups),
      .partial_floats = width + groups * kSums,
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
