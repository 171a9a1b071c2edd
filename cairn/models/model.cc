// The graph of a pass depends only on how many rows there are and how many logits are wanted, so
// the last one is kept: a decode loop builds it once, and then a token costs no allocation, no
// planning and no graph. What changes from pass to pass goes in through the input tensors (tokens,
// positions, wanted rows) and through StateOps (the step at hand).
#include "cairn/models/model.h"

#include <algorithm>
#include <cstring>

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

struct FreeAllocator {
  void operator()(ggml_gallocr* allocator) const { ggml_gallocr_free(allocator); }
};

}  // namespace

std::span<const Architecture> architectures() { return kArchitectures; }

struct Model::Graph {
  size_t max_nodes = 0;
  std::vector<std::byte> arena;  // of the context: tensor descriptions and the graph, no numbers
  ContextPtr context;
  std::unique_ptr<ggml_gallocr, FreeAllocator> allocator{
      ggml_gallocr_new(ggml_backend_cpu_buffer_type())};

  // The graph at hand; rows 0: none.
  size_t rows = 0;
  size_t wanted_rows = 0;
  ggml_cgraph* graph = nullptr;
  ggml_cplan plan{};
  ggml_tensor* tokens = nullptr;
  ggml_tensor* positions = nullptr;
  ggml_tensor* wanted = nullptr;  // null: no logits
  ggml_tensor* logits = nullptr;  // null: no logits

  explicit Graph(size_t nodes)
      : max_nodes(nodes),
        arena(nodes * ggml_tensor_overhead() + ggml_graph_overhead_custom(nodes, false)),
        context(
            ggml_init({.mem_size = arena.size(), .mem_buffer = arena.data(), .no_alloc = true})) {}

  ggml_tensor* input(size_t count) {
    ggml_tensor* tensor =
        ggml_new_tensor_1d(context.get(), GGML_TYPE_I32, static_cast<int64_t>(count));
    ggml_set_input(tensor);
    ggml_set_output(
        tensor);  // its memory is not reused during the pass, so the next pass may fill it again
    return tensor;
  }

  void build(const Network& network, StateOps& state, size_t row_count, size_t wanted_count) {
    ggml_reset(context.get());
    rows = 0;
    wanted_rows = wanted_count;
    graph = ggml_new_graph_custom(context.get(), max_nodes, false);
    tokens = input(row_count);
    positions = input(row_count);
    wanted = wanted_count > 0 ? input(wanted_count) : nullptr;
    GraphBuilder builder{context.get(), graph, state, tokens, positions, wanted};
    logits = network.build(builder);
    if (logits != nullptr) {
      ggml_set_output(logits);
      ggml_build_forward_expand(graph, logits);
    }
  }
};

// Everything a model is made of.
struct Model::Parts {
  Weights weights;
  const Architecture* architecture;
  std::optional<Tokenizer> tokenizer;
  std::unique_ptr<Network> network;
  std::unique_ptr<Executor> executor;
  ModelSpec spec;
};

Model::Model(Parts parts)
    : weights_(std::move(parts.weights)),
      architecture_(parts.architecture->name),
      tokenizer_(std::move(parts.tokenizer)),
      network_(std::move(parts.network)),
      executor_(std::move(parts.executor)),
      spec_(std::move(parts.spec)),
      state_(spec_.slots, executor_->threads()),
      graph_(std::make_unique<Graph>(network_->max_nodes())) {}

Model::~Model() = default;

Result<void> Model::prepare(size_t rows, size_t wanted) {
  Graph& graph = *graph_;
  if (graph.rows == rows && graph.wanted_rows == wanted) return {};
  graph.build(*network_, state_, rows, wanted);
  if (!ggml_gallocr_alloc_graph(graph.allocator.get(), graph.graph))
    return fail(Code::NoSpace, "ggml: no memory for a pass over {} rows", rows);
  graph.plan = executor_->plan(graph.graph);
  graph.rows = rows;
  return {};
}

void Model::fill_inputs(const View& view,
                        std::span<const int32_t> tokens,
                        std::span<const uint32_t> wanted) {
  std::memcpy(graph_->tokens->data, tokens.data(), tokens.size_bytes());
  auto* positions = static_cast<int32_t*>(graph_->positions->data);
  for (const RunView& run : view.runs)
    for (Pos i = 0; i < run.count; ++i)
      positions[run.row + i] = static_cast<int32_t>(run.first + i);
  if (!wanted.empty()) std::memcpy(graph_->wanted->data, wanted.data(), wanted.size_bytes());
}

Result<void> Model::forward(Step& step,
                            std::span<const int32_t> tokens,
                            std::span<const uint32_t> wanted,
                            float* logits) {
  CAIRN_CHECK(tokens.size() == step.rows(), "forward: {} tokens for a step of {} rows",
              tokens.size(), step.rows());
  CAIRN_CHECK(wanted.empty() || logits != nullptr,
              "forward: logits of {} rows wanted, but nowhere to put them", wanted.size());
  for (const uint32_t row : wanted)
    CAIRN_CHECK(row < tokens.size(), "forward: row {} wanted of {}", row, tokens.size());
  if (tokens.empty()) return {};
  for (const int32_t token : tokens)
    if (token < 0 || static_cast<uint32_t>(token) >= vocabulary())
      return fail(Code::BadInput, "token {}: not in the vocabulary, expected 0 to {}", token,
                  vocabulary() - 1);

  CAIRN_TRY(prepare(tokens.size(), wanted.size()));
  fill_inputs(step.view(SlotId{0}), tokens, wanted);
  state_.begin(step);
  Result<void> ran = executor_->run(graph_->graph, graph_->plan);
  state_.end();
  if (ran && !wanted.empty())
    std::memcpy(logits, graph_->logits->data, wanted.size() * vocabulary() * sizeof(float));
  return ran;
}

Result<std::unique_ptr<Model>> load_model(const std::string& path, const ModelOptions& options) {
  auto executor = CAIRN_TRY(Executor::make(options.threads));
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
                 std::move(executor), std::move(spec)}));
}

}  // namespace cairn
