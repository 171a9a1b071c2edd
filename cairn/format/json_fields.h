// Plain structs as JSON with exactly one spelling: fields in the order that the struct lists them,
// no spaces, integers in decimal, digests as lower-case hex, strings escaped only where JSON
// demands it.
//
// A struct describes itself once, for both directions:
//
//   struct Plane {
//     std::string name;
//     uint64_t record_bytes = 0;
//     static void fields(auto& io, auto& plane) {
//       io("name", plane.name);
//       io("record_bytes", plane.record_bytes);
//     }
//   };
//
// The reader takes what the writer gives and little else, so it needs no tree, its memory is that
// of the structs, and nothing can be nested deeper than they are. Whoever needs the one spelling
// writes the struct again and compares.
#ifndef CAIRN_FORMAT_JSON_FIELDS_H_
#define CAIRN_FORMAT_JSON_FIELDS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/core/error.h"
#include "cairn/core/hash.h"

namespace cairn {

void append_json_string(std::string& out, std::string_view text);  // quoted and escaped
bool is_utf8(std::string_view text);                               // what a JSON string can hold

template <class T, class Io>
concept HasFields = requires(Io& io, T& value) {
  T::fields(io, value);
};

class JsonWriter {
 public:
  template <class T>
  void operator()(std::string_view key, const T& value) {
    if (text_.back() != '{') text_ += ',';
    append_json_string(text_, key);
    text_ += ':';
    write(value);
  }

  void write(uint64_t value) { text_ += std::to_string(value); }
  void write(bool value) { text_ += value ? "true" : "false"; }
  void write(const std::string& value) { append_json_string(text_, value); }
  void write(const Digest& value) { append_json_string(text_, hex(value)); }
  template <class T>
  void write(const std::vector<T>& values) {
    text_ += '[';
    for (size_t i = 0; i < values.size(); ++i) {
      if (i > 0) text_ += ',';
      write(values[i]);
    }
    text_ += ']';
  }
  template <HasFields<JsonWriter> T>
  void write(const T& value) {
    text_ += '{';
    T::fields(*this, value);
    text_ += '}';
  }

  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

template <class T>
std::string to_json(const T& value) {
  JsonWriter writer;
  writer.write(value);
  return writer.take();
}

// After the first thing that is not as expected, nothing more is read and every further call does
// nothing.
class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : text_(text) {}

  template <class T>
  void operator()(std::string_view key, T& value) {
    if (!std::exchange(at_first_field_, false)) literal(",");
    literal("\"");
    literal(key);
    literal("\":");
    read(value);
  }

  void read(uint64_t& value);
  void read(bool& value);
  void read(std::string& value);
  void read(Digest& value);
  template <class T>
  void read(std::vector<T>& values) {
    literal("[");
    if (skip("]")) return;
    do {
      read(values.emplace_back());
    } while (skip(","));
    literal("]");
  }
  template <HasFields<JsonReader> T>
  void read(T& value) {
    literal("{");
    at_first_field_ = true;
    T::fields(*this, value);
    at_first_field_ = false;
    literal("}");
  }

  Result<void> finish();  // BadInput: where the text first differs, or what follows its end

 private:
  bool skip(std::string_view expected);  // true when it was there
  void literal(std::string_view expected);
  void expect(std::string_view what);  // it is not there
  void escape(std::string& value);

  std::string_view text_;
  size_t at_ = 0;
  bool at_first_field_ = false;
  std::string error_;  // empty: none
};

template <class T>
Result<void> from_json(std::string_view text, T& value) {
  JsonReader reader(text);
  reader.read(value);
  return reader.finish();
}

}  // namespace cairn

#endif  // CAIRN_FORMAT_JSON_FIELDS_H_
