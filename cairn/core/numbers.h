// Numbers that a caller lends: a plain pointer with a dtype and strides.
#ifndef CAIRN_CORE_NUMBERS_H_
#define CAIRN_CORE_NUMBERS_H_

#include <cstddef>
#include <cstdint>

#include "cairn/core/dtype.h"

namespace cairn {

// [positions, heads, width]; the numbers of one vector are adjacent. Borrowed for the call, never
// kept. Strides may be of either sign, so that any order of positions and heads can be lent; 0
// stands for dense, so that one vector cannot be lent as many.
struct Numbers {
  const void* data = nullptr;     // the first position's first head
  DType dtype = DType::F32;       // F32, F16 or BF16
  ptrdiff_t position_stride = 0;  // elements between positions; 0: dense, heads * width
  ptrdiff_t head_stride = 0;      // elements between heads; 0: dense, width

  Numbers() = default;
  Numbers(const float* dense)
      : data(dense) {}  // NOLINT: a plain f32 array is what most callers hold
  Numbers(const void* numbers, DType type, ptrdiff_t position = 0, ptrdiff_t head = 0)
      : data(numbers), dtype(type), position_stride(position), head_stride(head) {}
};

// One vector of `width` numbers as f32 (exact), from element `offset` of `numbers.data`.
void load_f32(const Numbers& numbers, ptrdiff_t offset, uint32_t width, float* out);

}  // namespace cairn

#endif  // CAIRN_CORE_NUMBERS_H_
