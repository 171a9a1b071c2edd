// The value of a Result that a test cannot go on without.
#ifndef CAIRN_TESTS_SUPPORT_MUST_H_
#define CAIRN_TESTS_SUPPORT_MUST_H_

#include <stdexcept>
#include <utility>

#include "cairn/core/error.h"

namespace cairn::testing {

template <class T>
T must(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

}  // namespace cairn::testing

#endif  // CAIRN_TESTS_SUPPORT_MUST_H_
