// The vocabularies of the installed models, to show tokens as the text they stand for.
#ifndef CAIRN_APPS_CLI_VOCABULARIES_H_
#define CAIRN_APPS_CLI_VOCABULARIES_H_

#include <map>
#include <set>
#include <span>
#include <string>

#include "apps/config.h"
#include "cairn/core/hash.h"
#include "cairn/models/tokenizer.h"

namespace cairn::cli {

// As it was given: control tokens by their names, so that turns can be told apart.
std::string pieces_of(const Tokenizer& tokenizer, std::span<const int32_t> tokens);

class Vocabularies {
 public:
  explicit Vocabularies(const Config& config) : config_(config) {}

  // Null: no installed model has it. `likely` is where to look first: a model's name or path, or
  // anything else.
  const Tokenizer* find(const Digest& tokenizer, const std::string& likely);

 private:
  const Tokenizer* open(const std::string& path, const Digest& wanted);

  const Config& config_;
  std::map<Digest, Tokenizer> opened_;  // by their hash
  std::set<std::string> paths_;         // looked into
};

}  // namespace cairn::cli

#endif  // CAIRN_APPS_CLI_VOCABULARIES_H_
