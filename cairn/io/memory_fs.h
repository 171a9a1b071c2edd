// A file system in memory that forgets like a real one: what was not synced does not survive a
// power cut.
//
// Every file has its contents as programs see them and as the last sync left them; every folder has
// its names likewise. Folders need not be made: a path's folder exists. Never direct.
#ifndef CAIRN_IO_MEMORY_FS_H_
#define CAIRN_IO_MEMORY_FS_H_

#include <map>
#include <mutex>
#include <set>

#include "cairn/io/file.h"

namespace cairn {

// A disk may write names before it is told to. Careless programs lose data in that case: the new
// name is there, its bytes are not.
enum class UnsyncedNames { lost, kept };

class MemoryFs final : public FileSystem {
 public:
  Result<std::unique_ptr<File>> open_read(const std::string& path,
                                          Access access = Access::buffered) override;
  Result<std::unique_ptr<File>> open_update(const std::string& path) override;
  Result<std::unique_ptr<File>> create(const std::string& path,
                                       Access access = Access::buffered) override;
  Result<void> make_folder(const std::string&) override { return {}; }
  Result<void> rename(const std::string& from, const std::string& to) override;
  Result<void> remove(const std::string& path) override;
  bool is_abandoned(const std::string& path) override;
  bool remove_abandoned(const std::string& path) override;
  Result<void> sync_folder(const std::string& path) override;
  bool exists(const std::string& path) override;
  Result<std::vector<std::string>> list(const std::string& folder) override;

  // Contents return to the last sync, names to the last sync_folder. Files that are open belong to
  // the time before: they stay readable, and what is written to them goes nowhere.
  void power_cut(UnsyncedNames names = UnsyncedNames::lost);

 private:
  class OpenFile;
  using FileId = uint64_t;
  struct Bytes {
    std::vector<std::byte> data;
    std::set<uint64_t> holes;  // blocks of 4 KiB that take no room
  };
  struct Contents {
    Bytes now;
    Bytes synced;
    uint32_t makers = 0;  // handles from create()
    uint32_t readers = 0;
  };
  using Names = std::map<std::string, FileId>;

  Result<FileId> find(const std::string& path) const;
  void forget_unused();  // contents without a name that nobody has open

  mutable std::mutex mutex_;  // guards everything below
  std::map<FileId, Contents> files_;
  Names names_;
  Names synced_names_;
  FileId next_ = 1;
};

}  // namespace cairn

#endif  // CAIRN_IO_MEMORY_FS_H_
