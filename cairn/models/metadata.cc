#include "cairn/models/metadata.h"

#include <cmath>
#include <limits>
#include <optional>

namespace cairn {
namespace {

// The value of an integer pair; none: another type, or negative.
std::optional<uint64_t> unsigned_value(const gguf_context* pairs, int64_t id) {
  const auto natural = [](int64_t value) {
    return value < 0 ? std::nullopt : std::optional(static_cast<uint64_t>(value));
  };
  switch (gguf_get_kv_type(pairs, id)) {
    case GGUF_TYPE_UINT8:
      return gguf_get_val_u8(pairs, id);
    case GGUF_TYPE_UINT16:
      return gguf_get_val_u16(pairs, id);
    case GGUF_TYPE_UINT32:
      return gguf_get_val_u32(pairs, id);
    case GGUF_TYPE_UINT64:
      return gguf_get_val_u64(pairs, id);
    case GGUF_TYPE_INT8:
      return natural(gguf_get_val_i8(pairs, id));
    case GGUF_TYPE_INT16:
      return natural(gguf_get_val_i16(pairs, id));
    case GGUF_TYPE_INT32:
      return natural(gguf_get_val_i32(pairs, id));
    case GGUF_TYPE_INT64:
      return natural(gguf_get_val_i64(pairs, id));
    default:
      return std::nullopt;
  }
}

std::string type_at(const gguf_context* pairs, int64_t id) {
  const gguf_type type = gguf_get_kv_type(pairs, id);
  if (type != GGUF_TYPE_ARRAY) return gguf_type_name(type);
  return fmt::format("an array of {} {}", gguf_get_arr_n(pairs, id),
                     gguf_type_name(gguf_get_arr_type(pairs, id)));
}

}  // namespace

Result<int64_t> Metadata::find(const std::string& key) const {
  const int64_t id = gguf_find_key(gguf(), key.c_str());
  if (id < 0) return fail(Code::BadInput, "{}: {} is missing", path_, key);
  return id;
}

Result<uint32_t> Metadata::u32(const std::string& key) const {
  const int64_t id = CAIRN_TRY(find(key));
  const std::optional<uint64_t> value = unsigned_value(gguf(), id);
  if (!value)
    return fail(Code::BadInput, "{}: {} is {}, expected a whole number", path_, key,
                type_at(gguf(), id));
  if (*value > std::numeric_limits<uint32_t>::max())
    return fail(Code::BadInput, "{}: {} is {}, expected less than 2^32", path_, key, *value);
  return static_cast<uint32_t>(*value);
}

Result<float> Metadata::f32(const std::string& key) const {
  const int64_t id = CAIRN_TRY(find(key));
  float value = 0;
  switch (gguf_get_kv_type(gguf(), id)) {
    case GGUF_TYPE_FLOAT32:
      value = gguf_get_val_f32(gguf(), id);
      break;
    case GGUF_TYPE_FLOAT64:
      value = static_cast<float>(gguf_get_val_f64(gguf(), id));
      break;
    default:
      return fail(Code::BadInput, "{}: {} is {}, expected f32", path_, key, type_at(gguf(), id));
  }
  if (!std::isfinite(value))
    return fail(Code::BadInput, "{}: {} is {}, expected a finite number", path_, key, value);
  return value;
}

Result<std::string> Metadata::text(const std::string& key) const {
  const int64_t id = CAIRN_TRY(find(key));
  if (gguf_get_kv_type(gguf(), id) != GGUF_TYPE_STRING)
    return fail(Code::BadInput, "{}: {} is {}, expected text", path_, key, type_at(gguf(), id));
  return gguf_get_val_str(gguf(), id);
}

Result<uint32_t> Metadata::count(const std::string& key) const {
  const int64_t id = CAIRN_TRY(find(key));
  if (gguf_get_kv_type(gguf(), id) != GGUF_TYPE_ARRAY)
    return fail(Code::BadInput, "{}: {} is {}, expected an array", path_, key, type_at(gguf(), id));
  const size_t elements = gguf_get_arr_n(gguf(), id);
  if (elements > std::numeric_limits<uint32_t>::max())
    return fail(Code::BadInput, "{}: {} has {} elements, expected less than 2^32", path_, key,
                elements);
  return static_cast<uint32_t>(elements);
}

bool Metadata::is_array(const std::string& key) const {
  const int64_t id = gguf_find_key(gguf(), key.c_str());
  return id >= 0 && gguf_get_kv_type(gguf(), id) == GGUF_TYPE_ARRAY;
}

Result<std::vector<bool>> Metadata::flags(const std::string& key) const {
  const int64_t id = CAIRN_TRY(find(key));
  if (!is_array(key) || gguf_get_arr_type(gguf(), id) != GGUF_TYPE_BOOL)
    return fail(Code::BadInput, "{}: {} is {}, expected an array of bool", path_, key,
                type_at(gguf(), id));
  const auto* bytes = static_cast<const int8_t*>(gguf_get_arr_data(gguf(), id));
  std::vector<bool> flags(gguf_get_arr_n(gguf(), id));
  for (size_t i = 0; i < flags.size(); ++i) flags[i] = bytes[i] != 0;
  return flags;
}

Result<uint32_t> Metadata::u32_or(const std::string& key, uint32_t absent) const {
  return has(key) ? u32(key) : absent;
}

Result<float> Metadata::f32_or(const std::string& key, float absent) const {
  return has(key) ? f32(key) : absent;
}

Result<std::string> Metadata::text_or(const std::string& key, std::string absent) const {
  return has(key) ? text(key) : Result<std::string>(std::move(absent));
}

Result<bool> Metadata::flag_or(const std::string& key, bool absent) const {
  const int64_t id = gguf_find_key(gguf(), key.c_str());
  if (id < 0) return absent;
  if (gguf_get_kv_type(gguf(), id) != GGUF_TYPE_BOOL)
    return fail(Code::BadInput, "{}: {} is {}, expected bool", path_, key, type_at(gguf(), id));
  return gguf_get_val_bool(gguf(), id);
}

}  // namespace cairn
