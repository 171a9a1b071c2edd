#include "cairn/models/forward_pass.h"

#include <ggml-alloc.h>

#include <cstring>
#include <vector>

namespace cairn {
namespace {

struct FreeAllocator {
  void operator()(ggml_gallocr* allocator) const { ggml_gallocr_free(allocator); }
};

}  // namespace

struct ForwardPass::Graph {
  size_t max_nodes = 0;
  std::vector<std::byte> arena;  // of the context: tensor descriptions and the graph, no numbers
  ContextPtr context;
  std::unique_ptr<ggml_gallocr, FreeAllocator> allocator{
      ggml_gallocr_new(ggml_backend_cpu_buffer_type())};

  // The graph at hand; rows 0: none.
  size_t rows = 0;
  size_t wanted_rows = 0;
  bool keeps_hidden = false;
  ggml_cgraph* graph = nullptr;
  ggml_cplan plan{};
  ggml_tensor* tokens = nullptr;
  ggml_tensor* positions = nullptr;
  ggml_tensor* wanted = nullptr;  // null: no logits
  ggml_tensor* given = nullptr;   // null: the network takes none
  ggml_tensor* logits = nullptr;  // null: no logits
  ggml_tensor* hidden = nullptr;  // null: not kept

  explicit Graph(size_t nodes)
      : max_nodes(nodes),
        arena(nodes * ggml_tensor_overhead() + ggml_graph_overhead_custom(nodes, false)),
        context(
            ggml_init({.mem_size = arena.size(), .mem_buffer = arena.data(), .no_alloc = true})) {}

  // Its memory is not reused during the pass, so the next pass may fill it again.
  static ggml_tensor* as_input(ggml_tensor* tensor) {
    ggml_set_input(tensor);
    ggml_set_output(tensor);
    return tensor;
  }
  ggml_tensor* input(size_t count) {
    return as_input(ggml_new_tensor_1d(context.get(), GGML_TYPE_I32, static_cast<int64_t>(count)));
  }
  void keep(ggml_tensor* result) {
    if (result == nullptr) return;
    ggml_set_output(result);
    ggml_build_forward_expand(graph, result);
  }

  void build(const Network& network,
             StateOps& state,
             size_t row_count,
             size_t wanted_count,
             bool wants_hidden) {
    ggml_reset(context.get());
    rows = 0;
    wanted_rows = wanted_count;
    keeps_hidden = wants_hidden;
    graph = ggml_new_graph_custom(context.get(), max_nodes, false);
    tokens = input(row_count);
    positions = input(row_count);
    wanted = wanted_count > 0 ? input(wanted_count) : nullptr;
    given = nullptr;
    if (network.takes_hidden())
      given = as_input(ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, network.hidden_width(),
                                          static_cast<int64_t>(row_count)));
    GraphBuilder builder{.context = context.get(),
                         .graph = graph,
                         .state = state,
                         .tokens = tokens,
                         .positions = positions,
                         .wanted = wanted,
                         .given = given,
                         .keeps_hidden = wants_hidden};
    logits = network.build(builder);
    hidden = builder.hidden;
    keep(logits);
    keep(hidden);
  }
};

ForwardPass::ForwardPass(const Network& network, Executor& executor)
    : network_(network),
      executor_(executor),
      state_(network.slots(), executor.threads()),
      graph_(std::make_unique<Graph>(network.max_nodes())) {}

ForwardPass::~ForwardPass() = default;

Result<void> ForwardPass::prepare(size_t rows, size_t wanted, bool keeps_hidden) {
  Graph& graph = *graph_;
  if (graph.rows == rows && graph.wanted_rows == wanted && graph.keeps_hidden == keeps_hidden)
    return {};
  graph.build(network_, state_, rows, wanted, keeps_hidden);
  if (!ggml_gallocr_alloc_graph(graph.allocator.get(), graph.graph))
    return fail(Code::NoSpace, "ggml: no memory for a pass over {} rows", rows);
  graph.plan = executor_.plan(graph.graph);
  graph.rows = rows;
  return {};
}

void ForwardPass::fill_inputs(const View& view, const PassInput& input) {
  std::memcpy(graph_->tokens->data, input.tokens.data(), input.tokens.size_bytes());
  auto* positions = static_cast<int32_t*>(graph_->positions->data);
  for (const RunView& run : view.runs)
    for (Pos i = 0; i < run.count; ++i)
      positions[run.row + i] = static_cast<int32_t>(run.first + i);
  if (!input.wanted.empty())
    std::memcpy(graph_->wanted->data, input.wanted.data(), input.wanted.size_bytes());
  if (graph_->given != nullptr)
    std::memcpy(graph_->given->data, input.given, ggml_nbytes(graph_->given));
}

Result<void> ForwardPass::run(Step& step, const PassInput& input, const PassOutput& output) {
  const size_t rows = input.tokens.size();
  CAIRN_CHECK(rows == step.rows(), "forward: {} tokens for a step of {} rows", rows, step.rows());
  CAIRN_CHECK(input.wanted.empty() || output.logits != nullptr,
              "forward: logits of {} rows wanted, but nowhere to put them", input.wanted.size());
  CAIRN_CHECK(output.hidden == nullptr || network_.hidden_width() > 0,
              "forward: hidden states wanted of a network that does not give them");
  CAIRN_CHECK(!network_.takes_hidden() || input.given != nullptr,
              "forward: no hidden states to continue from");
  for (const uint32_t row : input.wanted)
    CAIRN_CHECK(row < rows, "forward: row {} wanted of {}", row, rows);
  if (rows == 0) return {};
  for (const int32_t token : input.tokens)
    if (token < 0 || static_cast<uint32_t>(token) >= network_.vocabulary())
      return fail(Code::BadInput, "token {}: not in the vocabulary, expected 0 to {}", token,
                  network_.vocabulary() - 1);

  CAIRN_TRY(prepare(rows, input.wanted.size(), output.hidden != nullptr));
  fill_inputs(step.view(SlotId{0}), input);
  state_.begin(step);
  Result<void> ran = executor_.run(graph_->graph, graph_->plan);
  state_.end();
  if (!ran) return ran;
  if (!input.wanted.empty())
    std::memcpy(output.logits, graph_->logits->data,
                input.wanted.size() * network_.vocabulary() * sizeof(float));
  if (output.hidden != nullptr)
    std::memcpy(output.hidden, graph_->hidden->data, ggml_nbytes(graph_->hidden));
  return {};
}

}  // namespace cairn
