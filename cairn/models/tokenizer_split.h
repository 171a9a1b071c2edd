// The pre-tokenizer of a byte-pair vocabulary: cuts text into words, across which no two bytes are
// ever joined.
#ifndef CAIRN_MODELS_TOKENIZER_SPLIT_H_
#define CAIRN_MODELS_TOKENIZER_SPLIT_H_

#include <memory>
#include <string_view>
#include <vector>

#include "cairn/core/error.h"

namespace cairn {

enum class WholeWords {
  Merged,  // a word is always built up by merges
  First,   // a word that is a token as a whole is that token
};

// A cut is a list of regular expressions: each one is searched in every piece that the ones before
// it have left, and its matches and the gaps between them are the new pieces. A piece is searched
// as a text of its own. Safe to use from several threads at once.
class PreTokenizer {
 public:
  // `name` as files give it in tokenizer.ggml.pre. Unsupported: not in the table.
  static Result<PreTokenizer> named(std::string_view name);

  ~PreTokenizer();
  PreTokenizer(PreTokenizer&&) noexcept;

  // Replaces `words` by the pieces of `text`, in order; together they are `text`. Bytes that are no
  // UTF-8 are pieces too.
  void split(std::string_view text, std::vector<std::string_view>& words) const;
  WholeWords whole_words() const { return whole_words_; }

 private:
  class Regex;
  PreTokenizer(std::vector<Regex> stages, WholeWords whole_words);
  std::vector<Regex> stages_;
  WholeWords whole_words_;
};

}  // namespace cairn

#endif  // CAIRN_MODELS_TOKENIZER_SPLIT_H_
