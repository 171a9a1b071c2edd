// Records from numbers and numbers from records: bytes of f32 per second, against memcpy of as many
// bytes in the same run.
#include <algorithm>

#include "bench/ceilings.h"
#include "bench/program.h"
#include "bench/random.h"
#include "cairn/core/bytes.h"
#include "cairn/state/registry.h"

namespace cairn::bench {
namespace {

constexpr uint32_t kPagePositions = 64;
constexpr size_t kNumberBytes = size_t{256} << 20;  // f32, on either side

// Vectors of one width beside room for their records, page after page as in a state.
class Vectors {
 public:
  Vectors(std::string_view text, uint32_t width)
      : codec_(make(text, width)),
        pages_(kNumberBytes / sizeof(float) / width / kPagePositions),
        page_bytes_(plane_bytes()),
        numbers_(kNumberBytes),
        records_(pages_ * page_bytes_) {
    Random random;
    random.fill({numbers(0), kNumberBytes / sizeof(float)});
  }

  double number_bytes() const {
    return static_cast<double>(pages_ * kPagePositions * codec_.width * sizeof(float));
  }
  uint64_t record_bytes() const { return codec_.geometry.record_bytes(); }

  double encode(Threads& threads) {
    return each_page(threads, [&](uint64_t page) {
      codec_.encoding->functions().encode(codec_, numbers(page), records(page));
    });
  }
  double decode(Threads& threads) {
    return each_page(threads, [&](uint64_t page) {
      codec_.encoding->functions().decode(codec_, records(page), numbers(page));
    });
  }

 private:
  static Codec make(std::string_view text, uint32_t width) {
    const EncodingChoice choice = must(parse_encoding(builtin(), text));
    const Params params = choice.encoding->settle == nullptr
                              ? choice.params
                              : choice.encoding->settle(choice.params, Precision::usual);
    return must(make_codec(*choice.encoding, params, width));
  }
  uint64_t plane_bytes() const {  // of a page, each plane 64-byte aligned
    uint64_t bytes = 0;
    for (const PlaneGeometry& plane : codec_.geometry.planes)
      bytes += round_up(uint64_t{plane.record_bytes} * kPagePositions, 64);
    return bytes;
  }
  float* numbers(uint64_t page) {
    return reinterpret_cast<float*>(numbers_.span().data()) + page * kPagePositions * codec_.width;
  }
  Records records(uint64_t page) {
    Records records{.first = 0, .count = kPagePositions, .capacity = kPagePositions};
    std::byte* at = records_.span().data() + page * page_bytes_;
    for (size_t i = 0; i < codec_.geometry.planes.size(); ++i) {
      const PlaneGeometry& plane = codec_.geometry.planes[i];
      if (plane.order != PlaneOrder::Records)
        records.planes[i] = {at, plane.word_bytes, uint64_t{kPagePositions} * plane.word_bytes};
      else
        records.planes[i] = {at, plane.record_bytes, plane.word_bytes};
      at += round_up(uint64_t{plane.record_bytes} * kPagePositions, 64);
    }
    return records;
  }
  double each_page(Threads& threads, const std::function<void(uint64_t)>& work) {
    const double start = seconds_now();
    threads.run([&](uint32_t i) {
      const uint64_t end = pages_ * (i + 1) / threads.count();
      for (uint64_t page = pages_ * i / threads.count(); page < end; ++page) work(page);
    });
    return seconds_now() - start;
  }

  Codec codec_;
  uint64_t pages_, page_bytes_;
  ColdBytes numbers_, records_;
};

Goal encode_goal(std::string_view text) { return text == "affine8" ? at_least(0.5, 0.25) : Goal{}; }
Goal decode_goal(std::string_view text) { return text == "affine8" ? at_least(0.6, 0.6) : Goal{}; }

std::vector<Row> rows(std::string_view text,
                      uint32_t width,
                      const Program& program,
                      Threads& threads,
                      const ColdBytes& cold) {
  Vectors vectors(text, width);
  std::vector<double> encode_ratios, decode_ratios, encodes, decodes, copies;
  vectors.encode(threads);
  for (int i = 0; i < program.pairs(); ++i) {
    copies.push_back(copy_bandwidth(threads, cold));
    encodes.push_back(vectors.encode(threads));
    decodes.push_back(vectors.decode(threads));
    encode_ratios.push_back(vectors.number_bytes() / encodes.back() / copies.back());
    decode_ratios.push_back(vectors.number_bytes() / decodes.back() / copies.back());
  }
  const auto row = [&](std::string_view verb, const std::vector<double>& ratios, Goal goal,
                       const std::vector<double>& seconds) {
    return make_row(
        fmt::format("codec_{}_{}_d{}", verb, text, width),
        fmt::format("{} {}, width {}: bytes of f32 per second / memcpy", verb, text, width), ratios,
        goal,
        {{"ms", median(seconds) * 1e3},
         {"gb_per_s", vectors.number_bytes() / median(seconds) * 1e-9},
         {"memcpy_gb_per_s", median(copies) * 1e-9},
         {"record_bytes", static_cast<double>(vectors.record_bytes())},
         {"threads", threads.count()}});
  };
  return {row("encode", encode_ratios, encode_goal(text), encodes),
          row("decode", decode_ratios, decode_goal(text), decodes)};
}

int run(int count, char** words) {
  Program program(count, words);
  Threads threads(program.threads());
  const ColdBytes cold(2 * kNumberBytes);
  struct Shape {
    std::string_view text;
    uint32_t width;
  };
  constexpr Shape kShapes[] = {
      {"f32", 128},          {"f16", 128},          {"bf16", 128},
      {"affine8", 64},       {"affine8", 128},      {"affine8-g64-f32", 512},
      {"affine6", 128},      {"affine4", 128},      {"affine3", 128},
      {"affine2", 128},      {"turbo-key8", 128},   {"turbo-key4", 128},
      {"turbo-value8", 128}, {"turbo-value4", 128}, {"turbo-value3", 128},
  };
  for (const Shape& shape : kShapes)
    program.add(fmt::format("codec/{}/{}", shape.text, shape.width),
                [&, shape] { return rows(shape.text, shape.width, program, threads, cold); });
  return program.run();
}

}  // namespace
}  // namespace cairn::bench

int main(int count, char** words) { return cairn::bench::run(count, words); }
