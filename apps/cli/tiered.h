// The store of --store: what a run takes from it, gives to it, and says about it.
#ifndef CAIRN_APPS_CLI_TIERED_H_
#define CAIRN_APPS_CLI_TIERED_H_

#include <memory>
#include <optional>
#include <string>

#include "apps/cli/run.h"
#include "cairn/runtime/recall.h"

namespace cairn::cli {

class Tiered {
 public:
  // All outlive this. Null, after a warning: the store is damaged or the disk full, and an answer
  // needs neither. An error when the folder cannot be a store, or the key not be read.
  static Result<std::unique_ptr<Tiered>> open(const RunOptions& options,
                                              Memory& memory,
                                              Session& session,
                                              const std::string& model_name);

  // For one conversation of the session, which outlives what is returned; this does, too.
  std::unique_ptr<Recall> recall(Conversation& conversation);
  void warn_of_problems();  // once of damage, once of a disk that fails
  // Waits until what was computed is safe, and says if it is not.
  void finish();

 private:
  Tiered() = default;
  void warn_of_writing(const std::string& message);

  std::unique_ptr<Store> store_;
  std::optional<Tiers> tiers_;
  std::optional<Prefixes> prefixes_;
  Session* session_ = nullptr;
  RecallOptions recall_options_;
  bool has_warned_of_damage_ = false;
  bool has_warned_of_writing_ = false;
};

}  // namespace cairn::cli

#endif  // CAIRN_APPS_CLI_TIERED_H_
