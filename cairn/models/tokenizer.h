// Text to tokens and back, by the vocabulary of a model file.
//
//   const Tokenizer tokenizer = CAIRN_TRY(make_tokenizer(file));
//   const std::vector<int32_t> prompt = tokenizer.encode("Hello", Specials::AsText,
//   Ends::AsVocabularySays); TextStream stream(tokenizer);                     // for tokens as
//   they come: shows no half characters for (...) std::cout << stream.add(token); std::cout <<
//   stream.rest();
#ifndef CAIRN_MODELS_TOKENIZER_H_
#define CAIRN_MODELS_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/core/error.h"
#include "cairn/core/hash.h"
#include "cairn/models/tokenizer_subwords.h"
#include "cairn/models/vocabulary.h"

namespace cairn {

// What the name of a control token means when it stands in the text.
enum class Specials {
  Parse,   // that token: for text of our own making, such as a chat template's
  AsText,  // just its letters: for text of strangers
};

// Whether encoding adds the tokens that begin and end a text.
enum class Ends {
  None,
  AsVocabularySays,  // where adds_bos() and adds_eos() say so
};

// Safe to use from several threads at once. Outlives the file that it was made from.
class Tokenizer {
 public:
  // Never fails, whatever the bytes are (at most 1 GiB): bytes that are no UTF-8 become byte
  // tokens. User-defined tokens are always found in the text, control tokens when `specials` says
  // so; of those that begin at one place the longest is taken.
  std::vector<int32_t> encode(std::string_view text,
                              Specials specials,
                              Ends ends = Ends::None) const;

  // The text that encode() had: control tokens are no text, an unknown token is U+FFFD, and of a
  // text's first word a space that the vocabulary put there is dropped. To decode from the middle
  // of a text use a TextStream. REQUIRES (here and below): tokens are from 0 to size() - 1.
  std::string decode(std::span<const int32_t> tokens) const;

  // The bytes that a token stands for, or the name of a control token: to show, or to look at.
  std::string piece(int32_t token) const;

  std::optional<int32_t> find(
      std::string_view name) const;  // a token of any type by its name, "<|im_end|>"
  std::optional<int32_t> bos() const { return vocabulary_.flags().bos; }
  std::optional<int32_t> eos() const { return vocabulary_.flags().eos; }
  bool adds_bos() const { return vocabulary_.flags().adds_bos; }
  bool adds_eos() const { return vocabulary_.flags().adds_eos; }
  bool is_end_of_generation(int32_t token) const;  // end of text, of turn or of message
  bool is_control(int32_t token) const { return vocabulary_.type(token) == TokenType::Control; }
  size_t size() const { return vocabulary_.size(); }

  // Names the vocabulary and its rules: equal digests, equal tokens.
  const Digest& hash() const { return hash_; }

 private:
  friend class TextStream;
  friend Result<Tokenizer> make_tokenizer(const gguf_context* file);
  Tokenizer(Vocabulary vocabulary, std::unique_ptr<const Subwords> subwords, const Digest& hash);

  std::optional<int32_t> special_at(std::string_view text, Specials specials) const;
  void append_bytes(int32_t token, std::string& bytes) const;

  Vocabulary vocabulary_;
  std::unique_ptr<const Subwords> subwords_;
  std::vector<int32_t> specials_;  // control, unknown and user-defined tokens, by their names
  std::vector<uint32_t>
      specials_of_byte_;  // [257]: those that begin with byte b are [b] to [b + 1] of specials_
  std::vector<int32_t> ends_;  // tokens that end a generation
  Digest hash_;
};

// Errors as read_vocabulary() gives them; Unsupported also for an unknown pre-tokenizer, BadInput
// for merges that are none.
Result<Tokenizer> make_tokenizer(const gguf_context* file);

// The text of tokens as they come. Bytes that begin a character wait until it is complete; all that
// add() and rest() return is, together, the bytes of the tokens.
class TextStream {
 public:
  explicit TextStream(const Tokenizer& tokenizer)
      : tokenizer_(tokenizer) {}  // must outlive the stream
  std::string add(int32_t token);
  std::string rest();  // what still waits: a character that never became complete

 private:
  const Tokenizer& tokenizer_;
  std::string waiting_;
};

}  // namespace cairn

#endif  // CAIRN_MODELS_TOKENIZER_H_
