#include "cairn/format/prompt_cache.h"

#include <fmt/format.h>

#include <array>
#include <cstring>

#include "cairn/core/bytes.h"
#include "cairn/format/json_fields.h"

namespace cairn {
namespace {

// A class whose state is keys, values and numbers; for both directions.
struct CacheClass {
  std::string_view name;
  size_t planes;  // arrays that the keys consist of, and the values; 1: no tuple around it
  std::array<uint64_t PromptCache::*, 4> numbers;  // as they follow; null: none
};

constexpr std::array kClasses = {
    CacheClass{"KVCache", 1, {&PromptCache::offset}},
    CacheClass{"QuantizedKVCache",
               3,
               {&PromptCache::offset, &PromptCache::group_size, &PromptCache::bits}},
    CacheClass{
        "RotatingKVCache",
        1,
        {&PromptCache::offset, &PromptCache::keep, &PromptCache::max_size, &PromptCache::index}},
};
constexpr std::string_view kArraysCache = "ArraysCache", kCacheList = "CacheList";
constexpr std::string_view kScalar = "scalar", kString = "string", kNone = "none";
constexpr uint64_t kLargestNumber = uint64_t{1} << 62;  // so that sums of two do not overflow

const CacheClass* class_named(std::string_view name) {
  for (const CacheClass& row : kClasses)
    if (row.name == name) return &row;
  return nullptr;
}

std::string array_path(const std::string& state, const CacheClass& row, size_t list, size_t plane) {
  return row.planes == 1 ? fmt::format("{}.{}", state, list)
                         : fmt::format("{}.{}.{}", state, list, plane);
}

class Reader {
 public:
  Reader(File& file, SafetensorsHeader header) : file_(file), header_(std::move(header)) {}

  Result<PromptCacheFile> read() {
    CAIRN_TRY(recognize());
    read_markers();
    PromptCacheFile content;
    for (size_t i = 0;; ++i) {
      const std::string* class_name = text(fmt::format("1.{}", i));
      if (class_name == nullptr) break;
      content.caches.push_back(CAIRN_TRY(cache(*class_name, std::to_string(i), kCacheList)));
    }
    if (used_ != header_.tensors.size())
      return fail(Code::BadInput, "{}: {} tensors, expected the {} of its {} caches", file_.path(),
                  header_.tensors.size(), used_, content.caches.size());
    constexpr std::string_view kAbout = "0.";
    for (auto& [key, value] : header_.metadata)
      if (key.starts_with(kAbout)) content.about.emplace(key.substr(kAbout.size()), value);
    return content;
  }

 private:
  const std::string* text(const std::string& key) const {
    const auto found = header_.metadata.find(key);
    return found == header_.metadata.end() ? nullptr : &found->second;
  }

  Result<void> recognize() const {
    const std::string* first = text("2.0");
    if (first != nullptr && first->ends_with("Cache"))
      return fail(Code::Unsupported,
                  "{}: a prompt cache of an mlx-lm before 0.32, expected one that 0.32 wrote",
                  file_.path());
    if (first == nullptr || !first->empty() || text("1.0") == nullptr)
      return fail(Code::BadInput, "{}: neither a checkpoint nor a prompt cache of mlx-lm",
                  file_.path());
    return {};
  }

  void read_markers() {
    for (size_t i = 1;; ++i) {
      const std::string* path = text(fmt::format("2.{}.0", i));
      const std::string* marker = text(fmt::format("2.{}.1", i));
      if (path == nullptr || marker == nullptr) return;
      markers_.emplace(*path, *marker);
    }
  }

  std::string_view marker(const std::string& path) const {
    const auto found = markers_.find(path);
    return found == markers_.end() ? std::string_view() : found->second;
  }

  // `marker` empty: an array to Python.
  Result<const TensorInfo*> take(const std::string& path, std::string_view marker_wanted) {
    const TensorInfo* tensor = header_.find(path);
    if (tensor == nullptr || marker(path) != marker_wanted)
      return fail(Code::BadInput, "{}: {} is {}, expected {}", file_.path(), path,
                  tensor == nullptr ? "missing" : "something else",
                  marker_wanted.empty() ? "an array" : marker_wanted);
    ++used_;
    return tensor;
  }

  // Bytes of a tensor that is short by its nature.
  Result<std::vector<std::byte>> bytes_of(const TensorInfo& tensor) const {
    constexpr uint64_t kMostBytes = 4096;
    if (tensor.bytes() > kMostBytes)
      return fail(Code::BadInput, "{}: {} is {} bytes long, expected a number or a name",
                  file_.path(), tensor.name, tensor.bytes());
    std::vector<std::byte> bytes(tensor.bytes());
    if (CAIRN_TRY(file_.read_at(tensor.begin, bytes)) < bytes.size())
      return fail(Code::Corrupt, "{}: ends inside {}", file_.path(), tensor.name);
    return bytes;
  }

  static bool is_whole(std::string_view dtype) {
    return dtype == "I32" || dtype == "I64" || dtype == "U32" || dtype == "U64";
  }

  Result<uint64_t> number(const std::string& path) {
    const TensorInfo* tensor = CAIRN_TRY(take(path, kScalar));
    const std::vector<std::byte> bytes = CAIRN_TRY(bytes_of(*tensor));
    uint64_t value = kLargestNumber;
    if (is_whole(tensor->dtype) && bytes.size() == *element_bits(tensor->dtype) / 8) {
      value = 0;
      std::memcpy(&value, bytes.data(), bytes.size());
      const bool is_negative = tensor->dtype == "I32" && value > INT32_MAX;
      if (is_negative) value = kLargestNumber;
    }
    if (value >= kLargestNumber)
      return fail(Code::BadInput, "{}: {} is {} {}, expected a whole number that is not negative",
                  file_.path(), path, tensor->dtype, fmt::join(tensor->shape, ", "));
    return value;
  }

  Result<std::string> name(const std::string& path) {
    const TensorInfo* tensor = CAIRN_TRY(take(path, kString));
    const std::vector<std::byte> bytes = CAIRN_TRY(bytes_of(*tensor));
    if (tensor->dtype != "I32")
      return fail(Code::BadInput, "{}: {} is {}, expected the letters of a name as I32",
                  file_.path(), path, tensor->dtype);
    std::string letters;
    for (size_t i = 0; i < bytes.size(); i += sizeof(uint32_t)) {
      uint32_t letter = 0;
      std::memcpy(&letter, bytes.data() + i, sizeof(letter));
      letters += letter < 0x80 ? static_cast<char>(letter) : '?';
    }
    return letters;
  }

  Result<PromptCache> cache(const std::string& class_name,
                            const std::string& path,
                            std::string_view list_class) {
    PromptCache out{.class_name = class_name, .arrays = {}, .members = {}};
    if (class_name == list_class) {
      CAIRN_TRY(members(path, out));
    } else if (class_name == kArraysCache) {
      CAIRN_TRY(tensors(path, out));
    } else if (const CacheClass* row = class_named(class_name)) {
      CAIRN_TRY(keys_and_values(path, *row, out));
    } else {
      return fail(Code::Unsupported,
                  "{}: cache {} is a {}, expected KVCache, QuantizedKVCache, RotatingKVCache, "
                  "ArraysCache or a CacheList of those",
                  file_.path(), path, class_name);
    }
    return out;
  }

  Result<void> members(const std::string& path, PromptCache& out) {
    for (;;) {
      const std::string member = fmt::format("{}.{}", path, out.members.size());
      if (header_.find(member + ".1") == nullptr || marker(member + ".1") != kString) return {};
      const std::string class_name = CAIRN_TRY(name(member + ".1"));
      out.members.push_back(CAIRN_TRY(cache(class_name, member + ".0", "")));
    }
  }

  Result<void> tensors(const std::string& path, PromptCache& out) {
    for (;;) {
      const std::string tensor = fmt::format("{}.0.{}", path, out.arrays.size());
      if (header_.find(tensor) == nullptr) break;
      if (marker(tensor) == kNone)
        return fail(Code::BadInput, "{}: {} is none, expected every array of the cache",
                    file_.path(), tensor);
      const TensorInfo* array = CAIRN_TRY(take(tensor, ""));
      CAIRN_TRY(check_batch(*array));
      out.arrays.push_back({*array});
    }
    for (const char* of_batches : {".1", ".2"}) {
      if (marker(path + of_batches) != kNone)
        return fail(Code::Unsupported, "{}: cache {} has the paddings or lengths of a batch",
                    file_.path(), path);
      CAIRN_TRY(take(path + of_batches, kNone));
    }
    return {};
  }

  Result<void> keys_and_values(const std::string& path, const CacheClass& row, PromptCache& out) {
    if (marker(path + ".0") == kNone) {  // nothing was cached
      CAIRN_TRY(take(path + ".0", kNone));
      CAIRN_TRY(take(path + ".1", kNone));
    } else {
      for (size_t list = 0; list < 2; ++list) {
        out.arrays.emplace_back();
        for (size_t plane = 0; plane < row.planes; ++plane)
          out.arrays.back().push_back(*CAIRN_TRY(take(array_path(path, row, list, plane), "")));
      }
    }
    for (size_t i = 0; i < row.numbers.size() && row.numbers[i] != nullptr; ++i)
      out.*row.numbers[i] = CAIRN_TRY(number(fmt::format("{}.{}", path, 2 + i)));
    return check_shapes(out);
  }

  Result<void> check_batch(const TensorInfo& array) const {
    if (!array.shape.empty() && array.shape[0] == 1) return {};
    return fail(Code::Unsupported, "{}: {} is [{}], expected a batch of one sequence", file_.path(),
                array.name, fmt::join(array.shape, ", "));
  }

  // [1, heads, capacity, width]: heads alike in one list, the capacity in all.
  Result<void> check_shapes(const PromptCache& cache) const {
    for (const std::vector<TensorInfo>& list : cache.arrays)
      for (const TensorInfo& array : list) {
        CAIRN_TRY(check_batch(array));
        const auto& first = list.front().shape;
        const auto& shape = array.shape;
        if (shape.size() != 4 || shape[1] == 0 || shape[3] == 0 || shape[1] != first[1] ||
            shape[2] != cache.arrays.front().front().shape[2])
          return fail(Code::BadInput,
                      "{}: {} is [{}], expected [1, heads, capacity, width] with the heads and the "
                      "capacity of its siblings",
                      file_.path(), array.name, fmt::join(shape, ", "));
      }
    return {};
  }

  File& file_;
  SafetensorsHeader header_;
  std::map<std::string, std::string, std::less<>> markers_;
  size_t used_ = 0;  // tensors
};

// Lists what a file consists of, in the order in which it will lie there: numbers, then arrays.
class Writer {
 public:
  void add(const PromptCache& cache, const std::string& path) {
    if (cache.class_name == kCacheList) return add_members(cache, path);
    if (cache.class_name == kArraysCache) return add_tensors(cache, path);
    const CacheClass* row = class_named(cache.class_name);
    CAIRN_CHECK(row != nullptr, "prompt cache: no class {}", cache.class_name);
    if (cache.arrays.empty())
      for (const char* list : {".0", ".1"}) add_tensor(path + list, kNone, "F32", {0});
    for (size_t i = 0; i < row->numbers.size() && row->numbers[i] != nullptr; ++i)
      add_number(fmt::format("{}.{}", path, 2 + i), cache.*row->numbers[i]);
  }

  void place(PromptCache& cache, const std::string& path) {
    const CacheClass* row = class_named(cache.class_name);
    for (size_t list = 0; list < cache.arrays.size(); ++list)
      for (size_t plane = 0; plane < cache.arrays[list].size(); ++plane) {
        TensorInfo& array = cache.arrays[list][plane];
        array.name = row != nullptr ? array_path(path, *row, list, plane)
                                    : fmt::format("{}.0.{}", path, list);
        place(array);
      }
    for (size_t i = 0; i < cache.members.size(); ++i)
      place(cache.members[i], fmt::format("{}.{}.0", path, i));
  }

  std::string take_entries() { return std::move(entries_); }
  std::string take_markers() { return std::move(markers_); }
  std::string take_numbers() { return std::move(numbers_); }

 private:
  void add_members(const PromptCache& cache, const std::string& path) {
    for (size_t i = 0; i < cache.members.size(); ++i) {
      const std::string member = fmt::format("{}.{}", path, i);
      add(cache.members[i], member + ".0");
      const std::string& name = cache.members[i].class_name;
      add_tensor(member + ".1", kString, "I32", {name.size()});
      for (const char letter : name) add_i32(static_cast<uint8_t>(letter));
    }
  }

  void add_tensors(const PromptCache&, const std::string& path) {
    add_tensor(path + ".1", kNone, "F32", {0});
    add_tensor(path + ".2", kNone, "F32", {0});
  }

  void add_number(const std::string& path, uint64_t value) {
    add_tensor(path, kScalar, value <= INT32_MAX ? "I32" : "I64", {});
    add_i32(static_cast<uint32_t>(value));
    if (value > INT32_MAX) add_i32(static_cast<uint32_t>(value >> 32));
  }

  void add_i32(uint32_t value) {
    for (int shift = 0; shift < 32; shift += 8) numbers_ += static_cast<char>(value >> shift);
  }

  void add_tensor(const std::string& path,
                  std::string_view marker,
                  std::string_view dtype,
                  std::vector<uint64_t> shape) {
    ++marked_;
    markers_ += fmt::format(R"(,"2.{}.0":"{}","2.{}.1":"{}")", marked_, path, marked_, marker);
    TensorInfo tensor{.name = path, .dtype = dtype, .shape = std::move(shape)};
    place(tensor);
  }

  // Offsets count from the data's start until the header's length is known.
  void place(TensorInfo& tensor) {
    tensor.begin = next_;
    tensor.end = next_ += tensor.elements() * (*element_bits(tensor.dtype) / 8);
    entries_ +=
        fmt::format(R"(,"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", tensor.name,
                    tensor.dtype, fmt::join(tensor.shape, ","), tensor.begin, tensor.end);
  }

  std::string entries_, markers_, numbers_;
  size_t marked_ = 0;
  uint64_t next_ = 0;  // byte of the data
};

void move_by(PromptCache& cache, uint64_t bytes) {
  for (std::vector<TensorInfo>& list : cache.arrays)
    for (TensorInfo& array : list) {
      array.begin += bytes;
      array.end += bytes;
    }
  for (PromptCache& member : cache.members) move_by(member, bytes);
}

std::string metadata_text(const PromptCacheFile& content, const std::string& markers) {
  std::string text = R"({"__metadata__":{"2.0":"")" + markers;
  for (size_t i = 0; i < content.caches.size(); ++i)
    text += fmt::format(R"(,"1.{}":"{}")", i, content.caches[i].class_name);
  for (const auto& [key, value] : content.about) {
    text += ',';
    append_json_string(text, "0." + key);
    text += ':';
    append_json_string(text, value);
  }
  return text + '}';
}

}  // namespace

Result<PromptCacheFile> read_prompt_cache(File& file) {
  return Reader(file, CAIRN_TRY(read_safetensors(file))).read();
}

Result<std::string> lay_out_prompt_cache(PromptCacheFile& content) {
  Writer writer;
  for (size_t i = 0; i < content.caches.size(); ++i)
    writer.add(content.caches[i], std::to_string(i));
  for (size_t i = 0; i < content.caches.size(); ++i)
    writer.place(content.caches[i], std::to_string(i));
  std::string text = metadata_text(content, writer.take_markers()) + writer.take_entries() + '}';
  constexpr uint64_t kLengthBytes = sizeof(uint64_t), kAlignment = 64;
  text.resize(round_up(kLengthBytes + text.size(), kAlignment) - kLengthBytes, ' ');
  if (text.size() > kMaxHeaderBytes)
    return fail(Code::BadInput, "a header of {} bytes, expected at most {}", text.size(),
                kMaxHeaderBytes);
  std::string bytes;
  for (size_t i = 0; i < kLengthBytes; ++i) bytes += static_cast<char>(text.size() >> (8 * i));
  bytes += text;
  for (PromptCache& cache : content.caches) move_by(cache, bytes.size());
  return bytes + writer.take_numbers();
}

}  // namespace cairn
