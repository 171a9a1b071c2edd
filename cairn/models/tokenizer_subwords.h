// What the two kinds of vocabulary do differently: how plain text becomes tokens, and what a
// token's name says.
#ifndef CAIRN_MODELS_TOKENIZER_SUBWORDS_H_
#define CAIRN_MODELS_TOKENIZER_SUBWORDS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/core/error.h"
#include "cairn/models/vocabulary.h"

namespace cairn {

// Safe to use from several threads at once. The vocabulary is the one it was made from.
class Subwords {
 public:
  virtual ~Subwords() = default;

  // Appends the tokens of `text`, in which special tokens mean nothing. A byte that the vocabulary
  // cannot hold becomes its unknown token; without one it is left out.
  virtual void encode(const Vocabulary& vocabulary,
                      std::string_view text,
                      std::vector<int32_t>& tokens) const = 0;

  // Appends the bytes of a normal token of this name.
  virtual void decode(std::string_view name, std::string& bytes) const = 0;
};

// Byte pairs: a word is its bytes, joined by the merge of the lowest rank first. `merges` as
// read_merges() gives them.
Result<std::unique_ptr<const Subwords>> make_byte_pair(const Vocabulary& vocabulary,
                                                       const std::vector<std::string_view>& merges);

// Scores: the text is its characters, joined into the adjacent pair of the highest score first;
// characters that are no tokens become byte tokens.
std::unique_ptr<const Subwords> make_by_score(const Vocabulary& vocabulary);

}  // namespace cairn

#endif  // CAIRN_MODELS_TOKENIZER_SUBWORDS_H_
