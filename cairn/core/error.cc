#include "cairn/core/error.h"

namespace cairn {

std::string_view name_of(Code code) {
  switch (code) {
    case Code::NoSpace:
      return "no space";
    case Code::NotFound:
      return "not found";
    case Code::BadInput:
      return "bad input";
    case Code::Corrupt:
      return "corrupt";
    case Code::Mismatch:
      return "mismatch";
    case Code::Io:
      return "i/o error";
    case Code::Unsupported:
      return "unsupported";
  }
  return "unknown";
}

namespace internal {
void throw_contract(const char* condition, std::string message) {
  throw ContractError(fmt::format("{} ({})", message, condition));
}
}  // namespace internal

}  // namespace cairn
