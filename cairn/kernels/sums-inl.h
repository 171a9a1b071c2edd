// Steps of docs/numbers.md that the loops of several files share: E, and the tree that adds sixteen
// interleaved sums. Included once per target, between hwy/highway.h and the file's own
// HWY_NAMESPACE code; kernels/softmax.cc has the scalar definitions.

// The constants of E, shared by the scalar definition and every target.
#ifndef CAIRN_KERNELS_SUMS_INL_CONSTANTS_
#define CAIRN_KERNELS_SUMS_INL_CONSTANTS_

#include <cstddef>
#include <cstdint>
#include <iterator>

namespace cairn::exp2_constants {
// x + kRound leaves 127 + (x rounded to an integer) in the low bits of the sum, which are the
// exponent of 2^n.
inline constexpr float kRound = 12583039.f;  // 1.5 * 2^23 + 127
inline constexpr float kFloor = -64.f;
// 2^r on [-1/2, 1/2], degree 6, highest first. Maximum relative error of E on [-64, 0]: 7.6e-8.
inline constexpr float kPolynomial[] = {0x1.41fbbcp-13f,
                                        0x1.5f3e52p-10f,
                                        0x1.3b2d4cp-7f,
                                        0x1.c6aee8p-5f,
                                        0x1.ebfbdcp-3f,
                                        0x1.62e430p-1f,
                                        1.f};
}  // namespace cairn::exp2_constants

#endif  // CAIRN_KERNELS_SUMS_INL_CONSTANTS_

#if defined(CAIRN_KERNELS_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CAIRN_KERNELS_SUMS_INL_H_
#undef CAIRN_KERNELS_SUMS_INL_H_
#else
#define CAIRN_KERNELS_SUMS_INL_H_
#endif

#include "hwy/highway.h"

#if !CAIRN_NO_SIMD
HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {

// x = E(x) of several vectors, a step of all before the next: one alone would wait for each of its
// own steps.
template <class D, class V, size_t kCount>
HWY_INLINE void exp2_of_each(D d, V (&x)[kCount]) {
  namespace hn = hwy::HWY_NAMESPACE;
  using namespace exp2_constants;  // NOLINT: this file's own
  const hn::Rebind<uint32_t, D> du;
  V power[kCount], r[kCount], p[kCount];
  HWY_UNROLL(8)
  for (size_t k = 0; k < kCount; ++k) power[k] = hn::Add(x[k], hn::Set(d, kRound));
  HWY_UNROLL(8)
  for (size_t k = 0; k < kCount; ++k) r[k] = hn::Sub(x[k], hn::Sub(power[k], hn::Set(d, kRound)));
  HWY_UNROLL(8)
  for (size_t k = 0; k < kCount; ++k) p[k] = hn::Set(d, kPolynomial[0]);
  HWY_UNROLL(8)
  for (size_t i = 1; i < std::size(kPolynomial); ++i) HWY_UNROLL(8)
  for (size_t k = 0; k < kCount; ++k) p[k] = hn::MulAdd(p[k], r[k], hn::Set(d, kPolynomial[i]));
  HWY_UNROLL(8)
  for (size_t k = 0; k < kCount; ++k)
    power[k] = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(du, power[k])));
  HWY_UNROLL(8)
  for (size_t k = 0; k < kCount; ++k)
    x[k] = hn::IfThenZeroElse(hn::Lt(x[k], hn::Set(d, kFloor)), hn::Mul(p[k], power[k]));
}

template <class D, class V = hwy::HWY_NAMESPACE::Vec<D>>
HWY_INLINE V exp2_nonpositive(D d, V x) {
  V one[1] = {x};
  exp2_of_each(d, one);
  return one[0];
}

// p[j] + p[j + half] for ever smaller halves.
template <class Lanes>
HWY_INLINE float halving_sum(Lanes, hwy::HWY_NAMESPACE::Vec<Lanes> p) {
  namespace hn = hwy::HWY_NAMESPACE;
  if constexpr (hn::MaxLanes(Lanes()) > 4) {
    const hn::Half<Lanes> half;
    return halving_sum(half, hn::Add(hn::LowerHalf(half, p), hn::UpperHalf(half, p)));
  } else {
    p = hn::Add(p, hn::Shuffle1032(p));
    return hn::GetLane(hn::Add(p, hn::Shuffle2301(p)));
  }
}

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // !CAIRN_NO_SIMD

#endif  // per-target include guard
