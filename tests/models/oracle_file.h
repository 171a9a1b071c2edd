// Numbers of a library that we did not write, from a safetensors file.
#ifndef CAIRN_TESTS_MODELS_ORACLE_FILE_H_
#define CAIRN_TESTS_MODELS_ORACLE_FILE_H_

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cairn/format/safetensors.h"
#include "tests/support/must.h"

namespace cairn::testing {

class OracleFile {
 public:
  explicit OracleFile(const std::string& path)
      : file_(must(posix_fs().open_read(path))), header_(must(read_safetensors(*file_))) {}

  std::vector<float> floats(const std::string& name) { return read<float>(name, "F32"); }

  std::vector<uint64_t> shape(const std::string& name) const {
    const auto& shape = find(name).shape;
    return {shape.begin(), shape.end()};
  }

  std::vector<int32_t> ids(const std::string& name) {
    if (find(name).dtype == "I32") return read<int32_t>(name, "I32");
    const std::vector<int64_t> wide = read<int64_t>(name, "I64");
    return {wide.begin(), wide.end()};
  }

 private:
  const TensorInfo& find(const std::string& name) const {
    const TensorInfo* info = header_.find(name);
    if (info == nullptr) throw std::runtime_error("no tensor " + name);
    return *info;
  }

  template <class T>
  std::vector<T> read(const std::string& name, std::string_view dtype) {
    const TensorInfo& info = find(name);
    if (info.dtype != dtype) throw std::runtime_error(name + " is not " + std::string(dtype));
    std::vector<T> out(info.elements());
    must(file_->read_at(info.begin, std::as_writable_bytes(std::span(out))));
    return out;
  }

  std::unique_ptr<File> file_;
  SafetensorsHeader header_;
};

}  // namespace cairn::testing

#endif  // CAIRN_TESTS_MODELS_ORACLE_FILE_H_
