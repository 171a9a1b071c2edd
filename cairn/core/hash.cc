#include "cairn/core/hash.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <xxhash.h>
#ifdef __x86_64__
#include <xxh_x86dispatch.h>  // the widest vectors that the processor has, not the compiler's
#endif

#include "cairn/core/error.h"

namespace cairn {
namespace {

// Lower-case digits only: what is stored has one spelling.
std::optional<uint8_t> digit(char c) {
  if (c >= '0' && c <= '9') return static_cast<uint8_t>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<uint8_t>(c - 'a' + 10);
  return std::nullopt;
}

}  // namespace

uint64_t xxh3(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::string hex(uint64_t checksum) { return fmt::format("{:016x}", checksum); }

std::optional<uint64_t> parse_hex64(std::string_view text) {
  if (text.size() != 16) return std::nullopt;
  uint64_t value = 0;
  for (char c : text) {
    const auto d = digit(c);
    if (!d) return std::nullopt;
    value = value << 4 | *d;
  }
  return value;
}

std::string hex(const Digest& digest) {
  std::string text;
  for (uint8_t byte : digest.bytes) fmt::format_to(std::back_inserter(text), "{:02x}", byte);
  return text;
}

std::optional<Digest> parse_digest(std::string_view text) {
  Digest digest;
  if (text.size() != 2 * digest.bytes.size()) return std::nullopt;
  for (size_t i = 0; i < digest.bytes.size(); ++i) {
    const auto high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
    if (!high || !low) return std::nullopt;
    digest.bytes[i] = static_cast<uint8_t>(*high << 4 | *low);
  }
  return digest;
}

struct Sha256::Context {
  EVP_MD_CTX* md = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(md); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  CAIRN_CHECK(EVP_DigestInit_ex(context_->md, EVP_sha256(), nullptr) == 1, "sha256: not available");
}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

Sha256& Sha256::add(std::span<const std::byte> bytes) {
  CAIRN_CHECK(EVP_DigestUpdate(context_->md, bytes.data(), bytes.size()) == 1, "sha256: update");
  return *this;
}

Digest Sha256::digest() {
  Digest digest;
  CAIRN_CHECK(EVP_DigestFinal_ex(context_->md, digest.bytes.data(), nullptr) == 1, "sha256: final");
  return digest;
}

Sha256& Sha256::restart() {
  // Without a type the context keeps the one it has, and what looking it up costs.
  CAIRN_CHECK(EVP_DigestInit_ex(context_->md, nullptr, nullptr) == 1, "sha256: restart");
  return *this;
}

}  // namespace cairn
