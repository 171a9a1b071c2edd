// cairn convert: a state in another encoding, or between Cairn and mlx-lm.
#ifndef CAIRN_APPS_CLI_CONVERT_H_
#define CAIRN_APPS_CLI_CONVERT_H_

#include <CLI/App.hpp>
#include <string>

#include "apps/config.h"
#include "cairn/core/error.h"

namespace cairn::cli {

struct ConvertCommand {
  std::string in, out;
  std::string kv;     // a scheme; empty: encodings stay
  std::string to;     // "mlx-lm" or "cairn"
  std::string model;  // whose state it is; empty: as IN says
  bool overwrites = false;
  bool wants_json = false;
};
CLI::App* add_convert(CLI::App& program, ConvertCommand& options);
Result<int> convert_file(const ConvertCommand& options, const Config& config);

}  // namespace cairn::cli

#endif  // CAIRN_APPS_CLI_CONVERT_H_
