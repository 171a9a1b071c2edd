#include "bench/ggml_attention.h"

#include <ggml-cpu.h>
#include <ggml.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <vector>

#include "bench/ceilings.h"

namespace cairn::bench {
namespace {

// ggml moves the caller's thread to the last of its cores, where another of ours may be pinned; for
// a scope.
class CallersCores {
 public:
  CallersCores() { pthread_getaffinity_np(pthread_self(), sizeof(cores_), &cores_); }
  ~CallersCores() { pthread_setaffinity_np(pthread_self(), sizeof(cores_), &cores_); }

 private:
  cpu_set_t cores_;
};

ggml_type type_of(std::string_view name) {
  for (const ggml_type type : {GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0})
    if (name == ggml_type_name(type)) return type;
  throw std::invalid_argument("ggml_attention: an unknown type");
}

// Of variance 1. A row is quantized on its own.
void fill(ggml_tensor* tensor, std::mt19937_64& random) {
  std::vector<float> row(static_cast<size_t>(tensor->ne[0]));
  std::uniform_real_distribution<float> numbers(-1.7320508f, 1.7320508f);
  const ggml_from_float_t convert = ggml_get_type_traits_cpu(tensor->type)->from_float;
  const int64_t rows = ggml_nrows(tensor);
  for (int64_t i = 0; i < rows; ++i) {
    for (float& number : row) number = numbers(random);
    char* to = static_cast<char*>(tensor->data) + static_cast<size_t>(i) * tensor->nb[1];
    if (tensor->type == GGML_TYPE_F32)
      std::copy(row.begin(), row.end(), reinterpret_cast<float*>(to));
    else
      convert(row.data(), to, tensor->ne[0]);
  }
}

void compute(ggml_cgraph* graph, ggml_cplan& plan) {
  if (ggml_graph_compute(graph, &plan) != GGML_STATUS_SUCCESS)
    throw std::runtime_error("ggml_attention: ggml failed");
}

// 0 for what a query sees, minus infinity for what comes after it.
void fill_causal(ggml_tensor* mask) {
  const int64_t positions = mask->ne[0], queries = mask->ne[1];
  auto* to = static_cast<ggml_fp16_t*>(mask->data);
  for (int64_t query = 0; query < queries; ++query)
    for (int64_t position = 0; position < positions; ++position)
      *to++ = ggml_fp32_to_fp16(position <= positions - queries + query ? 0.f : -INFINITY);
}

}  // namespace

struct GgmlAttention::State {
  ~State() {
    ggml_threadpool_free(pool);
    ggml_free(context);
  }

  ggml_context* context = nullptr;
  ggml_threadpool* pool = nullptr;
  ggml_cgraph* graph = nullptr;
  ggml_cplan plan{};
  // A single number's sum. A pool that pauses gives threads their cores when a graph begins.
  ggml_cgraph* wake = nullptr;
  ggml_cplan wake_plan{};
  std::vector<uint8_t> work;
};

GgmlAttention::GgmlAttention(const GgmlShape& shape, uint32_t threads)
    : state_(std::make_unique<State>()) {
  const CallersCores cores;
  ggml_cpu_init();
  const ggml_type type = type_of(shape.type);
  const auto dim = static_cast<int64_t>(shape.head_dim);
  const auto positions = static_cast<int64_t>(shape.positions);
  const auto queries = static_cast<int64_t>(shape.queries);
  const uint64_t cached = ggml_row_size(type, dim) * shape.positions * shape.key_heads * 2;
  const uint64_t rows = shape.queries * shape.query_heads * shape.head_dim * sizeof(float) * 2;
  constexpr uint64_t kOverhead = uint64_t{1} << 20;
  state_->context =
      ggml_init({.mem_size = (cached + rows + kOverhead) * shape.layers +
                             shape.positions * shape.queries * sizeof(ggml_fp16_t) + kOverhead,
                 .mem_buffer = nullptr,
                 .no_alloc = false});
  ggml_threadpool_params params = ggml_threadpool_params_default(static_cast<int>(threads));
  for (uint32_t i = 0; i < threads; ++i) params.cpumask[i] = true;
  params.strict_cpu = true;
  state_->pool = ggml_threadpool_new(&params);
  if (state_->context == nullptr || state_->pool == nullptr)
    throw std::runtime_error("ggml_attention: no memory, or no threads");

  ggml_context* context = state_->context;
  std::mt19937_64 random(1);
  ggml_tensor* mask = nullptr;
  if (queries > 1) {
    mask = ggml_new_tensor_2d(context, GGML_TYPE_F16, positions, queries);
    fill_causal(mask);
  }
  state_->graph = ggml_new_graph(context);
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    ggml_tensor* key = ggml_new_tensor_3d(context, type, dim, positions, shape.key_heads);
    ggml_tensor* value = ggml_new_tensor_3d(context, type, dim, positions, shape.key_heads);
    ggml_tensor* query =
        ggml_new_tensor_3d(context, GGML_TYPE_F32, dim, queries, shape.query_heads);
    for (ggml_tensor* tensor : {key, value, query}) fill(tensor, random);
    const float scale = 1.f / std::sqrt(static_cast<float>(shape.head_dim));
    ggml_build_forward_expand(state_->graph,
                              ggml_flash_attn_ext(context, query, key, value, mask, scale, 0, 0));
  }
  ggml_tensor* number = ggml_new_tensor_1d(context, GGML_TYPE_F32, 1);
  *static_cast<float*>(number->data) = 1.f;
  state_->wake = ggml_new_graph(context);
  ggml_build_forward_expand(state_->wake, ggml_add(context, number, number));
  state_->wake_plan = ggml_graph_plan(state_->wake, static_cast<int>(threads), state_->pool);
  state_->plan = ggml_graph_plan(state_->graph, static_cast<int>(threads), state_->pool);
  state_->work.resize(std::max(state_->plan.work_size, state_->wake_plan.work_size));
  state_->plan.work_data = state_->wake_plan.work_data = state_->work.data();
}

GgmlAttention::~GgmlAttention() = default;

double GgmlAttention::seconds_of_step() {
  const CallersCores cores;
  compute(state_->wake, state_->wake_plan);
  const double start = seconds_now();
  compute(state_->graph, state_->plan);
  const double seconds = seconds_now() - start;
  ggml_threadpool_pause(state_->pool);  // its threads would go on spinning for a while
  return seconds;
}

std::string ggml_features() {
  struct Feature {
    const char* name;
    int (*has)();
  };
  constexpr Feature kFeatures[] = {{"avx2", ggml_cpu_has_avx2},
                                   {"f16c", ggml_cpu_has_f16c},
                                   {"fma", ggml_cpu_has_fma},
                                   {"avx-vnni", ggml_cpu_has_avx_vnni},
                                   {"avx512", ggml_cpu_has_avx512},
                                   {"avx512-vnni", ggml_cpu_has_avx512_vnni},
                                   {"avx512-bf16", ggml_cpu_has_avx512_bf16},
                                   {"neon", ggml_cpu_has_neon},
                                   {"dotprod", ggml_cpu_has_dotprod}};
  std::string text;
  for (const Feature& feature : kFeatures)
    if (feature.has() != 0) text += (text.empty() ? "" : " ") + std::string(feature.name);
  return text;
}

}  // namespace cairn::bench
