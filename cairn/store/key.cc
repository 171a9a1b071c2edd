#include "cairn/store/key.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <bit>
#include <string>

#include "cairn/core/error.h"

namespace cairn {
namespace {

static_assert(std::endian::native == std::endian::little, "token ids are hashed as they lie");

Digest next_name(Sha256& hash, const Digest& parent, std::span<const int32_t> tokens) {
  hash.restart();
  hash.add(std::as_bytes(std::span(parent.bytes))).add(std::as_bytes(tokens));
  return hash.digest();
}

void append_with_length(std::string& message, std::string_view part) {
  for (uint64_t length = part.size(), i = 0; i < 8; ++i)
    message.push_back(static_cast<char>(length >> (8 * i) & 0xff));
  message.append(part);
}

}  // namespace

Chain::Chain(const Digest& root, std::span<const int32_t> tokens, uint32_t span_positions)
    : names_{root}, span_positions_(span_positions) {
  CAIRN_CHECK(span_positions > 0, "chain: spans of 0 positions, expected at least 1");
  extend(tokens);
}

void Chain::extend(std::span<const int32_t> tokens) {
  const size_t whole_spans = tokens.size() / span_positions_;
  if (whole_spans <= spans()) return;
  names_.reserve(whole_spans + 1);
  Sha256 hash;
  for (size_t span = spans(); span < whole_spans; ++span)
    names_.push_back(
        next_name(hash, names_.back(), tokens.subspan(span * span_positions_, span_positions_)));
}

Digest child_name(const Digest& parent, std::span<const int32_t> tokens) {
  Sha256 hash;
  return next_name(hash, parent, tokens);
}

Digest keyed_name(std::string_view secret, std::span<const std::string_view> parts) {
  std::string message;
  for (std::string_view part : parts) append_with_length(message, part);
  Digest name;
  const auto* made = HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                          reinterpret_cast<const unsigned char*>(message.data()), message.size(),
                          name.bytes.data(), nullptr);
  CAIRN_CHECK(made != nullptr, "hmac-sha256: not available");
  return name;
}

}  // namespace cairn
