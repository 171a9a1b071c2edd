// Arithmetic on sizes that may come from a stranger: aligned, and checked where a product can pass
// 64 bits.
#ifndef CAIRN_CORE_BYTES_H_
#define CAIRN_CORE_BYTES_H_

#include <cstdint>
#include <optional>

namespace cairn {

constexpr uint64_t round_up(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
constexpr uint64_t ceil_div(uint64_t value, uint64_t divisor) {
  return value / divisor + (value % divisor != 0);
}

inline std::optional<uint64_t> checked_add(uint64_t a, uint64_t b) {
  uint64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? std::nullopt : std::optional(sum);
}
inline std::optional<uint64_t> checked_mul(uint64_t a, uint64_t b) {
  uint64_t product;
  return __builtin_mul_overflow(a, b, &product) ? std::nullopt : std::optional(product);
}

}  // namespace cairn

#endif  // CAIRN_CORE_BYTES_H_
