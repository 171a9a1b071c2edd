// Whether a sanitizer watches: every step is then several times as slow, and a test that goes
// through every byte may take some of them.
#ifndef CAIRN_TESTS_SUPPORT_SANITIZED_H_
#define CAIRN_TESTS_SUPPORT_SANITIZED_H_

#include <cstddef>

#ifdef __has_feature
#define CAIRN_HAS_FEATURE(feature) __has_feature(feature)
#else
#define CAIRN_HAS_FEATURE(feature) 0
#endif

namespace cairn::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
    CAIRN_HAS_FEATURE(address_sanitizer) || CAIRN_HAS_FEATURE(thread_sanitizer)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

// From one case to the next: 1, or `when_watched`.
constexpr size_t stride(size_t when_watched) { return kIsSanitized ? when_watched : 1; }

}  // namespace cairn::testing

#endif  // CAIRN_TESTS_SUPPORT_SANITIZED_H_
