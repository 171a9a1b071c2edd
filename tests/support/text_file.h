// A file's text.
#ifndef CAIRN_TESTS_SUPPORT_TEXT_FILE_H_
#define CAIRN_TESTS_SUPPORT_TEXT_FILE_H_

#include <fstream>
#include <iterator>
#include <string>

namespace cairn::testing {

inline std::string read_text(const std::string& path) {  // empty: there is none
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace cairn::testing

#endif  // CAIRN_TESTS_SUPPORT_TEXT_FILE_H_
