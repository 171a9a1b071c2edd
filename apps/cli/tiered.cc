#include "apps/cli/tiered.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "apps/cli/exit_code.h"
#include "apps/cli/output.h"

namespace cairn::cli {
namespace {

constexpr size_t kMostKeyBytes = 4096;

// A tenant's key: the file's bytes, whatever they are.
Result<std::string> read_key(const std::string& path) {
  if (path.empty()) return std::string();
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail(Code::NotFound, "{}: cannot be opened, expected the tenant's key", path);
  std::string key(std::istreambuf_iterator<char>(file), {});
  if (key.empty() || key.size() > kMostKeyBytes)
    return fail(Code::BadInput, "{}: {} bytes, expected a key of 1 to {} bytes", path, key.size(),
                kMostKeyBytes);
  return key;
}

Result<void> check_folder(const std::string& path) {
  std::error_code absent;
  const auto status = std::filesystem::status(path, absent);
  if (std::filesystem::exists(status) && !std::filesystem::is_directory(status))
    return fail(Code::BadInput, "{}: a file, expected a folder for --store", path);
  return {};
}

}  // namespace

Result<std::unique_ptr<Tiered>> Tiered::open(const RunOptions& options,
                                             Memory& memory,
                                             Session& session,
                                             const std::string& model_name) {
  std::unique_ptr<Tiered> tiered(new Tiered());
  PrefixOptions prefix{.name_space = options.name_space, .about = model_name};
  prefix.secret = CAIRN_TRY(read_key(options.tenant_key_path));
  CAIRN_TRY(check_folder(options.store_path));
  auto store = Store::open(options.store_path, {.max_bytes = options.store_bytes});
  if (!store && store.error().code == Code::Corrupt) {
    warn(fmt::format("{} (cairn store rebuild {}); this run goes without the store",
                     store.error().message, options.store_path));
    return nullptr;
  }
  if (!store && store.error().code == Code::NoSpace) {
    warn(fmt::format("{}; this run goes without the store", store.error().message));
    return nullptr;
  }
  tiered->store_ = CAIRN_TRY(std::move(store));
  tiered->tiers_.emplace(memory, tiered->store_.get());
  tiered->prefixes_ = CAIRN_TRY(Prefixes::make(session, *tiered->tiers_, std::move(prefix)));
  tiered->session_ = &session;
  tiered->recall_options_.checkpoint_every = options.checkpoint_every;
  return tiered;
}

std::unique_ptr<Recall> Tiered::recall(Conversation& conversation) {
  return std::make_unique<Recall>(*prefixes_, *session_, conversation, recall_options_);
}

void Tiered::warn_of_problems() {
  const auto problem = tiers_->take_problem();
  if (!problem) return;
  if (problem->code != Code::Corrupt)
    warn_of_writing(fmt::format("the store is of no help at the moment: {}", problem->message));
  else if (!std::exchange(has_warned_of_damage_, true))
    warn(
        fmt::format("a part of the store is damaged, and is computed anew: {}; `cairn store "
                    "verify {}` finds all such parts",
                    problem->message, store_->folder()));
}

void Tiered::warn_of_writing(const std::string& message) {
  if (!std::exchange(has_warned_of_writing_, true)) warn(message);
}

void Tiered::finish() {
  const FlushVerdict verdict = tiers_->flush();
  warn_of_problems();
  if (!verdict.is_durable)
    warn_of_writing(fmt::format("not all of this was stored ({} of its parts are missing): {}",
                                with_commas(verdict.missing + verdict.waiting), verdict.reason));
}

}  // namespace cairn::cli
