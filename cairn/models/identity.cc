#include "cairn/models/identity.h"

#include <unistd.h>

#include <filesystem>
#include <optional>

namespace cairn {
namespace {

// One line of text; a cache file that does not begin with exactly these words is stale.
std::string stamp_line(const FileStamp& stamp) {
  return fmt::format("cairn-identity 1 device {} inode {} bytes {} modified {} sha256 ",
                     stamp.device, stamp.inode, stamp.bytes, stamp.modified_ns);
}

std::vector<std::string> cache_paths(const std::string& path, const std::string& folder) {
  std::vector<std::string> paths{path + ".identity"};
  if (!folder.empty()) {
    std::error_code ignored;
    const std::string whole = std::filesystem::absolute(path, ignored).string();
    paths.push_back(folder + "/" + hex(xxh3(whole)) + ".identity");
  }
  return paths;
}

std::optional<Digest> read_cache(FileSystem& files,
                                 const std::string& path,
                                 const std::string& expected) {
  auto file = files.open_read(path);
  if (!file) return std::nullopt;
  std::string text(expected.size() + 65, '\0');
  const auto bytes = (*file)->read_at(0, std::as_writable_bytes(std::span(text)));
  if (!bytes || *bytes != text.size() || !text.starts_with(expected) || text.back() != '\n')
    return std::nullopt;
  return parse_digest(std::string_view(text).substr(expected.size(), 64));
}

bool write_cache(FileSystem& files, const std::string& path, const std::string& text) {
  const std::string temporary = fmt::format("{}.{}.tmp", path, getpid());
  auto file = files.create(temporary);
  if (!file) return false;
  const bool is_written = (*file)->write_at(0, std::as_bytes(std::span(text))).has_value();
  if (is_written && files.rename(temporary, path)) return true;
  (void)files.remove(temporary);
  return false;
}

}  // namespace

Digest file_identity(const std::string& path, const MappedFile& file, const IdentityCache& cache) {
  if (file.bytes().size() < cache.min_bytes) return Sha256().add(file.bytes()).digest();
  const std::string line = stamp_line(file.stamp());
  const std::vector<std::string> paths = cache_paths(path, cache.folder);
  for (const std::string& candidate : paths)
    if (const auto digest = read_cache(cache.files, candidate, line)) return *digest;

  const Digest digest = Sha256().add(file.bytes()).digest();
  const std::string text = line + hex(digest) + "\n";
  for (const std::string& candidate : paths) {
    std::error_code ignored;
    if (&candidate != &paths.front()) std::filesystem::create_directories(cache.folder, ignored);
    if (write_cache(cache.files, candidate, text)) break;
  }
  return digest;
}

}  // namespace cairn
