// THE list of encodings: declare a row and list it, on two adjacent lines; nothing else enumerates
// them.
#ifndef CAIRN_ENCODINGS_REGISTRY_H_
#define CAIRN_ENCODINGS_REGISTRY_H_

#include <array>

#include "cairn/encodings/encoding.h"

namespace cairn {

extern const Encoding kF32, kF16, kBf16;   // raw.cc
extern const Encoding kAffine;             // affine.cc
extern const Encoding kTurboKey;           // turbo_key.cc
extern const Encoding kTurboValue;         // turbo_value.cc
extern const Encoding kTurboKeyReference;  // turbo_key_reference.cc
inline constexpr std::array kEncodings = {
    &kF32, &kF16, &kBf16, &kAffine, &kTurboKey, &kTurboValue, &kTurboKeyReference};

}  // namespace cairn

#endif  // CAIRN_ENCODINGS_REGISTRY_H_
