#include "cairn/format/json_fields.h"

#include <charconv>
#include <nlohmann/json.hpp>

namespace cairn {

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", c);
    } else {
      out += c;
    }
  }
  out += '"';
}

bool is_utf8(std::string_view text) {
  std::string quoted;
  append_json_string(quoted, text);
  return nlohmann::json::accept(quoted);
}

void JsonReader::read(uint64_t& value) {
  if (!error_.empty()) return;
  const char* begin = text_.data() + at_;
  const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
  if (error != std::errc()) return expect("a number below 2^64");
  at_ += static_cast<size_t>(end - begin);
}

void JsonReader::read(bool& value) {
  value = skip("true");
  if (!value) literal("false");
}

void JsonReader::read(Digest& value) {
  std::string text;
  read(text);
  const auto digest = parse_digest(text);
  if (!digest) return expect("64 hex digits before it");
  value = *digest;
}

void JsonReader::read(std::string& value) {
  literal("\"");
  while (error_.empty() && at_ < text_.size() && text_[at_] != '"') {
    if (text_[at_] == '\\')
      escape(value);
    else
      value += text_[at_++];
  }
  literal("\"");
}

void JsonReader::escape(std::string& value) {
  uint8_t code = 0;
  if (skip("\\\"")) {
    value += '"';
  } else if (skip("\\\\")) {
    value += '\\';
  } else if (skip("\\u00") && text_.size() - at_ >= 2 &&
             std::from_chars(text_.data() + at_, text_.data() + at_ + 2, code, 16).ptr ==
                 text_.data() + at_ + 2) {
    value += static_cast<char>(code);
    at_ += 2;
  } else {
    expect("an escape of the one spelling");
  }
}

bool JsonReader::skip(std::string_view expected) {
  if (!error_.empty() || !text_.substr(at_).starts_with(expected)) return false;
  at_ += expected.size();
  return true;
}

void JsonReader::literal(std::string_view expected) {
  if (!skip(expected)) expect(expected);
}

void JsonReader::expect(std::string_view what) {
  constexpr size_t kShown = 24;
  if (error_.empty())
    error_ = fmt::format("{} at byte {}, expected {}", text_.substr(at_, kShown), at_, what);
}

Result<void> JsonReader::finish() {
  if (error_.empty() && at_ < text_.size()) expect("the end");
  if (!error_.empty()) return fail(Code::BadInput, "{}", error_);
  return {};
}

}  // namespace cairn
