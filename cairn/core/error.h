// Errors as values.
//
// What the outside world does wrong is returned: Result<T> is a value or an Error{code, message}.
// What the caller does wrong is thrown: CAIRN_CHECK raises ContractError, always, in every build.
// Nobody logs an error that is returned.
//
//   Result<Page> read_page(File& file) {
//     auto bytes = CAIRN_TRY(file.read(...));   // an assignment or a plain argument, never inside
//     braces:
//     ...                                       // compilers leak the elements already built
//   }
#ifndef CAIRN_CORE_ERROR_H_
#define CAIRN_CORE_ERROR_H_

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace cairn {

enum class Code {
  NoSpace,      // memory, disk or a limit is used up; nothing has changed
  NotFound,     // what was named does not exist
  BadInput,     // an argument or a file is not what it must be
  Corrupt,      // bytes are not those that were written
  Mismatch,     // sound, but of another model, scheme or namespace
  Io,           // the operating system refused; trying again may help
  Unsupported,  // a newer format, or an operation that this file system or machine lacks
};

std::string_view name_of(Code code);

struct Error {
  Code code;
  std::string message;  // "<subject>: <what was found>, expected <what>"
};

template <class T>
class [[nodiscard]] Result : public tl::expected<T, Error> {
 public:
  using tl::expected<T, Error>::expected;
};

template <class... Args>
tl::unexpected<Error> fail(Code code, fmt::format_string<Args...> text, Args&&... args) {
  return tl::unexpected<Error>(Error{code, fmt::format(text, std::forward<Args>(args)...)});
}

// The caller broke the contract: a bug to report, not a condition to handle.
class ContractError : public std::logic_error {
  using std::logic_error::logic_error;
};

namespace internal {
[[noreturn]] void throw_contract(const char* condition, std::string message);

template <class T>
tl::unexpected<Error> error_of(Result<T>&& result) {
  return tl::unexpected<Error>(std::move(result.error()));
}
template <class T>
T value_of(Result<T>&& result) {
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}
}  // namespace internal

}  // namespace cairn

// The value of a Result, or return its error from the enclosing function.
#define CAIRN_TRY(...)                                             \
  (__extension__({                                                 \
    auto cairn_result = (__VA_ARGS__);                             \
    if (!cairn_result) [[unlikely]]                                \
      return ::cairn::internal::error_of(std::move(cairn_result)); \
    ::cairn::internal::value_of(std::move(cairn_result));          \
  }))

// CAIRN_CHECK(condition, "format", ...)
#define CAIRN_CHECK(condition, ...)                                              \
  do {                                                                           \
    if (!(condition)) [[unlikely]]                                               \
      ::cairn::internal::throw_contract(#condition, ::fmt::format(__VA_ARGS__)); \
  } while (false)

#endif  // CAIRN_CORE_ERROR_H_
