#include "apps/cli/tiered.h"

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

}  // namespace

Result<std::unique_ptr<Tiered>> Tiered::open(const RunOptions& options,
                                             Memory& memory,
                                             Session& session,
                                             Conversation& conversation,
                                             const std::string& model_name) {
  std::unique_ptr<Tiered> tiered(new Tiered());
  PrefixOptions prefix{.name_space = options.name_space, .about = model_name};
  prefix.secret = CAIRN_TRY(read_key(options.tenant_key_path));
  tiered->store_ = CAIRN_TRY(Store::open(options.store_path, {.max_bytes = options.store_bytes}));
  tiered->tiers_.emplace(memory, tiered->store_.get());
  tiered->prefixes_ = CAIRN_TRY(Prefixes::make(session, *tiered->tiers_, std::move(prefix)));
  tiered->recall_.emplace(*tiered->prefixes_, session, conversation,
                          RecallOptions{.checkpoint_every = options.checkpoint_every});
  return tiered;
}

const Recalled& Tiered::begin(const Request& request) {
  return recalled_ = recall_->begin(request);
}

void Tiered::warn_of_problems() {
  if (const auto problem = tiers_->take_problem())
    warn(fmt::format("the store is of no help at the moment: {}", problem->message));
}

void Tiered::finish() {
  const FlushVerdict verdict = tiers_->flush();
  (void)tiers_->take_problem();  // the verdict has it
  if (!verdict.is_durable)
    warn(fmt::format("not all of this was stored ({} of its parts are missing): {}",
                     with_commas(verdict.missing + verdict.waiting), verdict.reason));
}

}  // namespace cairn::cli
