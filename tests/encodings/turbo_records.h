// One vector through an encoding, with its planes to look at.
#ifndef CAIRN_TESTS_ENCODINGS_TURBO_RECORDS_H_
#define CAIRN_TESTS_ENCODINGS_TURBO_RECORDS_H_

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "cairn/core/half.h"
#include "cairn/encodings/encoding.h"
#include "cairn/encodings/turbo_codes.h"

namespace cairn::testing {

inline Codec codec_of(const Encoding& encoding, std::string_view text, size_t width) {
  return make_codec(encoding, encoding.parse(text).value(), static_cast<uint32_t>(width)).value();
}

// Vectors of codec.width numbers as records.
class TurboRecords {
 public:
  TurboRecords(const Codec& codec, const std::vector<float>& x) : codec_(codec) {
    count_ = static_cast<uint32_t>(x.size() / codec.width);
    for (const PlaneGeometry& plane : codec.geometry.planes)
      planes_.emplace_back(uint64_t{plane.record_bytes} * count_);
    outside_ = codec.encoding->functions().encode(codec, x.data(), records());
  }

  Records records(uint32_t first = 0, uint32_t count = ~0u) {
    Records records{.first = first, .count = std::min(count, count_ - first), .capacity = count_};
    for (size_t i = 0; i < planes_.size(); ++i)
      records.planes[i] = {.data = planes_[i].data(),
                           .position_stride = codec_.geometry.planes[i].record_bytes,
                           .word_stride = codec_.geometry.planes[i].word_bytes};
    return records;
  }

  std::vector<float> decoded() {
    std::vector<float> x(uint64_t{count_} * codec_.width);
    codec_.encoding->functions().decode(codec_, records(), x.data());
    return x;
  }

  std::vector<uint8_t> codes() {
    std::vector<uint8_t> all;
    for (uint32_t p = 0; p < count_; ++p)
      for (uint32_t group = 0; group < codec_.width / turbo::kGroup; ++group) {
        uint8_t codes[turbo::kGroup];
        turbo::load_codes(records(), p, group, turbo::bits_of(codec_), codes);
        all.insert(all.end(), codes, codes + turbo::kGroup);
      }
    return all;
  }

  // The f16 of a group of record 0.
  float half(size_t plane, uint32_t group = 0) {
    return f32_from_f16(turbo::load_half(records(), plane, 0, group));
  }

  const std::vector<std::vector<std::byte>>& planes() const { return planes_; }
  uint64_t outside() const { return outside_; }

 private:
  Codec codec_;
  uint32_t count_;
  std::vector<std::vector<std::byte>> planes_;
  uint64_t outside_;
};

inline double mean_square_error(const std::vector<float>& x, const std::vector<float>& y) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += (double{x[i]} - y[i]) * (double{x[i]} - y[i]);
  return sum / static_cast<double>(x.size());
}

// first + step * i, 32 of them.
inline std::vector<float> ramp(float first, float step) {
  std::vector<float> x(turbo::kGroup);
  for (size_t i = 0; i < x.size(); ++i) x[i] = first + step * static_cast<float>(i);
  return x;
}

}  // namespace cairn::testing

#endif  // CAIRN_TESTS_ENCODINGS_TURBO_RECORDS_H_
