#include "apps/cli/exit_code.h"

#include <cstdio>

namespace cairn::cli {
namespace {

void print_line(std::string_view kind, std::string_view message) {
  std::string line(message);
  for (char& c : line)
    if (static_cast<unsigned char>(c) < ' ') c = ' ';  // names may hold anything; a line is a line
  fmt::print(stderr, "cairn: {}{}\n", kind, line);
}

}  // namespace

int exit_code(Code code) {
  switch (code) {
    case Code::NotFound:
    case Code::BadInput:
      return kWrongUse;
    case Code::Mismatch:
      return kMismatch;
    case Code::Corrupt:
      return kDamaged;
    case Code::NoSpace:
    case Code::Io:
    case Code::Unsupported:
      return kFailed;
  }
  return kFailed;
}

int report(const Error& error) {
  print_line("", error.message);
  return exit_code(error.code);
}

void warn(std::string_view message) { print_line("warning: ", message); }

}  // namespace cairn::cli
