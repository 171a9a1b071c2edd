// A model file's key-value pairs, with their types checked: GGUF's own getters end the process on a
// wrong type.
//
// Safetensors models get the same keys, translated from their configuration (huggingface.h), so
// that everything above reads one vocabulary of keys: "llama.embedding_length",
// "tokenizer.ggml.model", ...
#ifndef CAIRN_MODELS_METADATA_H_
#define CAIRN_MODELS_METADATA_H_

#include <gguf.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cairn/core/error.h"

namespace cairn {

class Metadata {
 public:
  // Takes over `pairs`. `path` stands first in messages.
  Metadata(gguf_context* pairs, std::string path) : path_(std::move(path)), pairs_(pairs) {}

  const std::string& path() const { return path_; }
  const gguf_context* gguf() const { return pairs_.get(); }
  gguf_context* gguf() { return pairs_.get(); }
  bool has(const std::string& key) const { return gguf_find_key(gguf(), key.c_str()) >= 0; }
  bool is_array(const std::string& key) const;  // false: another type, or absent

  // BadInput names the file, the key and what was found there. Integers of any width are taken when
  // they fit.
  Result<uint32_t> u32(const std::string& key) const;
  Result<float> f32(const std::string& key) const;
  Result<std::string> text(const std::string& key) const;
  Result<uint32_t> count(const std::string& key) const;  // elements of an array
  Result<std::vector<bool>> flags(const std::string& key) const;

  // The same for a key that may be absent.
  Result<uint32_t> u32_or(const std::string& key, uint32_t absent) const;
  Result<float> f32_or(const std::string& key, float absent) const;
  Result<std::string> text_or(const std::string& key, std::string absent) const;
  Result<bool> flag_or(const std::string& key, bool absent) const;

 private:
  struct Free {
    void operator()(gguf_context* pairs) const { gguf_free(pairs); }
  };
  Result<int64_t> find(const std::string& key) const;

  std::string path_;
  std::unique_ptr<gguf_context, Free> pairs_;
};

}  // namespace cairn

#endif  // CAIRN_MODELS_METADATA_H_
