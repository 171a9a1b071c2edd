// A file system that fails on purpose, in front of another one.
//
//   FaultyFs fs(disk);
//   fs.fail_call(7, Fault::from_then_on);   // calls 7, 8, ...: the machine is gone
//   fs.limit_bytes(1 << 20);                // the disk is full after 1 MiB of writes
//
// Calls are counted from 1, over the file system and its files alike. A write that fails has
// written half of its bytes: a torn write. Closing, exists(), is_abandoned() and remove_abandoned()
// cannot fail and are not counted; nothing is abandoned once the machine is gone.
#ifndef CAIRN_IO_FAULTY_FS_H_
#define CAIRN_IO_FAULTY_FS_H_

#include <atomic>
#include <cstdint>

#include "cairn/io/file.h"

namespace cairn {

enum class Fault { once, from_then_on };

class FaultyFs final : public FileSystem {
 public:
  explicit FaultyFs(FileSystem& inner) : inner_(inner) {}

  void fail_call(uint64_t number, Fault fault, Code code = Code::Io);
  void refuse_holes() { refuses_holes_ = true; }  // and room made ahead: Unsupported
  void limit_bytes(uint64_t bytes);  // writes beyond it return NoSpace, having written what fits
  uint64_t calls() const { return calls_; }

  Result<std::unique_ptr<File>> open_read(const std::string& path,
                                          Access access = Access::buffered) override;
  Result<std::unique_ptr<File>> open_update(const std::string& path) override;
  Result<std::unique_ptr<File>> create(const std::string& path,
                                       Access access = Access::buffered) override;
  Result<void> make_folder(const std::string& path) override;
  Result<void> rename(const std::string& from, const std::string& to) override;
  Result<void> remove(const std::string& path) override;
  bool is_abandoned(const std::string& path) override;
  bool remove_abandoned(const std::string& path) override;
  Result<void> sync_folder(const std::string& path) override;
  bool exists(const std::string& path) override { return inner_.exists(path); }
  Result<std::vector<std::string>> list(const std::string& folder) override;

 private:
  class FaultyFile;
  bool fails(uint64_t call) const;
  Result<void> count(const std::string& path);  // the call's turn: an error if it is to fail

  FileSystem& inner_;
  std::atomic<uint64_t> calls_ = 0;
  std::atomic<uint64_t> written_bytes_ = 0;
  uint64_t failing_call_ = 0;  // 0: none
  Fault fault_ = Fault::once;
  Code code_ = Code::Io;
  uint64_t limit_bytes_ = UINT64_MAX;
  bool refuses_holes_ = false;
};

}  // namespace cairn

#endif  // CAIRN_IO_FAULTY_FS_H_
