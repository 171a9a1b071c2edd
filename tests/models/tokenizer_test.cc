#include "cairn/models/tokenizer.h"

#include <gguf.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <random>

#include "cairn/models/tokenizer_merge.h"
#include "cairn/models/tokenizer_split.h"
#include "cairn/models/tokenizer_utf8.h"

namespace cairn {
namespace {

struct FreeFile {
  void operator()(gguf_context* file) const { gguf_free(file); }
};
using File = std::unique_ptr<gguf_context, FreeFile>;

// A vocabulary written by hand, as a file would hold it.
class VocabularyFile {
 public:
  struct Token {
    std::string text;
    TokenType type = TokenType::Normal;
    float score = 0;
  };

  VocabularyFile(const std::string& model, std::vector<Token> tokens) : file_(gguf_init_empty()) {
    gguf_set_val_str(file(), "tokenizer.ggml.model", model.c_str());
    std::vector<std::string> texts;
    std::vector<int32_t> types;
    std::vector<float> scores;
    for (Token& token : tokens) {
      texts.push_back(token.text);
      types.push_back(static_cast<int32_t>(token.type));
      scores.push_back(token.score);
    }
    set("tokenizer.ggml.tokens", texts);
    set("tokenizer.ggml.token_type", types);
    if (model == "llama") set("tokenizer.ggml.scores", scores);
  }

  gguf_context* file() { return file_.get(); }
  VocabularyFile& set(const char* key, const std::vector<std::string>& texts) {
    std::vector<const char*> pointers;
    for (const std::string& text : texts) pointers.push_back(text.c_str());
    gguf_set_arr_str(file(), key, pointers.data(), pointers.size());
    return *this;
  }
  VocabularyFile& set(const char* key, const std::vector<int32_t>& numbers) {
    gguf_set_arr_data(file(), key, GGUF_TYPE_INT32, numbers.data(), numbers.size());
    return *this;
  }
  VocabularyFile& set(const char* key, const std::vector<float>& numbers) {
    gguf_set_arr_data(file(), key, GGUF_TYPE_FLOAT32, numbers.data(), numbers.size());
    return *this;
  }
  VocabularyFile& set(const char* key, const char* text) {
    gguf_set_val_str(file(), key, text);
    return *this;
  }
  VocabularyFile& set(const char* key, uint32_t number) {
    gguf_set_val_u32(file(), key, number);
    return *this;
  }
  VocabularyFile& set_flag(const char* key, bool flag) {
    gguf_set_val_bool(file(), key, flag);
    return *this;
  }
  VocabularyFile& remove(const char* key) {
    gguf_remove_key(file(), key);
    return *this;
  }

 private:
  File file_;
};

// "a" to "e", two merges, an end token.
VocabularyFile small_byte_pairs() {
  VocabularyFile file("gpt2", {{"a"},
                               {"b"},
                               {"c"},
                               {"ab"},
                               {"abc"},
                               {"<end>", TokenType::Control},
                               {"<unk>", TokenType::Unknown}});
  file.set("tokenizer.ggml.pre", "gpt-2")
      .set("tokenizer.ggml.merges", std::vector<std::string>{"a b", "ab c"});
  return file;
}

// Two words, three characters, a newline of its own, the byte 0x0A by name and no other byte.
VocabularyFile small_scores() {
  VocabularyFile file("llama", {{"<unk>", TokenType::Unknown},
                                {"<s>", TokenType::Control},
                                {"</s>", TokenType::Control},
                                {"<0x0A>", TokenType::Byte},
                                {"\xe2\x96\x81", TokenType::Normal, -10},
                                {"a", TokenType::Normal, -11},
                                {"b", TokenType::Normal, -12},
                                {"ab", TokenType::Normal, -2},
                                {"\xe2\x96\x81"
                                 "a",
                                 TokenType::Normal, -1},
                                {"[x]", TokenType::UserDefined}});
  file.set("tokenizer.ggml.bos_token_id", 1u)
      .set("tokenizer.ggml.eos_token_id", 2u)
      .set("tokenizer.ggml.unknown_token_id", 0u);
  return file;
}

Tokenizer tokenizer_of(VocabularyFile file) {
  auto tokenizer = make_tokenizer(file.file());
  EXPECT_TRUE(tokenizer) << tokenizer.error().message;
  return std::move(*tokenizer);
}

TEST(BytePairs, JoinTheEarliestMergeFirst) {
  const Tokenizer tokenizer = tokenizer_of(small_byte_pairs());
  EXPECT_EQ(tokenizer.encode("abcab", Specials::AsText), (std::vector<int32_t>{4, 3}));
  EXPECT_EQ(tokenizer.encode("ca", Specials::AsText), (std::vector<int32_t>{2, 0}));
}

TEST(BytePairs, LeaveOutBytesWithoutATokenOrGiveTheUnknownOne) {
  EXPECT_EQ(tokenizer_of(small_byte_pairs()).encode("axb", Specials::AsText),
            (std::vector<int32_t>{0, 1}));
  VocabularyFile file = small_byte_pairs();
  file.set("tokenizer.ggml.unknown_token_id", 6u);
  const Tokenizer tokenizer = tokenizer_of(std::move(file));
  EXPECT_EQ(tokenizer.encode("axb", Specials::AsText), (std::vector<int32_t>{0, 6, 1}));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("axb", Specials::AsText)),
            "a\xef\xbf\xbd"
            "b");
}

TEST(BytePairs, TakeWholeWordsFirstWhereThePreTokenizerSaysSo) {
  VocabularyFile file = small_byte_pairs();
  file.set("tokenizer.ggml.merges", std::vector<std::string>{"b c", "a b"});
  file.set("tokenizer.ggml.tokens",
           std::vector<std::string>{"a", "b", "c", "ab", "abc", "bc", "<unk>"});
  file.set("tokenizer.ggml.token_type", std::vector<int32_t>{1, 1, 1, 1, 1, 1, 2});
  EXPECT_EQ(make_tokenizer(file.file())->encode("abc", Specials::AsText),
            (std::vector<int32_t>{0, 5}));
  file.set("tokenizer.ggml.pre", "llama-bpe");
  EXPECT_EQ(make_tokenizer(file.file())->encode("abc", Specials::AsText),
            (std::vector<int32_t>{4}));
}

TEST(Scores, JoinTheBestPairFirst) {
  VocabularyFile file = small_scores();
  file.set_flag("tokenizer.ggml.add_space_prefix", false);
  const Tokenizer tokenizer = tokenizer_of(std::move(file));
  EXPECT_EQ(tokenizer.encode("ab", Specials::AsText), (std::vector<int32_t>{7}));
  EXPECT_EQ(tokenizer.encode(" ab", Specials::AsText),
            (std::vector<int32_t>{8, 6}));  // " a" scores above "ab"
  EXPECT_EQ(tokenizer.encode("\n", Specials::AsText), (std::vector<int32_t>{3}));
  EXPECT_EQ(tokenizer.encode("\t", Specials::AsText), (std::vector<int32_t>{0}));
}

TEST(Scores, PutASpaceBeforeTheFirstWordAndTakeItAway) {
  const Tokenizer tokenizer = tokenizer_of(small_scores());  // a file that says nothing means yes
  EXPECT_EQ(tokenizer.encode("ab", Specials::AsText), (std::vector<int32_t>{8, 6}));
  EXPECT_EQ(tokenizer.encode("<s>a", Specials::Parse), (std::vector<int32_t>{1, 8}));
  EXPECT_EQ(tokenizer.encode("b[x]a", Specials::AsText), (std::vector<int32_t>{4, 6, 9, 5}));
  for (const std::string text : {"ab", " ab", "  a b ", "[x]a", " [x] a", "b\nab[x]", ""})
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, Specials::AsText)), text);
}

TEST(Scores, AddTheEndsOnlyWhenAsked) {
  VocabularyFile file = small_scores();
  file.set_flag("tokenizer.ggml.add_eos_token", true);
  const Tokenizer tokenizer = tokenizer_of(std::move(file));
  EXPECT_EQ(tokenizer.encode("a", Specials::Parse), (std::vector<int32_t>{8}));
  EXPECT_EQ(tokenizer.encode("a", Specials::Parse, Ends::AsVocabularySays),
            (std::vector<int32_t>{1, 8, 2}));
}

TEST(Specials, TakeTheLongestName) {
  VocabularyFile file("gpt2", {{"a"},
                               {"<", TokenType::Control},
                               {"<a", TokenType::UserDefined},
                               {"<ab", TokenType::Control},
                               {"ab"},
                               {"b"}});
  file.set("tokenizer.ggml.pre", "gpt-2")
      .set("tokenizer.ggml.merges", std::vector<std::string>{"a b"});
  const Tokenizer tokenizer = tokenizer_of(std::move(file));
  EXPECT_EQ(tokenizer.encode("<ab<a<", Specials::Parse), (std::vector<int32_t>{3, 2, 1}));
  EXPECT_EQ(tokenizer.encode("<ab", Specials::AsText), (std::vector<int32_t>{2, 5}));
}

TEST(TextStream, HoldsBackWhatMayBecomeACharacter) {
  VocabularyFile file("llama", {{"<0xE2>", TokenType::Byte},
                                {"<0x82>", TokenType::Byte},
                                {"<0xAC>", TokenType::Byte},
                                {"a"}});
  const Tokenizer tokenizer = tokenizer_of(std::move(file));
  TextStream stream(tokenizer);
  EXPECT_EQ(stream.add(0), "");
  EXPECT_EQ(stream.add(1), "");
  EXPECT_EQ(stream.add(2), "\xe2\x82\xac");
  EXPECT_EQ(stream.add(0), "");
  EXPECT_EQ(stream.add(3),
            "\xe2"
            "a");  // no character after all
  EXPECT_EQ(stream.add(0), "");
  EXPECT_EQ(stream.rest(), "\xe2");
  EXPECT_EQ(stream.rest(), "");
}

// The joins of Merger, done the slow way: look at all pairs, join the best, start again.
std::vector<uint32_t> joined_slowly(
    std::vector<uint32_t> lengths,
    const std::function<std::optional<Join>(uint32_t, uint32_t)>& rule) {
  for (;;) {
    size_t best = lengths.size();
    for (size_t i = 0; i + 1 < lengths.size(); ++i) {
      const auto join = rule(lengths[i], lengths[i + 1]);
      if (join &&
          (best == lengths.size() || join->order < rule(lengths[best], lengths[best + 1])->order))
        best = i;
    }
    if (best == lengths.size()) return lengths;
    lengths[best] += lengths[best + 1];
    lengths.erase(lengths.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
}

TEST(Merger, JoinsAsTheSlowWayDoes) {
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    uint32_t order[8][8];
    for (auto& row : order)
      for (uint32_t& cell : row) cell = random() % 12;  // 0 to 3: no join
    const auto rule = [&](uint32_t left, uint32_t right) -> std::optional<Join> {
      if (left >= 8 || right >= 8 || order[left][right] < 4) return std::nullopt;
      return Join{order[left][right], 0};
    };
    std::vector<uint32_t> lengths(random() % 40);
    Merger merger;
    for (uint32_t i = 0, first = 0; i < lengths.size(); first += lengths[i++]) {
      lengths[i] = 1 + random() % 3;
      merger.add(first, lengths[i], 0);
    }
    merger.merge(
        [&](const Symbol& left, const Symbol& right) { return rule(left.bytes, right.bytes); });
    std::vector<uint32_t> joined;
    merger.for_each([&](const Symbol& symbol) { joined.push_back(symbol.bytes); });
    ASSERT_EQ(joined, joined_slowly(lengths, rule)) << "seed 7, round " << round;
  }
}

TEST(Utf8, KnowsWellFormedCharacters) {
  using namespace std::string_view_literals;
  for (const auto& [text, bytes] :
       std::vector<std::pair<std::string_view, size_t>>{{"a", 1},
                                                        {"\0"sv, 1},
                                                        {"\xc3\xa9", 2},
                                                        {"\xe2\x82\xac", 3},
                                                        {"\xed\x9f\xbf", 3},
                                                        {"\xf4\x8f\xbf\xbf", 4},
                                                        {"\xc1\xbf", 0},
                                                        {"\xe0\x9f\xbf", 0},
                                                        {"\xed\xa0\x80", 0},
                                                        {"\xf0\x8f\xbf\xbf", 0},
                                                        {"\xf4\x90\x80\x80", 0},
                                                        {"\xf5\x80\x80\x80", 0},
                                                        {"\x80", 0},
                                                        {"\xe2\x82", 0},
                                                        {"\xe2\x82"
                                                         "a",
                                                         0},
                                                        {"", 0}})
    EXPECT_EQ(utf8::character(text), bytes) << testing::PrintToString(text);
  EXPECT_EQ(utf8::incomplete_tail("a\xf0\x9f\x98"), 3u);
  EXPECT_EQ(utf8::incomplete_tail("a\xe2"), 1u);
  EXPECT_EQ(utf8::incomplete_tail("\xe2\x82\xac"), 0u);
  EXPECT_EQ(utf8::incomplete_tail("\xed\xa0"), 0u);
}

struct Cut {
  std::string name;
  std::string text;
  std::vector<std::string_view> words;
};

TEST(PreTokenizer, CutsAsItsNameSays) {
  const std::vector<Cut> cuts = {
      {"gpt-2", "It's 1234  cats\n\nx", {"It", "'s", " 1234", " ", " cats", "\n", "\n", "x"}},
      {"smollm", "a 12", {"a", " ", "1", "2"}},
      {"default", "x=12345, y", {"x", "=", "123", "45", ",", " y"}},
      {"llama-bpe", "IT'S 12345!\n\n  x", {"IT", "'S", " ", "123", "45", "!\n\n", " ", " x"}},
      {"qwen2", "It 12\n", {"It", " ", "1", "2", "\n"}},
      // U+180E is no space, U+2003 is one.
      {"gpt-2", "a \u180e\u2003\u2003x", {"a", " \u180e", "\u2003", "\u2003", "x"}},
      {"qwen2", "\u2003\u180ea", {"\u2003", "\u180ea"}},
      {"gpt-2",
       "a\xff\xfe"
       "b\xe2\x82",
       {"a", "\xff\xfe", "b", "\xe2\x82"}},
  };
  for (const Cut& cut : cuts) {
    std::vector<std::string_view> words;
    PreTokenizer::named(cut.name)->split(cut.text, words);
    EXPECT_EQ(words, cut.words) << cut.name << ": " << cut.text;
  }
}

// --- hostile vocabularies ---

struct Damage {
  std::string name;
  VocabularyFile (*base)();
  void (*spoil)(VocabularyFile&);
  std::string message;  // part of it
};

TEST(Vocabulary, RefusesWhatCannotBeTrue) {
  using Texts = std::vector<std::string>;
  using Ints = std::vector<int32_t>;
  using Floats = std::vector<float>;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  static float nan_score = nan;
  const std::vector<Damage> damages = {
      {"no tokens", small_scores, [](VocabularyFile& f) { f.remove("tokenizer.ggml.tokens"); },
       "tokens: absent"},
      {"no types", small_scores, [](VocabularyFile& f) { f.remove("tokenizer.ggml.token_type"); },
       "token_type: absent"},
      {"no scores", small_scores, [](VocabularyFile& f) { f.remove("tokenizer.ggml.scores"); },
       "scores: absent"},
      {"no merges", small_byte_pairs, [](VocabularyFile& f) { f.remove("tokenizer.ggml.merges"); },
       "merges: absent"},
      {"no token", small_scores, [](VocabularyFile& f) { f.set("tokenizer.ggml.tokens", Texts{}); },
       "found 0 elements"},
      {"fewer types", small_scores,
       [](VocabularyFile& f) { f.set("tokenizer.ggml.token_type", Ints{1}); },
       "found 1 elements, expected 10"},
      {"fewer scores", small_scores,
       [](VocabularyFile& f) { f.set("tokenizer.ggml.scores", Floats{1}); },
       "found 1 elements, expected 10"},
      {"NaN", small_scores,
       [](VocabularyFile& f) { f.set("tokenizer.ggml.scores", Floats(10, nan_score)); },
       "found NaN"},
      {"type 7", small_scores,
       [](VocabularyFile& f) { f.set("tokenizer.ggml.token_type", Ints(10, 7)); }, "found type 7"},
      {"type of types", small_scores,
       [](VocabularyFile& f) { f.set("tokenizer.ggml.token_type", Floats(10, 1)); },
       "array of f32"},
      {"tokens a text", small_scores,
       [](VocabularyFile& f) { f.set("tokenizer.ggml.tokens", "a"); }, "found str"},
      {"bos too large", small_scores,
       [](VocabularyFile& f) { f.set("tokenizer.ggml.bos_token_id", 10u); },
       "expected less than 10"},
      {"end of turn too large", small_scores,
       [](VocabularyFile& f) { f.set("tokenizer.ggml.eot_token_id", ~0u); },
       "expected less than 10"},
      {"bos a text", small_scores,
       [](VocabularyFile& f) { f.set("tokenizer.ggml.bos_token_id", "1"); },
       "found str, expected u32"},
      {"bos added, none named", small_byte_pairs,
       [](VocabularyFile& f) { f.set_flag("tokenizer.ggml.add_bos_token", true); }, "bos_token_id"},
      {"flag a number", small_scores,
       [](VocabularyFile& f) { f.set("tokenizer.ggml.add_bos_token", 1u); }, "expected bool"},
      {"byte without a byte", small_scores,
       [](VocabularyFile& f) { f.set("tokenizer.ggml.token_type", Ints(10, 6)); },
       "such as <0x0A>"},
      {"merge of one", small_byte_pairs,
       [](VocabularyFile& f) { f.set("tokenizer.ggml.merges", Texts{"ab"}); },
       "merge 0: found \"ab\""},
      {"merge of three", small_byte_pairs,
       [](VocabularyFile& f) { f.set("tokenizer.ggml.merges", Texts{"a b c"}); },
       "a space between"},
      {"merge into nothing", small_byte_pairs,
       [](VocabularyFile& f) {
         f.set("tokenizer.ggml.merges", Texts{"a b", "b a"});
       },
       "merge 1: found \"b a\""},
      {"merge of a stranger", small_byte_pairs,
       [](VocabularyFile& f) { f.set("tokenizer.ggml.merges", Texts{" ab"}); }, "among the tokens"},
  };
  for (const Damage& damage : damages) {
    VocabularyFile file = damage.base();
    damage.spoil(file);
    const auto tokenizer = make_tokenizer(file.file());
    ASSERT_FALSE(tokenizer) << damage.name;
    EXPECT_EQ(tokenizer.error().code, Code::BadInput) << damage.name;
    EXPECT_NE(tokenizer.error().message.find(damage.message), std::string::npos)
        << damage.name << ": " << tokenizer.error().message;
  }
}

TEST(Vocabulary, NamesWhatItDoesNotKnowAndWhatItDoes) {
  VocabularyFile file = small_byte_pairs();
  file.set("tokenizer.ggml.pre", "klingon");
  auto tokenizer = make_tokenizer(file.file());
  ASSERT_FALSE(tokenizer);
  EXPECT_EQ(tokenizer.error().code, Code::Unsupported);
  EXPECT_EQ(tokenizer.error().message,
            "tokenizer.ggml.pre: found \"klingon\", expected one of gpt-2, smollm, default, "
            "llama-bpe, qwen2");
  file.set("tokenizer.ggml.model", "wpm");
  tokenizer = make_tokenizer(file.file());
  ASSERT_FALSE(tokenizer);
  EXPECT_EQ(tokenizer.error().code, Code::Unsupported);
  EXPECT_NE(tokenizer.error().message.find("\"wpm\", expected gpt2"), std::string::npos);
}

TEST(Vocabulary, SurvivesOddTokens) {
  VocabularyFile file = small_scores();  // empty names, a name twice, a name that is no UTF-8
  file.set("tokenizer.ggml.tokens", std::vector<std::string>{"", "", "a", "a", "\xff", "\xe2\x96",
                                                             "b", "ab", "<0x0A", "[x]"});
  file.set("tokenizer.ggml.token_type", std::vector<int32_t>{1, 3, 1, 1, 1, 4, 1, 5, 2, 4});
  const Tokenizer tokenizer = tokenizer_of(std::move(file));
  EXPECT_EQ(tokenizer.encode("a", Specials::Parse).back(), 3);
  EXPECT_EQ(tokenizer.encode("<0x0A\xff\xe2\x96", Specials::Parse),
            (std::vector<int32_t>{8, 4, 5}));
  for (int32_t token = 0; token < 10; ++token) tokenizer.piece(token);
}

TEST(Tokenizer, RefusesTokensOutsideTheVocabulary) {
  const Tokenizer tokenizer = tokenizer_of(small_scores());
  EXPECT_THROW(tokenizer.piece(10), ContractError);
  EXPECT_THROW(tokenizer.decode(std::vector<int32_t>{-1}), ContractError);
}

}  // namespace
}  // namespace cairn
