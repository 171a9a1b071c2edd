// The real file system. posix_fs() is declared in file.h; this header is for those who map errno
// values themselves.
#ifndef CAIRN_IO_POSIX_FS_H_
#define CAIRN_IO_POSIX_FS_H_

#include <string_view>

#include "cairn/io/file.h"

namespace cairn {

// "<path>: <what>: <the system's words>", with the code that the number stands for: a full disk, a
// quota or a file size limit is NoSpace; a missing path NotFound; a path of the wrong kind
// BadInput; everything else Io.
Error posix_error(std::string_view path, std::string_view what, int errno_value);

}  // namespace cairn

#endif  // CAIRN_IO_POSIX_FS_H_
