// Two hashes for two purposes: XXH3 finds damaged bytes (fast, not secure); SHA-256 names things
// (identities, spans).
#ifndef CAIRN_CORE_HASH_H_
#define CAIRN_CORE_HASH_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace cairn {

uint64_t xxh3(std::span<const std::byte> bytes);
inline uint64_t xxh3(std::string_view text) { return xxh3(std::as_bytes(std::span(text))); }

std::string hex(uint64_t checksum);  // 16 lower-case digits
std::optional<uint64_t> parse_hex64(std::string_view text);

// 32 bytes that name something. All zero: no name.
struct Digest {
  std::array<uint8_t, 32> bytes{};
  auto operator<=>(const Digest&) const = default;
  bool is_zero() const { return *this == Digest{}; }
};

std::string hex(const Digest& digest);  // 64 lower-case digits
std::optional<Digest> parse_digest(std::string_view text);

// SHA-256 over everything added.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  Sha256& add(std::span<const std::byte> bytes);
  Sha256& add(std::string_view text) { return add(std::as_bytes(std::span(text))); }
  Digest digest();    // ends the hash: add nothing afterwards
  Sha256& restart();  // as new; for many short messages much cheaper than another one

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

inline Digest sha256(std::string_view text) { return Sha256().add(text).digest(); }

}  // namespace cairn

#endif  // CAIRN_CORE_HASH_H_
