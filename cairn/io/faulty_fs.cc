#include "cairn/io/faulty_fs.h"

#include <algorithm>

namespace cairn {

class FaultyFs::FaultyFile final : public File {
 public:
  FaultyFile(FaultyFs& fs, std::unique_ptr<File> inner) : fs_(fs), inner_(std::move(inner)) {}

  const std::string& path() const override { return inner_->path(); }
  bool is_direct() const override { return inner_->is_direct(); }

  Result<uint64_t> size() override {
    CAIRN_TRY(fs_.count(path()));
    return inner_->size();
  }
  Result<size_t> read_at(uint64_t offset, std::span<std::byte> out) override {
    CAIRN_TRY(fs_.count(path()));
    return inner_->read_at(offset, out);
  }
  Result<void> write_at(uint64_t offset, std::span<const std::byte> bytes) override {
    if (auto turn = fs_.count(path()); !turn) {
      (void)inner_->write_at(offset, bytes.first(torn(bytes.size() / 2)));
      return turn;
    }
    const uint64_t before = fs_.written_bytes_.fetch_add(bytes.size());
    const uint64_t room = fs_.limit_bytes_ > before ? fs_.limit_bytes_ - before : 0;
    const bool fits = room >= bytes.size();
    CAIRN_TRY(inner_->write_at(offset, fits ? bytes : bytes.first(torn(room))));
    if (!fits) return fail(Code::NoSpace, "{}: the disk is full (injected)", path());
    return {};
  }
  Result<void> sync() override {
    CAIRN_TRY(fs_.count(path()));
    return inner_->sync();
  }
  Result<void> set_size(uint64_t bytes) override {
    CAIRN_TRY(fs_.count(path()));
    return inner_->set_size(bytes);
  }
  Result<void> allocate(uint64_t offset, uint64_t bytes) override {
    CAIRN_TRY(fs_.count(path()));
    CAIRN_TRY(expect_holes());
    return inner_->allocate(offset, bytes);
  }
  Result<void> punch_hole(uint64_t offset, uint64_t bytes) override {
    CAIRN_TRY(fs_.count(path()));
    CAIRN_TRY(expect_holes());
    return inner_->punch_hole(offset, bytes);
  }
  Result<uint64_t> allocated_bytes() override {
    CAIRN_TRY(fs_.count(path()));
    return inner_->allocated_bytes();
  }

 private:
  Result<void> expect_holes() const {
    if (fs_.refuses_holes_) return fail(Code::Unsupported, "{}: no holes here (injected)", path());
    return {};
  }

  // What a torn write has written: whole blocks where nothing else can be.
  uint64_t torn(uint64_t bytes) const {
    return is_direct() ? bytes / kDirectAlignment * kDirectAlignment : bytes;
  }

  FaultyFs& fs_;
  const std::unique_ptr<File> inner_;
};

void FaultyFs::fail_call(uint64_t number, Fault fault, Code code) {
  failing_call_ = number;
  fault_ = fault;
  code_ = code;
}

void FaultyFs::limit_bytes(uint64_t bytes) { limit_bytes_ = bytes; }

bool FaultyFs::fails(uint64_t call) const {
  if (failing_call_ == 0) return false;
  return fault_ == Fault::once ? call == failing_call_ : call >= failing_call_;
}

Result<void> FaultyFs::count(const std::string& path) {
  const uint64_t call = ++calls_;
  if (fails(call)) return fail(code_, "{}: call {} fails (injected)", path, call);
  return {};
}

Result<std::unique_ptr<File>> FaultyFs::open_read(const std::string& path, Access access) {
  CAIRN_TRY(count(path));
  std::unique_ptr<File> inner = CAIRN_TRY(inner_.open_read(path, access));
  return std::make_unique<FaultyFile>(*this, std::move(inner));
}

Result<std::unique_ptr<File>> FaultyFs::open_update(const std::string& path) {
  CAIRN_TRY(count(path));
  std::unique_ptr<File> inner = CAIRN_TRY(inner_.open_update(path));
  return std::make_unique<FaultyFile>(*this, std::move(inner));
}

Result<std::unique_ptr<File>> FaultyFs::create(const std::string& path, Access access) {
  CAIRN_TRY(count(path));
  std::unique_ptr<File> inner = CAIRN_TRY(inner_.create(path, access));
  return std::make_unique<FaultyFile>(*this, std::move(inner));
}

Result<void> FaultyFs::make_folder(const std::string& path) {
  CAIRN_TRY(count(path));
  return inner_.make_folder(path);
}

Result<void> FaultyFs::rename(const std::string& from, const std::string& to) {
  CAIRN_TRY(count(to));
  return inner_.rename(from, to);
}

Result<void> FaultyFs::remove(const std::string& path) {
  CAIRN_TRY(count(path));
  return inner_.remove(path);
}

bool FaultyFs::is_abandoned(const std::string& path) {
  return !fails(calls_) && inner_.is_abandoned(path);
}

bool FaultyFs::remove_abandoned(const std::string& path) {
  return !fails(calls_) && inner_.remove_abandoned(path);
}

Result<void> FaultyFs::sync_folder(const std::string& path) {
  CAIRN_TRY(count(path));
  return inner_.sync_folder(path);
}

Result<std::vector<std::string>> FaultyFs::list(const std::string& folder) {
  CAIRN_TRY(count(folder));
  return inner_.list(folder);
}

}  // namespace cairn
