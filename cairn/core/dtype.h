// The number formats that cross Cairn's interfaces.
#ifndef CAIRN_CORE_DTYPE_H_
#define CAIRN_CORE_DTYPE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace cairn {

enum class DType : uint8_t { F32, F16, BF16, I32, U32, U8 };

size_t bytes_of(DType dtype);           // of one element
std::string_view name_of(DType dtype);  // as safetensors spells it: "F32", "BF16", ...
std::optional<DType> dtype_named(std::string_view name);

}  // namespace cairn

#endif  // CAIRN_CORE_DTYPE_H_
