#include "cairn/kernels/hadamard.h"

#include <cmath>

#include "cairn/kernels/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cairn/kernels/hadamard.cc"
#include "cairn/kernels/simd.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {

#if CAIRN_NO_SIMD

void hadamard_sums(float*, uint32_t, float) {}

#else
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;
constexpr D d;
constexpr size_t kLanes = hn::MaxLanes(D());

// The pairs whose distance is less than a vector: lane i meets lane i ^ stride. The upper lane of a
// pair gets a - b as a + -b, the lower one b + a: the same bits.
template <size_t kStride>
HWY_INLINE V meet_lanes(V x) {
  const hn::Rebind<uint32_t, D> du;
  const hn::Rebind<int32_t, D> di;
  alignas(64) static constexpr auto kTables = [] {
    struct Tables {
      int32_t partner[kLanes];
      uint32_t sign[kLanes];
    } tables{};
    for (size_t i = 0; i < kLanes; ++i) {
      tables.partner[i] = static_cast<int32_t>(i ^ kStride);
      tables.sign[i] = (i & kStride) != 0 ? 0x80000000u : 0;
    }
    return tables;
  }();
  const V partner = hn::TableLookupLanes(x, hn::IndicesFromVec(d, hn::LoadU(di, kTables.partner)));
  return hn::Add(partner, hn::Xor(x, hn::BitCast(d, hn::LoadU(du, kTables.sign))));
}

template <size_t kStride>
HWY_INLINE V meet_all_lanes(V x) {
  if constexpr (kStride < kLanes) return meet_all_lanes<kStride * 2>(meet_lanes<kStride>(x));
  return x;
}

}  // namespace

void hadamard_sums(float* x, uint32_t width, float factor) {
  for (uint32_t i = 0; i < width; i += kLanes)
    hn::StoreU(meet_all_lanes<1>(hn::LoadU(d, x + i)), d, x + i);
  for (uint32_t stride = kLanes; stride < width; stride *= 2)
    for (uint32_t begin = 0; begin < width; begin += 2 * stride)
      for (uint32_t i = begin; i < begin + stride; i += kLanes) {
        const V a = hn::LoadU(d, x + i), b = hn::LoadU(d, x + i + stride);
        hn::StoreU(hn::Add(a, b), d, x + i);
        hn::StoreU(hn::Sub(a, b), d, x + i + stride);
      }
  const V times = hn::Set(d, factor);
  for (uint32_t i = 0; i < width; i += kLanes)
    hn::StoreU(hn::Mul(hn::LoadU(d, x + i), times), d, x + i);
}

#endif

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cairn {
HWY_EXPORT(hadamard_sums);

namespace {

// The definition.
void hadamard_sums(float* x, uint32_t width, float factor) {
  for (uint32_t stride = 1; stride < width; stride *= 2)
    for (uint32_t begin = 0; begin < width; begin += 2 * stride)
      for (uint32_t i = begin; i < begin + stride; ++i) {
        const float a = x[i], b = x[i + stride];
        x[i] = a + b;
        x[i + stride] = a - b;
      }
  for (uint32_t i = 0; i < width; ++i) x[i] *= factor;
}

}  // namespace

void hadamard(float* x, uint32_t width) {
  const auto factor = static_cast<float>(1 / std::sqrt(static_cast<double>(width)));
  if (use_scalar())
    hadamard_sums(x, width, factor);
  else
    HWY_DYNAMIC_DISPATCH(hadamard_sums)(x, width, factor);
}

}  // namespace cairn
#endif  // HWY_ONCE
