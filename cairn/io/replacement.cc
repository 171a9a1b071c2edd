#include "cairn/io/replacement.h"

#include <unistd.h>

#include <algorithm>

namespace cairn {
namespace {

constexpr std::string_view kSuffix = ".tmp";
constexpr int kMaxNumber = 1000;

bool is_number(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// True for "<base>.<digits>-<digits>.tmp".
bool is_temporary_of(std::string_view name, std::string_view base) {
  if (!name.starts_with(base) || !name.ends_with(kSuffix)) return false;
  name.remove_prefix(base.size());
  if (name.size() < kSuffix.size() + 1 || name.front() != '.') return false;
  name = name.substr(1, name.size() - 1 - kSuffix.size());
  const size_t dash = name.find('-');
  return dash != std::string_view::npos && is_number(name.substr(0, dash)) &&
         is_number(name.substr(dash + 1));
}

// Before anything is written: a full disk may need the room. What cannot be listed or removed
// stays.
void remove_leftovers(FileSystem& fs, const std::string& path) {
  const auto names = fs.list(folder_of(path));
  if (!names) return;
  for (const std::string& name : *names)
    if (is_temporary_of(name, file_name_of(path)))
      fs.remove_abandoned(folder_of(path) + "/" + name);
}

// A path that rename would refuse in the end (a folder, a device) is refused before the work.
Result<void> expect_replaceable(FileSystem& fs, const std::string& path) {
  const auto old = fs.open_read(path);
  if (!old && old.error().code == Code::BadInput) return tl::unexpected<Error>(old.error());
  return {};
}

}  // namespace

Result<Replacement> Replacement::make(FileSystem& fs, const std::string& path) {
  CAIRN_TRY(expect_replaceable(fs, path));
  remove_leftovers(fs, path);
  // A number is taken when another thread, or a process of this id in another container, saves to
  // the same path.
  for (int number = 0;; ++number) {
    const std::string temporary = fmt::format("{}.{}-{}{}", path, ::getpid(), number, kSuffix);
    auto file = fs.create(temporary);
    if (file) return Replacement(fs, path, std::move(*file));
    if (number == kMaxNumber || !fs.exists(temporary))
      return tl::unexpected<Error>(std::move(file.error()));
  }
}

Replacement::~Replacement() {
  if (file_ == nullptr) return;
  const std::string temporary = file_->path();
  file_.reset();
  (void)fs_.remove(temporary);  // what stays is found by the next replacement
}

Result<void> Replacement::commit() {
  CAIRN_TRY(file_->sync());
  CAIRN_TRY(fs_.rename(file_->path(), path_));
  file_.reset();
  return fs_.sync_folder(folder_of(path_));
}

}  // namespace cairn
