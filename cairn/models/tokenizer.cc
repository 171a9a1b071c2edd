#include "cairn/models/tokenizer.h"

#include <algorithm>
#include <utility>

#include "cairn/models/tokenizer_utf8.h"

namespace cairn {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

// Names by which chat models end a turn, a message or a text, where the file does not list them.
constexpr std::string_view kEndNames[] = {"<|im_end|>",    "<|endoftext|>",   "<|eot_id|>",
                                          "<|eom_id|>",    "<|end_of_text|>", "<|end|>",
                                          "<end_of_turn>", "<eos>",           "</s>"};

bool is_special(TokenType type) {
  return type == TokenType::Control || type == TokenType::Unknown || type == TokenType::UserDefined;
}

std::vector<int32_t> specials_by_name(const Vocabulary& vocabulary) {
  std::vector<int32_t> tokens;
  for (int32_t token = 0; token < static_cast<int32_t>(vocabulary.size()); ++token)
    if (is_special(vocabulary.type(token)) && !vocabulary.text(token).empty())
      tokens.push_back(token);
  std::stable_sort(tokens.begin(), tokens.end(),
                   [&](int32_t a, int32_t b) { return vocabulary.text(a) < vocabulary.text(b); });
  return tokens;
}

std::vector<uint32_t> first_by_byte(const Vocabulary& vocabulary,
                                    const std::vector<int32_t>& sorted) {
  std::vector<uint32_t> first(257, 0);
  for (const int32_t token : sorted) ++first[static_cast<uint8_t>(vocabulary.text(token)[0]) + 1];
  for (size_t byte = 0; byte < 256; ++byte) first[byte + 1] += first[byte];
  return first;
}

std::vector<int32_t> end_tokens(const Vocabulary& vocabulary,
                                const std::vector<int32_t>& specials) {
  std::vector<int32_t> ends = vocabulary.flags().other_ends;
  if (vocabulary.flags().eos) ends.push_back(*vocabulary.flags().eos);
  for (const int32_t token : specials)
    if (std::ranges::find(kEndNames, vocabulary.text(token)) != std::end(kEndNames))
      ends.push_back(token);
  return ends;
}

}  // namespace

Tokenizer::Tokenizer(Vocabulary vocabulary,
                     std::unique_ptr<const Subwords> subwords,
                     const Digest& hash)
    : vocabulary_(std::move(vocabulary)),
      subwords_(std::move(subwords)),
      specials_(specials_by_name(vocabulary_)),
      specials_of_byte_(first_by_byte(vocabulary_, specials_)),
      ends_(end_tokens(vocabulary_, specials_)),
      hash_(hash) {}

Result<Tokenizer> make_tokenizer(const gguf_context* file) {
  Vocabulary vocabulary = CAIRN_TRY(read_vocabulary(file));
  if (vocabulary.model() == "llama") {
    auto subwords = make_by_score(vocabulary);
    const Digest hash = vocabulary.digest({});
    return Tokenizer(std::move(vocabulary), std::move(subwords), hash);
  }
  const std::vector<std::string_view> merges = CAIRN_TRY(read_merges(file));
  auto subwords = CAIRN_TRY(make_byte_pair(vocabulary, merges));
  const Digest hash = vocabulary.digest(merges);
  return Tokenizer(std::move(vocabulary), std::move(subwords), hash);
}

// Narrows the sorted names to those that share one more byte with the text; a name that ends there
// is a match.
std::optional<int32_t> Tokenizer::special_at(std::string_view text, Specials specials) const {
  const auto first_byte = static_cast<uint8_t>(text[0]);
  auto begin = specials_.begin() + specials_of_byte_[first_byte];
  auto end = specials_.begin() + specials_of_byte_[first_byte + 1];
  std::optional<int32_t> longest;
  for (size_t bytes = 1; begin != end; ++bytes) {
    for (; begin != end && vocabulary_.text(*begin).size() == bytes; ++begin)
      if (specials == Specials::Parse || vocabulary_.type(*begin) == TokenType::UserDefined)
        longest = *begin;
    if (bytes == text.size()) break;
    const auto byte_of = [&](int32_t token) {
      return static_cast<uint8_t>(vocabulary_.text(token)[bytes]);
    };
    const auto wanted = static_cast<uint8_t>(text[bytes]);
    begin = std::ranges::lower_bound(begin, end, wanted, {}, byte_of);
    end = std::ranges::upper_bound(begin, end, wanted, {}, byte_of);
  }
  return longest;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, Specials specials, Ends ends) const {
  CAIRN_CHECK(text.size() <= size_t{1} << 30, "a text of {} bytes, at most 1 GiB is possible",
              text.size());
  std::vector<int32_t> tokens;
  if (ends == Ends::AsVocabularySays && adds_bos()) tokens.push_back(*bos());
  bool is_start = true;  // of a text, to which a control token counts as nothing
  const auto add_plain = [&](std::string_view plain) {
    if (plain.empty()) return;
    if (is_start && vocabulary_.flags().adds_space_prefix)
      subwords_->encode(vocabulary_, std::string(1, ' ').append(plain), tokens);
    else
      subwords_->encode(vocabulary_, plain, tokens);
    is_start = false;
  };
  size_t plain_from = 0;
  for (size_t at = 0; at < text.size();) {
    const auto special = special_at(text.substr(at), specials);
    if (!special) {
      ++at;
      continue;
    }
    add_plain(text.substr(plain_from, at - plain_from));
    tokens.push_back(*special);
    is_start = is_control(*special);
    at += vocabulary_.text(*special).size();
    plain_from = at;
  }
  add_plain(text.substr(plain_from));
  if (ends == Ends::AsVocabularySays && adds_eos()) tokens.push_back(*eos());
  return tokens;
}

void Tokenizer::append_bytes(int32_t token, std::string& bytes) const {
  CAIRN_CHECK(token >= 0 && static_cast<size_t>(token) < size(), "token {} of {}", token, size());
  const std::string_view name = vocabulary_.text(token);
  switch (vocabulary_.type(token)) {
    case TokenType::Control:
      return;
    case TokenType::Unknown:
      bytes += kReplacement;
      return;
    case TokenType::UserDefined:
      bytes += name;
      return;
    case TokenType::Byte:
      bytes += static_cast<char>(*byte_named(name));
      return;
    case TokenType::Normal:
    case TokenType::Unused:
      subwords_->decode(name, bytes);
      return;
  }
}

std::string Tokenizer::decode(std::span<const int32_t> tokens) const {
  std::string text;
  bool is_start = vocabulary_.flags().adds_space_prefix;
  for (const int32_t token : tokens) {
    const size_t before = text.size();
    append_bytes(token, text);
    const TokenType type = vocabulary_.type(token);
    if (is_start && type == TokenType::Normal && text.size() > before && text[before] == ' ')
      text.erase(before, 1);
    is_start = vocabulary_.flags().adds_space_prefix && type == TokenType::Control;
  }
  return text;
}

std::string Tokenizer::piece(int32_t token) const {
  std::string bytes;
  append_bytes(token, bytes);
  return is_control(token) ? std::string(vocabulary_.text(token)) : bytes;
}

std::optional<int32_t> Tokenizer::find(std::string_view name) const {
  const auto by_name = [this](int32_t token) { return vocabulary_.text(token); };
  const auto special = std::ranges::lower_bound(specials_, name, {}, by_name);
  if (special != specials_.end() && by_name(*special) == name) return *special;
  return vocabulary_.find(name);
}

bool Tokenizer::is_end_of_generation(int32_t token) const {
  return std::ranges::find(ends_, token) != ends_.end();
}

std::string TextStream::add(int32_t token) {
  tokenizer_.append_bytes(token, waiting_);
  const size_t complete = waiting_.size() - utf8::incomplete_tail(waiting_);
  std::string text = waiting_.substr(0, complete);
  waiting_.erase(0, complete);
  return text;
}

std::string TextStream::rest() { return std::exchange(waiting_, {}); }

}  // namespace cairn
