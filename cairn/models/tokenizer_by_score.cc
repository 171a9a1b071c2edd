// The sentencepiece way with byte fallback. Spaces are written U+2581 in token names, so text is
// rewritten with it first; a U+2581 of the text itself becomes a space thereby, which no vocabulary
// of this kind can tell apart.
//
// No words are cut: a token may span spaces. A pair longer than the longest token is no candidate,
// so that looking one up costs a bounded time.
#include <array>
#include <bit>
#include <optional>

#include "cairn/models/tokenizer_merge.h"
#include "cairn/models/tokenizer_subwords.h"
#include "cairn/models/tokenizer_utf8.h"

namespace cairn {
namespace {

constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581

std::string with_visible_spaces(std::string_view text) {
  std::string visible;
  visible.reserve(text.size() + text.size() / 2);
  for (const char byte : text) {
    if (byte == ' ')
      visible += kSpace;
    else
      visible += byte;
  }
  return visible;
}

// Orders floats from large to small as unsigned numbers: the bits of positive floats ascend with
// their value, those of negative ones descend.
uint32_t descending(float score) {
  const auto bits = std::bit_cast<uint32_t>(score + 0.0f);  // -0 becomes 0
  const uint32_t ascending = bits & 0x80000000 ? ~bits : bits | 0x80000000;
  return ~ascending;
}

class ByScore final : public Subwords {
 public:
  explicit ByScore(const Vocabulary& vocabulary) {
    token_of_byte_.fill(kNoToken);
    for (int32_t token = 0; token < static_cast<int32_t>(vocabulary.size()); ++token)
      if (vocabulary.type(token) == TokenType::Byte)
        token_of_byte_[*byte_named(vocabulary.text(token))] = token;
  }

  void encode(const Vocabulary& vocabulary,
              std::string_view text,
              std::vector<int32_t>& tokens) const override {
    const std::string visible = with_visible_spaces(text);
    Merger merger;
    add_characters(vocabulary, visible, merger);
    merger.merge([&](const Symbol& left, const Symbol& right) -> std::optional<Join> {
      const size_t bytes = size_t{left.bytes} + right.bytes;
      const auto token = vocabulary.find(std::string_view(visible).substr(left.first, bytes));
      if (!token) return std::nullopt;
      return Join{descending(vocabulary.score(*token)), *token};
    });
    merger.for_each([&](const Symbol& symbol) {
      if (symbol.token != kNoToken)
        tokens.push_back(symbol.token);
      else
        add_bytes(vocabulary, std::string_view(visible).substr(symbol.first, symbol.bytes), tokens);
    });
  }

  void decode(std::string_view name, std::string& bytes) const override {
    for (size_t space = name.find(kSpace); space != std::string_view::npos;
         space = name.find(kSpace)) {
      bytes += name.substr(0, space);
      bytes += ' ';
      name.remove_prefix(space + kSpace.size());
    }
    bytes += name;
  }

 private:
  static void add_characters(const Vocabulary& vocabulary, std::string_view text, Merger& merger) {
    for (size_t first = 0; first < text.size();) {
      const size_t bytes = std::max<size_t>(1, utf8::character(text.substr(first, 4)));
      const int32_t token = vocabulary.find(text.substr(first, bytes)).value_or(kNoToken);
      merger.add(static_cast<uint32_t>(first), static_cast<uint32_t>(bytes), token);
      first += bytes;
    }
  }

  void add_bytes(const Vocabulary& vocabulary,
                 std::string_view character,
                 std::vector<int32_t>& tokens) const {
    for (const char byte : character) {
      const int32_t token = token_of_byte_[static_cast<uint8_t>(byte)];
      if (token != kNoToken)
        tokens.push_back(token);
      else if (vocabulary.flags().unknown)
        tokens.push_back(*vocabulary.flags().unknown);
    }
  }

  std::array<int32_t, 256> token_of_byte_;  // kNoToken: the vocabulary lacks this byte
};

}  // namespace

std::unique_ptr<const Subwords> make_by_score(const Vocabulary& vocabulary) {
  return std::make_unique<const ByScore>(vocabulary);
}

}  // namespace cairn
