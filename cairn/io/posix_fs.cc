// Files by way of the system calls, each one complete: interrupted calls are repeated, short reads
// and writes go on.
//
// Direct reads and writes go around the page cache where the file system allows it. Some refuse at
// open, some only at the first call (EINVAL both times); either way the file is then buffered and
// is_direct() says so.
//
// A file that is being created carries an exclusive flock until it is closed. The kernel drops the
// lock when the process dies, however it dies, so a file whose lock can be had was abandoned. A
// creator that loses its file between open and lock (somebody took it for abandoned) sees a link
// count of zero and creates it again.
#include "cairn/io/posix_fs.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <optional>
#include <system_error>
#include <utility>

#include "cairn/core/bytes.h"

namespace cairn {
namespace {

constexpr uint64_t kPageBytes =
    4096;  // of the page cache; where pages are larger, nothing counts as cached

Code code_of(int errno_value) {
  switch (errno_value) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return Code::NoSpace;
    case ENOENT:
      return Code::NotFound;
    case EISDIR:
    case ENOTDIR:
    case EEXIST:
    case ELOOP:
    case ENAMETOOLONG:
      return Code::BadInput;
    case EOPNOTSUPP:
    case ENOSYS:
      return Code::Unsupported;
    default:
      return Code::Io;
  }
}

tl::unexpected<Error> fail_errno(std::string_view path, std::string_view what) {
  return tl::unexpected<Error>(posix_error(path, what, errno));
}

// The call's result, once a signal no longer interrupts it.
template <class Call>
auto uninterrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

 private:
  int fd_;
};

Descriptor open_path(const std::string& path, int flags, mode_t mode = 0) {
  return Descriptor(uninterrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC, mode); }));
}

// The file that `fd` has open, not what its path names by now; not open where /proc is missing or
// the flags do not suit.
Descriptor open_again(const Descriptor& fd, int flags) {
  return open_path(fmt::format("/proc/self/fd/{}", fd.get()), flags);
}

bool is_aligned(uint64_t offset, std::span<const std::byte> bytes) {
  return (offset | bytes.size() | reinterpret_cast<uintptr_t>(bytes.data())) % kDirectAlignment ==
         0;
}

// True when every page of the range is in the page cache. Asking reads nothing. (Who neither owns
// nor may write the file is told "yes" by the kernel; the read is then merely buffered.)
bool is_cached(const Descriptor& fd, uint64_t offset, uint64_t bytes) {
  void* view = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), static_cast<off_t>(offset));
  if (view == MAP_FAILED) return false;
  std::vector<unsigned char> resident(ceil_div(bytes, kPageBytes));
  const bool is_known = ::mincore(view, bytes, resident.data()) == 0;
  ::munmap(view, bytes);
  return is_known &&
         std::ranges::all_of(resident, [](unsigned char page) { return (page & 1) != 0; });
}

class PosixFile final : public File {
 public:
  PosixFile(std::string path, Descriptor fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  // `direct` has the same file open with O_DIRECT.
  PosixFile(std::string path, Descriptor fd, Descriptor direct)
      : path_(std::move(path)), fd_(std::move(fd)), direct_(std::move(direct)), is_direct_(true) {}

  const std::string& path() const override { return path_; }
  bool is_direct() const override { return is_direct_; }

  Result<uint64_t> size() override {
    struct stat status;
    if (::fstat(fd_.get(), &status) != 0) return fail_errno(path_, "its size cannot be read");
    return static_cast<uint64_t>(status.st_size);
  }

  Result<size_t> read_at(uint64_t offset, std::span<std::byte> out) override {
    CAIRN_CHECK(!is_direct_ || is_aligned(offset, out),
                "{}: direct read of {} bytes at {}, expected 4 KiB alignment", path_, out.size(),
                offset);
    size_t done = 0;
    while (done < out.size()) {
      const ssize_t got = read_some(offset + done, out.subspan(done));
      if (got < 0) return fail_errno(path_, fmt::format("byte {} cannot be read", offset + done));
      done += static_cast<size_t>(got);
      // A direct read stops short of a block only at the end, and may not go on from there.
      if (got == 0 || (is_direct_ && got % kDirectAlignment != 0)) break;
    }
    return done;
  }

  Result<void> write_at(uint64_t offset, std::span<const std::byte> bytes) override {
    CAIRN_CHECK(!is_direct_ || is_aligned(offset, bytes),
                "{}: direct write of {} bytes at {}, expected 4 KiB alignment", path_, bytes.size(),
                offset);
    while (!bytes.empty()) {
      const ssize_t put = write_some(offset, bytes);
      if (put < 0) return fail_errno(path_, fmt::format("byte {} cannot be written", offset));
      offset += static_cast<uint64_t>(put);
      bytes = bytes.subspan(static_cast<size_t>(put));
    }
    return {};
  }

  Result<void> sync() override {
    if (uninterrupted([&] { return ::fdatasync(fd_.get()); }) != 0)
      return fail_errno(path_, "cannot be synced");
    return {};
  }

  Result<void> set_size(uint64_t bytes) override {
    if (uninterrupted([&] { return ::ftruncate(fd_.get(), static_cast<off_t>(bytes)); }) != 0)
      return fail_errno(path_, fmt::format("cannot be given {} bytes", bytes));
    return {};
  }

  Result<void> allocate(uint64_t offset, uint64_t bytes) override {
    return change_room(0, offset, bytes, "there is no room for");
  }

  Result<void> punch_hole(uint64_t offset, uint64_t bytes) override {
    return change_room(FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, bytes, "cannot give up");
  }

  Result<uint64_t> allocated_bytes() override {
    struct stat status;
    if (::fstat(fd_.get(), &status) != 0) return fail_errno(path_, "its size cannot be read");
    return static_cast<uint64_t>(status.st_blocks) * 512;
  }

 private:
  Result<void> change_room(int mode, uint64_t offset, uint64_t bytes, std::string_view what) {
    const int result = uninterrupted([&] {
      return ::fallocate(fd_.get(), mode, static_cast<off_t>(offset), static_cast<off_t>(bytes));
    });
    if (result != 0)
      return fail_errno(path_, fmt::format("{} {} bytes at {}", what, bytes, offset));
    return {};
  }

  // Short after a full disk; the rest of a direct write may then be no whole block.
  ssize_t write_some(uint64_t offset, std::span<const std::byte> bytes) {
    if (is_direct_ && is_aligned(offset, bytes)) {
      const ssize_t put = write_to(direct_, offset, bytes);
      if (put >= 0 || errno != EINVAL) return put;
      is_direct_ = false;
    }
    return write_to(fd_, offset, bytes);
  }

  static ssize_t write_to(const Descriptor& fd, uint64_t offset, std::span<const std::byte> bytes) {
    return uninterrupted(
        [&] { return ::pwrite(fd.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset)); });
  }

  ssize_t read_some(uint64_t offset, std::span<std::byte> out) {
    if (is_direct_ && !is_cached(fd_, offset, out.size())) {
      const ssize_t got = read_from(direct_, offset, out);
      if (got >= 0 || errno != EINVAL) return got;
      is_direct_ = false;
    }
    return read_from(fd_, offset, out);
  }

  static ssize_t read_from(const Descriptor& fd, uint64_t offset, std::span<std::byte> out) {
    return uninterrupted(
        [&] { return ::pread(fd.get(), out.data(), out.size(), static_cast<off_t>(offset)); });
  }

  const std::string path_;
  const Descriptor fd_;
  const Descriptor direct_{-1};
  std::atomic<bool> is_direct_ = false;
};

Result<void> expect_regular(const std::string& path, const Descriptor& fd) {
  struct stat status;
  if (::fstat(fd.get(), &status) != 0) return fail_errno(path, "cannot be opened");
  if (!S_ISREG(status.st_mode))
    return fail(Code::BadInput, "{}: a {}, expected a regular file", path,
                S_ISDIR(status.st_mode) ? "folder" : "device or pipe");
  return {};
}

// True when the file that `fd` has open still carries a name.
bool has_name(const Descriptor& fd) {
  struct stat status;
  return ::fstat(fd.get(), &status) == 0 && status.st_nlink > 0;
}

class PosixFs final : public FileSystem {
 public:
  Result<std::unique_ptr<File>> open_read(const std::string& path, Access access) override {
    // O_NONBLOCK: a pipe with nobody at the other end must not hold us up; it changes nothing for a
    // regular file.
    constexpr int kFlags = O_RDONLY | O_NONBLOCK;
    Descriptor fd = open_path(path, kFlags);
    if (!fd.is_open()) return fail_errno(path, "cannot be opened");
    CAIRN_TRY(expect_regular(path, fd));
    if (access == Access::direct)
      if (Descriptor direct = open_again(fd, kFlags | O_DIRECT); direct.is_open())
        return std::make_unique<PosixFile>(path, std::move(fd), std::move(direct));
    return std::make_unique<PosixFile>(path, std::move(fd));
  }

  Result<std::unique_ptr<File>> open_update(const std::string& path) override {
    Descriptor fd = open_path(path, O_RDWR | O_NONBLOCK);
    if (!fd.is_open()) return fail_errno(path, "cannot be opened");
    CAIRN_TRY(expect_regular(path, fd));
    return std::make_unique<PosixFile>(path, std::move(fd));
  }

  Result<std::unique_ptr<File>> create(const std::string& path, Access access) override {
    for (;;) {
      Descriptor fd = open_path(path, O_RDWR | O_CREAT | O_EXCL, 0600);
      if (!fd.is_open()) return fail_errno(path, "cannot be created");
      // Without locks (some network file systems) nobody can take it for abandoned either.
      const bool is_locked = uninterrupted([&] { return ::flock(fd.get(), LOCK_EX); }) == 0;
      if (is_locked && !has_name(fd)) continue;
      if (access == Access::direct)
        if (Descriptor direct = open_again(fd, O_RDWR | O_DIRECT); direct.is_open())
          return std::make_unique<PosixFile>(path, std::move(fd), std::move(direct));
      return std::make_unique<PosixFile>(path, std::move(fd));
    }
  }

  Result<void> make_folder(const std::string& path) override {
    constexpr mode_t kOwnerOnly = 0700;
    if (::mkdir(path.c_str(), kOwnerOnly) != 0 && errno != EEXIST)
      return fail_errno(path, "cannot be made");
    const Descriptor fd = open_path(path, O_RDONLY | O_DIRECTORY);
    if (!fd.is_open()) return fail_errno(path, "cannot be opened");
    struct stat status;
    if (::fstat(fd.get(), &status) != 0) return fail_errno(path, "cannot be opened");
    if ((status.st_mode & 07777) != kOwnerOnly && ::fchmod(fd.get(), kOwnerOnly) != 0)
      return fail_errno(path, "cannot be closed to others");
    return {};
  }

  Result<void> rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0)
      return fail_errno(to, fmt::format("{} cannot be renamed to it", from));
    return {};
  }

  Result<void> remove(const std::string& path) override {
    if (::unlink(path.c_str()) != 0) return fail_errno(path, "cannot be removed");
    return {};
  }

  bool is_abandoned(const std::string& path) override { return lock_abandoned(path).is_open(); }

  bool remove_abandoned(const std::string& path) override {
    const Descriptor fd = lock_abandoned(path);
    return fd.is_open() && ::unlink(path.c_str()) == 0;
  }

  Result<void> sync_folder(const std::string& path) override {
    const Descriptor fd = open_path(path, O_RDONLY | O_DIRECTORY);
    if (!fd.is_open()) return fail_errno(path, "cannot be opened");
    // EINVAL: a file system that keeps its names durable by itself, or cannot be asked to.
    if (uninterrupted([&] { return ::fsync(fd.get()); }) != 0 && errno != EINVAL)
      return fail_errno(path, "cannot be synced");
    return {};
  }

  bool exists(const std::string& path) override {
    struct stat status;
    return ::stat(path.c_str(), &status) == 0;
  }

  Result<std::vector<std::string>> list(const std::string& folder) override {
    const std::unique_ptr<DIR, int (*)(DIR*)> entries(::opendir(folder.c_str()), ::closedir);
    if (entries == nullptr) return fail_errno(folder, "cannot be listed");
    std::vector<std::string> names;
    for (;;) {
      errno = 0;
      const dirent* entry = ::readdir(entries.get());
      if (entry == nullptr) break;
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
    }
    if (errno != 0) return fail_errno(folder, "cannot be listed");
    std::ranges::sort(names);
    return names;
  }

 private:
  // The file with its lock, which its maker has as long as it lives; not open if that is so.
  static Descriptor lock_abandoned(const std::string& path) {
    Descriptor fd = open_path(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW);
    if (!fd.is_open() || !expect_regular(path, fd) || ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0)
      return Descriptor(-1);
    return fd;
  }
};

}  // namespace

Error posix_error(std::string_view path, std::string_view what, int errno_value) {
  return {code_of(errno_value),
          fmt::format("{}: {}: {}", path, what, std::generic_category().message(errno_value))};
}

FileSystem& posix_fs() {
  static PosixFs fs;
  return fs;
}

}  // namespace cairn
