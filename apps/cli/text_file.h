// The text of an option -f.
#ifndef CAIRN_APPS_CLI_TEXT_FILE_H_
#define CAIRN_APPS_CLI_TEXT_FILE_H_

#include <string>

#include "cairn/core/error.h"

namespace cairn::cli {

// "-": stdin. NotFound, Io; BadInput beyond 1 GiB.
Result<std::string> read_text(const std::string& path);

}  // namespace cairn::cli

#endif  // CAIRN_APPS_CLI_TEXT_FILE_H_
