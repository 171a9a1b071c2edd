#include "cairn/kernels/softmax.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "cairn/kernels/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cairn/kernels/softmax.cc"
#include "cairn/kernels/simd.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

// After highway.h, which opens the target.
#include "cairn/kernels/sums-inl.h"

// In a namespace of this file's own.
#ifndef CAIRN_KERNELS_SOFTMAX_CONSTANTS_
#define CAIRN_KERNELS_SOFTMAX_CONSTANTS_
namespace cairn::softmax_constants {
inline constexpr size_t kSums = 16;  // partial sums of l, by position mod 16
}  // namespace cairn::softmax_constants
#endif

HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {

#if CAIRN_NO_SIMD

const SoftmaxFunctions* softmax_table() { return nullptr; }

#else

namespace hn = hwy::HWY_NAMESPACE;
using namespace softmax_constants;  // NOLINT: this file's own

// Sixteen positions at a time, in as many vectors as that takes; vectors of more than sixteen lanes
// are cut.
using D = hn::CappedTag<float, kSums>;
using V = hn::Vec<D>;
constexpr D d;
constexpr size_t kLanes = hn::MaxLanes(D());
constexpr size_t kVectors = kSums / kLanes;

HWY_INLINE V exp2_nonpositive(V x) { return exp2_nonpositive(d, x); }

// Lanes [begin, end) of the sixteen, for the vector whose first lane is `lane`.
HWY_INLINE hn::Mask<D> lanes_of(size_t lane, size_t begin, size_t end) {
  const V index = hn::Add(hn::Iota(d, 0.f), hn::Set(d, static_cast<float>(lane)));
  return hn::And(hn::Ge(index, hn::Set(d, static_cast<float>(begin))),
                 hn::Lt(index, hn::Set(d, static_cast<float>(end))));
}

// Rows whose chains of operations run beside each other: one alone waits for its own results.
constexpr size_t kTogether = HWY_MAX(4 / kVectors, 1);

struct Places {
  size_t begin, end;
};

// Calls whole(index) for sixteens inside [begin, end) and part(index, begin lane, end lane) for its
// ragged ends.
template <class Whole, class Ragged>
HWY_INLINE void each_sixteen(const Places& places, Whole whole, Ragged ragged) {
  const size_t begin = places.begin, end = places.end;
  size_t i = begin / kSums * kSums;
  if (i < begin) {
    const size_t stop = end < i + kSums ? end - i : kSums;
    if (begin < end) ragged(i, begin - i, stop);
    i += kSums;
  }
  for (; i + kSums <= end; i += kSums) whole(i);
  if (i < end) ragged(i, 0, end - i);
}

template <size_t kRows>
void block_of_rows(float* scores, size_t stride, const Places (&ranges)[2], Softmax* results) {
  const float kLowest = -std::numeric_limits<float>::infinity();
  V maxima[kRows][kVectors];
  for (auto& row : maxima)
    for (V& m : row) m = hn::Set(d, kLowest);
  for (const Places& range : ranges)
    each_sixteen(
        range,
        [&](size_t i) HWY_ATTR {
          HWY_UNROLL(4)
          for (size_t r = 0; r < kRows; ++r) HWY_UNROLL(4)
          for (size_t j = 0; j < kVectors; ++j)
            maxima[r][j] =
                hn::Max(maxima[r][j], hn::LoadU(d, scores + r * stride + i + j * kLanes));
        },
        [&](size_t i, size_t begin, size_t end) HWY_ATTR {
          for (size_t j = 0; j < kVectors; ++j) {
            const auto seen = lanes_of(j * kLanes, begin, end);
            for (size_t r = 0; r < kRows; ++r) {
              const V x = hn::MaskedLoad(seen, d, scores + r * stride + i + j * kLanes);
              maxima[r][j] = hn::Max(maxima[r][j], hn::IfThenElse(seen, x, hn::Set(d, kLowest)));
            }
          }
        });
  V max[kRows];
  for (size_t r = 0; r < kRows; ++r) {
    V top = maxima[r][0];
    for (size_t j = 1; j < kVectors; ++j) top = hn::Max(top, maxima[r][j]);
    max[r] = hn::Add(hn::MaxOfLanes(d, top), hn::Zero(d));
  }

  V sums[kRows][kVectors];
  for (auto& row : sums)
    for (V& sum : row) sum = hn::Zero(d);
  for (const Places& range : ranges)
    each_sixteen(
        range,
        [&](size_t i) HWY_ATTR {
          V x[kRows * kVectors];
          HWY_UNROLL(8)
          for (size_t r = 0; r < kRows; ++r) HWY_UNROLL(4)
          for (size_t j = 0; j < kVectors; ++j)
            x[r * kVectors + j] =
                hn::Sub(hn::LoadU(d, scores + r * stride + i + j * kLanes), max[r]);
          exp2_of_each(d, x);
          HWY_UNROLL(8)
          for (size_t r = 0; r < kRows; ++r) HWY_UNROLL(4)
          for (size_t j = 0; j < kVectors; ++j) {
            hn::StoreU(x[r * kVectors + j], d, scores + r * stride + i + j * kLanes);
            sums[r][j] = hn::Add(sums[r][j], x[r * kVectors + j]);
          }
        },
        [&](size_t i, size_t begin, size_t end) HWY_ATTR {
          for (size_t j = 0; j < kVectors; ++j) {
            const auto seen = lanes_of(j * kLanes, begin, end);
            for (size_t r = 0; r < kRows; ++r) {
              float* at = scores + r * stride + i + j * kLanes;
              // Adding +0 for lanes outside the range changes no sum of weights: those are never
              // below +0.
              const V w = hn::IfThenElseZero(
                  seen, exp2_nonpositive(hn::Sub(hn::MaskedLoad(seen, d, at), max[r])));
              hn::BlendedStore(w, seen, d, at);
              sums[r][j] = hn::Add(sums[r][j], w);
            }
          }
        });
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t half = kVectors / 2; half != 0; half /= 2)
      for (size_t j = 0; j < half; ++j) sums[r][j] = hn::Add(sums[r][j], sums[r][j + half]);
    results[r] = {hn::GetLane(max[r]), halving_sum(d, sums[r][0])};
  }
}

void block(
    float* scores, size_t stride, uint32_t rows, Pos first, Range a, Range b, Softmax* results) {
  const Places ranges[] = {{a.empty() ? 0 : a.begin - first, a.empty() ? 0 : a.end - first},
                           {b.empty() ? 0 : b.begin - first, b.empty() ? 0 : b.end - first}};
  const auto some = [&]<size_t kRows>(uint32_t& row) {
    block_of_rows<kRows>(scores + row * stride, stride, ranges, results + row);
    row += kRows;
  };
  uint32_t row = 0;
  while (row + kTogether <= rows) some.template operator()<kTogether>(row);
  if (kTogether > 3 && rows - row == 3) some.template operator()<3>(row);
  if (kTogether > 2 && rows - row == 2) some.template operator()<2>(row);
  if (row < rows) some.template operator()<1>(row);
}

void join(
    Softmax& running, float* running_o, const Softmax& part, const float* part_o, uint32_t width) {
  if (part.sum == 0) return;
  if (running.sum == 0) {
    running = part;
    std::memcpy(running_o, part_o, width * sizeof(float));
    return;
  }
  const float m = running.max > part.max ? running.max : part.max;
  const float c1 = hn::GetLane(exp2_nonpositive(hn::Set(d, running.max - m)));
  const float c2 = hn::GetLane(exp2_nonpositive(hn::Set(d, part.max - m)));
  running = {m, std::fma(part.sum, c2, running.sum * c1)};
  const V v1 = hn::Set(d, c1), v2 = hn::Set(d, c2);
  size_t i = 0;
  for (; i + kLanes <= width; i += kLanes)
    hn::StoreU(hn::MulAdd(hn::LoadU(d, part_o + i), v2, hn::Mul(hn::LoadU(d, running_o + i), v1)),
               d, running_o + i);
  for (; i < width; ++i) running_o[i] = std::fma(part_o[i], c2, running_o[i] * c1);
}

void normalize(const Softmax& total, const float* o, float* out, uint32_t width) {
  const float inverse = total.sum == 0 ? 0.f : 1.f / total.sum;
  if (total.sum == 0) {
    std::memset(out, 0, width * sizeof(float));
    return;
  }
  size_t i = 0;
  for (; i + kLanes <= width; i += kLanes)
    hn::StoreU(hn::Mul(hn::LoadU(d, o + i), hn::Set(d, inverse)), d, out + i);
  for (; i < width; ++i) out[i] = o[i] * inverse;
}

const SoftmaxFunctions* softmax_table() {
  static constexpr SoftmaxFunctions kTable = {block, join, normalize};
  return &kTable;
}

#endif

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cairn {
HWY_EXPORT(softmax_table);

float exp2_nonpositive(float x) {
  using namespace exp2_constants;  // NOLINT: the constants of E alone
  if (x < kFloor) return 0.f;
  const float t = x + kRound;
  const float r = x - (t - kRound);
  float p = kPolynomial[0];
  for (size_t i = 1; i < std::size(kPolynomial); ++i) p = std::fma(p, r, kPolynomial[i]);
  return p * std::bit_cast<float>(std::bit_cast<uint32_t>(t) << 23);
}

namespace {

using softmax_constants::kSums;

Softmax block_of_row(float* scores, Pos first, Range a, Range b) {
  float m = -std::numeric_limits<float>::infinity();
  for (const Range& range : {a, b})
    for (Pos p = range.begin; p < range.end; ++p)
      if (scores[p - first] > m) m = scores[p - first];
  m += 0.f;  // -0 becomes +0: the order in which zeros meet must not show
  float sums[kSums] = {};
  for (const Range& range : {a, b})
    for (Pos p = range.begin; p < range.end; ++p) {
      float& score = scores[p - first];
      score = exp2_nonpositive(score - m);
      sums[p % kSums] += score;
    }
  for (size_t half = kSums / 2; half != 0; half /= 2)
    for (size_t j = 0; j < half; ++j) sums[j] += sums[j + half];
  return {m, sums[0]};
}

void block(
    float* scores, size_t stride, uint32_t rows, Pos first, Range a, Range b, Softmax* results) {
  for (uint32_t row = 0; row < rows; ++row)
    results[row] = block_of_row(scores + row * stride, first, a, b);
}

void join(
    Softmax& running, float* running_o, const Softmax& part, const float* part_o, uint32_t width) {
  if (part.sum == 0) return;
  if (running.sum == 0) {
    running = part;
    std::memcpy(running_o, part_o, width * sizeof(float));
    return;
  }
  const float m = running.max > part.max ? running.max : part.max;
  const float c1 = exp2_nonpositive(running.max - m);
  const float c2 = exp2_nonpositive(part.max - m);
  running = {m, std::fma(part.sum, c2, running.sum * c1)};
  for (uint32_t i = 0; i < width; ++i) running_o[i] = std::fma(part_o[i], c2, running_o[i] * c1);
}

void normalize(const Softmax& total, const float* o, float* out, uint32_t width) {
  const float inverse = total.sum == 0 ? 0.f : 1.f / total.sum;
  for (uint32_t i = 0; i < width; ++i) out[i] = total.sum == 0 ? 0.f : o[i] * inverse;
}

constexpr SoftmaxFunctions kScalarTable = {block, join, normalize};

// log2 of a positive finite number, in double, by + - * / alone: the same bits everywhere, within
// 2e-15. x = 2^e f with f in [sqrt(1/2), sqrt(2)); log2 f = 2 / ln 2 * atanh(t), t = (f - 1) / (f +
// 1).
double log2_of(double x) {
  constexpr double kTwoOverLn2 = 0x1.71547652b82fep+1;
  uint64_t bits = std::bit_cast<uint64_t>(x);
  constexpr uint64_t kSqrtHalf = 0x3fe6a09e667f3bcd;  // the offset that puts f into its range
  const auto exponent = static_cast<int64_t>(bits - kSqrtHalf) >> 52;
  bits -= static_cast<uint64_t>(exponent) << 52;
  const double f = std::bit_cast<double>(bits);
  const double t = (f - 1) / (f + 1);
  const double square = t * t;
  double series = 1.0 / 21;
  for (int k = 19; k >= 1; k -= 2) series = series * square + 1.0 / k;
  return static_cast<double>(exponent) + kTwoOverLn2 * t * series;
}

}  // namespace

const SoftmaxFunctions& softmax_functions() {
  return use_scalar() ? kScalarTable : *HWY_DYNAMIC_DISPATCH(softmax_table)();
}

float log_sum_exp(const Softmax& total) {
  if (total.sum == 0) return -std::numeric_limits<float>::infinity();
  if (!(total.sum <= std::numeric_limits<float>::max()))  // infinite or NaN
    return std::numeric_limits<float>::quiet_NaN();
  constexpr double kLn2 = 0x1.62e42fefa39efp-1;
  return static_cast<float>((static_cast<double>(total.max) + log2_of(total.sum)) * kLn2);
}

}  // namespace cairn
#endif  // HWY_ONCE
