// cairn fidelity: what each scheme of the state costs on a text, and which is small enough.
#ifndef CAIRN_APPS_CLI_FIDELITY_H_
#define CAIRN_APPS_CLI_FIDELITY_H_

#include <CLI/App.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/config.h"
#include "cairn/core/error.h"

namespace cairn::cli {

struct FidelityCommand {
  std::string model;
  std::string text_file;             // "-": stdin
  std::vector<std::string> schemes;  // empty: those of the list that the model's widths accept
  std::optional<uint64_t> context;   // none: 1,024 or, if that is less, what the model has
  std::string plot_path;             // empty: none
  uint32_t drift = 64;               // tokens of an answer; 0: no answers
  double kl = 0.01;                  // what a recommended scheme stays below
  uint32_t threads = 0;              // 0: as many as the machine runs at once
  bool expands = false;              // weights to f32: exact products
  bool wants_json = false;
};
CLI::App* add_fidelity(CLI::App& program, FidelityCommand& options);
Result<int> show_fidelity(const FidelityCommand& options, const Config& config);

}  // namespace cairn::cli

#endif  // CAIRN_APPS_CLI_FIDELITY_H_
