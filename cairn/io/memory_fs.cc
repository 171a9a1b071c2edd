#include "cairn/io/memory_fs.h"

#include <algorithm>
#include <cstring>

#include "cairn/core/bytes.h"

namespace cairn {

class MemoryFs::OpenFile final : public File {
 public:
  OpenFile(MemoryFs& fs, std::string path, FileId id, uint32_t Contents::*handles)
      : fs_(fs), path_(std::move(path)), id_(id), handles_(handles) {
    ++(contents().*handles_);
  }
  ~OpenFile() override {
    const std::lock_guard lock(fs_.mutex_);
    --(contents().*handles_);
    fs_.forget_unused();
  }

  const std::string& path() const override { return path_; }
  bool is_direct() const override { return false; }

  Result<uint64_t> size() override {
    const std::lock_guard lock(fs_.mutex_);
    return contents().now.data.size();
  }

  Result<size_t> read_at(uint64_t offset, std::span<std::byte> out) override {
    const std::lock_guard lock(fs_.mutex_);
    const std::vector<std::byte>& bytes = contents().now.data;
    if (offset >= bytes.size()) return size_t{0};
    const size_t count = std::min<uint64_t>(out.size(), bytes.size() - offset);
    std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(offset), count, out.begin());
    return count;
  }

  Result<void> write_at(uint64_t offset, std::span<const std::byte> bytes) override {
    const std::lock_guard lock(fs_.mutex_);
    take_room(offset, bytes.size());
    std::ranges::copy(bytes, contents().now.data.begin() + static_cast<ptrdiff_t>(offset));
    return {};
  }

  Result<void> sync() override {
    const std::lock_guard lock(fs_.mutex_);
    contents().synced = contents().now;
    return {};
  }

  Result<void> set_size(uint64_t bytes) override {
    const std::lock_guard lock(fs_.mutex_);
    contents().now.data.resize(bytes);
    std::erase_if(contents().now.holes,
                  [&](uint64_t block) { return block >= ceil_div(bytes, kBlockBytes); });
    return {};
  }

  Result<void> allocate(uint64_t offset, uint64_t bytes) override {
    const std::lock_guard lock(fs_.mutex_);
    take_room(offset, bytes);
    return {};
  }

  Result<void> punch_hole(uint64_t offset, uint64_t bytes) override {
    const std::lock_guard lock(fs_.mutex_);
    auto& [data, holes] = contents().now;
    const uint64_t end = std::min<uint64_t>(offset + bytes, data.size());
    for (uint64_t at = offset; at < end; ++at) data[at] = std::byte{0};
    for (uint64_t block = ceil_div(offset, kBlockBytes); block < end / kBlockBytes; ++block)
      holes.insert(block);
    return {};
  }

  Result<uint64_t> allocated_bytes() override {
    const std::lock_guard lock(fs_.mutex_);
    const auto& [data, holes] = contents().now;
    return (ceil_div(data.size(), kBlockBytes) - holes.size()) * kBlockBytes;
  }

 private:
  static constexpr uint64_t kBlockBytes = 4096;

  // The range is part of the file and of no hole.
  void take_room(uint64_t offset, uint64_t bytes) {
    auto& [data, holes] = contents().now;
    data.resize(std::max<uint64_t>(data.size(), offset + bytes));
    for (uint64_t block = offset / kBlockBytes; block * kBlockBytes < offset + bytes; ++block)
      holes.erase(block);
  }

  Contents& contents() { return fs_.files_.at(id_); }

  MemoryFs& fs_;
  const std::string path_;
  const FileId id_;
  uint32_t Contents::*const handles_;
};

Result<MemoryFs::FileId> MemoryFs::find(const std::string& path) const {
  const auto name = names_.find(path);
  if (name == names_.end()) return fail(Code::NotFound, "{}: no such file", path);
  return name->second;
}

Result<std::unique_ptr<File>> MemoryFs::open_read(const std::string& path, Access) {
  const std::lock_guard lock(mutex_);
  const FileId id = CAIRN_TRY(find(path));
  return std::make_unique<OpenFile>(*this, path, id, &Contents::readers);
}

Result<std::unique_ptr<File>> MemoryFs::open_update(const std::string& path) {
  return open_read(path, Access::buffered);
}

Result<std::unique_ptr<File>> MemoryFs::create(const std::string& path, Access) {
  const std::lock_guard lock(mutex_);
  if (names_.contains(path)) return fail(Code::BadInput, "{}: exists, expected a new file", path);
  const FileId id = next_++;
  files_[id];
  names_[path] = id;
  return std::make_unique<OpenFile>(*this, path, id, &Contents::makers);
}

Result<void> MemoryFs::rename(const std::string& from, const std::string& to) {
  const std::lock_guard lock(mutex_);
  const FileId id = CAIRN_TRY(find(from));
  names_.erase(from);
  names_[to] = id;
  forget_unused();
  return {};
}

Result<void> MemoryFs::remove(const std::string& path) {
  const std::lock_guard lock(mutex_);
  CAIRN_TRY(find(path));
  names_.erase(path);
  forget_unused();
  return {};
}

bool MemoryFs::is_abandoned(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const auto name = names_.find(path);
  return name != names_.end() && files_.at(name->second).makers == 0;
}

bool MemoryFs::remove_abandoned(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const auto name = names_.find(path);
  if (name == names_.end() || files_.at(name->second).makers > 0) return false;
  names_.erase(name);
  forget_unused();
  return true;
}

Result<void> MemoryFs::sync_folder(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const auto is_elsewhere = [&](const Names::value_type& name) {
    return folder_of(name.first) != path;
  };
  std::erase_if(synced_names_, [&](const auto& name) { return !is_elsewhere(name); });
  for (const auto& name : names_)
    if (!is_elsewhere(name)) synced_names_.insert(name);
  forget_unused();
  return {};
}

bool MemoryFs::exists(const std::string& path) {
  const std::lock_guard lock(mutex_);
  return names_.contains(path);
}

Result<std::vector<std::string>> MemoryFs::list(const std::string& folder) {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> found;
  for (const auto& [path, id] : names_)
    if (folder_of(path) == folder) found.push_back(file_name_of(path));
  return found;
}

void MemoryFs::power_cut(UnsyncedNames names) {
  const std::lock_guard lock(mutex_);
  if (names == UnsyncedNames::kept) synced_names_ = names_;
  // New ids: whoever still has the old ones open sees the time before.
  std::map<FileId, FileId> survivors;
  for (auto& [path, id] : synced_names_) {
    const auto [survivor, is_new] = survivors.try_emplace(id, next_);
    if (is_new) {
      const Bytes synced = files_.at(id).synced;
      files_[next_++] = {.now = synced, .synced = synced};
    }
    id = survivor->second;
  }
  names_ = synced_names_;
  forget_unused();
}

void MemoryFs::forget_unused() {
  std::set<FileId> named;
  for (const Names& names : {std::cref(names_), std::cref(synced_names_)})
    for (const auto& name : names) named.insert(name.second);
  std::erase_if(files_, [&](const auto& file) {
    return file.second.makers + file.second.readers == 0 && !named.contains(file.first);
  });
}

}  // namespace cairn
