#include "cairn/core/dtype.h"

#include <array>

namespace cairn {
namespace {

struct Row {
  DType dtype;
  size_t bytes;
  std::string_view name;
};

constexpr std::array kRows = {
    Row{DType::F32, 4, "F32"}, Row{DType::F16, 2, "F16"}, Row{DType::BF16, 2, "BF16"},
    Row{DType::I32, 4, "I32"}, Row{DType::U32, 4, "U32"}, Row{DType::U8, 1, "U8"},
};

constexpr const Row& row_of(DType dtype) { return kRows[static_cast<size_t>(dtype)]; }

static_assert([] {
  for (const Row& row : kRows)
    if (&row_of(row.dtype) != &row) return false;
  return true;
}());

}  // namespace

size_t bytes_of(DType dtype) { return row_of(dtype).bytes; }

std::string_view name_of(DType dtype) { return row_of(dtype).name; }

std::optional<DType> dtype_named(std::string_view name) {
  for (const Row& row : kRows)
    if (row.name == name) return row.dtype;
  return std::nullopt;
}

}  // namespace cairn
