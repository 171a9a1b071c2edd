// The weights of a model file: named ggml tensors that point into the mapped file, nothing copied.
//
// A GGUF file is foreign bytes: its header is read by ggml's reader, and before a tensor is shown
// its type, place and size are checked here against the file. A tensor that the architecture never
// asks for is an error too (all_used): a bias that is left out would make every number silently
// wrong.
#ifndef CAIRN_MODELS_WEIGHTS_H_
#define CAIRN_MODELS_WEIGHTS_H_

#include <ggml.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/core/error.h"
#include "cairn/models/mapped_file.h"
#include "cairn/models/metadata.h"

namespace cairn {

// Which numbers of a vector rotary embedding turns together.
enum class RotaryPairs {
  adjacent,  // (2i, 2i + 1): GGUF files of the llama architecture, whose query and key rows are
             // permuted for it
  halves,    // (i, i + d/2): Hugging Face files, and GGUF files of most other architectures
};

enum class Expand {
  no,   // as the file stores them
  f32,  // every tensor decoded to f32 at load: exact products, much memory; for tests
};

struct FreeContext {
  void operator()(ggml_context* context) const { ggml_free(context); }
};
using ContextPtr = std::unique_ptr<ggml_context, FreeContext>;

class Weights {
 public:
  // `tensors` holds one tensor per weight, its data inside `file`.
  Weights(MappedFile file, Metadata metadata, ContextPtr tensors, RotaryPairs llama_pairs)
      : file_(std::move(file)),
        metadata_(std::move(metadata)),
        tensors_(std::move(tensors)),
        llama_pairs_(llama_pairs) {}

  const std::string& path() const { return metadata_.path(); }
  const Metadata& metadata() const { return metadata_; }
  const MappedFile& file() const { return file_; }
  RotaryPairs llama_pairs() const {
    return llama_pairs_;
  }  // of a llama model's query and key weights

  bool has(const std::string& name) const {
    return ggml_get_tensor(tensors_.get(), name.c_str()) != nullptr;
  }

  // A matrix that multiplies vectors of `in` numbers and gives `out`, of a type that ggml
  // multiplies.
  Result<ggml_tensor*> matrix(const std::string& name, int64_t in, int64_t out);
  // `count` of them, one after the other: [in, out, count] in ggml's order.
  Result<ggml_tensor*> matrices(const std::string& name, int64_t in, int64_t out, int64_t count);
  // `length` f32 numbers.
  Result<ggml_tensor*> vector(const std::string& name, int64_t length);
  // Types of the matrices, each once.
  std::vector<ggml_type> matrix_types() const;

  // Unsupported names a tensor that nobody asked for.
  Result<void> all_used() const;

  Result<void> expand();  // every tensor becomes f32

 private:
  Result<ggml_tensor*> find(const std::string& name, int64_t in, int64_t out, int64_t count = 1);

  MappedFile file_;
  Metadata metadata_;
  ContextPtr tensors_;
  RotaryPairs llama_pairs_;
  std::vector<std::unique_ptr<float[]>> expanded_;  // one per expanded tensor
  std::set<std::string, std::less<>> used_;
};

// NotFound, BadInput (no model file, or one that is cut or damaged), Io.
Result<Weights> open_gguf(const std::string& path);
// GGUF, or safetensors with a Hugging Face configuration in its metadata.
Result<Weights> open_weights(const std::string& path, Expand expand = Expand::no);

}  // namespace cairn

#endif  // CAIRN_MODELS_WEIGHTS_H_
