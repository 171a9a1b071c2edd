// Which Highway targets Cairn compiles. Include this before hwy/foreach_target.h and hwy/highway.h,
// nowhere else.
//
//   #undef HWY_TARGET_INCLUDE
//   #define HWY_TARGET_INCLUDE "cairn/kernels/softmax.cc"
//   #include "cairn/kernels/simd.h"
//   #include "hwy/foreach_target.h"
//   #include "hwy/highway.h"
//
// Left out are targets without fused multiply-add (their sums would differ) and those whose vectors
// have no size at compile time (they cannot be elements of an array, which register tiles are).
// Highway still compiles its fallback target; a file's SIMD part is empty there, because
// use_scalar() is true wherever it would be chosen.
#ifndef CAIRN_KERNELS_SIMD_H_
#define CAIRN_KERNELS_SIMD_H_

#define HWY_WANT_AVX3_DL
#define HWY_DISABLED_TARGETS                                                                      \
  (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_PPC8 | HWY_WASM | \
   HWY_WASM_EMU256 | HWY_RVV)

// True while a file is compiled for a target that is never dispatched to.
#define CAIRN_NO_SIMD (HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128)

#endif  // CAIRN_KERNELS_SIMD_H_
