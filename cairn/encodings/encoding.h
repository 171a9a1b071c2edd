// An encoding turns one vector of numbers into one record in each of its planes, and never mixes
// two positions.
//
// An encoding is one file: its row (below), its scalar functions, which define every result to the
// last bit, and its SIMD, which equals them. State code moves records and knows no numbers; only
// the functions here do.
//
// Attention reads records without decoding them first:
// - prepare: once per query, the form in which this encoding meets it (a copy, a 16-bit form, a
//   rotation);
// - scores: prepared queries x records -> scores in base 2;
// - accumulate: weights x records -> a partial sum, for one block of 256 positions over however
//   many pages;
// - finish_block: once per block and row, terms that the block's weights share (a sum of biases);
// - finish: once per output row, e.g. un-rotate.
#ifndef CAIRN_ENCODINGS_ENCODING_H_
#define CAIRN_ENCODINGS_ENCODING_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/core/error.h"
#include "cairn/core/ids.h"

namespace cairn {

inline constexpr size_t kMaxPlanes = 4;
inline constexpr uint32_t kBlockPositions = 256;  // the softmax's unit of work (docs/numbers.md)

// An encoding's own parameters; only its file knows what they mean. Compared by value.
struct Params {
  std::array<int32_t, 4> values{};
  auto operator<=>(const Params&) const = default;
};

// How a page stores a plane: record after record, or word by position ([word][position], so that a
// vector's lanes are positions), for all or where attention only scores it.
enum class PlaneOrder { Records, WordsIfScored, Words };

// One array of an encoded family: per position and head a record of fixed size.
struct PlaneGeometry {
  std::string_view name;   // "values", "codes", "scales", ...; part of tensor names in files
  std::string_view dtype;  // as safetensors spells it, with record_bytes = elements * element bytes
  uint32_t record_bytes = 0;  // a multiple of word_bytes
  uint32_t word_bytes = 0;    // what moves as one when a page stores [word][position]
  PlaneOrder order = PlaneOrder::Records;
};

struct Geometry {
  std::vector<PlaneGeometry> planes;
  double error_bound =
      0;  // |decode(encode(x)) - x| <= error_bound * max|x| for finite x in range; 0: exact for f32
  double score_error =
      0;  // |score - q . k| <= score_error * 2^-24 |q| |k| for k as decoded, q before `prepare`
  uint32_t prepared_bytes = 0;  // of one prepared query; a multiple of 64
  uint32_t partial_floats =
      0;  // of one row's partial sum: the first `width` are the output; a multiple of 16

  uint64_t record_bytes() const {  // over all planes
    uint64_t bytes = 0;
    for (const PlaneGeometry& plane : planes) bytes += plane.record_bytes;
    return bytes;
  }
};

// Where one plane of one head lies in one page: word w of position p is at data + p *
// position_stride + w * word_stride.
struct PlaneRun {
  std::byte* data;
  size_t position_stride;  // bytes
  size_t word_stride;      // bytes
  const std::byte* next;   // records that are read soon, as many: worth a prefetch; null: unknown
};

// Positions [first, first + count) of one page, for one head of one family. `capacity` positions
// may be read (what lies beyond the written ones is arbitrary and must not reach a result).
struct Records {
  std::array<PlaneRun, kMaxPlanes> planes;  // as many as the encoding has
  uint32_t first = 0;
  uint32_t count = 0;
  uint32_t capacity = 0;

  std::byte* at(size_t plane, uint32_t position) const {  // position counted from the page's start
    return planes[plane].data + position * planes[plane].position_stride;
  }
};

struct Encoding;

// An encoding applied to vectors of one width.
struct Codec {
  const Encoding* encoding = nullptr;
  Params params;
  uint32_t width = 0;
  Geometry geometry;
};

// Functions over records. Rows are query heads that share the records' head. Strides are in floats
// unless they say bytes.
struct RecordFunctions {
  // x: [count, width] f32, dense. Returns how many numbers did not fit the encoding's range (they
  // saturate).
  uint64_t (*encode)(const Codec&, const float* x, const Records& out);
  void (*decode)(const Codec&, const Records& in, float* x);  // [count, width], dense

  // query: [width] f32, already times scale * log2(e). prepared: geometry.prepared_bytes, 64-byte
  // aligned.
  void (*prepare)(const Codec&, const float* query, std::byte* prepared);

  // prepared: [rows] at geometry.prepared_bytes apart. Writes scores[row * score_stride + i] for i
  // in [0, in.count).
  void (*scores)(const Codec&,
                 const std::byte* prepared,
                 uint32_t rows,
                 const Records& in,
                 float* scores,
                 size_t score_stride);

  // weights[row * weight_stride + i] is the weight of record i; record i is position first + i of
  // the sequence. Adds to partial: [rows] at geometry.partial_floats apart, zeroed at a block's
  // start. Positions come in ascending order.
  void (*accumulate)(const Codec&,
                     const float* weights,
                     size_t weight_stride,
                     uint32_t rows,
                     Pos first,
                     const Records& in,
                     float* partial);
  void (*finish_block)(const Codec&, uint32_t rows, float* partial);  // null: nothing to do
  void (*finish)(const Codec&, float* output);  // [width], in place; null: nothing to do
};

// How exact a family wants what its encoding's text leaves open: fine where one vector serves all
// heads (latents).
enum class Precision { usual, fine };

// A row of the registry.
struct Encoding {
  EncodingId id;          // in files for ever; never reused
  std::string_view name;  // "f16", "affine", ...
  Result<Params> (*parse)(
      std::string_view text);  // "f16", "affine8-g64"; BadInput with what is allowed, NotFound if
                               // the text does not name this encoding
  std::string (*print)(const Params&);  // the canonical text; parse(print(p)) == p
  // Chooses what a text leaves open; equal records then have equal params. Null: no text does.
  Params (*settle)(const Params&, Precision) = nullptr;
  std::span<const std::string_view>
      samples;  // parameter texts that suites and `cairn encodings` walk
  Result<Geometry> (*geometry)(const Params&, uint32_t width);
  const RecordFunctions& (*functions)();  // for the target in use (kernels/dispatch.h)
};

// Binds an encoding to a width; BadInput when the width does not fit it.
Result<Codec> make_codec(const Encoding& encoding, const Params& params, uint32_t width);

}  // namespace cairn

#endif  // CAIRN_ENCODINGS_ENCODING_H_
