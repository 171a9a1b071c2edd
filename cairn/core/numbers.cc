#include "cairn/core/numbers.h"

#include <cstring>

#include "cairn/core/error.h"
#include "cairn/core/half.h"

namespace cairn {

void load_f32(const Numbers& numbers, ptrdiff_t offset, uint32_t width, float* out) {
  switch (numbers.dtype) {
    case DType::F32:
      std::memcpy(out, static_cast<const float*>(numbers.data) + offset, width * sizeof(float));
      return;
    case DType::F16: {
      const uint16_t* in = static_cast<const uint16_t*>(numbers.data) + offset;
      for (uint32_t i = 0; i < width; ++i) out[i] = f32_from_f16(in[i]);
      return;
    }
    case DType::BF16: {
      const uint16_t* in = static_cast<const uint16_t*>(numbers.data) + offset;
      for (uint32_t i = 0; i < width; ++i) out[i] = f32_from_bf16(in[i]);
      return;
    }
    default:
      CAIRN_CHECK(false, "numbers: {} given, expected F32, F16 or BF16", name_of(numbers.dtype));
  }
}

}  // namespace cairn
