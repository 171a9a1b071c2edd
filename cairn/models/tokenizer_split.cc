#include "cairn/models/tokenizer_split.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <span>
#include <string>

#include "cairn/models/tokenizer_utf8.h"

namespace cairn {
namespace {

// Letters, numbers and the rest apart, each with one space before it; spaces belong to what follows
// them.
constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

struct Row {
  std::string_view name;                     // the file's
  std::array<std::string_view, 4> patterns;  // in this order; empty ones end the list
  WholeWords whole_words = WholeWords::Merged;
};

// Only rows whose patterns are certain: a wrong one gives a model text that it has never seen.
constexpr Row kRows[] = {
    {"gpt-2", {kGpt2}},
    {"smollm", {R"(\p{N})", kGpt2}},
    {"default", {R"([\p{P}$+<=>^~|]+)", kGpt2, R"(\p{N}+)", "[0-9][0-9][0-9]"}},
    {"llama-bpe",
     {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
      R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"},
     WholeWords::First},
    {"qwen2",
     {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
      R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"}},
};

std::string known_names() {
  std::string names;
  for (const Row& row : kRows) names += (names.empty() ? "" : ", ") + std::string(row.name);
  return names;
}

// Unicode's White_Space. PCRE2's own \s also takes U+180E, which tokenizers count among the rest.
constexpr std::string_view kSpaces =
    R"(\t-\r\x20\x85\xa0\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

// \s, in a class or not, and \S outside of one, written out.
std::string with_spaces_listed(std::string_view pattern) {
  std::string listed;
  bool is_in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const std::string_view escape = pattern[i] == '\\' ? pattern.substr(i, 2) : "";
    if (escape == "\\s" || escape == "\\S") {
      const std::string_view open = escape == "\\S" ? "[^" : "[";
      listed.append(is_in_class ? "" : open).append(kSpaces).append(is_in_class ? "" : "]");
    } else {
      listed += escape.empty() ? pattern.substr(i, 1) : escape;
      if (pattern[i] == '[') is_in_class = true;
      if (pattern[i] == ']') is_in_class = false;
    }
    if (!escape.empty()) ++i;
  }
  return listed;
}

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct FreeMatch {
  void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
};

// How much of `text`, from its start, is UTF-8, or is none.
size_t run_length(std::string_view text, bool is_utf8) {
  size_t length = 0;
  while (length < text.size()) {
    const size_t bytes = utf8::character(text.substr(length, 4));
    if ((bytes > 0) != is_utf8) break;
    length += is_utf8 ? bytes : 1;
  }
  return length;
}

}  // namespace

class PreTokenizer::Regex {
 public:
  explicit Regex(std::string_view row_pattern) {
    const std::string pattern = with_spaces_listed(row_pattern);
    int error = 0;
    size_t offset = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                              PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset,
                              nullptr));
    CAIRN_CHECK(code_ != nullptr, "pattern {}: error {} at byte {}", pattern, error, offset);
    pcre2_jit_compile(code_.get(),
                      PCRE2_JIT_COMPLETE);  // where it fails, matching is slower and the same
  }

  // REQUIRES: `text` is UTF-8.
  void split(std::string_view text,
             pcre2_match_data* match,
             std::vector<std::string_view>& pieces) const {
    size_t done = 0;
    while (done < text.size() && find(text, done, match)) {
      const size_t* span = pcre2_get_ovector_pointer(match);
      if (span[0] > done) pieces.push_back(text.substr(done, span[0] - done));
      pieces.push_back(text.substr(span[0], span[1] - span[0]));
      done = span[1];
    }
    if (done < text.size()) pieces.push_back(text.substr(done));
  }

 private:
  bool find(std::string_view text, size_t from, pcre2_match_data* match) const {
    const int found =
        pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                    PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, match, nullptr);
    CAIRN_CHECK(found >= 0 || found == PCRE2_ERROR_NOMATCH, "pre-tokenizer: PCRE2 error {}", found);
    return found >= 0;
  }

  std::unique_ptr<pcre2_code, FreeCode> code_;
};

PreTokenizer::PreTokenizer(std::vector<Regex> stages, WholeWords whole_words)
    : stages_(std::move(stages)), whole_words_(whole_words) {}
PreTokenizer::~PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;

Result<PreTokenizer> PreTokenizer::named(std::string_view name) {
  for (const Row& row : kRows) {
    if (row.name != name) continue;
    std::vector<Regex> stages;
    for (const std::string_view pattern : row.patterns)
      if (!pattern.empty()) stages.emplace_back(pattern);
    return PreTokenizer(std::move(stages), row.whole_words);
  }
  return fail(Code::Unsupported, "tokenizer.ggml.pre: found \"{}\", expected one of {}", name,
              known_names());
}

void PreTokenizer::split(std::string_view text, std::vector<std::string_view>& words) const {
  words.clear();
  const std::unique_ptr<pcre2_match_data, FreeMatch> match(pcre2_match_data_create(1, nullptr));
  std::vector<std::string_view> pieces, next;
  while (!text.empty()) {
    const size_t good = run_length(text, true);
    pieces.clear();
    if (good > 0) pieces.push_back(text.substr(0, good));
    for (const Regex& stage : stages_) {
      next.clear();
      for (const std::string_view piece : pieces) stage.split(piece, match.get(), next);
      pieces.swap(next);
    }
    words.insert(words.end(), pieces.begin(), pieces.end());
    text.remove_prefix(good);
    const size_t bad = run_length(text, false);
    if (bad > 0) words.push_back(text.substr(0, bad));
    text.remove_prefix(bad);
  }
}

}  // namespace cairn
