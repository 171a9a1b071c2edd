// The real file system, whose files sync only when a test lets them: a disk that is slow or broken
// for as long as one likes.
#ifndef CAIRN_TESTS_SUPPORT_GATED_FS_H_
#define CAIRN_TESTS_SUPPORT_GATED_FS_H_

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cairn/io/file.h"

namespace cairn::testing {

class GatedFs final : public FileSystem {
 public:
  void close_gate() { set(State::closed); }
  void open_gate() { set(State::open); }
  void break_disk() { set(State::broken); }
  // Returns once somebody waits at the gate.
  void wait_for_a_sync() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ > 0; });
  }

  Result<std::unique_ptr<File>> open_read(const std::string& path, Access access) override {
    return inner_.open_read(path, access);
  }
  Result<std::unique_ptr<File>> open_update(const std::string& path) override {
    return inner_.open_update(path);
  }
  Result<std::unique_ptr<File>> create(const std::string& path, Access access) override {
    return std::make_unique<GatedFile>(*this, CAIRN_TRY(inner_.create(path, access)));
  }
  Result<void> make_folder(const std::string& path) override { return inner_.make_folder(path); }
  Result<void> rename(const std::string& from, const std::string& to) override {
    return inner_.rename(from, to);
  }
  Result<void> remove(const std::string& path) override { return inner_.remove(path); }
  bool is_abandoned(const std::string& path) override { return inner_.is_abandoned(path); }
  bool remove_abandoned(const std::string& path) override { return inner_.remove_abandoned(path); }
  Result<void> sync_folder(const std::string& path) override { return inner_.sync_folder(path); }
  bool exists(const std::string& path) override { return inner_.exists(path); }
  Result<std::vector<std::string>> list(const std::string& folder) override {
    return inner_.list(folder);
  }

 private:
  enum class State { open, closed, broken };

  class GatedFile final : public File {
   public:
    GatedFile(GatedFs& fs, std::unique_ptr<File> inner) : fs_(fs), inner_(std::move(inner)) {}
    const std::string& path() const override { return inner_->path(); }
    bool is_direct() const override { return inner_->is_direct(); }
    Result<uint64_t> size() override { return inner_->size(); }
    Result<size_t> read_at(uint64_t offset, std::span<std::byte> out) override {
      return inner_->read_at(offset, out);
    }
    Result<void> write_at(uint64_t offset, std::span<const std::byte> bytes) override {
      return inner_->write_at(offset, bytes);
    }
    Result<void> sync() override {
      if (!fs_.pass()) return fail(Code::Io, "{}: the disk is broken (injected)", path());
      return inner_->sync();
    }
    Result<void> set_size(uint64_t bytes) override { return inner_->set_size(bytes); }
    Result<void> allocate(uint64_t offset, uint64_t bytes) override {
      return inner_->allocate(offset, bytes);
    }
    Result<void> punch_hole(uint64_t offset, uint64_t bytes) override {
      return inner_->punch_hole(offset, bytes);
    }
    Result<uint64_t> allocated_bytes() override { return inner_->allocated_bytes(); }

   private:
    GatedFs& fs_;
    const std::unique_ptr<File> inner_;
  };

  void set(State state) {
    const std::lock_guard lock(mutex_);
    state_ = state;
    changed_.notify_all();
  }
  bool pass() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return state_ != State::closed; });
    --waiting_;
    return state_ == State::open;
  }

  FileSystem& inner_ = posix_fs();
  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::open;
  int waiting_ = 0;
};

}  // namespace cairn::testing

#endif  // CAIRN_TESTS_SUPPORT_GATED_FS_H_
