// cairn run: text in, text out, and what was computed on the way kept in a file.
#ifndef CAIRN_APPS_CLI_RUN_H_
#define CAIRN_APPS_CLI_RUN_H_

#include <CLI/App.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli/process_clock.h"
#include "apps/config.h"
#include "cairn/core/error.h"
#include "cairn/runtime/sampler.h"

namespace cairn::cli {

struct RunOptions {
  std::string model;
  std::vector<std::string> prompts;
  std::vector<std::string> prompt_files;  // "-": stdin
  bool is_chat = false;
  std::string state_path;
  bool goes_on = false;
  bool overwrites = false;
  std::string store_path;  // empty: none
  std::string name_space;
  std::string tenant_key_path;
  std::optional<uint64_t> store_bytes;  // none: what the store has
  uint32_t checkpoint_every = 32;
  std::optional<uint64_t> max_tokens;
  std::string kv;
  uint32_t threads = 0;  // 0: as many as the machine runs at once
  SamplingOptions sampling;
  std::optional<uint32_t> speculate;  // drafts of one round; 0: no speculation
  std::string draft;                  // the model that drafts; empty: none
  uint64_t context = 0;               // positions; 0: what the model has
  bool wants_stats = false;
  bool wants_json = false;

  uint32_t most_drafts() const { return speculate.value_or(draft.empty() ? 0 : 4); }
  size_t texts() const { return prompts.size() + prompt_files.size(); }
};

CLI::App* add_run(CLI::App& program, RunOptions& options);
Result<int> run(const RunOptions& options, const Config& config, Clock::time_point start);

}  // namespace cairn::cli

#endif  // CAIRN_APPS_CLI_RUN_H_
