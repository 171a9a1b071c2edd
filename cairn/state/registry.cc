#include "cairn/state/registry.h"

namespace cairn {

const Registry& builtin() {
  static constexpr Registry registry{.id = "cairn-1", .encodings = kEncodings, .kinds = kKinds};
  return registry;
}

const StateKind* Registry::kind_named(std::string_view name) const {
  for (const StateKind* kind : kinds)
    if (kind->name == name) return kind;
  return nullptr;
}

Result<EncodingChoice> parse_encoding(const Registry& registry, std::string_view text) {
  std::string known;
  for (const Encoding* encoding : registry.encodings) {
    auto params = encoding->parse(text);
    if (params) return EncodingChoice{encoding, *params};
    if (params.error().code != Code::NotFound) return tl::unexpected<Error>(params.error());
    for (std::string_view sample : encoding->samples)
      known += fmt::format("{}{}", known.empty() ? "" : ", ", sample);
  }
  return fail(Code::BadInput, "encoding: \"{}\" is none, expected one like {}", text, known);
}

}  // namespace cairn
