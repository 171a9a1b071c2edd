// What the programs take from their surroundings: the environment, and where they are installed.
#ifndef CAIRN_APPS_CONFIG_H_
#define CAIRN_APPS_CONFIG_H_

#include <string>
#include <vector>

namespace cairn {

struct Config {
  // Where models are looked for by name, first found wins: $CAIRN_MODELS (several, by colons),
  // ./models, and the folder models beside the program's folder.
  std::vector<std::string> model_folders;
  // For what can be computed again: $XDG_CACHE_HOME/cairn or ~/.cache/cairn; empty: nowhere.
  std::string cache_folder;
};

Config read_config();

}  // namespace cairn

#endif  // CAIRN_APPS_CONFIG_H_
