// Runs something on every kernel target of this machine, and compares with what scalar code gives.
#ifndef CAIRN_TESTS_SUPPORT_TARGETS_H_
#define CAIRN_TESTS_SUPPORT_TARGETS_H_

#include <gtest/gtest.h>

#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "cairn/kernels/dispatch.h"

namespace cairn::testing {

// The target for a scope; the process's default afterwards.
class TargetScope {
 public:
  explicit TargetScope(const std::string& name) {
    EXPECT_TRUE(use_kernel_target(name).has_value()) << name;
  }
  ~TargetScope() { EXPECT_TRUE(use_kernel_target("").has_value()); }
  TargetScope(const TargetScope&) = delete;
  TargetScope& operator=(const TargetScope&) = delete;
};

template <class T>
bool same_bytes(std::span<const T> a, std::span<const T> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}
template <class T>
bool same_bytes(const std::vector<T>& a, const std::vector<T>& b) {
  return same_bytes(std::span<const T>(a), std::span<const T>(b));
}

// NaNs keep no promise about their payload: one pattern for all, before bytes are compared.
inline std::vector<float> with_one_nan(std::vector<float> x) {
  for (float& value : x)
    if (value != value) value = __builtin_nanf("");
  return x;
}

// compute() -> std::vector<T>, the same bytes on every target.
template <class Compute>
void expect_same_on_every_target(Compute compute) {
  const auto expected = [&] {
    const TargetScope scope("scalar");
    return compute();
  }();
  for (const std::string& target : kernel_targets()) {
    const TargetScope scope(target);
    ASSERT_TRUE(same_bytes(compute(), expected)) << target << " differs from scalar";
  }
}

}  // namespace cairn::testing

#endif  // CAIRN_TESTS_SUPPORT_TARGETS_H_
