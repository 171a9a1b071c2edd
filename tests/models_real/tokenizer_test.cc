// The vocabularies of the two installed models, against llama.cpp's ids.
#include "cairn/models/tokenizer.h"

#include <gguf.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>

#include "cairn/models/tokenizer_utf8.h"

namespace cairn {
namespace {

struct FreeFile {
  void operator()(gguf_context* file) const { gguf_free(file); }
};
using File = std::unique_ptr<gguf_context, FreeFile>;

File open_model(const std::string& path) {
  if (!std::filesystem::exists(path)) {
    ADD_FAILURE() << path << " is missing: tools/setup.sh puts the models there";
    return nullptr;
  }
  return File(gguf_init_from_file(path.c_str(), {.no_alloc = true, .ctx = nullptr}));
}

// The tokenizer of a model under models/; loaded once.
const Tokenizer* real_tokenizer(const std::string& model) {
  static std::map<std::string, std::optional<Tokenizer>> loaded;
  auto& slot = loaded[model];
  if (slot) return &*slot;
  const File file = open_model("models/" + model + ".gguf");
  if (!file) return nullptr;
  auto tokenizer = make_tokenizer(file.get());
  if (!tokenizer) {
    ADD_FAILURE() << tokenizer.error().message;
    return nullptr;
  }
  return &slot.emplace(std::move(*tokenizer));
}

const nlohmann::json& oracle() {
  static const nlohmann::json json = [] {
    std::ifstream in("tests/oracles/real/tokens.json");
    EXPECT_TRUE(in)
        << "tests/oracles/real/tokens.json is missing; tests run in the repository's root";
    return in ? nlohmann::json::parse(in) : nlohmann::json{{"strings", nlohmann::json::array()}};
  }();
  return json;
}

class RealVocabulary : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    tokenizer_ = real_tokenizer(GetParam());
    ASSERT_NE(tokenizer_, nullptr);
  }
  const Tokenizer* tokenizer_ = nullptr;
};
INSTANTIATE_TEST_SUITE_P(Installed,
                         RealVocabulary,
                         testing::Values("smollm2", "gemma3"),
                         [](const auto& each) { return each.param; });

TEST_P(RealVocabulary, GivesTheOraclesIdsForEveryString) {
  ASSERT_GE(oracle()["strings"].size(), 95u);
  for (size_t i = 0; i < oracle()["strings"].size(); ++i) {
    const auto text = oracle()["strings"][i].get<std::string>();
    EXPECT_EQ(tokenizer_->encode(text, Specials::Parse),
              oracle()[GetParam()][i].get<std::vector<int32_t>>())
        << "string " << i << ": " << text;
  }
}

// Of the oracle's strings, those that do not come back: names of control tokens (no text), and for
// scores a literal U+2581, which is how that vocabulary writes a space.
bool comes_back(const Tokenizer& tokenizer, const std::string& text, const std::string& model) {
  if (model == "gemma3" && text.find("\xe2\x96\x81") != std::string::npos) return false;
  for (const int32_t token : tokenizer.encode(text, Specials::Parse))
    if (tokenizer.is_control(token)) return false;
  return true;
}

TEST_P(RealVocabulary, DecodesWhatItEncodes) {
  std::set<std::string> lost;
  for (const auto& each : oracle()["strings"]) {
    const auto text = each.get<std::string>();
    const std::string back = tokenizer_->decode(tokenizer_->encode(text, Specials::Parse));
    if (comes_back(*tokenizer_, text, GetParam()))
      EXPECT_EQ(back, text);
    else
      lost.insert(text);
  }
  const std::set<std::string> smollm2 = {"<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
                                         "<|endoftext|>"};
  const std::set<std::string> gemma3 = {"<bos>x<eos>",
                                        "<start_of_turn>user\nHi<end_of_turn>\n",
                                        "<unused5>",
                                        "\xe2\x96\x81under",
                                        "a\xe2\x96\x81"
                                        "b",
                                        "\xe2\x96\x81"};
  EXPECT_EQ(lost, GetParam() == "smollm2" ? smollm2 : gemma3);
}

TEST_P(RealVocabulary, ReadsNamesOfControlTokensAsTextWhenAsked) {
  for (const std::string text :
       {"<|im_end|>", "<|endoftext|>", "a<bos>b<eos>", "<start_of_turn>", "<unused5>"}) {
    const auto tokens = tokenizer_->encode(text, Specials::AsText);
    for (const int32_t token : tokens) EXPECT_FALSE(tokenizer_->is_control(token)) << text;
    EXPECT_EQ(tokenizer_->decode(tokens), text);
  }
}

// Bytes that occur in the vocabulary, so that random bytes can be held.
std::string random_bytes(const Tokenizer& tokenizer, std::mt19937& random, size_t count) {
  std::string bytes;
  while (bytes.size() < count) {
    const std::string byte(1, static_cast<char>(random()));
    if (tokenizer.decode(tokenizer.encode(byte, Specials::AsText)) == byte) bytes += byte;
  }
  return bytes;
}

TEST_P(RealVocabulary, LosesNoBytesOfWhatIsNotUtf8) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const std::string bytes = random_bytes(*tokenizer_, random, 1 + random() % 60);
    if (bytes.find("\xe2\x96\x81") != std::string::npos) continue;
    EXPECT_EQ(tokenizer_->decode(tokenizer_->encode(bytes, Specials::AsText)), bytes)
        << "seed 1, round " << round;
  }
}

TEST_P(RealVocabulary, HoldsAllBytesButThoseItHasNoTokenFor) {
  std::string lost;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string text(1, static_cast<char>(byte));
    if (tokenizer_->decode(tokenizer_->encode(text, Specials::AsText)) != text)
      lost += fmt::format("{:02x} ", byte);
  }
  EXPECT_EQ(lost, GetParam() == "smollm2"
                      ? "04 06 13 14 16 1d c0 c1 f1 f2 f5 f6 f7 f8 f9 fa fb fc fd fe ff "
                      : "");
}

// SmolLM2 names <|endoftext|> as its unknown token.
TEST_P(RealVocabulary, NeverTurnsTextIntoAControlToken) {
  for (int byte = 0; byte < 256; ++byte)
    for (const int32_t token :
         tokenizer_->encode(std::string(1, static_cast<char>(byte)), Specials::AsText))
      EXPECT_FALSE(tokenizer_->is_control(token)) << byte;
}

TEST_P(RealVocabulary, StreamsTheSameBytesWithoutHalfCharacters) {
  for (const auto& each : oracle()["strings"]) {
    const auto tokens = tokenizer_->encode(each.get<std::string>(), Specials::Parse);
    TextStream stream(*tokenizer_);
    std::string whole;
    for (const int32_t token : tokens) {
      const std::string part = stream.add(token);
      EXPECT_EQ(utf8::incomplete_tail(part), 0u);
      whole += part;
    }
    EXPECT_EQ(stream.rest(), "");
    EXPECT_EQ(whole, tokenizer_->decode(tokens));
  }
}

// A quadratic merge would run into the test's time limit here.
TEST_P(RealVocabulary, ReadsAMegabyteOfOneLetter) {
  const std::string letters(1 << 20, 'a'), spaces(1 << 20, ' '), digits(1 << 18, '7'),
      newlines(1 << 20, '\n');
  for (const std::string& text : {letters, spaces, digits, newlines})
    EXPECT_TRUE(tokenizer_->decode(tokenizer_->encode(text, Specials::Parse)) == text) << text[0];
}

TEST_P(RealVocabulary, HasADigestThatStaysTheSame) {
  const File file = open_model("models/" + GetParam() + ".gguf");
  ASSERT_TRUE(file);
  EXPECT_EQ(make_tokenizer(file.get())->hash(), tokenizer_->hash());
  gguf_set_val_bool(file.get(), "tokenizer.ggml.add_bos_token", !tokenizer_->adds_bos());
  EXPECT_NE(make_tokenizer(file.get())->hash(), tokenizer_->hash());
}

TEST(SmolLm2, KnowsItsEnds) {
  const Tokenizer* tokenizer = real_tokenizer("smollm2");
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->size(), 49152u);
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eos(), 2);
  EXPECT_FALSE(tokenizer->adds_bos());
  EXPECT_EQ(tokenizer->find("<|im_end|>"), 2);
  EXPECT_EQ(tokenizer->piece(2), "<|im_end|>");
  EXPECT_EQ(tokenizer->piece(253), " a");
  EXPECT_TRUE(tokenizer->is_end_of_generation(0));
  EXPECT_TRUE(tokenizer->is_end_of_generation(2));
  EXPECT_FALSE(tokenizer->is_end_of_generation(1));
}

TEST(Gemma3, KnowsItsEndsAndAddsItsFirstToken) {
  const Tokenizer* tokenizer = real_tokenizer("gemma3");
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->size(), 262144u);
  EXPECT_TRUE(tokenizer->adds_bos());
  EXPECT_TRUE(tokenizer->is_end_of_generation(106));
  EXPECT_TRUE(tokenizer->is_end_of_generation(1));
  EXPECT_EQ(tokenizer->encode("a", Specials::AsText, Ends::AsVocabularySays),
            (std::vector<int32_t>{2, 236746}));
}

}  // namespace
}  // namespace cairn
