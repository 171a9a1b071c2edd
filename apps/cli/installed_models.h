// The models that have a name: files in the folders where models are looked for.
#ifndef CAIRN_APPS_CLI_INSTALLED_MODELS_H_
#define CAIRN_APPS_CLI_INSTALLED_MODELS_H_

#include <optional>
#include <string>
#include <vector>

#include "apps/config.h"
#include "cairn/core/error.h"
#include "cairn/core/hash.h"

namespace cairn::cli {

struct InstalledModel {
  std::string name;  // the file's, without its ending
  std::string path;
};

// By name; of several files of one name the first folder's.
std::vector<InstalledModel> installed_models(const Config& config);

// MODEL as a user writes it: a path, or a name of the list. NotFound names what there is.
Result<std::string> find_model(const Config& config, const std::string& model);

// The installed model with these weights.
std::optional<InstalledModel> model_with_identity(const Config& config, const Digest& identity);

}  // namespace cairn::cli

#endif  // CAIRN_APPS_CLI_INSTALLED_MODELS_H_
