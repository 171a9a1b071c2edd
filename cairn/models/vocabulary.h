// The vocabulary of a model file: what each token is called, of which type it is, and the flags
// that stand beside them.
//
// Nothing in the file is trusted: arrays must be there, of the right type and of one length, ids
// inside the vocabulary. What is read is copied, so a vocabulary outlives its file.
#ifndef CAIRN_MODELS_VOCABULARY_H_
#define CAIRN_MODELS_VOCABULARY_H_

#include <gguf.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/core/error.h"
#include "cairn/core/hash.h"

namespace cairn {

// The numbers are the file's.
enum class TokenType : int32_t {
  Normal = 1,
  Unknown = 2,      // stands for text that the vocabulary cannot hold
  Control = 3,      // no text: begins or ends something
  UserDefined = 4,  // text that is always one token
  Unused = 5,
  Byte = 6,  // "<0x0A>": one byte
};

// Finds tokens by their text: open addressing, at most half full, 32 bits of the hash beside each
// id. `text_of(token)` is the caller's: the index holds no text.
class TokenIndex {
 public:
  explicit TokenIndex(size_t token_count);

  template <class TextOf>
  void set(int32_t token, const TextOf& text_of) {  // the last token of a text wins
    const uint64_t hash = xxh3(text_of(token));
    entries_[place_of(hash, text_of(token), text_of)] = {tag_of(hash), token};
  }

  template <class TextOf>
  std::optional<int32_t> find(std::string_view text, const TextOf& text_of) const {
    const int32_t token = entries_[place_of(xxh3(text), text, text_of)].token;
    return token == kEmpty ? std::nullopt : std::optional(token);
  }

 private:
  static constexpr int32_t kEmpty = -1;
  struct Entry {
    uint32_t tag = 0;
    int32_t token = kEmpty;
  };
  static uint32_t tag_of(uint64_t hash) { return static_cast<uint32_t>(hash >> 32); }

  // Where `text` stands, or the empty place where it would.
  template <class TextOf>
  size_t place_of(uint64_t hash, std::string_view text, const TextOf& text_of) const {
    size_t place = hash & mask_;
    for (;; place = (place + 1) & mask_) {
      const Entry& entry = entries_[place];
      if (entry.token == kEmpty || (entry.tag == tag_of(hash) && text_of(entry.token) == text))
        return place;
    }
  }

  std::vector<Entry> entries_;
  size_t mask_;
};

// What the file says beside the tokens.
struct VocabularyFlags {
  std::optional<int32_t> bos, eos;
  std::optional<int32_t>
      unknown;  // none too where the file names a control token: text must not become one
  std::vector<int32_t> other_ends;  // end of turn, end of message
  bool adds_bos = false;
  bool adds_eos = false;
  bool adds_space_prefix =
      false;  // a space before the text's first word; never under byte-pair encoding
};

class Vocabulary {
 public:
  size_t size() const { return types_.size(); }
  std::string_view model() const { return model_; }        // "gpt2": byte pairs, "llama": scores
  std::string_view pre_tokenizer() const { return pre_; }  // empty: the file names none
  const VocabularyFlags& flags() const { return flags_; }

  // REQUIRES: 0 <= token < size().
  std::string_view text(int32_t token) const {
    return {texts_.data() + ends_[token], ends_[token + 1] - ends_[token]};
  }
  TokenType type(int32_t token) const { return types_[token]; }
  float score(int32_t token) const { return scores_.empty() ? 0 : scores_[token]; }

  // The token of a piece of text; never a control, unknown or byte token, so that no text can spell
  // one.
  std::optional<int32_t> find(std::string_view text) const {
    return text.size() > longest_
               ? std::nullopt
               : index_.find(text, [this](int32_t token) { return this->text(token); });
  }
  size_t longest() const { return longest_; }  // bytes of the longest text that find() knows

  // Names everything that decides how text becomes tokens. `merges` as read_merges() gives them.
  Digest digest(const std::vector<std::string_view>& merges) const;

 private:
  friend Result<Vocabulary> read_vocabulary(const gguf_context* file);
  Vocabulary() : index_(0) {}
  Result<void> check_bytes() const;
  void fill_index();

  std::string model_, pre_;
  std::string texts_;           // all texts, one after the other
  std::vector<uint32_t> ends_;  // text of token i: bytes [ends_[i], ends_[i + 1]) of texts_
  std::vector<TokenType> types_;
  std::vector<float> scores_;  // empty: the file has none
  VocabularyFlags flags_;
  TokenIndex index_;
  size_t longest_ = 0;
};

// BadInput: something is missing, of the wrong type or length, or out of range. Unsupported: a
// model other than the two.
Result<Vocabulary> read_vocabulary(const gguf_context* file);

// The merges of a byte-pair vocabulary, best first, each "left right". They live as long as `file`.
Result<std::vector<std::string_view>> read_merges(const gguf_context* file);

// The byte that a token of type Byte stands for; none: `text` is not of the form <0x0A>.
std::optional<uint8_t> byte_named(std::string_view text);

}  // namespace cairn

#endif  // CAIRN_MODELS_VOCABULARY_H_
