// Which code runs: the best target this machine has, or the one that CAIRN_KERNELS names.
//
// A file with SIMD compiles its loops once per Highway target and keeps plain scalar code beside
// them, which defines the bits. It then chooses by `use_scalar()`: the scalar table, or
// HWY_DYNAMIC_DISPATCH over the targets. Targets without fused multiply-add are never used (a
// machine that has none runs scalar code).
#ifndef CAIRN_KERNELS_DISPATCH_H_
#define CAIRN_KERNELS_DISPATCH_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/core/error.h"

namespace cairn {

// Names of the targets this machine can run, best first, "scalar" last: {"AVX3_DL", "AVX3", "AVX2",
// "scalar"}.
std::vector<std::string> kernel_targets();

// The target in use.
std::string kernel_target();

// Uses `name` from now on in the whole process; "" returns to the default. BadInput names what
// there is. Not to be called while kernels run.
Result<void> use_kernel_target(std::string_view name);

// True when the scalar definition is to run. Reads CAIRN_KERNELS at the first call; an unknown name
// throws ContractError.
bool use_scalar();

// Sets round-to-nearest and denormals on for a scope, and restores the caller's mode: a host may
// run with others.
class RoundingScope {
 public:
  RoundingScope();
  ~RoundingScope();
  RoundingScope(const RoundingScope&) = delete;
  RoundingScope& operator=(const RoundingScope&) = delete;

 private:
  uint64_t saved_;
};

}  // namespace cairn

#endif  // CAIRN_KERNELS_DISPATCH_H_
