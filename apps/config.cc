#include "apps/config.h"

#include <cstdlib>
#include <filesystem>
#include <sstream>

namespace cairn {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string program_folder() {
  std::error_code unknown;
  return std::filesystem::read_symlink("/proc/self/exe", unknown).parent_path().string();
}

std::vector<std::string> model_folders() {
  std::vector<std::string> folders;
  std::istringstream named(variable("CAIRN_MODELS"));
  for (std::string folder; std::getline(named, folder, ':');)
    if (!folder.empty()) folders.push_back(folder);
  folders.push_back("models");
  if (const std::string program = program_folder(); !program.empty())
    folders.push_back((std::filesystem::path(program).parent_path() / "models").string());
  return folders;
}

std::string cache_folder() {
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) return cache + "/cairn";
  if (const std::string home = variable("HOME"); !home.empty()) return home + "/.cache/cairn";
  return "";
}

}  // namespace

Config read_config() { return {.model_folders = model_folders(), .cache_folder = cache_folder()}; }

}  // namespace cairn
