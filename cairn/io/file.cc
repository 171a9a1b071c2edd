#include "cairn/io/file.h"

namespace cairn {

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string file_name_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

Result<size_t> File::read_parts_at(uint64_t offset, std::span<const std::span<std::byte>> parts) {
  size_t done = 0;
  for (const std::span<std::byte> part : parts) {
    const size_t got = CAIRN_TRY(read_at(offset + done, part));
    done += got;
    if (got < part.size()) break;
  }
  return done;
}

}  // namespace cairn
