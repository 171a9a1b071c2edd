// The operating system behind one door: files and folders as Cairn uses them.
//
// Implementations: posix_fs (the real one), memory_fs (tests, embedders), faulty_fs (tests: the
// n-th call fails, and what was not synced is lost). Offsets and lengths are bytes. Messages name
// the path first. Unsupported: this file system cannot do it; nothing has changed.
#ifndef CAIRN_IO_FILE_H_
#define CAIRN_IO_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cairn/core/error.h"

namespace cairn {

enum class Access {
  buffered,  // through the page cache
  direct,    // around it where the file system allows (File::is_direct says so), but for what it
             // holds already; offsets, lengths and addresses in 4 KiB
};
inline constexpr uint64_t kDirectAlignment = 4096;

// An open file. Reads and writes at offsets are thread-safe.
class File {
 public:
  virtual ~File() = default;
  virtual const std::string& path() const = 0;
  virtual bool is_direct() const = 0;
  virtual Result<uint64_t> size() = 0;
  // Fills `out` from `offset`; returns the bytes read, fewer than asked only at the file's end.
  virtual Result<size_t> read_at(uint64_t offset, std::span<std::byte> out) = 0;
  virtual Result<void> write_at(uint64_t offset,
                                std::span<const std::byte> bytes) = 0;  // all or an error; extends
  virtual Result<void> sync() = 0;  // contents and length survive a power cut once it returns
  virtual Result<void> set_size(uint64_t bytes) = 0;  // cuts, or grows by zeros

  // Room on the disk for [offset, offset + bytes): what is there stays, the rest is zeros, and a
  // file that is shorter grows. NoSpace if that much is not free.
  virtual Result<void> allocate(uint64_t offset, uint64_t bytes) = 0;
  // The range reads as zeros from now on, and its whole blocks are free again; the size stays.
  virtual Result<void> punch_hole(uint64_t offset, uint64_t bytes) = 0;
  // On the disk: less than the size where there are holes, more where room was made.
  virtual Result<uint64_t> allocated_bytes() = 0;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual Result<std::unique_ptr<File>> open_read(const std::string& path,
                                                  Access access = Access::buffered) = 0;
  // An existing file, to change it.
  virtual Result<std::unique_ptr<File>> open_update(const std::string& path) = 0;
  // A new file, mode 0600; BadInput if the path exists. Until it is closed, its maker is known to
  // be alive.
  virtual Result<std::unique_ptr<File>> create(const std::string& path,
                                               Access access = Access::buffered) = 0;
  // A folder that only its owner enters (0700); one that is there already is narrowed to that. Its
  // parent must exist.
  virtual Result<void> make_folder(const std::string& path) = 0;
  virtual Result<void> rename(const std::string& from,
                              const std::string& to) = 0;  // replaces `to` whole
  virtual Result<void> remove(const std::string& path) = 0;
  // Whether nobody has the file open who created it. False where the file system cannot tell.
  virtual bool is_abandoned(const std::string& path) = 0;
  // Removes a file unless the process that created it still has it open: what a killed writer left
  // behind. True when the file is gone; false where it is in use or the file system cannot tell.
  virtual bool remove_abandoned(const std::string& path) = 0;
  virtual Result<void> sync_folder(const std::string& path) = 0;  // names in it survive a power cut
  virtual bool exists(const std::string& path) = 0;
  virtual Result<std::vector<std::string>> list(const std::string& folder) = 0;  // names, sorted
};

FileSystem& posix_fs();

std::string folder_of(const std::string& path);     // "." when the path has none
std::string file_name_of(const std::string& path);  // what follows the last slash

}  // namespace cairn

#endif  // CAIRN_IO_FILE_H_
