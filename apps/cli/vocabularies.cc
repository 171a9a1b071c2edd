#include "apps/cli/vocabularies.h"

#include "apps/cli/installed_models.h"
#include "cairn/models/weights.h"

namespace cairn::cli {
namespace {

Result<Tokenizer> tokenizer_of(const std::string& path) {
  const Weights weights = CAIRN_TRY(open_weights(path));
  return make_tokenizer(weights.metadata().gguf());
}

}  // namespace

std::string pieces_of(const Tokenizer& tokenizer, std::span<const int32_t> tokens) {
  std::string text;
  for (const int32_t token : tokens)
    if (token >= 0 && static_cast<size_t>(token) < tokenizer.size()) text += tokenizer.piece(token);
  return text;
}

const Tokenizer* Vocabularies::open(const std::string& path, const Digest& wanted) {
  if (!paths_.insert(path).second) return nullptr;
  Result<Tokenizer> tokenizer = tokenizer_of(path);
  if (!tokenizer) return nullptr;  // `cairn models` says what is wrong with it
  const Digest hash = tokenizer->hash();
  const auto opened = opened_.emplace(hash, std::move(*tokenizer)).first;
  return hash == wanted ? &opened->second : nullptr;
}

const Tokenizer* Vocabularies::find(const Digest& tokenizer, const std::string& likely) {
  if (const auto known = opened_.find(tokenizer); known != opened_.end()) return &known->second;
  if (const auto path = find_model(config_, likely))
    if (const Tokenizer* found = open(*path, tokenizer)) return found;
  for (const InstalledModel& model : installed_models(config_))
    if (const Tokenizer* found = open(model.path, tokenizer)) return found;
  return nullptr;
}

}  // namespace cairn::cli
