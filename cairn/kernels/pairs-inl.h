// Products of 16-bit numbers, those of two neighbours added to each 32-bit sum.
// Included once per target: between hwy/highway.h and the file's own HWY_NAMESPACE code.
#if defined(CAIRN_KERNELS_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CAIRN_KERNELS_PAIRS_INL_H_
#undef CAIRN_KERNELS_PAIRS_INL_H_
#else
#define CAIRN_KERNELS_PAIRS_INL_H_
#endif

#include <cstddef>

#include "hwy/highway.h"

// AVX-512 VNNI multiplies and adds in one instruction, which Highway 1.0 neither uses nor turns on:
// functions that add pairs ask for it.
#undef CAIRN_PAIRS_ATTR
#if HWY_TARGET == HWY_AVX3_DL
#define CAIRN_PAIRS_ATTR __attribute__((target(HWY_TARGET_STR ",avx512vnni")))
#else
#define CAIRN_PAIRS_ATTR
#endif

HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {

// Whole numbers add in any order, so that a sum may be kept in two: what an instruction needs, or
// two chains, which hide its latency.
template <class Z>
struct PairSum {
  Z a, b;
};

// sum += x * y, with as many 16-bit lanes as `d` has twice. `step` counts the calls for a sum, of
// which `kSums` take turns.
template <size_t kSums, class D, class H, class Z>
HWY_INLINE CAIRN_PAIRS_ATTR void add_pairs(D d, H x, H y, size_t step, PairSum<Z>& sum) {
#if HWY_TARGET == HWY_AVX3_DL
  (void)d;
  constexpr size_t kChains = kSums < 10 ? 2 : 1;  // five cycles' latency, two a cycle
  Z& chain = step % kChains == 0 ? sum.a : sum.b;
  chain.raw = _mm512_dpwssd_epi32(chain.raw, x.raw, y.raw);
#else
  (void)step;
  sum.a = hwy::HWY_NAMESPACE::ReorderWidenMulAccumulate(d, x, y, sum.a, sum.b);
#endif
}

template <class Z>
HWY_INLINE Z total(const PairSum<Z>& sum) {
#if HWY_TARGET == HWY_AVX3_DL
  return hwy::HWY_NAMESPACE::Add(sum.a, sum.b);
#else
  return hwy::HWY_NAMESPACE::RearrangeToOddPlusEven(sum.a, sum.b);
#endif
}

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
