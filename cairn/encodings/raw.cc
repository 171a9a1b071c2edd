// Numbers as they are: f32, f16 and bf16. One plane, "values", one word per number.
//
//   record: width numbers, little endian. Keys are stored words by position, so that the lanes of a
//   vector are positions and a score stays one ascending chain of fma (docs/numbers.md).
#include <cmath>
#include <cstring>

#include "cairn/core/bytes.h"
#include "cairn/core/half.h"
#include "cairn/encodings/registry.h"
#include "cairn/kernels/dispatch.h"

namespace cairn {
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
  for (uint32_t row = 0; row < rows; ++row) {
    const auto* query =
        reinterpret_cast<const float*>(prepared + uint64_t{row} * codec.geometry.prepared_bytes);
    for (uint32_t p = 0; p < in.count; ++p) {
      float score = 0;
      for (uint32_t i = 0; i < codec.width; ++i)
        score = std::fma(load<Format>(in, in.first + p, i), query[i], score);
      out[row * score_stride + p] = score;
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
  for (uint32_t row = 0; row < rows; ++row) {
    float* sum = partial + uint64_t{row} * codec.geometry.partial_floats;
    for (uint32_t p = 0; p < in.count; ++p)
      for (uint32_t i = 0; i < codec.width; ++i)
        sum[i] =
            std::fma(load<Format>(in, in.first + p, i), weights[row * weight_stride + p], sum[i]);
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
  if (width == 0 || width % 8 != 0)
    return fail(Code::BadInput, "{}: vectors of {} numbers, expected a multiple of 8", format.name,
                width);
  return Geometry{
      .planes = {{.name = "values",
                  .dtype = format.dtype,
                  .record_bytes = width * format.word_bytes,
                  .word_bytes = format.word_bytes,
                  .words_first = true}},
      .error_bound = format.error_bound,
      .prepared_bytes = static_cast<uint32_t>(round_up(uint64_t{width} * sizeof(float), 64)),
      .partial_floats = static_cast<uint32_t>(round_up(width, 16)),
  };
}

template <class Format>
const RecordFunctions& functions() {
  return kScalarTable<Format>;
}

template <const RawFormat& format>
constexpr std::string_view kSamples[] = {format.name};

template <class Format, const RawFormat& format>
constexpr Encoding row(uint32_t id) {
  return {
      .id = {id},
      .name = format.name,
      .parse = parse<format>,
      .print = print<format>,
      .samples = kSamples<format>,
      .geometry = geometry<format>,
      .functions = functions<Format>,
  };
}

}  // namespace

const Encoding kF32 = row<F32, kF32Format>(0);
const Encoding kF16 = row<F16, kF16Format>(1);
const Encoding kBf16 = row<Bf16, kBf16Format>(2);

}  // namespace cairn
