// One byte per number: the upper half of an f16, which is a sign, 5 bits of exponent and 2 of
// mantissa.
//
//   record: width bytes. A number is rounded to f16 and from there to the nearest byte, ties to
//   even; what is too large becomes infinite and is counted.
#include <cmath>
#include <cstring>

#include "cairn/core/bytes.h"
#include "cairn/core/half.h"
#include "tests/examples/examples.h"

namespace cairn {
namespace {

std::byte byte_of(float number) {
  const uint16_t half = f16_from_f32(number);
  const uint32_t is_odd = (half >> 8) & 1;
  return static_cast<std::byte>((half + 0x7f + is_odd) >> 8);  // the only NaN, 0x7e00, stays one
}

float number_of(std::byte byte) { return f32_from_f16(static_cast<uint16_t>(byte) << 8); }

uint64_t encode(const Codec& codec, const float* x, const Records& out) {
  uint64_t saturated = 0;
  for (uint32_t p = 0; p < out.count; ++p)
    for (uint32_t i = 0; i < codec.width; ++i, ++x) {
      std::byte& byte = out.at(0, out.first + p)[i];
      byte = byte_of(*x);
      saturated += std::isfinite(*x) && std::isinf(number_of(byte));
    }
  return saturated;
}

void decode(const Codec& codec, const Records& in, float* x) {
  for (uint32_t p = 0; p < in.count; ++p)
    for (uint32_t i = 0; i < codec.width; ++i) *x++ = number_of(in.at(0, in.first + p)[i]);
}

void prepare(const Codec& codec, const float* query, std::byte* prepared) {
  std::memcpy(prepared, query, codec.width * sizeof(float));
}

// A score is one ascending chain of fma over the vector.
void scores(const Codec& codec,
            const std::byte* prepared,
            uint32_t rows,
            const Records& in,
            float* out,
            size_t score_stride) {
  for (uint32_t row = 0; row < rows; ++row, prepared += codec.geometry.prepared_bytes) {
    const auto* query = reinterpret_cast<const float*>(prepared);
    for (uint32_t p = 0; p < in.count; ++p) {
      float score = 0;
      for (uint32_t i = 0; i < codec.width; ++i)
        score = std::fma(number_of(in.at(0, in.first + p)[i]), query[i], score);
      out[row * score_stride + p] = score;
    }
  }
}

// Values are summed in the order of their positions.
void accumulate(const Codec& codec,
                const float* weights,
                size_t weight_stride,
                uint32_t rows,
                Pos,
                const Records& in,
                float* partial) {
  for (uint32_t row = 0; row < rows; ++row, partial += codec.geometry.partial_floats)
    for (uint32_t p = 0; p < in.count; ++p)
      for (uint32_t i = 0; i < codec.width; ++i)
        partial[i] = std::fma(number_of(in.at(0, in.first + p)[i]),
                              weights[row * weight_stride + p], partial[i]);
}

constexpr std::string_view kName = "e5m2";
constexpr std::string_view kSamples[] = {kName};

Result<Params> parse(std::string_view text) {
  if (text != kName) return fail(Code::NotFound, "encoding: {}, expected {}", text, kName);
  return Params{};
}

std::string print(const Params&) { return std::string(kName); }

Result<Geometry> geometry(const Params&, uint32_t width) {
  if (width == 0 || width % 8 != 0)
    return fail(Code::BadInput, "{}: vectors of {} numbers, expected a multiple of 8", kName,
                width);
  return Geometry{
      .planes = {{.name = "values", .dtype = "U8", .record_bytes = width, .word_bytes = 1}},
      .error_bound = 0x1p-3 + 0x1p-11,  // half a unit in the last place, after f16's
      .score_error = width + 8.,        // a chain of fma, and what scaling the query rounds
      .prepared_bytes = static_cast<uint32_t>(round_up(uint64_t{width} * sizeof(float), 64)),
      .partial_floats = static_cast<uint32_t>(round_up(width, 16)),
  };
}

const RecordFunctions& functions() {
  static constexpr RecordFunctions kScalar = {encode,     decode,  prepare, scores,
                                              accumulate, nullptr, nullptr};
  return kScalar;
}

}  // namespace

const Encoding kE5m2 = {.id = {1000},
                        .name = kName,
                        .parse = parse,
                        .print = print,
                        .samples = kSamples,
                        .geometry = geometry,
                        .functions = functions};

}  // namespace cairn
