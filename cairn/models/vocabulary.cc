#include "cairn/models/vocabulary.h"

#include <algorithm>
#include <bit>
#include <span>

namespace cairn {
namespace {

constexpr size_t kMaxTokens = size_t{1} << 24;
constexpr size_t kMaxTextBytes = size_t{1} << 30;

// GGUF's getters end the process when the type is another one; so it is checked first, here and
// only here.
std::string type_at(const gguf_context* file, int64_t key) {
  const gguf_type type = gguf_get_kv_type(file, key);
  if (type != GGUF_TYPE_ARRAY) return gguf_type_name(type);
  return fmt::format("array of {}", gguf_type_name(gguf_get_arr_type(file, key)));
}

Result<std::optional<int64_t>> find_value(const gguf_context* file,
                                          const char* name,
                                          gguf_type type) {
  const int64_t key = gguf_find_key(file, name);
  if (key < 0) return std::optional<int64_t>();
  if (gguf_get_kv_type(file, key) != type)
    return fail(Code::BadInput, "{}: found {}, expected {}", name, type_at(file, key),
                gguf_type_name(type));
  return std::optional(key);
}

Result<std::string> text_or_empty(const gguf_context* file, const char* name) {
  const auto key = CAIRN_TRY(find_value(file, name, GGUF_TYPE_STRING));
  return std::string(key ? gguf_get_val_str(file, *key) : "");
}

Result<bool> flag_or(const gguf_context* file, const char* name, bool when_absent) {
  const auto key = CAIRN_TRY(find_value(file, name, GGUF_TYPE_BOOL));
  return key ? gguf_get_val_bool(file, *key) : when_absent;
}

Result<std::optional<int32_t>> token_or_none(const gguf_context* file,
                                             const char* name,
                                             size_t token_count) {
  const auto key = CAIRN_TRY(find_value(file, name, GGUF_TYPE_UINT32));
  if (!key) return std::optional<int32_t>();
  const uint32_t token = gguf_get_val_u32(file, *key);
  if (token >= token_count)
    return fail(Code::BadInput, "{}: found {}, expected less than {} tokens", name, token,
                token_count);
  return std::optional(static_cast<int32_t>(token));
}

// The key of an array of `type`. `count`: how many elements it must have; none: at least one.
Result<int64_t> find_array(const gguf_context* file,
                           const char* name,
                           gguf_type type,
                           std::optional<size_t> count) {
  const int64_t key = gguf_find_key(file, name);
  if (key < 0)
    return fail(Code::BadInput, "{}: absent, expected an array of {}", name, gguf_type_name(type));
  if (gguf_get_kv_type(file, key) != GGUF_TYPE_ARRAY || gguf_get_arr_type(file, key) != type)
    return fail(Code::BadInput, "{}: found {}, expected an array of {}", name, type_at(file, key),
                gguf_type_name(type));
  const size_t found = gguf_get_arr_n(file, key);
  if (count ? found != *count : found == 0)
    return fail(Code::BadInput, "{}: found {} elements, expected {}", name, found,
                count ? std::to_string(*count) : "some");
  return key;
}

template <class T>
std::span<const T> elements(const gguf_context* file, int64_t key) {
  return {static_cast<const T*>(gguf_get_arr_data(file, key)), gguf_get_arr_n(file, key)};
}

struct Texts {
  std::string bytes;
  std::vector<uint32_t> ends;
};

Result<Texts> read_texts(const gguf_context* file) {
  constexpr const char* kName = "tokenizer.ggml.tokens";
  const int64_t key = CAIRN_TRY(find_array(file, kName, GGUF_TYPE_STRING, std::nullopt));
  const size_t count = gguf_get_arr_n(file, key);
  if (count > kMaxTokens)
    return fail(Code::BadInput, "{}: found {} tokens, expected at most {}", kName, count,
                kMaxTokens);
  Texts texts;
  texts.bytes.reserve(count * 10);
  texts.ends.reserve(count + 1);
  texts.ends.push_back(0);
  for (size_t i = 0; i < count; ++i) {
    texts.bytes += gguf_get_arr_str(file, key, i);
    if (texts.bytes.size() > kMaxTextBytes)
      return fail(Code::BadInput, "{}: found over {} bytes of text, expected less", kName,
                  kMaxTextBytes);
    texts.ends.push_back(static_cast<uint32_t>(texts.bytes.size()));
  }
  return texts;
}

Result<std::vector<TokenType>> read_types(const gguf_context* file, size_t token_count) {
  constexpr const char* kName = "tokenizer.ggml.token_type";
  const int64_t key = CAIRN_TRY(find_array(file, kName, GGUF_TYPE_INT32, token_count));
  std::vector<TokenType> types;
  types.reserve(token_count);
  for (const int32_t type : elements<int32_t>(file, key)) {
    if (type < 1 || type > 6)
      return fail(Code::BadInput, "{}: token {}: found type {}, expected 1 to 6", kName,
                  types.size(), type);
    types.push_back(static_cast<TokenType>(type));
  }
  return types;
}

Result<std::vector<float>> read_scores(const gguf_context* file, size_t token_count) {
  constexpr const char* kName = "tokenizer.ggml.scores";
  const int64_t key = CAIRN_TRY(find_array(file, kName, GGUF_TYPE_FLOAT32, token_count));
  const auto scores = elements<float>(file, key);
  const auto nan =
      std::find_if(scores.begin(), scores.end(), [](float score) { return score != score; });
  if (nan != scores.end())
    return fail(Code::BadInput, "{}: token {}: found NaN, expected a number", kName,
                nan - scores.begin());
  return std::vector<float>(scores.begin(), scores.end());
}

// What a file leaves out means something else for each kind of model; the defaults are those of the
// format's readers.
Result<VocabularyFlags> read_flags(const gguf_context* file, size_t token_count, bool is_scored) {
  VocabularyFlags flags;
  flags.bos = CAIRN_TRY(token_or_none(file, "tokenizer.ggml.bos_token_id", token_count));
  flags.eos = CAIRN_TRY(token_or_none(file, "tokenizer.ggml.eos_token_id", token_count));
  flags.unknown = CAIRN_TRY(token_or_none(file, "tokenizer.ggml.unknown_token_id", token_count));
  for (const char* name : {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"})
    if (const auto token = CAIRN_TRY(token_or_none(file, name, token_count)))
      flags.other_ends.push_back(*token);
  flags.adds_bos = CAIRN_TRY(flag_or(file, "tokenizer.ggml.add_bos_token", is_scored && flags.bos));
  flags.adds_eos = CAIRN_TRY(flag_or(file, "tokenizer.ggml.add_eos_token", false));
  flags.adds_space_prefix =
      CAIRN_TRY(flag_or(file, "tokenizer.ggml.add_space_prefix", true)) && is_scored;
  if (flags.adds_bos && !flags.bos)
    return fail(
        Code::BadInput,
        "tokenizer.ggml.add_bos_token: true, expected tokenizer.ggml.bos_token_id beside it");
  if (flags.adds_eos && !flags.eos)
    return fail(
        Code::BadInput,
        "tokenizer.ggml.add_eos_token: true, expected tokenizer.ggml.eos_token_id beside it");
  return flags;
}

// Collects small pieces, so that the hash is called for large ones.
class DigestWriter {
 public:
  void number(uint32_t value) {
    char bytes[4];
    for (int i = 0; i < 4; ++i) bytes[i] = static_cast<char>(value >> (8 * i));
    pending_.append(bytes, 4);
  }
  void text(std::string_view text) {
    number(static_cast<uint32_t>(text.size()));
    pending_ += text;
    if (pending_.size() >= kChunk) flush();
  }
  Digest digest() {
    flush();
    return hash_.digest();
  }

 private:
  static constexpr size_t kChunk = 1 << 16;
  void flush() {
    hash_.add(pending_);
    pending_.clear();
  }
  Sha256 hash_;
  std::string pending_;
};

}  // namespace

TokenIndex::TokenIndex(size_t token_count)
    : entries_(std::bit_ceil(2 * token_count + 1)), mask_(entries_.size() - 1) {}

Result<void> Vocabulary::check_bytes() const {
  for (size_t token = 0; token < size(); ++token)
    if (types_[token] == TokenType::Byte && !byte_named(text(static_cast<int32_t>(token))))
      return fail(
          Code::BadInput,
          "tokenizer.ggml.tokens: byte token {}: found \"{}\", expected a name such as <0x0A>",
          token, text(static_cast<int32_t>(token)));
  return {};
}

void Vocabulary::fill_index() {
  index_ = TokenIndex(size());
  const auto text_of = [this](int32_t token) { return text(token); };
  for (int32_t token = 0; token < static_cast<int32_t>(size()); ++token) {
    const TokenType type = types_[token];
    if (type == TokenType::Control || type == TokenType::Unknown || type == TokenType::Byte)
      continue;
    if (text(token).empty()) continue;
    longest_ = std::max(longest_, text(token).size());
    index_.set(token, text_of);
  }
}

Result<Vocabulary> read_vocabulary(const gguf_context* file) {
  Vocabulary vocabulary;
  vocabulary.model_ = CAIRN_TRY(text_or_empty(file, "tokenizer.ggml.model"));
  vocabulary.pre_ = CAIRN_TRY(text_or_empty(file, "tokenizer.ggml.pre"));
  const bool is_scored = vocabulary.model_ == "llama";
  if (!is_scored && vocabulary.model_ != "gpt2")
    return fail(Code::Unsupported,
                "tokenizer.ggml.model: found \"{}\", expected gpt2 (byte pairs) or llama (scores)",
                vocabulary.model_);
  Texts texts = CAIRN_TRY(read_texts(file));
  vocabulary.texts_ = std::move(texts.bytes);
  vocabulary.ends_ = std::move(texts.ends);
  const size_t token_count = vocabulary.ends_.size() - 1;
  vocabulary.types_ = CAIRN_TRY(read_types(file, token_count));
  if (is_scored) vocabulary.scores_ = CAIRN_TRY(read_scores(file, token_count));
  vocabulary.flags_ = CAIRN_TRY(read_flags(file, token_count, is_scored));
  if (vocabulary.flags_.unknown &&
      vocabulary.type(*vocabulary.flags_.unknown) != TokenType::Unknown)
    vocabulary.flags_.unknown.reset();
  CAIRN_TRY(vocabulary.check_bytes());
  vocabulary.fill_index();
  return vocabulary;
}

Result<std::vector<std::string_view>> read_merges(const gguf_context* file) {
  const int64_t key =
      CAIRN_TRY(find_array(file, "tokenizer.ggml.merges", GGUF_TYPE_STRING, std::nullopt));
  std::vector<std::string_view> merges(gguf_get_arr_n(file, key));
  for (size_t i = 0; i < merges.size(); ++i) merges[i] = gguf_get_arr_str(file, key, i);
  return merges;
}

Digest Vocabulary::digest(const std::vector<std::string_view>& merges) const {
  DigestWriter out;
  out.text("cairn tokenizer 1");
  out.text(model_);
  out.text(pre_);
  const auto optional_token = [&](std::optional<int32_t> token) {
    out.number(static_cast<uint32_t>(token.value_or(-1)));
  };
  optional_token(flags_.bos);
  optional_token(flags_.eos);
  optional_token(flags_.unknown);
  out.number(static_cast<uint32_t>(flags_.other_ends.size()));
  for (const int32_t token : flags_.other_ends) optional_token(token);
  out.number(flags_.adds_bos | flags_.adds_eos << 1 | flags_.adds_space_prefix << 2);
  out.number(static_cast<uint32_t>(size()));
  for (int32_t token = 0; token < static_cast<int32_t>(size()); ++token) {
    out.number(static_cast<uint32_t>(type(token)));
    out.number(std::bit_cast<uint32_t>(score(token)));
    out.text(text(token));
  }
  out.number(static_cast<uint32_t>(merges.size()));
  for (const std::string_view merge : merges) out.text(merge);
  return out.digest();
}

std::optional<uint8_t> byte_named(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return std::nullopt;
  uint8_t value = 0;
  for (const char digit : text.substr(3, 2)) {
    const size_t nibble = std::string_view("0123456789ABCDEF").find(digit);
    if (nibble == std::string_view::npos) return std::nullopt;
    value = static_cast<uint8_t>(value << 4 | nibble);
  }
  return value;
}

}  // namespace cairn
