// Names of what a store holds. A name says everything that decides the bytes behind it.
//
// A span is a page as the store names it: by the hash of everything before it and in it. The chain
// of a prompt starts at a root, which stands for whatever must be equal before a single token is:
// who may read the bytes (the fingerprint), the namespace, the form, the page's layout. So two
// prompts share names exactly as far as they share tokens, and whoever does not know a root can
// neither guess nor probe a name below it.
#ifndef CAIRN_STORE_KEY_H_
#define CAIRN_STORE_KEY_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "cairn/core/hash.h"
#include "cairn/core/ids.h"

namespace cairn {

// The names of one prompt's spans: name 0 is the root, name k stands for the first k spans.
class Chain {
 public:
  // Every whole span of `tokens`, `span_positions` each.
  Chain(const Digest& root, std::span<const int32_t> tokens, uint32_t span_positions);

  // Adds the spans that `tokens` now has whole; it begins with what it began with before.
  void extend(std::span<const int32_t> tokens);

  Pos spans() const { return names_.size() - 1; }
  const Digest& name(Pos spans) const { return names_[spans]; }

 private:
  std::vector<Digest> names_;
  uint32_t span_positions_;
};

// SHA-256 over the parent's name and the token ids, little-endian.
Digest child_name(const Digest& parent, std::span<const int32_t> tokens);

// HMAC-SHA-256 over the parts, each preceded by its length. With a secret nobody without it can
// compute the name; an empty secret is a key like any other.
Digest keyed_name(std::string_view secret, std::span<const std::string_view> parts);

}  // namespace cairn

#endif  // CAIRN_STORE_KEY_H_
