// THE list of kinds, and the registry: one value that says which encodings and kinds exist. Its id
// is written into files.
#ifndef CAIRN_STATE_REGISTRY_H_
#define CAIRN_STATE_REGISTRY_H_

#include <array>
#include <span>
#include <string_view>

#include "cairn/encodings/registry.h"
#include "cairn/state/kind.h"

namespace cairn {

extern const StateKind kAttention, kWindow;            // attention.cc
extern const StateKind kLatentKind, kLatentDraftKind;  // latent.cc
extern const StateKind kRecurrentKind;                 // recurrent_kind.cc
inline constexpr std::array kKinds = {&kAttention, &kWindow, &kLatentKind, &kLatentDraftKind,
                                      &kRecurrentKind};

struct Registry {
  std::string_view id;
  std::span<const Encoding* const> encodings;
  std::span<const StateKind* const> kinds;

  const StateKind* kind_named(std::string_view name) const;  // null: none
};

// What an encoding's text names: "f16", "affine8-g64".
struct EncodingChoice {
  const Encoding* encoding = nullptr;
  Params params;
  bool operator==(const EncodingChoice&) const = default;
  std::string text() const { return encoding->print(params); }
};
Result<EncodingChoice> parse_encoding(const Registry& registry, std::string_view text);

const Registry& builtin();  // what Cairn ships

}  // namespace cairn

#endif  // CAIRN_STATE_REGISTRY_H_
