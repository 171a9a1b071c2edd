#include "cairn/models/model.h"

#include <array>

#include "cairn/io/file.h"
#include "cairn/models/arithmetic.h"
#include "cairn/models/gemma.h"
#include "cairn/models/glm.h"
#include "cairn/models/hybrid.h"
#include "cairn/models/identity.h"
#include "cairn/models/llama.h"

namespace cairn {
namespace {

constexpr std::array kArchitectures = {
    Architecture{.name = "llama", .make = make_llama},
    Architecture{.name = "gemma3", .make = make_gemma},
    Architecture{.name = "deepseek2", .make = make_glm},
    Architecture{.name = "glm-dsa", .make = make_glm},
    Architecture{.name = "qwen3next", .make = make_hybrid},
};

std::string known_architectures() {
  std::string names;
  for (const Architecture& row : kArchitectures)
    names += (names.empty() ? "" : ", ") + std::string(row.name);
  return names;
}

Result<const Architecture*> architecture_of(const Weights& weights) {
  const std::string name = CAIRN_TRY(weights.metadata().text("general.architecture"));
  for (const Architecture& row : kArchitectures)
    if (row.name == name) return &row;
  return fail(Code::Unsupported, "{}: architecture {}, expected one of: {}", weights.path(), name,
              known_architectures());
}

// None: the file holds no vocabulary (the tests' tiny models).
Result<std::optional<Tokenizer>> tokenizer_of(const Weights& weights, const Network& network) {
  if (!weights.metadata().has("tokenizer.ggml.model")) return std::nullopt;
  std::optional<Tokenizer> tokenizer = CAIRN_TRY(make_tokenizer(weights.metadata().gguf()));
  if (tokenizer->size() > network.vocabulary())
    return fail(Code::BadInput, "{}: {} tokens in the vocabulary, but logits for {}",
                weights.path(), tokenizer->size(), network.vocabulary());
  return tokenizer;
}

}  // namespace

std::span<const Architecture> architectures() { return kArchitectures; }

// Everything a model is made of.
struct Model::Parts {
  Weights weights;
  const Architecture* architecture;
  std::optional<Tokenizer> tokenizer;
  std::unique_ptr<Network> network;
  std::unique_ptr<Executor> own_executor;
  Executor* executor;
  ModelSpec spec;
};

Model::Model(Parts parts)
    : weights_(std::move(parts.weights)),
      architecture_(parts.architecture->name),
      tokenizer_(std::move(parts.tokenizer)),
      network_(std::move(parts.network)),
      own_executor_(std::move(parts.own_executor)),
      executor_(parts.executor),
      spec_(std::move(parts.spec)),
      pass_(std::make_unique<ForwardPass>(*network_, *executor_)) {
  if (const Network* head = network_->draft_head())
    draft_head_.reset(new DraftHead(*head, *executor_, spec_));
}

Model::~Model() = default;

DraftHead::DraftHead(const Network& network, Executor& executor, const ModelSpec& model)
    : spec_(model), pass_(network, executor) {
  spec_.slots = network.slots();
}

Result<std::unique_ptr<Model>> load_model(const std::string& path, const ModelOptions& options) {
  std::unique_ptr<Executor> own_executor;
  if (options.beside == nullptr) own_executor = CAIRN_TRY(Executor::make(options.threads));
  Executor* executor = own_executor ? own_executor.get() : options.beside->executor_;
  Weights weights = CAIRN_TRY(open_weights(path, options.expand));
  const Architecture* architecture = CAIRN_TRY(architecture_of(weights));
  auto network = CAIRN_TRY(architecture->make(weights));
  CAIRN_TRY(weights.all_used());
  auto tokenizer = CAIRN_TRY(tokenizer_of(weights, *network));
  ModelSpec spec{.identity = file_identity(path, weights.file(),
                                           {.files = posix_fs(), .folder = options.cache_folder}),
                 .tokenizer = tokenizer ? tokenizer->hash() : Digest{},
                 .adapter = {},
                 .arithmetic = arithmetic_name(options.expand),
                 .slots = network->slots()};
  CAIRN_TRY(validate(spec, builtin()));
  return std::unique_ptr<Model>(
      new Model({std::move(weights), architecture, std::move(tokenizer), std::move(network),
                 std::move(own_executor), executor, std::move(spec)}));
}

}  // namespace cairn
