// The SIMD of scores of whole codes (codes.h): a query becomes 16-bit integers, which meet words of
// codes.
// Included once per target: between hwy/highway.h and the file's own HWY_NAMESPACE code.
#if defined(CAIRN_ENCODINGS_CODE_SCORES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CAIRN_ENCODINGS_CODE_SCORES_INL_H_
#undef CAIRN_ENCODINGS_CODE_SCORES_INL_H_
#else
#define CAIRN_ENCODINGS_CODE_SCORES_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "cairn/encodings/codes-inl.h"
#include "cairn/kernels/pairs-inl.h"
#include "hwy/highway.h"

#if !CAIRN_NO_SIMD
HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {
namespace {

// One shift and one mask take two codes out of a word, half a word apart: as pairs they meet the
// query. Puts a group's rounded numbers, whole words of them, in that order; writes whole eights.
HWY_INLINE void arrange_query(const Shape& shape, const int16_t* numbers, int16_t* to) {
  const hn::FixedTag<int16_t, 8> d;
  const hn::Repartition<uint8_t, decltype(d)> bytes;
  alignas(16) static constexpr uint8_t kPairsOf4[] = {0, 1, 4,  5,  2,  3,  6,  7,
                                                      8, 9, 12, 13, 10, 11, 14, 15};
  alignas(16) static constexpr uint8_t kPairsOf8[] = {0, 1, 8,  9,  2, 3, 10, 11,
                                                      4, 5, 12, 13, 6, 7, 14, 15};
  const uint32_t codes = shape.codes_in_word(), count = shape.group_integers();
  if (codes == 16) {
    for (uint32_t i = 0; i < count; i += 16) {
      const auto lower = hn::LoadU(d, numbers + i), upper = hn::LoadU(d, numbers + i + 8);
      hn::StoreU(hn::InterleaveLower(d, lower, upper), d, to + i);
      hn::StoreU(hn::InterleaveUpper(d, lower, upper), d, to + i + 8);
    }
    return;
  }
  const auto places = hn::Load(bytes, codes == 4 ? kPairsOf4 : kPairsOf8);
  for (uint32_t i = 0; i < count; i += 8) {
    const auto eight = hn::BitCast(bytes, hn::LoadU(d, numbers + i));
    hn::StoreU(hn::BitCast(d, hn::TableLookupBytes(eight, places)), d, to + i);
  }
}

// NaN where one of them is. `count`: a multiple of the lanes.
template <class D>
HWY_INLINE float largest_magnitude(D d, const float* x, uint32_t count) {
  const hn::RebindToSigned<D> integers;
  constexpr uint32_t kLanes = hn::MaxLanes(D());
  auto largest = hn::Zero(integers);  // bits of magnitudes are in the order of the magnitudes
  for (uint32_t i = 0; i < count; i += kLanes)
    largest = hn::Max(largest, hn::BitCast(integers, hn::Abs(hn::LoadU(d, x + i))));
  return std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(integers, largest)));
}

// The sum of the integers.
template <class D>
HWY_INLINE int32_t
round_query(D d, const float* x, uint32_t count, float inverse, int16_t* rounded) {
  const hn::RebindToSigned<D> integers;
  const hn::Rebind<int16_t, D> halves;
  constexpr uint32_t kLanes = hn::MaxLanes(D());
  const auto most = hn::Set(d, kLargestQuery);
  auto sum = hn::Zero(integers);
  for (uint32_t i = 0; i < count; i += kLanes) {
    const auto number = hn::Mul(hn::LoadU(d, x + i), hn::Set(d, inverse));
    const auto whole = hn::NearestInt(hn::Min(hn::Max(number, hn::Neg(most)), most));
    hn::StoreU(hn::DemoteTo(halves, whole), halves, rounded + i);
    sum = hn::Add(sum, whole);
  }
  return hn::GetLane(hn::SumOfLanes(integers, sum));
}

struct QueryGroup {
  float step;   // NaN where a number is not finite
  int32_t sum;  // of the integers
};

template <class D>
HWY_INLINE QueryGroup
prepare_group(D d, const Shape& shape, const float* x, float least, int16_t* integers) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float largest = largest_magnitude(d, x, shape.group);
  if (!(largest < kInfinity)) {
    std::memset(integers, 0, shape.group_integers() * sizeof(int16_t));
    return {std::numeric_limits<float>::quiet_NaN(), 0};
  }
  const float inverse = kLargestQuery / largest;
  const bool is_some = largest >= least && inverse < kInfinity;
  int16_t rounded[kMaxGroup];
  const int32_t sum = round_query(d, x, shape.group, is_some ? inverse : 0.f, rounded);
  for (uint32_t i = shape.group; i < shape.group_integers(); ++i) rounded[i] = 0;
  arrange_query(shape, rounded, integers);
  return {largest / kLargestQuery, sum};
}

// One group's integers, arranged. A query whose largest magnitude is below `least`, or too small to
// divide by, counts as 0.
HWY_INLINE QueryGroup prepare_group(const Shape& shape,
                                    const float* x,
                                    float least,
                                    int16_t* integers) {
  const hn::ScalableTag<float> whole;
  const hn::CappedTag<float, 8> eight;
  if (shape.group % hn::Lanes(whole) == 0) return prepare_group(whole, shape, x, least, integers);
  return prepare_group(eight, shape, x, least, integers);
}

// A chunk of keys as [word][position], and its scales and biases as [group][position].
struct Keys {
  const std::byte* words;
  size_t word_stride;     // bytes
  const std::byte* next;  // the same words of what is read next; null: unknown
  size_t count;           // of positions, to a whole vector
  int share_shift;        // 1: rows take two tiles, each of which asks for half of what is next
  alignas(64) float scales[kMaxGroups * kChunk];
  alignas(64) float biases[kMaxGroups * kChunk];
};

struct Scored {
  const std::byte* prepared;
  size_t prepared_bytes, query_offset, groups, group_words;  // of the shape
  int shift;  // of an integer product before its offset is taken off
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

// Asks for the keys that are read next, a little with every word that a tile reads: in ascending
// order, whatever order the tile reads, as in tile-inl.h. In registers from tile to tile.
struct Lines {
  const std::byte* row;  // null: nothing to ask for
  size_t column;

  template <size_t kBytes>
  HWY_INLINE void ask(const Keys& keys) {
    if (row == nullptr) return;
    HWY_UNROLL(4)
    for (size_t line = 0; line < kBytes; line += 64) __builtin_prefetch(row + column + line, 0, 2);
    column += kBytes >> keys.share_shift;
    if (column < keys.count * sizeof(uint32_t)) return;
    column = 0;
    row += keys.word_stride;
  }
};

// Rows [row, row + kRows) x kVectors vectors of positions. kBits: of a code in the words. Returns
// what is to be asked for after it.
template <uint32_t kBits, bool kOffsets, size_t kRows, size_t kVectors>
HWY_NOINLINE CAIRN_PAIRS_ATTR Lines
score_tile(const Scored& scored, const Keys& keys, Lines next, size_t row, size_t from, size_t to) {
  constexpr size_t kPairs = 16 / kBits;  // in a word
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> integers;
  const hn::Repartition<int16_t, decltype(d)> halves;
  constexpr size_t kLanes = hn::MaxLanes(hn::ScalableTag<float>());
  using V = hn::Vec<decltype(d)>;
  using Z = hn::Vec<decltype(integers)>;
  using H = hn::Vec<decltype(halves)>;
  const size_t prepared_bytes = scored.prepared_bytes;
  const auto mask = hn::Set(halves, (1 << kBits) - 1);
  const std::byte* prepared = scored.prepared + row * prepared_bytes;
  const std::byte* query = prepared + scored.query_offset;
  const std::byte* word = keys.words + from * sizeof(uint32_t);
  V scores[kRows][kVectors];
  for (size_t g = 0; g < scored.groups; ++g) {
    PairSum<Z> sums[kRows][kVectors];
    HWY_UNROLL(8)
    for (size_t r = 0; r < kRows; ++r) HWY_UNROLL(8)
    for (size_t v = 0; v < kVectors; ++v) sums[r][v] = {hn::Zero(integers), hn::Zero(integers)};
    for (size_t w = 0; w < scored.group_words; ++w) {
      next.ask<kVectors * kLanes * sizeof(uint32_t)>(keys);
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
          std::memcpy(&numbers, query + r * prepared_bytes + pair * 4, sizeof(numbers));
          const H factors = hn::BitCast(halves, hn::Set(integers, numbers));
          HWY_UNROLL(8)
          for (size_t v = 0; v < kVectors; ++v)
            add_pairs<kRows * kVectors>(integers, two[v], factors, pair, sums[r][v]);
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
        const auto* steps = reinterpret_cast<const float*>(prepared + r * prepared_bytes);
        const V sum = hn::Set(d, steps[scored.groups + g]);
        Z product = total(sums[r][v]);
        if constexpr (kOffsets) {
          int32_t offset;
          std::memcpy(&offset, steps + 2 * scored.groups + g, sizeof(offset));
          product = hn::Sub(hn::ShiftLeftSame(product, scored.shift), hn::Set(integers, offset));
        }
        const V dot = hn::Mul(hn::Set(d, steps[g]), hn::ConvertTo(d, product));
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
  return next;
}

template <uint32_t kBits, bool kOffsets, size_t kRows>
void score_rows(const Scored& scored, const Keys& keys, Lines next, size_t row, size_t count) {
  constexpr size_t kLanes = hn::MaxLanes(hn::ScalableTag<float>());
  size_t from = 0;
  if constexpr (HWY_TARGET != HWY_AVX2)
    for (; from + 3 * kLanes < count; from += 4 * kLanes)
      next = score_tile<kBits, kOffsets, kRows, 4>(scored, keys, next, row, from, count);
  for (; from + kLanes < count; from += 2 * kLanes)
    next = score_tile<kBits, kOffsets, kRows, 2>(scored, keys, next, row, from, count);
  if (from < count) score_tile<kBits, kOffsets, kRows, 1>(scored, keys, next, row, from, count);
}

// Of `rows`, those that the next tile of sums takes: compilers take a few registers more for what
// is on its way.
constexpr size_t rows_of_score_tile(size_t rows) {
  constexpr bool kHasManyRegisters = HWY_TARGET != HWY_AVX2;
  if (kHasManyRegisters && (rows == 4 || rows >= 7)) return 4;
  if (rows == 3 || rows >= 5) return 3;
  return rows == 4 ? 2 : rows;
}

// Reads whole vectors of positions.
template <uint32_t kBits, bool kOffsets>
void score_chunk(const Scored& scored, const Keys& keys, size_t rows, size_t count) {
  const size_t words = scored.groups * scored.group_words;
  const size_t shares = size_t{1} << keys.share_shift;
  size_t share = 0;
  for (size_t row = 0; row < rows; ++share) {
    const size_t some = rows_of_score_tile(rows - row);
    const bool does_ask = keys.next != nullptr && share < shares;
    const Lines next{does_ask ? keys.next + share * (words / 2) * keys.word_stride : nullptr, 0};
    if (some == 4)
      score_rows<kBits, kOffsets, 4>(scored, keys, next, row, count);
    else if (some == 3)
      score_rows<kBits, kOffsets, 3>(scored, keys, next, row, count);
    else if (some == 2)
      score_rows<kBits, kOffsets, 2>(scored, keys, next, row, count);
    else
      score_rows<kBits, kOffsets, 1>(scored, keys, next, row, count);
    row += some;
  }
}

// Positions [p, p + count) turned into [word][position], of bytes where codes cross words.
void turn_codes(
    const Shape& shape, const Records& in, uint32_t p, uint32_t count, uint32_t* turned) {
  constexpr uint32_t kTile = 4;
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
  const uint32_t tiled = word_stride == 4 && words % kTile == 0 ? count / kTile * kTile : 0;
  for (uint32_t i = 0; i < tiled; i += kTile)
    for (uint32_t w = 0; w < words; w += kTile)
      turn_tile(from + i * position_stride + w * 4, position_stride, turned + w * kChunk + i,
                kChunk);
  for (uint32_t w = 0; w < words; ++w, turned += kChunk) {
    for (uint32_t i = tiled; i < count; ++i)
      std::memcpy(turned + i, from + i * position_stride + w * word_stride, 4);
    std::fill(turned + count, turned + round_up(count, 16), 0u);  // to a whole vector
  }
}

// scores of RecordFunctions. kOffsets: integer products are shifted, and have an offset taken off.
template <bool kOffsets>
void score_codes(const Shape& shape,
                 const std::byte* prepared,
                 uint32_t rows,
                 const Records& in,
                 float* out,
                 size_t score_stride,
                 int shift = 0) {
  const PlaneRun& plane = in.planes[kCodes];
  const uint32_t lanes = static_cast<uint32_t>(hn::Lanes(hn::ScalableTag<float>()));
  Keys keys;
  uint32_t turned[kMaxWidth / 4 * kChunk];
  for (uint32_t p = 0; p < in.count; p += kChunk) {
    const uint32_t count = std::min(kChunk, in.count - p);
    read_groups(shape, in, kScales, p, count, keys.scales);
    read_groups(shape, in, kBiases, p, count, keys.biases);
    const uint64_t read = round_up(count, lanes);
    keys.count = read;
    keys.share_shift = rows_of_score_tile(rows) < rows ? 1 : 0;
    if (shape.is_native() && plane.position_stride == 4 && in.first + p + read <= in.capacity) {
      keys.words = in.at(kCodes, in.first + p);
      keys.word_stride = plane.word_stride;
      keys.next = plane.next == nullptr ? nullptr : plane.next + (in.first + p) * 4;
    } else {
      turn_codes(shape, in, p, count, turned);
      keys.words = reinterpret_cast<const std::byte*>(turned);
      keys.word_stride = kChunk * 4;
      keys.next = nullptr;
    }
    const Scored scored{.prepared = prepared,
                        .prepared_bytes = shape.prepared_bytes(),
                        .query_offset = shape.query_offset(),
                        .groups = shape.groups,
                        .group_words = shape.group_words(),
                        .shift = shift,
                        .out = out + p,
                        .stride = score_stride};
    switch (shape.bits) {
      case 2:
        score_chunk<2, kOffsets>(scored, keys, rows, count);
        break;
      case 4:
        score_chunk<4, kOffsets>(scored, keys, rows, count);
        break;
      default:
        score_chunk<8, kOffsets>(scored, keys, rows, count);
    }
  }
}

}  // namespace
}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // !CAIRN_NO_SIMD

#endif  // per-target include guard
