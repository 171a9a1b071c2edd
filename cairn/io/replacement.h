// A file that replaces another whole, or not at all.
//
//   auto next = CAIRN_TRY(Replacement::make(fs, "chat.cairn"));
//   CAIRN_TRY(next.file().write_at(...));
//   CAIRN_TRY(next.commit());   // from here on, and after any power cut, the new file is there
//
// The bytes go to a temporary name in the same folder, "<path>.<process>-<number>.tmp", are synced,
// and take the name by renaming; then the folder is synced. Dropped before commit, the temporary
// file is removed and the old one is as it was. A process that is killed leaves its temporary file
// behind; the next replacement of the same path removes it.
#ifndef CAIRN_IO_REPLACEMENT_H_
#define CAIRN_IO_REPLACEMENT_H_

#include "cairn/io/file.h"

namespace cairn {

class Replacement {
 public:
  static Result<Replacement> make(FileSystem& fs, const std::string& path);
  Replacement(Replacement&&) noexcept = default;
  Replacement& operator=(Replacement&&) = delete;
  ~Replacement();

  File& file() { return *file_; }
  Result<void> commit();

 private:
  Replacement(FileSystem& fs, std::string path, std::unique_ptr<File> file)
      : fs_(fs), path_(std::move(path)), file_(std::move(file)) {}

  FileSystem& fs_;
  std::string path_;
  std::unique_ptr<File> file_;  // under its temporary name; null: committed or moved from
};

}  // namespace cairn

#endif  // CAIRN_IO_REPLACEMENT_H_
