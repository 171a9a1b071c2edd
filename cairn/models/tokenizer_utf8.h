// UTF-8 as tokenizers need it: where a character ends, and which bytes are none. A character is
// what Unicode calls well formed: shortest form, no surrogates, at most U+10FFFF. Whatever else
// occurs is handled byte by byte and never lost.
#ifndef CAIRN_MODELS_TOKENIZER_UTF8_H_
#define CAIRN_MODELS_TOKENIZER_UTF8_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cairn::utf8 {

// Bytes of the character that this byte begins; 0: none begins with it.
constexpr size_t bytes_after_lead(uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xc2 || lead > 0xf4) return 0;
  return lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

// Whether `second` may follow `lead`: where overlong forms, surrogates and too large numbers drop
// out.
constexpr bool may_follow(uint8_t lead, uint8_t second) {
  const uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  return second >= low && second <= high;
}

// How many bytes at the start of `text` belong to one character, complete or cut off by the end of
// `text`; 0: not even the first byte can begin one.
constexpr size_t begun(std::string_view text) {
  const size_t wanted = text.empty() ? 0 : bytes_after_lead(static_cast<uint8_t>(text[0]));
  const size_t there = std::min(wanted, text.size());
  if (there > 1 && !may_follow(static_cast<uint8_t>(text[0]), static_cast<uint8_t>(text[1])))
    return 0;
  for (size_t i = 2; i < there; ++i)
    if ((static_cast<uint8_t>(text[i]) & 0xc0) != 0x80) return 0;
  return there;
}

// Bytes of the character at the start of `text`; 0: there is none.
constexpr size_t character(std::string_view text) {
  const size_t there = begun(text);
  return there > 0 && there == bytes_after_lead(static_cast<uint8_t>(text[0])) ? there : 0;
}

// How many bytes at the end of `text` begin a character that more bytes could complete.
constexpr size_t incomplete_tail(std::string_view text) {
  for (size_t bytes = 1; bytes <= std::min<size_t>(3, text.size()); ++bytes) {
    const std::string_view tail = text.substr(text.size() - bytes);
    if (begun(tail) == bytes && character(tail) == 0) return bytes;
  }
  return 0;
}

// The number of the character that is all of `character`.
constexpr uint32_t code_point(std::string_view character) {
  const uint8_t lead = static_cast<uint8_t>(character[0]);
  if (character.size() == 1) return lead;
  uint32_t value = lead & (0x7f >> character.size());
  for (const char byte : character.substr(1))
    value = value << 6 | (static_cast<uint8_t>(byte) & 0x3f);
  return value;
}

// Appends a character below U+0800.
inline void append(std::string& text, uint32_t code_point) {
  if (code_point < 0x80) {
    text += static_cast<char>(code_point);
  } else {
    text += static_cast<char>(0xc0 | code_point >> 6);
    text += static_cast<char>(0x80 | (code_point & 0x3f));
  }
}

}  // namespace cairn::utf8

#endif  // CAIRN_MODELS_TOKENIZER_UTF8_H_
