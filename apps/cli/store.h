// cairn store: what the folder of --store holds, and its upkeep.
#ifndef CAIRN_APPS_CLI_STORE_H_
#define CAIRN_APPS_CLI_STORE_H_

#include <CLI/App.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/config.h"
#include "cairn/core/error.h"

namespace cairn::cli {

struct StoreVerb;  // stat, ls, ...

struct StoreCommand {
  const StoreVerb* verb = nullptr;  // the chosen one
  std::string folder;
  std::vector<std::string> names;         // rm
  std::optional<std::string> name_space;  // rm
  bool takes_all = false;                 // rm
  uint64_t limit = 0;                     // ls; 0: none
  std::optional<uint64_t> store_bytes;    // none: what the store has
  bool wants_json = false;
};

CLI::App* add_store(CLI::App& program, StoreCommand& command);
Result<int> store(const StoreCommand& command, const Config& config);

}  // namespace cairn::cli

#endif  // CAIRN_APPS_CLI_STORE_H_
