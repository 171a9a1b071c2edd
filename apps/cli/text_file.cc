#include "apps/cli/text_file.h"

#include <fstream>
#include <iostream>

namespace cairn::cli {

Result<std::string> read_text(const std::string& path) {
  constexpr uint64_t kMaxBytes = uint64_t{1} << 30;
  std::ifstream file;
  if (path != "-") {
    file.open(path, std::ios::binary);
    if (!file) return fail(Code::NotFound, "{}: cannot be opened, expected a text to read", path);
  }
  std::istream& in = path == "-" ? std::cin : file;
  std::string text;
  for (char buffer[65536]; in.read(buffer, sizeof(buffer)), in.gcount() > 0;) {
    text.append(buffer, static_cast<size_t>(in.gcount()));
    if (text.size() > kMaxBytes)
      return fail(Code::BadInput, "{}: longer than 1 GiB, expected a text", path);
  }
  if (in.bad()) return fail(Code::Io, "{}: cannot be read, expected a text", path);
  return text;
}

}  // namespace cairn::cli
