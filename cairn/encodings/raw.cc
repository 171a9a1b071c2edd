// Numbers as they are: f32, f16 and bf16. One plane, "values", one word per number.
//
//   record: width numbers, little endian. Keys are stored words by position, so that the lanes of a
//   vector are positions and a score stays one ascending chain of fma (docs/numbers.md).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "cairn/core/bytes.h"
#include "cairn/core/half.h"
#include "cairn/encodings/registry.h"
#include "cairn/kernels/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cairn/encodings/raw.cc"
#include "cairn/kernels/simd.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

// After highway.h, which opens the target.
#include "cairn/kernels/tile-inl.h"

#ifndef CAIRN_ENCODINGS_RAW_ONCE_
#define CAIRN_ENCODINGS_RAW_ONCE_
namespace cairn {
inline constexpr uint32_t kMaxWidth = 1024;  // of a vector; bounds what a kernel keeps on its stack
}  // namespace cairn
#endif

HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {

#if CAIRN_NO_SIMD

const RecordFunctions* f32_table() { return nullptr; }
const RecordFunctions* f16_table() { return nullptr; }
const RecordFunctions* bf16_table() { return nullptr; }

#else

namespace hn = hwy::HWY_NAMESPACE;

// Each format: how a vector of f32 is read from words and becomes words. store() gets canonical
// NaNs; magnitudes from kOverflow on become infinite.

struct F32Words {
  using Word = float;
  static constexpr size_t kBytes = 4;
  static constexpr float kOverflow = std::numeric_limits<float>::infinity();
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* from) {
    return hn::LoadU(d, reinterpret_cast<const float*>(from));
  }
  template <class D>
  static HWY_INLINE void store(D d, hn::Vec<D> x, std::byte* to) {
    hn::StoreU(x, d, reinterpret_cast<float*>(to));
  }
};

struct F16Words {
  using Word = uint16_t;
  static constexpr size_t kBytes = 2;
  static constexpr float kOverflow = 65520.f;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* from) {
    const hn::Rebind<hwy::float16_t, D> half;
    return hn::PromoteTo(d, hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(from)));
  }
  template <class D>
  static HWY_INLINE void store(D, hn::Vec<D> x, std::byte* to) {
    const hn::Rebind<hwy::float16_t, D> half;
    hn::StoreU(hn::DemoteTo(half, x), half, reinterpret_cast<hwy::float16_t*>(to));
  }
};

struct Bf16Words {
  using Word = uint16_t;
  static constexpr size_t kBytes = 2;
  static constexpr float kOverflow = 0x1.ffp127f;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* from) {
    const hn::Rebind<uint16_t, D> words;
    const hn::Rebind<uint32_t, D> bits;
    const auto x = hn::LoadU(words, reinterpret_cast<const uint16_t*>(from));
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(bits, x)));
  }
  template <class D>
  static HWY_INLINE void store(D, hn::Vec<D> x, std::byte* to) {
    const hn::Rebind<uint16_t, D> words;
    const hn::Rebind<uint32_t, D> bits;
    const hn::Rebind<int32_t, D> integers;
    const auto b = hn::BitCast(bits, x);
    const auto odd = hn::And(hn::ShiftRight<16>(b), hn::Set(bits, 1));
    // A canonical NaN stays one: 0x7fc00000 + 0x7fff does not carry into the upper half.
    const auto up = hn::Add(hn::Add(b, hn::Set(bits, 0x7fff)), odd);
    const auto upper = hn::BitCast(integers, hn::ShiftRight<16>(up));
    hn::StoreU(hn::DemoteTo(words, upper), words, reinterpret_cast<uint16_t*>(to));
  }
};

// Calls f(tag, index) for vectors that cover a width, a multiple of 8.
template <class F>
HWY_INLINE void each_vector(uint32_t width, F f) {
  const hn::ScalableTag<float> whole;
  const hn::CappedTag<float, 8> eight;
  uint32_t i = 0;
  for (; i + hn::Lanes(whole) <= width; i += static_cast<uint32_t>(hn::Lanes(whole))) f(whole, i);
  if (i < width) f(eight, i);
}

template <class Words>
uint64_t encode(const Codec& codec, const float* x, const Records& out) {
  uint64_t saturated = 0;
  const size_t word_stride = out.planes[0].word_stride;
  for (uint32_t p = 0; p < out.count; ++p, x += codec.width) {
    std::byte* record = out.at(0, out.first + p);
    each_vector(codec.width, [&](auto d, uint32_t i) HWY_ATTR {
      const auto raw = hn::LoadU(d, x + i);
      const hn::Rebind<uint32_t, decltype(d)> bits;
      const auto nan = hn::BitCast(d, hn::Set(bits, kNanF32));
      const auto value = hn::IfThenElse(hn::Eq(raw, raw), raw, nan);
      const auto magnitude = hn::Abs(value);
      const auto largest = hn::Set(d, std::numeric_limits<float>::max());
      saturated += hn::CountTrue(
          d, hn::And(hn::Ge(magnitude, hn::Set(d, Words::kOverflow)), hn::Le(magnitude, largest)));
      if (word_stride == Words::kBytes) {
        Words::store(d, value, record + i * Words::kBytes);
        return;
      }
      typename Words::Word words[hn::MaxLanes(d)];
      Words::store(d, value, reinterpret_cast<std::byte*>(words));
      for (size_t lane = 0; lane < hn::Lanes(d); ++lane)
        std::memcpy(record + (i + lane) * word_stride, words + lane, Words::kBytes);
    });
  }
  return saturated;
}

template <class Words>
void decode(const Codec& codec, const Records& in, float* x) {
  const size_t word_stride = in.planes[0].word_stride;
  for (uint32_t p = 0; p < in.count; ++p, x += codec.width) {
    const std::byte* record = in.at(0, in.first + p);
    each_vector(codec.width, [&](auto d, uint32_t i) HWY_ATTR {
      if (word_stride == Words::kBytes) {
        hn::StoreU(Words::load(d, record + i * Words::kBytes), d, x + i);
        return;
      }
      typename Words::Word words[hn::MaxLanes(d)];
      for (size_t lane = 0; lane < hn::Lanes(d); ++lane)
        std::memcpy(words + lane, record + (i + lane) * word_stride, Words::kBytes);
      hn::StoreU(Words::load(d, reinterpret_cast<const std::byte*>(words)), d, x + i);
    });
  }
}

// For the layout that a kernel does not read directly: records turned, this many at a time.
constexpr uint32_t kTurned = 16;

// b is [word][position], `count` columns of it are wanted; `before` columns before b and `capacity`
// from it on may be read.
template <class Words>
void score_by_words(const Product& product, size_t count, size_t before, size_t capacity) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  const size_t whole = count / lanes * lanes;
  if (whole != 0) multiply<Words>(d, product, 0, whole);
  if (whole == count) return;
  Product last = product;
  last.next = nullptr;
  if (before + capacity < lanes) {
    const hn::CappedTag<float, 1> one;
    multiply<Words, 1>(one, last, whole, count);
    return;
  }
  // The rest is less than a vector: a whole one that ends where the page may be read to, of which
  // only the wanted lanes are kept.
  const size_t back = whole + lanes > capacity ? whole + lanes - capacity : 0;
  constexpr size_t kRowsAtOnce = 12;
  float buffer[kRowsAtOnce * hn::MaxLanes(d)];
  last.b = product.b + whole * Words::kBytes - back * Words::kBytes;
  last.c = buffer;
  last.c_stride = lanes;
  for (size_t row = 0; row < product.rows; row += kRowsAtOnce) {
    last.rows = std::min(kRowsAtOnce, product.rows - row);
    last.a = product.a + row * product.a_stride;
    multiply<Words, 1>(d, last, 0, lanes);
    for (size_t r = 0; r < last.rows; ++r)
      std::memcpy(product.c + (row + r) * product.c_stride + whole, buffer + r * lanes + back,
                  (count - whole) * sizeof(float));
  }
}

const std::byte* next_of(const Records& in) {
  const PlaneRun& plane = in.planes[0];
  return plane.next == nullptr ? nullptr : plane.next + in.first * plane.position_stride;
}

template <class Words>
void scores(const Codec& codec,
            const std::byte* prepared,
            uint32_t rows,
            const Records& in,
            float* out,
            size_t score_stride) {
  const PlaneRun& plane = in.planes[0];
  Product product{.a = reinterpret_cast<const float*>(prepared),
                  .a_stride = codec.geometry.prepared_bytes / sizeof(float),
                  .rows = rows,
                  .b = in.at(0, in.first),
                  .b_stride = plane.word_stride,
                  .steps = codec.width,
                  .next = next_of(in),
                  .c = out,
                  .c_stride = score_stride,
                  .from_zero = true};
  if (plane.position_stride == Words::kBytes) {
    score_by_words<Words>(product, in.count, in.first, in.capacity - in.first);
    return;
  }
  typename Words::Word turned[kMaxWidth * kTurned];
  product.b = reinterpret_cast<const std::byte*>(turned);
  product.b_stride = kTurned * Words::kBytes;
  product.next = nullptr;
  for (uint32_t p = 0; p < in.count; p += kTurned) {
    const uint32_t count = std::min(kTurned, in.count - p);
    for (uint32_t i = 0; i < count; ++i) {
      const std::byte* record = in.at(0, in.first + p + i);
      for (uint32_t word = 0; word < codec.width; ++word)
        std::memcpy(turned + word * kTurned + i, record + word * plane.word_stride, Words::kBytes);
    }
    product.c = out + p;
    score_by_words<Words>(product, count, 0, kTurned);
  }
}

template <class Words>
void accumulate(const Codec& codec,
                const float* weights,
                size_t weight_stride,
                uint32_t rows,
                Pos,
                const Records& in,
                float* partial) {
  const PlaneRun& plane = in.planes[0];
  Product product{.a = weights,
                  .a_stride = weight_stride,
                  .rows = rows,
                  .b = in.at(0, in.first),
                  .b_stride = plane.position_stride,
                  .steps = in.count,
                  .next = next_of(in),
                  .c = partial,
                  .c_stride = codec.geometry.partial_floats,
                  .from_zero = false};
  const auto sum = [&] HWY_ATTR {
    const hn::ScalableTag<float> whole;
    const hn::CappedTag<float, 8> eight;
    const size_t end = codec.width / hn::Lanes(whole) * hn::Lanes(whole);
    multiply<Words>(whole, product, 0, end);
    if (end < codec.width) multiply<Words, 1>(eight, product, end, codec.width);
  };
  if (plane.word_stride == Words::kBytes) {
    sum();
    return;
  }
  typename Words::Word turned[kMaxWidth * kTurned];
  product.b = reinterpret_cast<const std::byte*>(turned);
  product.b_stride = codec.width * Words::kBytes;
  product.next = nullptr;
  for (uint32_t p = 0; p < in.count; p += kTurned) {
    const uint32_t count = std::min(kTurned, in.count - p);
    for (uint32_t word = 0; word < codec.width; ++word)
      for (uint32_t i = 0; i < count; ++i)
        std::memcpy(turned + i * codec.width + word,
                    in.at(0, in.first + p + i) + word * plane.word_stride, Words::kBytes);
    product.a = weights + p;
    product.steps = count;
    sum();
  }
}

void prepare(const Codec& codec, const float* query, std::byte* prepared) {
  std::memcpy(prepared, query, codec.width * sizeof(float));
}

template <class Words>
const RecordFunctions* table() {
  static constexpr RecordFunctions kTable = {
      encode<Words>, decode<Words>, prepare, scores<Words>, accumulate<Words>, nullptr, nullptr};
  return &kTable;
}
const RecordFunctions* f32_table() { return table<F32Words>(); }
const RecordFunctions* f16_table() { return table<F16Words>(); }
const RecordFunctions* bf16_table() { return table<Bf16Words>(); }

#endif

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cairn {
HWY_EXPORT(f32_table);
HWY_EXPORT(f16_table);
HWY_EXPORT(bf16_table);

namespace {

struct F32 {
  using Word = uint32_t;
  static float load(Word word) { return std::bit_cast<float>(word); }
  static Word store(float value) { return std::bit_cast<Word>(canonical(value)); }
};
struct F16 {
  using Word = uint16_t;
  static float load(Word word) { return f32_from_f16(word); }
  static Word store(float value) { return f16_from_f32(value); }
};
struct Bf16 {
  using Word = uint16_t;
  static float load(Word word) { return f32_from_bf16(word); }
  static Word store(float value) { return bf16_from_f32(value); }
};

// Word `index` of the record at `position` (from the page's start).
std::byte* word_at(const Records& records, uint32_t position, uint32_t index) {
  return records.at(0, position) + index * records.planes[0].word_stride;
}

template <class Format>
float load(const Records& records, uint32_t position, uint32_t index) {
  typename Format::Word word;
  std::memcpy(&word, word_at(records, position, index), sizeof(word));
  return Format::load(word);
}

// The scalar functions: they define every bit.

template <class Format>
uint64_t encode(const Codec& codec, const float* x, const Records& out) {
  uint64_t saturated = 0;
  for (uint32_t p = 0; p < out.count; ++p)
    for (uint32_t i = 0; i < codec.width; ++i) {
      const float value = x[uint64_t{p} * codec.width + i];
      const typename Format::Word word = Format::store(value);
      saturated += std::isfinite(value) && std::isinf(Format::load(word));
      std::memcpy(word_at(out, out.first + p, i), &word, sizeof(word));
    }
  return saturated;
}

template <class Format>
void decode(const Codec& codec, const Records& in, float* x) {
  for (uint32_t p = 0; p < in.count; ++p)
    for (uint32_t i = 0; i < codec.width; ++i)
      x[uint64_t{p} * codec.width + i] = load<Format>(in, in.first + p, i);
}

void prepare(const Codec& codec, const float* query, std::byte* prepared) {
  std::memcpy(prepared, query, codec.width * sizeof(float));
}

template <class Format>
void scores(const Codec& codec,
            const std::byte* prepared,
            uint32_t rows,
            const Records& in,
            float* out,
            size_t score_stride) {
  const auto* queries = reinterpret_cast<const float*>(prepared);
  const size_t query_stride = codec.geometry.prepared_bytes / sizeof(float);
  for (uint32_t p = 0; p < in.count; ++p) {
    for (uint32_t row = 0; row < rows; ++row) out[row * score_stride + p] = 0;
    for (uint32_t i = 0; i < codec.width; ++i) {
      const float value = load<Format>(in, in.first + p, i);
      for (uint32_t row = 0; row < rows; ++row) {
        float& score = out[row * score_stride + p];
        score = std::fma(value, queries[row * query_stride + i], score);
      }
    }
  }
}

template <class Format>
void accumulate(const Codec& codec,
                const float* weights,
                size_t weight_stride,
                uint32_t rows,
                Pos,
                const Records& in,
                float* partial) {
  for (uint32_t p = 0; p < in.count; ++p)
    for (uint32_t i = 0; i < codec.width; ++i) {
      const float value = load<Format>(in, in.first + p, i);
      for (uint32_t row = 0; row < rows; ++row) {
        float& sum = partial[uint64_t{row} * codec.geometry.partial_floats + i];
        sum = std::fma(value, weights[row * weight_stride + p], sum);
      }
    }
}

template <class Format>
constexpr RecordFunctions kScalarTable = {
    encode<Format>, decode<Format>, prepare, scores<Format>, accumulate<Format>, nullptr, nullptr};

// The rows.

struct RawFormat {
  std::string_view name;
  std::string_view dtype;
  uint32_t word_bytes;
  double error_bound;
};
constexpr RawFormat kF32Format = {"f32", "F32", 4, 0};
// Half a unit in the last place of normal numbers. f16's subnormals add at most 2^-25, which is
// inside the bound while the vector's largest magnitude is at least 2^-14.
constexpr RawFormat kF16Format = {"f16", "F16", 2, 0x1p-11};
constexpr RawFormat kBf16Format = {"bf16", "BF16", 2, 0x1p-8};

template <const RawFormat& format>
Result<Params> parse(std::string_view text) {
  if (text != format.name)
    return fail(Code::NotFound, "encoding: {}, expected {}", text, format.name);
  return Params{};
}

template <const RawFormat& format>
std::string print(const Params&) {
  return std::string(format.name);
}

template <const RawFormat& format>
Result<Geometry> geometry(const Params&, uint32_t width) {
  if (width == 0 || width % 8 != 0 || width > kMaxWidth)
    return fail(Code::BadInput, "{}: vectors of {} numbers, expected a multiple of 8 up to {}",
                format.name, width, kMaxWidth);
  return Geometry{
      .planes = {{.name = "values",
                  .dtype = format.dtype,
                  .record_bytes = width * format.word_bytes,
                  .word_bytes = format.word_bytes,
                  .order = PlaneOrder::WordsIfScored}},
      .error_bound = format.error_bound,
      .score_error = width + 8.,  // a chain of as many fma, and what scaling the query rounds
      .prepared_bytes = static_cast<uint32_t>(round_up(uint64_t{width} * sizeof(float), 64)),
      .partial_floats = static_cast<uint32_t>(round_up(width, 16)),
  };
}

const RecordFunctions& f32_functions() {
  return use_scalar() ? kScalarTable<F32> : *HWY_DYNAMIC_DISPATCH(f32_table)();
}
const RecordFunctions& f16_functions() {
  return use_scalar() ? kScalarTable<F16> : *HWY_DYNAMIC_DISPATCH(f16_table)();
}
const RecordFunctions& bf16_functions() {
  return use_scalar() ? kScalarTable<Bf16> : *HWY_DYNAMIC_DISPATCH(bf16_table)();
}

template <const RawFormat& format>
constexpr std::string_view kSamples[] = {format.name};

template <const RawFormat& format>
constexpr Encoding row(uint32_t id, const RecordFunctions& (*functions)()) {
  return {
      .id = {id},
      .name = format.name,
      .parse = parse<format>,
      .print = print<format>,
      .samples = kSamples<format>,
      .geometry = geometry<format>,
      .functions = functions,
  };
}

}  // namespace

constinit const Encoding kF32 = row<kF32Format>(0, f32_functions);
constinit const Encoding kF16 = row<kF16Format>(1, f16_functions);
constinit const Encoding kBf16 = row<kBf16Format>(2, bf16_functions);

}  // namespace cairn
#endif  // HWY_ONCE
