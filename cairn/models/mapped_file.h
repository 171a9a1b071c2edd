// A whole file, mapped read-only. Whoever truncates it while it is mapped kills the process:
// weights are not edited in place.
#ifndef CAIRN_MODELS_MAPPED_FILE_H_
#define CAIRN_MODELS_MAPPED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "cairn/core/error.h"

namespace cairn {

// What the file system says about a file; when it has not changed, the contents are taken to be the
// same.
struct FileStamp {
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t bytes = 0;
  int64_t modified_ns = 0;  // since 1970
  bool operator==(const FileStamp&) const = default;
};

class MappedFile {
 public:
  static Result<MappedFile> open(
      const std::string& path);  // NotFound, BadInput (no regular file, empty), Io
  MappedFile(MappedFile&& other) noexcept { swap(other); }
  MappedFile& operator=(MappedFile&& other) noexcept {
    swap(other);
    return *this;
  }
  ~MappedFile();

  std::span<std::byte> bytes() const { return bytes_; }  // page-aligned; writing to them is a crash
  const FileStamp& stamp() const { return stamp_; }

 private:
  MappedFile() = default;
  void swap(MappedFile& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(stamp_, other.stamp_);
  }

  std::span<std::byte> bytes_;
  FileStamp stamp_;
};

}  // namespace cairn

#endif  // CAIRN_MODELS_MAPPED_FILE_H_
