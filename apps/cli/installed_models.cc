#include "apps/cli/installed_models.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "cairn/models/identity.h"
#include "cairn/models/mapped_file.h"

namespace cairn::cli {
namespace {

namespace fs = std::filesystem;

bool is_model_file(const fs::path& path) {
  std::error_code unknown;
  return (path.extension() == ".gguf" || path.extension() == ".safetensors") &&
         fs::is_regular_file(path, unknown);
}

}  // namespace

std::vector<InstalledModel> installed_models(const Config& config) {
  std::map<std::string, std::string> paths;  // by name
  for (const std::string& folder : config.model_folders) {
    std::error_code absent;
    std::vector<fs::path> files;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, absent))
      if (is_model_file(entry.path())) files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    for (const fs::path& file : files) paths.emplace(file.stem().string(), file.string());
  }
  std::vector<InstalledModel> models;
  for (const auto& [name, path] : paths) models.push_back({name, path});
  return models;
}

Result<std::string> find_model(const Config& config, const std::string& model) {
  std::error_code unknown;
  if (fs::is_regular_file(model, unknown)) return model;
  std::string names;
  for (const InstalledModel& installed : installed_models(config)) {
    if (installed.name == model) return installed.path;
    names += (names.empty() ? "" : ", ") + installed.name;
  }
  return fail(Code::NotFound, "{}: no such model, expected the path of a model file or {}", model,
              names.empty() ? "a name from a folder models/ (tools/setup.sh fetches some)"
                            : "one of: " + names);
}

std::optional<InstalledModel> model_with_identity(const Config& config, const Digest& identity) {
  for (const InstalledModel& model : installed_models(config)) {
    const auto file = MappedFile::open(model.path);
    if (file && file_identity(model.path, *file, {posix_fs(), config.cache_folder}) == identity)
      return model;
  }
  return std::nullopt;
}

}  // namespace cairn::cli
