// When a generation ends before its length: at a token, or at a text.
#ifndef CAIRN_RUNTIME_STOP_H_
#define CAIRN_RUNTIME_STOP_H_

#include <string>
#include <string_view>
#include <vector>

namespace cairn {

// Watches a growing text for the first of some strings. Text that may turn out to begin one waits,
// so that no part of a stop string is ever shown. Which tokens end a generation, the tokenizer
// knows (is_end_of_generation).
class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> stops);  // none of them empty

  // What may be shown now. Once a stop string is found it and all text after it is dropped.
  std::string add(std::string_view text);
  std::string rest();  // what still waits, when the generation ended another way
  bool is_found() const { return is_found_; }

 private:
  size_t safe_length() const;

  std::vector<std::string> stops_;
  std::string waiting_;
  bool is_found_ = false;
};

}  // namespace cairn

#endif  // CAIRN_RUNTIME_STOP_H_
