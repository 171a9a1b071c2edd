// cairn inspect and cairn verify: what a file holds, and whether it is sound.
#ifndef CAIRN_APPS_CLI_FILES_H_
#define CAIRN_APPS_CLI_FILES_H_

#include <CLI/App.hpp>
#include <string>
#include <vector>

#include "apps/config.h"
#include "cairn/core/error.h"

namespace cairn::cli {

struct InspectOptions {
  std::string path;
  std::string
      model;  // whose vocabulary tells the text; empty: the installed one that made the file
  bool wants_text = false;
  bool wants_json = false;
};
CLI::App* add_inspect(CLI::App& program, InspectOptions& options);
Result<int> show_file(const InspectOptions& options, const Config& config);

struct VerifyOptions {
  std::vector<std::string> paths;
  bool checks_numbers = false;
  bool wants_json = false;
};
CLI::App* add_verify(CLI::App& program, VerifyOptions& options);
Result<int> verify_files(const VerifyOptions& options);

}  // namespace cairn::cli

#endif  // CAIRN_APPS_CLI_FILES_H_
