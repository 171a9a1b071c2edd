#include "cairn/kernels/choice.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>

#include "cairn/kernels/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cairn/kernels/choice.cc"
#include "cairn/kernels/simd.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {

#if CAIRN_NO_SIMD

void weigh_heads(const float*, size_t, const float*, uint32_t, uint32_t, float*) {}

#else

// Lanes are positions; what is left of a vector goes through a copy.
void weigh_heads(const float* products,
                 size_t stride,
                 const float* weights,
                 uint32_t heads,
                 uint32_t count,
                 float* scores) {
  namespace hn = hwy::HWY_NAMESPACE;
  using D = hn::CappedTag<float, 16>;
  constexpr D d;
  constexpr size_t kLanes = hn::MaxLanes(D());
  constexpr size_t kVectors = 4;  // independent chains
  const auto relu = [&](auto x) HWY_ATTR { return hn::IfThenZeroElse(hn::Le(x, hn::Zero(d)), x); };
  size_t i = 0;
  for (; i + kVectors * kLanes <= count; i += kVectors * kLanes) {
    hn::Vec<D> sums[kVectors];
    for (auto& sum : sums) sum = hn::Zero(d);
    for (uint32_t head = 0; head < heads; ++head) {
      const auto weight = hn::Set(d, weights[head]);
      for (size_t j = 0; j < kVectors; ++j)
        sums[j] = hn::MulAdd(weight, relu(hn::LoadU(d, products + head * stride + i + j * kLanes)),
                             sums[j]);
    }
    for (size_t j = 0; j < kVectors; ++j) hn::StoreU(sums[j], d, scores + i + j * kLanes);
  }
  for (; i < count; i += kLanes) {
    const size_t left = std::min(count - i, kLanes);
    alignas(64) float lanes[kLanes] = {};
    auto sum = hn::Zero(d);
    for (uint32_t head = 0; head < heads; ++head) {
      std::copy_n(products + head * stride + i, left, lanes);
      sum = hn::MulAdd(hn::Set(d, weights[head]), relu(hn::Load(d, lanes)), sum);
    }
    hn::Store(sum, d, lanes);
    std::copy_n(lanes, left, scores + i);
  }
}

#endif

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cairn {
HWY_EXPORT(weigh_heads);

namespace {

// The definition.
void weigh_heads_plainly(const float* products,
                         size_t stride,
                         const float* weights,
                         uint32_t heads,
                         uint32_t count,
                         float* scores) {
  for (uint32_t i = 0; i < count; ++i) {
    float sum = 0;
    for (uint32_t head = 0; head < heads; ++head) {
      const float product = products[head * stride + i];
      sum = std::fma(weights[head], product <= 0 ? 0.f : product, sum);
    }
    scores[i] = sum;
  }
}

// Whole numbers in the order of the scores.
uint32_t rank_of(float score) {
  constexpr uint32_t kMinusInfinity = 0x007fffff;
  if (std::isnan(score)) return kMinusInfinity;
  const auto bits = std::bit_cast<uint32_t>(score + 0.f);  // one zero
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

}  // namespace

void weigh_heads(const float* products,
                 size_t stride,
                 const float* weights,
                 uint32_t heads,
                 uint32_t count,
                 float* scores) {
  if (use_scalar())
    weigh_heads_plainly(products, stride, weights, heads, count, scores);
  else
    HWY_DYNAMIC_DISPATCH(weigh_heads)(products, stride, weights, heads, count, scores);
}

// The rank of the k-th best is found digit by digit, each from a count of the ranks that agree with
// it so far; what is above it is chosen, and of its equals the first.
uint32_t choose_best(std::span<const float> scores,
                     uint32_t k,
                     uint32_t* places,
                     uint32_t* scratch) {
  const auto count = static_cast<uint32_t>(scores.size());
  if (k >= count) {
    std::iota(places, places + count, 0u);
    return count;
  }
  if (k == 0) return 0;
  constexpr uint32_t kDigitBits = 11;
  const std::span<uint32_t> ranks(scratch, count);
  std::transform(scores.begin(), scores.end(), ranks.begin(), rank_of);
  uint32_t last = 0;    // the rank of the k-th best, from its highest digit down
  uint32_t wanted = k;  // of those that agree with `last` so far
  for (uint32_t top = 32; top > 0;) {
    const uint32_t low = top > kDigitBits ? top - kDigitBits : 0;
    uint32_t digit = (1u << (top - low)) - 1;  // the greatest
    std::array<uint32_t, 1 << kDigitBits> counts{};
    for (const uint32_t rank : ranks)
      if (top == 32 || rank >> top == last >> top) ++counts[(rank >> low) & digit];
    for (; counts[digit] < wanted; --digit) wanted -= counts[digit];
    last |= digit << low;
    top = low;
  }
  uint32_t* out = places;
  for (uint32_t i = 0; i < count; ++i)
    if (ranks[i] > last || (ranks[i] == last && wanted > 0)) {
      if (ranks[i] == last) --wanted;
      *out++ = i;
    }
  return k;
}

}  // namespace cairn
#endif  // HWY_ONCE
