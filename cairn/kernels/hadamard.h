// The normalized Walsh-Hadamard transform in natural order: H[i][j] = (-1)^popcount(i & j) /
// sqrt(width). Orthonormal and its own inverse; rotations of encodings are built on it.
#ifndef CAIRN_KERNELS_HADAMARD_H_
#define CAIRN_KERNELS_HADAMARD_H_

#include <cstdint>

namespace cairn {

// x <- H x, in place. REQUIRES: width is a power of two and at least 16.
//
// Defined to the last bit: for strides 1, 2, 4, ... width / 2 in this order every pair (a, b) whose
// distance is the stride, a before b, becomes (a + b, a - b); at the end every number is multiplied
// by 1 / sqrt(width) as rounded to f32.
void hadamard(float* x, uint32_t width);

}  // namespace cairn

#endif  // CAIRN_KERNELS_HADAMARD_H_
