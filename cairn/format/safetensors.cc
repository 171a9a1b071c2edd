#include "cairn/format/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <numeric>

#include "cairn/core/bytes.h"
#include "cairn/io/aligned.h"

namespace cairn {
namespace {

struct DTypeBits {
  std::string_view name;
  uint32_t bits;
};

constexpr std::array kDTypes = {
    DTypeBits{"F32", 32},        DTypeBits{"F16", 16},    DTypeBits{"BF16", 16},
    DTypeBits{"U8", 8},          DTypeBits{"I8", 8},      DTypeBits{"I16", 16},
    DTypeBits{"U16", 16},        DTypeBits{"I32", 32},    DTypeBits{"U32", 32},
    DTypeBits{"I64", 64},        DTypeBits{"U64", 64},    DTypeBits{"F64", 64},
    DTypeBits{"BOOL", 8},        DTypeBits{"C64", 64},    DTypeBits{"F4", 4},
    DTypeBits{"F6_E2M3", 6},     DTypeBits{"F6_E3M2", 6}, DTypeBits{"F8_E4M3", 8},
    DTypeBits{"F8_E5M2", 8},     DTypeBits{"F8_E8M0", 8}, DTypeBits{"F8_E4M3FNUZ", 8},
    DTypeBits{"F8_E5M2FNUZ", 8},
};

const DTypeBits* dtype_row(std::string_view name) {
  const auto row = std::ranges::find(kDTypes, name, &DTypeBits::name);
  return row == kDTypes.end() ? nullptr : &*row;
}

// What the JSON parser calls, token by token. The header's grammar is fixed and flat, so a few
// states replace a tree: no token is accepted that the grammar does not have, which also bounds the
// depth.
class HeaderHandler {
 public:
  explicit HeaderHandler(SafetensorsHeader& out) : out_(out) {}

  Result<void> result(std::string_view path) const {
    if (error_.has_value()) return fail(error_->code, "{}: {}", path, error_->message);
    return {};
  }

  bool null() { return state_ == State::metadata_value ? to(State::tensor_name) : refuse("null"); }
  bool boolean(bool) { return refuse("a boolean"); }
  bool number_integer(int64_t number) { return refuse(fmt::format("{}", number)); }
  bool number_float(double, const std::string& text) { return refuse(text); }
  bool binary(std::vector<uint8_t>&) { return refuse("binary data"); }

  bool number_unsigned(uint64_t number) {
    switch (state_) {
      case State::shape:
        if (tensor().shape.size() == kMaxTensorRank)
          return wrong("tensor {} has more than {} dimensions", tensor().name, kMaxTensorRank);
        tensor().shape.push_back(number);
        return true;
      case State::begin:
        tensor().begin = number;
        return to(State::end);
      case State::end:
        tensor().end = number;
        return to(State::offsets_close);
      default:
        return refuse(fmt::format("{}", number));
    }
  }

  bool string(std::string& text) {
    switch (state_) {
      case State::metadata_text: {
        const bool is_new =
            out_.metadata.try_emplace(std::move(metadata_key_), std::move(text)).second;
        return is_new ? to(State::metadata_key) : wrong("a metadata key is repeated");
      }
      case State::dtype: {
        const DTypeBits* row = dtype_row(text);
        if (row == nullptr) {
          error_ = Error{Code::Unsupported, fmt::format("tensor {} has dtype {}, which is unknown",
                                                        tensor().name, text)};
          return false;
        }
        tensor().dtype = row->name;
        return to(State::tensor_key);
      }
      default:
        return refuse("a string");
    }
  }

  bool start_object(size_t) {
    switch (state_) {
      case State::file:
        return to(State::tensor_name);
      case State::metadata_value:
        return to(State::metadata_key);
      case State::tensor_open:
        return to(State::tensor_key);
      default:
        return refuse("an object");
    }
  }

  bool key(std::string& text) {
    if (state_ == State::tensor_name) return name_tensor(text);
    if (state_ == State::tensor_key) return tensor_key(text);
    metadata_key_ = std::move(text);  // an object has no other state
    return to(State::metadata_text);
  }

  bool end_object() {
    if (state_ == State::tensor_key && seen_ != kAllSeen)
      return wrong("tensor {} lacks dtype, shape or data_offsets", tensor().name);
    return to(state_ == State::tensor_name ? State::done : State::tensor_name);
  }

  bool start_array(size_t) {
    if (state_ == State::shape_open) return to(State::shape);
    if (state_ == State::offsets_open) return to(State::begin);
    return refuse("an array");
  }

  bool end_array() {
    if (state_ == State::shape || state_ == State::offsets_close) return to(State::tensor_key);
    return wrong("tensor {} has fewer than 2 data_offsets", tensor().name);
  }

  bool parse_error(size_t byte, const std::string&, const nlohmann::detail::exception&) {
    return wrong("the header is not JSON at byte {}", byte);
  }

 private:
  enum class State {
    file,
    tensor_name,
    tensor_open,
    tensor_key,
    dtype,
    shape_open,
    shape,
    offsets_open,
    begin,
    end,
    offsets_close,
    metadata_value,
    metadata_key,
    metadata_text,
    done
  };
  enum Seen : uint32_t { kDType = 1, kShape = 2, kOffsets = 4, kAllSeen = 7 };

  TensorInfo& tensor() { return out_.tensors.back(); }

  bool to(State state) {
    state_ = state;
    return true;
  }

  bool name_tensor(std::string& name) {
    if (name == "__metadata__") {
      if (std::exchange(has_metadata_, true)) return wrong("__metadata__ is repeated");
      return to(State::metadata_value);
    }
    out_.tensors.push_back({.name = std::move(name), .dtype = {}, .shape = {}});
    seen_ = 0;
    return to(State::tensor_open);
  }

  bool tensor_key(std::string_view key) {
    if (key == "dtype") return first(kDType, State::dtype, key);
    if (key == "shape") return first(kShape, State::shape_open, key);
    if (key == "data_offsets") return first(kOffsets, State::offsets_open, key);
    return wrong("tensor {} has an unknown key", tensor().name);
  }

  bool first(Seen bit, State next, std::string_view key) {
    if (seen_ & bit) return wrong("tensor {} repeats {}", tensor().name, key);
    seen_ |= bit;
    return to(next);
  }

  bool refuse(std::string_view found) {
    return wrong("the header has {} where it cannot stand", found);
  }

  template <class... Args>
  bool wrong(fmt::format_string<Args...> text, Args&&... args) {
    error_ = Error{Code::BadInput, fmt::format(text, std::forward<Args>(args)...)};
    return false;
  }

  SafetensorsHeader& out_;
  State state_ = State::file;
  uint32_t seen_ = 0;
  bool has_metadata_ = false;
  std::string metadata_key_;
  std::optional<Error> error_;
};

// Bytes that a tensor of this dtype and shape takes; none: more than 64 bits can say, or a fraction
// of a byte.
std::optional<uint64_t> bytes_of(const TensorInfo& tensor) {
  std::optional<uint64_t> bits = element_bits(tensor.dtype);
  for (uint64_t dimension : tensor.shape) {
    bits = checked_mul(*bits, dimension);
    if (!bits) return std::nullopt;
  }
  return *bits % 8 == 0 ? std::optional(*bits / 8) : std::nullopt;
}

// From offsets in the data to offsets in the file: in order, without gap or overlap, up to the
// file's end.
Result<void> place_tensors(std::string_view path, SafetensorsHeader& header, uint64_t data_bytes) {
  std::ranges::sort(header.tensors, [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t next = 0;
  for (TensorInfo& tensor : header.tensors) {
    if (tensor.begin != next || tensor.end < tensor.begin)
      return fail(Code::BadInput, "{}: tensor {} lies at [{}, {}), expected it to begin at {}",
                  path, tensor.name, tensor.begin, tensor.end, next);
    const auto bytes = bytes_of(tensor);
    if (bytes != tensor.end - tensor.begin)
      return fail(Code::BadInput, "{}: tensor {} has {} bytes, expected what {} [{}] takes", path,
                  tensor.name, tensor.end - tensor.begin, tensor.dtype,
                  fmt::join(tensor.shape, ", "));
    next = tensor.end;
    if (next > data_bytes)
      return fail(Code::Corrupt, "{}: tensor {} ends at byte {} of the data, the file after {}",
                  path, tensor.name, next, data_bytes);
    tensor.begin += header.data_offset;
    tensor.end += header.data_offset;
  }
  if (next != data_bytes)
    return fail(Code::Corrupt, "{}: {} bytes of data, expected {}", path, data_bytes, next);
  return {};
}

Result<void> index_names(std::string_view path, SafetensorsHeader& header) {
  const auto name_at = [&](uint32_t i) -> const std::string& { return header.tensors[i].name; };
  header.by_name.resize(header.tensors.size());
  std::iota(header.by_name.begin(), header.by_name.end(), 0u);
  std::ranges::sort(header.by_name, {}, name_at);
  const auto twin = std::ranges::adjacent_find(header.by_name, {}, name_at);
  if (twin != header.by_name.end())
    return fail(Code::BadInput, "{}: tensor {} is repeated", path, name_at(*twin));
  return {};
}

}  // namespace

uint64_t TensorInfo::elements() const {
  return std::accumulate(shape.begin(), shape.end(), uint64_t{1}, std::multiplies<>());
}

const TensorInfo* SafetensorsHeader::find(std::string_view name) const {
  const auto name_at = [&](uint32_t i) { return std::string_view(tensors[i].name); };
  const auto found = std::ranges::lower_bound(by_name, name, {}, name_at);
  return found != by_name.end() && name_at(*found) == name ? &tensors[*found] : nullptr;
}

std::optional<uint32_t> element_bits(std::string_view dtype) {
  const DTypeBits* row = dtype_row(dtype);
  return row == nullptr ? std::nullopt : std::optional(row->bits);
}

Result<SafetensorsHeader> parse_safetensors(std::string_view path,
                                            std::string_view json,
                                            uint64_t file_bytes) {
  SafetensorsHeader header;
  header.data_offset = sizeof(uint64_t) + json.size();
  CAIRN_CHECK(header.data_offset <= file_bytes, "{}: header of {} bytes in a file of {}", path,
              json.size(), file_bytes);
  HeaderHandler handler(header);
  if (!nlohmann::json::sax_parse(json, &handler)) {
    CAIRN_TRY(handler.result(path));
    return fail(Code::BadInput, "{}: the header is not JSON", path);
  }
  CAIRN_TRY(place_tensors(path, header, file_bytes - header.data_offset));
  CAIRN_TRY(index_names(path, header));
  return header;
}

Result<std::string> read_header_text(File& file, uint64_t file_bytes) {
  constexpr uint64_t kLengthBytes = sizeof(uint64_t);
  AlignedBuffer buffer;
  const std::span<const std::byte> prefix = CAIRN_TRY(read_aligned(file, 0, kLengthBytes, buffer));
  if (prefix.size() < kLengthBytes || file_bytes < kLengthBytes)
    return fail(Code::Corrupt, "{}: {} bytes, expected at least {}", file.path(), prefix.size(),
                kLengthBytes);
  uint64_t header_bytes = 0;
  for (size_t i = 0; i < kLengthBytes; ++i)
    header_bytes |= std::to_integer<uint64_t>(prefix[i]) << (8 * i);
  if (header_bytes > kMaxHeaderBytes)
    return fail(Code::BadInput,
                "{}: the header claims {} bytes, expected at most {}: not a safetensors file",
                file.path(), header_bytes, kMaxHeaderBytes);
  if (header_bytes > file_bytes - kLengthBytes)
    return fail(Code::Corrupt, "{}: the file ends at byte {}, its header at {}", file.path(),
                file_bytes, kLengthBytes + header_bytes);
  const std::span<const std::byte> text =
      CAIRN_TRY(read_aligned(file, kLengthBytes, header_bytes, buffer));
  if (text.size() < header_bytes)
    return fail(Code::Corrupt, "{}: ends inside the header", file.path());
  return std::string(reinterpret_cast<const char*>(text.data()), text.size());
}

Result<SafetensorsHeader> read_safetensors(File& file) {
  const uint64_t file_bytes = CAIRN_TRY(file.size());
  const std::string json = CAIRN_TRY(read_header_text(file, file_bytes));
  return parse_safetensors(file.path(), json, file_bytes);
}

}  // namespace cairn
