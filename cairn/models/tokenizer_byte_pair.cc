// Byte-pair encoding. Vocabularies of this kind spell bytes as letters: every byte has one
// character that can be printed, and token names and merges are written with those. So tokens are
// names of byte strings, and any bytes have tokens, if the vocabulary has all 256 single ones.
#include <algorithm>
#include <array>
#include <bit>
#include <optional>

#include "cairn/models/tokenizer_merge.h"
#include "cairn/models/tokenizer_split.h"
#include "cairn/models/tokenizer_subwords.h"
#include "cairn/models/tokenizer_utf8.h"

namespace cairn {
namespace {

// Bytes that Latin-1 prints are their own letters; the others, in order, are U+0100, U+0101, ...
constexpr bool prints(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

constexpr std::array<uint16_t, 256> letters_of_bytes() {
  std::array<uint16_t, 256> letters{};
  uint16_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte)
    letters[byte] = prints(byte) ? static_cast<uint16_t>(byte) : next++;
  return letters;
}
constexpr std::array<uint16_t, 256> kLetterOfByte = letters_of_bytes();
constexpr uint32_t kLetterCount = 0x100 + 68;

constexpr std::array<int16_t, kLetterCount> bytes_of_letters() {
  std::array<int16_t, kLetterCount> bytes{};
  bytes.fill(-1);
  for (uint32_t byte = 0; byte < 256; ++byte)
    bytes[kLetterOfByte[byte]] = static_cast<int16_t>(byte);
  return bytes;
}
constexpr std::array<int16_t, kLetterCount> kByteOfLetter =
    bytes_of_letters();  // -1: no byte has this letter

std::string spelled(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) utf8::append(text, kLetterOfByte[static_cast<uint8_t>(byte)]);
  return text;
}

// (left token, right token) -> (rank, joined token): open addressing, at most half full.
class MergeTable {
 public:
  explicit MergeTable(size_t merge_count)
      : entries_(std::bit_ceil(2 * merge_count + 1)), mask_(entries_.size() - 1) {}

  void add(int32_t left,
           int32_t right,
           Join join) {  // the first of a pair stays: it has the better rank
    Entry& entry = entries_[place_of(key_of(left, right))];
    if (entry.join.token == kNoToken) entry = {key_of(left, right), join};
  }

  std::optional<Join> find(int32_t left, int32_t right) const {
    const Join join = entries_[place_of(key_of(left, right))].join;
    return join.token == kNoToken ? std::nullopt : std::optional(join);
  }

 private:
  struct Entry {
    uint64_t key = 0;
    Join join{0, kNoToken};
  };
  static uint64_t key_of(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  size_t place_of(uint64_t key) const {
    uint64_t hash =
        key *
        0x9e3779b97f4a7c15;  // 2^64 over the golden ratio: spreads keys that differ in few bits
    hash ^= hash >> 32;
    size_t place = hash & mask_;
    while (entries_[place].join.token != kNoToken && entries_[place].key != key)
      place = (place + 1) & mask_;
    return place;
  }

  std::vector<Entry> entries_;
  size_t mask_;
};

class BytePair final : public Subwords {
 public:
  BytePair(PreTokenizer pre_tokenizer, MergeTable merges, const Vocabulary& vocabulary)
      : pre_tokenizer_(std::move(pre_tokenizer)), merges_(std::move(merges)) {
    for (size_t byte = 0; byte < token_of_byte_.size(); ++byte) {
      const char text = static_cast<char>(byte);
      token_of_byte_[byte] = vocabulary.find(spelled({&text, 1})).value_or(kNoToken);
    }
  }

  void encode(const Vocabulary& vocabulary,
              std::string_view text,
              std::vector<int32_t>& tokens) const override {
    std::vector<std::string_view> words;
    pre_tokenizer_.split(text, words);
    Merger merger;
    for (const std::string_view word : words) {
      const auto whole = whole_word(vocabulary, word);
      if (whole)
        tokens.push_back(*whole);
      else
        encode_word(word, vocabulary.flags().unknown, merger, tokens);
    }
  }

  void decode(std::string_view name, std::string& bytes) const override {
    while (!name.empty()) {
      const std::string_view letter = name.substr(0, std::max<size_t>(1, utf8::character(name)));
      const uint32_t code_point = utf8::code_point(letter);
      const bool is_byte =
          letter.size() <= 2 && code_point < kLetterCount && kByteOfLetter[code_point] >= 0;
      if (is_byte)
        bytes += static_cast<char>(kByteOfLetter[code_point]);
      else
        bytes += letter;
      name.remove_prefix(letter.size());
    }
  }

 private:
  std::optional<int32_t> whole_word(const Vocabulary& vocabulary, std::string_view word) const {
    const bool is_tried =
        pre_tokenizer_.whole_words() == WholeWords::First && word.size() <= vocabulary.longest();
    return is_tried ? vocabulary.find(spelled(word)) : std::nullopt;
  }

  void encode_word(std::string_view word,
                   std::optional<int32_t> unknown,
                   Merger& merger,
                   std::vector<int32_t>& tokens) const {
    merger.clear();
    for (uint32_t i = 0; i < word.size(); ++i)
      merger.add(i, 1, token_of_byte_[static_cast<uint8_t>(word[i])]);
    merger.merge([this](const Symbol& left, const Symbol& right) {
      return merges_.find(left.token, right.token);
    });
    merger.for_each([&](const Symbol& symbol) {
      if (symbol.token != kNoToken)
        tokens.push_back(symbol.token);
      else if (unknown)
        tokens.push_back(*unknown);
    });
  }

  PreTokenizer pre_tokenizer_;
  MergeTable merges_;
  std::array<int32_t, 256> token_of_byte_;  // kNoToken: the vocabulary lacks this byte
};

Result<MergeTable> read_merge_table(const Vocabulary& vocabulary,
                                    const std::vector<std::string_view>& merges) {
  MergeTable table(merges.size());
  std::string joined;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string_view merge = merges[rank];
    const size_t space = merge.find(' ');
    if (space == std::string_view::npos || merge.find(' ', space + 1) != std::string_view::npos)
      return fail(
          Code::BadInput,
          "tokenizer.ggml.merges: merge {}: found \"{}\", expected two tokens and a space between",
          rank, merge);
    joined.assign(merge.substr(0, space)).append(merge.substr(space + 1));
    const auto left = vocabulary.find(merge.substr(0, space));
    const auto right = vocabulary.find(merge.substr(space + 1));
    const auto token = vocabulary.find(joined);
    if (!left || !right || !token)
      return fail(Code::BadInput,
                  "tokenizer.ggml.merges: merge {}: found \"{}\", expected both parts and their "
                  "sum among the tokens",
                  rank, merge);
    table.add(*left, *right, {static_cast<uint32_t>(rank), *token});
  }
  return table;
}

}  // namespace

Result<std::unique_ptr<const Subwords>> make_byte_pair(
    const Vocabulary& vocabulary, const std::vector<std::string_view>& merges) {
  PreTokenizer pre_tokenizer = CAIRN_TRY(PreTokenizer::named(vocabulary.pre_tokenizer()));
  MergeTable table = CAIRN_TRY(read_merge_table(vocabulary, merges));
  return std::make_unique<const BytePair>(std::move(pre_tokenizer), std::move(table), vocabulary);
}

}  // namespace cairn
