// cairn models, kinds and encodings: what there is.
#ifndef CAIRN_APPS_CLI_LISTS_H_
#define CAIRN_APPS_CLI_LISTS_H_

#include <CLI/App.hpp>
#include <string>

#include "apps/config.h"
#include "cairn/core/error.h"

namespace cairn::cli {

struct ListOptions {
  bool wants_json = false;
  std::string scheme = "f16";  // of kinds
};
CLI::App* add_models(CLI::App& program, ListOptions& options);
CLI::App* add_kinds(CLI::App& program, ListOptions& options);
CLI::App* add_encodings(CLI::App& program, ListOptions& options);

Result<int> list_models(const ListOptions& options, const Config& config);
Result<int> list_kinds(const ListOptions& options);
Result<int> list_encodings(const ListOptions& options);

}  // namespace cairn::cli

#endif  // CAIRN_APPS_CLI_LISTS_H_
