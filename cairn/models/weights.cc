#include "cairn/models/weights.h"

#include <ggml-cpu.h>

#include <cstring>
#include <mutex>
#include <new>

#include "cairn/core/bytes.h"
#include "cairn/models/huggingface.h"

namespace cairn {
namespace {

// ggml's kernels may read whole vectors of this many bytes.
constexpr uint64_t kTensorAlignment = 32;

constexpr std::string_view kGgufMagic = "GGUF";

std::string shape_text(int64_t in, int64_t out, int64_t count) {
  if (count != 1) return fmt::format("[{}, {}, {}]", count, out, in);
  return out == 1 ? fmt::format("[{}]", in) : fmt::format("[{}, {}]", out, in);
}

// What ggml would print while it reads a file, kept instead, so that it can be part of the error.
class CapturedLog {
 public:
  CapturedLog() : lock_(mutex()) {
    ggml_log_get(&callback_, &user_data_);
    ggml_log_set(append, this);
  }
  ~CapturedLog() { ggml_log_set(callback_, user_data_); }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;

  // Its first line, without the name of ggml's function.
  std::string reason() const {
    std::string line = text_.substr(0, text_.find('\n'));
    if (const size_t colon = line.find(": "); colon != std::string::npos) line.erase(0, colon + 2);
    return line.empty() ? "not readable" : line;
  }

 private:
  static std::mutex& mutex() {  // ggml has one log for the process
    static std::mutex one;
    return one;
  }
  static void append(ggml_log_level, const char* text, void* self) {
    static_cast<CapturedLog*>(self)->text_ += text;
  }

  std::lock_guard<std::mutex> lock_;
  ggml_log_callback callback_ = nullptr;
  void* user_data_ = nullptr;
  std::string text_;
};

struct GgufHeader {
  Metadata metadata;
  ContextPtr tensors;
};

Result<GgufHeader> read_header(const std::string& path, std::span<const std::byte> file) {
  CapturedLog log;
  ggml_context* tensors = nullptr;
  gguf_context* pairs =
      gguf_init_from_buffer(file.data(), file.size(), {.no_alloc = true, .ctx = &tensors});
  if (pairs == nullptr)
    return fail(Code::BadInput, "{}: damaged GGUF header: {}", path, log.reason());
  GgufHeader header{Metadata(pairs, path), ContextPtr(tensors)};
  if (tensors == nullptr) return fail(Code::BadInput, "{}: GGUF file without tensors", path);
  return header;
}

// The place of tensor `id` in the file, checked.
Result<uint64_t> offset_of(const GgufHeader& header, int64_t id, uint64_t file_bytes) {
  const gguf_context* gguf = header.metadata.gguf();
  const char* name = gguf_get_tensor_name(gguf, id);
  const uint64_t bytes = gguf_get_tensor_size(gguf, id);
  const auto offset = checked_add(gguf_get_data_offset(gguf), gguf_get_tensor_offset(gguf, id));
  const auto end = offset ? checked_add(*offset, bytes) : std::nullopt;
  if (!end || *end > file_bytes)
    return fail(Code::BadInput,
                "{}: tensor {}: {} bytes at byte {} of the tensor data, expected them inside a "
                "file of {} bytes",
                header.metadata.path(), name, bytes, gguf_get_tensor_offset(gguf, id), file_bytes);
  if (*offset % kTensorAlignment != 0)
    return fail(Code::BadInput, "{}: tensor {}: at byte {}, expected a multiple of {}",
                header.metadata.path(), name, *offset, kTensorAlignment);
  return *offset;
}

Result<void> place_tensors(const GgufHeader& header, std::span<std::byte> file) {
  const gguf_context* gguf = header.metadata.gguf();
  for (int64_t id = 0; id < gguf_get_n_tensors(gguf); ++id) {
    const char* name = gguf_get_tensor_name(gguf, id);
    ggml_tensor* tensor = ggml_get_tensor(header.tensors.get(), name);
    if (tensor == nullptr || ggml_nbytes(tensor) != gguf_get_tensor_size(gguf, id))
      return fail(Code::BadInput, "{}: tensor {}: its shape and its size disagree",
                  header.metadata.path(), name);
    const uint64_t offset = CAIRN_TRY(offset_of(header, id, file.size()));
    tensor->data = file.data() + offset;
  }
  return {};
}

bool can_multiply(ggml_type type) {
  if (type < 0 || type >= GGML_TYPE_COUNT) return false;
  const ggml_type_traits_cpu* traits = ggml_get_type_traits_cpu(type);
  if (traits->vec_dot == nullptr) return false;
  return traits->vec_dot_type == GGML_TYPE_F32 ||
         ggml_get_type_traits_cpu(traits->vec_dot_type)->from_float != nullptr;
}

bool has_magic(std::span<const std::byte> file, std::string_view magic) {
  return file.size() >= magic.size() && std::memcmp(file.data(), magic.data(), magic.size()) == 0;
}

}  // namespace

Result<ggml_tensor*> Weights::find(const std::string& name,
                                   int64_t in,
                                   int64_t out,
                                   int64_t count) {
  ggml_tensor* tensor = ggml_get_tensor(tensors_.get(), name.c_str());
  if (tensor == nullptr) return fail(Code::BadInput, "{}: tensor {} is missing", path(), name);
  if (tensor->ne[0] != in || tensor->ne[1] != out || tensor->ne[2] != count || tensor->ne[3] != 1)
    return fail(Code::BadInput, "{}: tensor {} has shape {}, expected {}", path(), name,
                shape_text(tensor->ne[0], tensor->ne[1], tensor->ne[2] * tensor->ne[3]),
                shape_text(in, out, count));
  used_.insert(name);
  return tensor;
}

Result<ggml_tensor*> Weights::matrix(const std::string& name, int64_t in, int64_t out) {
  return matrices(name, in, out, 1);
}

Result<ggml_tensor*> Weights::matrices(const std::string& name,
                                       int64_t in,
                                       int64_t out,
                                       int64_t count) {
  ggml_tensor* tensor = CAIRN_TRY(find(name, in, out, count));
  if (!can_multiply(tensor->type))
    return fail(Code::Unsupported, "{}: tensor {} is {}, expected a type that ggml multiplies",
                path(), name, ggml_type_name(tensor->type));
  return tensor;
}

Result<ggml_tensor*> Weights::vector(const std::string& name, int64_t length) {
  ggml_tensor* tensor = CAIRN_TRY(find(name, length, 1));
  if (tensor->type != GGML_TYPE_F32)
    return fail(Code::Unsupported, "{}: tensor {} is {}, expected f32", path(), name,
                ggml_type_name(tensor->type));
  return tensor;
}

std::vector<ggml_type> Weights::matrix_types() const {
  std::set<ggml_type> types;
  for (ggml_tensor* t = ggml_get_first_tensor(tensors_.get()); t != nullptr;
       t = ggml_get_next_tensor(tensors_.get(), t))
    if (ggml_nrows(t) > 1) types.insert(t->type);
  return {types.begin(), types.end()};
}

Result<void> Weights::all_used() const {
  for (ggml_tensor* t = ggml_get_first_tensor(tensors_.get()); t != nullptr;
       t = ggml_get_next_tensor(tensors_.get(), t))
    if (!used_.contains(std::string_view(t->name)))
      return fail(Code::Unsupported, "{}: tensor {} has no place in this architecture", path(),
                  t->name);
  return {};
}

Result<void> Weights::expand() {
  for (ggml_tensor* t = ggml_get_first_tensor(tensors_.get()); t != nullptr;
       t = ggml_get_next_tensor(tensors_.get(), t)) {
    if (t->type == GGML_TYPE_F32) continue;
    const ggml_to_float_t decode = ggml_get_type_traits(t->type)->to_float;
    if (decode == nullptr)
      return fail(Code::Unsupported, "{}: tensor {} is {}, expected a type that decodes to f32",
                  path(), t->name, ggml_type_name(t->type));
    const int64_t count = ggml_nelements(t);
    std::unique_ptr<float[]> numbers(new (std::nothrow) float[static_cast<size_t>(count)]);
    if (!numbers)
      return fail(Code::NoSpace, "{}: tensor {}: no memory for {} numbers", path(), t->name, count);
    decode(t->data, numbers.get(), count);
    t->type = GGML_TYPE_F32;
    t->nb[0] = sizeof(float);
    for (int i = 1; i < GGML_MAX_DIMS; ++i)
      t->nb[i] = t->nb[i - 1] * static_cast<size_t>(t->ne[i - 1]);
    t->data = numbers.get();
    expanded_.push_back(std::move(numbers));
  }
  return {};
}

Result<Weights> open_gguf(const std::string& path) {
  MappedFile file = CAIRN_TRY(MappedFile::open(path));
  if (!has_magic(file.bytes(), kGgufMagic))
    return fail(Code::BadInput, "{}: no GGUF file: its first bytes are not \"GGUF\"", path);
  GgufHeader header = CAIRN_TRY(read_header(path, file.bytes()));
  CAIRN_TRY(place_tensors(header, file.bytes()));
  return Weights(std::move(file), std::move(header.metadata), std::move(header.tensors),
                 RotaryPairs::adjacent);
}

Result<Weights> open_weights(const std::string& path, Expand expand) {
  Weights weights = CAIRN_TRY(is_safetensors_path(path) ? open_huggingface(path) : open_gguf(path));
  if (expand == Expand::f32) CAIRN_TRY(weights.expand());
  return weights;
}

}  // namespace cairn
