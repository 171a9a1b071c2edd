#include "cairn/models/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace cairn {
namespace {

tl::unexpected<Error> os_error(const std::string& path, std::string_view operation) {
  const int error = errno;
  const Code code = error == ENOENT || error == ENOTDIR ? Code::NotFound : Code::Io;
  return fail(code, "{}: {}: {}", path, operation, std::strerror(error));
}

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
};

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) return os_error(path, "open");
  struct stat info {};
  if (fstat(file.fd, &info) != 0) return os_error(path, "stat");
  if (!S_ISREG(info.st_mode))
    return fail(Code::BadInput, "{}: found a folder or a device, expected a file", path);
  if (info.st_size == 0) return fail(Code::BadInput, "{}: found an empty file", path);

  MappedFile mapped;
  const auto length = static_cast<size_t>(info.st_size);
  void* const address = mmap(nullptr, length, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (address == MAP_FAILED) return os_error(path, "map");
  mapped.bytes_ = {static_cast<std::byte*>(address), length};
  mapped.stamp_ = {
      .device = info.st_dev,
      .inode = info.st_ino,
      .bytes = length,
      .modified_ns = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec};
  return mapped;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}

}  // namespace cairn
