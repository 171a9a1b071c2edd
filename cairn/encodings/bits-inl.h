// Codes that lie bit by bit, straight into the lanes of a vector: what a product reads of packed
// records (`Words` of tile-inl.h), where vectors have eight lanes or sixteen.
// Included once per target: between hwy/highway.h and the file's own HWY_NAMESPACE code.
#if defined(CAIRN_ENCODINGS_BITS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CAIRN_ENCODINGS_BITS_INL_H_
#undef CAIRN_ENCODINGS_BITS_INL_H_
#else
#define CAIRN_ENCODINGS_BITS_INL_H_
#endif

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hwy/highway.h"

#if !CAIRN_NO_SIMD
HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr bool kSpreadsBits = hn::MaxLanes(hn::ScalableTag<float>()) >= 8;
constexpr size_t kBeyondBits = 3;  // bytes that are read behind the codes, at most
// Whether any are: four bits fill the words that are read.
template <uint32_t kBits>
constexpr bool kReadsBeyond = kBits != 4;

// Eight codes fill kBits bytes. Of each, its place in a word that starts at a byte.
template <uint32_t kBits>
struct BitPlaces {
  // As many of eight neighbours as a word of 32 bits holds whole.
  static constexpr size_t kTogether = kBits <= 4 ? 8 : 4;
  alignas(64) uint32_t shifts[16];
  alignas(64) uint8_t in_quads[64];  // of multishift: the low byte of each lane
  constexpr BitPlaces() : shifts{}, in_quads{} {
    for (uint32_t lane = 0; lane < 16; ++lane) {
      const uint32_t first = lane % 8 / kTogether * kTogether;
      shifts[lane] = first * kBits % 8 + (lane % 8 - first) * kBits;
      in_quads[lane * 4] = static_cast<uint8_t>((kBits <= 4 ? lane : lane % 8) * kBits);
    }
  }
};
template <uint32_t kBits>
constexpr BitPlaces<kBits> kBitPlaces;

template <class Word>
HWY_INLINE Word word_at(const std::byte* from) {
  Word word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

// A word for each lane of which it holds the code, for lanes from number `lane` on.
template <uint32_t kBits, class D>
HWY_INLINE hn::Vec<D> words_of_lanes(D d, const std::byte* from) {
  constexpr size_t kLanes = hn::MaxLanes(D());
  if constexpr (kLanes <= BitPlaces<kBits>::kTogether) {
    return hn::Set(d, word_at<uint32_t>(from));
  } else {
    const hn::Half<D> half;
    return hn::Combine(d, words_of_lanes<kBits>(half, from + kLanes / 2 * kBits / 8),
                       words_of_lanes<kBits>(half, from));
  }
}

// MaxLanes(D) codes from `from`. What is above a code in its lane is arbitrary.
template <uint32_t kBits, class D>
HWY_INLINE hn::Vec<D> spread_bits(D d, const std::byte* from) {
  constexpr size_t kLanes = hn::MaxLanes(D());
  static_assert(kLanes == 8 || kLanes == 16);
#if HWY_TARGET == HWY_AVX3_DL
  if constexpr (kLanes == 16) {
    const __m512i places = _mm512_load_si512(kBitPlaces<kBits>.in_quads);
    __m512i quads;
    if constexpr (kBits == 2) {
      quads = _mm512_set1_epi32(word_at<int32_t>(from));
    } else if constexpr (kBits <= 4) {
      quads = _mm512_set1_epi64(word_at<int64_t>(from));
    } else {
      const __m256i low = _mm256_set1_epi64x(word_at<int64_t>(from));
      const __m256i high = _mm256_set1_epi64x(word_at<int64_t>(from + kBits));
      quads = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    }
    return hn::Vec<D>{_mm512_multishift_epi64_epi8(places, quads)};
  }
#endif
  return hn::Shr(words_of_lanes<kBits>(d, from), hn::Load(d, kBitPlaces<kBits>.shifts));
}

// The first 2^kBits numbers, over and over, as far as a vector or two can look them up.
template <uint32_t kBits>
struct RepeatedTable {
  alignas(64) float numbers[kBits == 5 ? 32 : 16];
  template <class Number>
  constexpr explicit RepeatedTable(Number number) : numbers{} {
    for (uint32_t i = 0; i < std::size(numbers); ++i) numbers[i] = number(i % (1u << kBits));
  }
};

// Whether vectors look up numbers by kBits whatever is above them.
template <uint32_t kBits>
constexpr bool kLooksUpBits = (HWY_TARGET == HWY_AVX2 && kBits <= 3) ||
                              ((HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL) && kBits <= 5);

template <uint32_t kBits, class D, class VI>
HWY_INLINE hn::Vec<D> look_up_bits(D, const float* numbers, VI index) {
#if HWY_TARGET == HWY_AVX2
  const __m256 low = _mm256_permutevar8x32_ps(_mm256_load_ps(numbers), index.raw);
  if constexpr (kBits == 4) {
    // Each half knows three bits; the fourth chooses.
    const __m256 high = _mm256_permutevar8x32_ps(_mm256_load_ps(numbers + 8), index.raw);
    const __m256 is_high = _mm256_castsi256_ps(_mm256_slli_epi32(index.raw, 28));
    return hn::Vec<D>{_mm256_blendv_ps(low, high, is_high)};
  }
  return hn::Vec<D>{low};
#elif HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  const __m512 first = _mm512_load_ps(numbers);
  if constexpr (kBits == 5)
    return hn::Vec<D>{_mm512_permutex2var_ps(first, index.raw, _mm512_load_ps(numbers + 16))};
  else
    return hn::Vec<D>{_mm512_permutexvar_ps(index.raw, first)};
#else
  (void)numbers;
  (void)index;
  return hn::Vec<D>{};
#endif
}

// Codes of kBits as numbers.
template <uint32_t kBitCount>
struct PackedCodes {
  static constexpr size_t kBits = kBitCount;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* from) {
    const hn::Rebind<uint32_t, D> words;
    const hn::Rebind<int32_t, D> integers;
    const auto spread = spread_bits<kBits>(words, from);
    // Two look-ups, of four bits by eight lanes, take more than a conversion.
    constexpr bool kTakesTwo = kBits == 4 && hn::MaxLanes(D()) == 8;
    if constexpr (kLooksUpBits<kBits> && !kTakesTwo) {
      static constexpr RepeatedTable<kBits> kCodes{
          [](uint32_t i) { return static_cast<float>(i); }};
      return look_up_bits<kBits>(d, kCodes.numbers, spread);
    } else {
      const auto code = hn::And(spread, hn::Set(words, (1u << kBits) - 1));
      return hn::ConvertTo(d, hn::BitCast(integers, code));
    }
  }
};

}  // namespace
}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // !CAIRN_NO_SIMD

#endif  // per-target include guard
