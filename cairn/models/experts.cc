#include "cairn/models/experts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cairn/kernels/softmax.h"

namespace cairn {
namespace {

constexpr float kLog2OfE = 1.44269504f;
constexpr float kLowest = -std::numeric_limits<float>::infinity();

// e^x for x <= 0, in the arithmetic of attention instead of the C library's.
float exp_nonpositive(float x) { return exp2_nonpositive(x * kLog2OfE); }

float sigmoid(float x) {
  const float e = exp_nonpositive(-std::fabs(x));
  return x < 0 ? e / (1 + e) : 1 / (1 + e);
}

std::vector<float> scores_of(const Routing& routing, const float* routed) {
  std::vector<float> scores(routed, routed + routing.experts);
  if (routing.scores == Routing::Scores::sigmoid) {
    for (float& score : scores) score = sigmoid(score);
    return scores;
  }
  const float max = *std::max_element(scores.begin(), scores.end());
  float sum = 0;
  for (float& score : scores) sum += score = exp_nonpositive(score - max);
  for (float& score : scores) score /= sum;
  return scores;
}

// Indices of the best `count` of `scores`, ascending.
void choose_best(std::span<const float> scores, uint32_t count, std::vector<int32_t>& best) {
  std::vector<int32_t> order(scores.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  const auto end = order.begin() + count;
  std::partial_sort(order.begin(), end, order.end(), [&](int32_t a, int32_t b) {
    const float x = scores[static_cast<size_t>(a)], y = scores[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  std::sort(order.begin(), end);
  best.assign(order.begin(), end);
}

float best_two(std::span<const float> scores) {
  float best = kLowest, second = kLowest;
  for (const float score : scores) {
    if (score > best)
      second = std::exchange(best, score);
    else
      second = std::max(second, score);
  }
  return best + second;
}

// Scores of experts outside the best groups become the lowest there is.
void leave_best_groups(const Routing& routing, std::span<float> scores) {
  const uint32_t group_size = routing.experts / routing.groups;
  std::vector<float> groups(routing.groups);
  for (uint32_t i = 0; i < routing.groups; ++i)
    groups[i] = best_two(scores.subspan(size_t{i} * group_size, group_size));
  std::vector<int32_t> best;
  choose_best(groups, routing.used_groups, best);
  for (uint32_t i = 0; i < routing.groups; ++i)
    if (!std::binary_search(best.begin(), best.end(), static_cast<int32_t>(i)))
      std::ranges::fill(scores.subspan(size_t{i} * group_size, group_size), kLowest);
}

struct Rows {
  int64_t begin, end;
};

Rows rows_of(const ggml_tensor* node, int part, int parts) {
  return {node->ne[1] * part / parts, node->ne[1] * (part + 1) / parts};
}

template <class T>
T* row(const ggml_tensor* tensor, int64_t index) {
  return reinterpret_cast<T*>(static_cast<char*>(tensor->data) +
                              static_cast<size_t>(index) * tensor->nb[1]);
}

// node [used, rows] i32 of routed [experts, rows] and, where there is one, a bias.
void choose_part(ggml_tensor* node, int part, int parts, void* routing) noexcept {
  const ggml_tensor* bias = node->src[1];
  const Rows rows = rows_of(node, part, parts);
  for (int64_t i = rows.begin; i < rows.end; ++i)
    choose_experts(*static_cast<const Routing*>(routing), row<float>(node->src[0], i),
                   bias == nullptr ? nullptr : row<float>(bias, 0), row<int32_t>(node, i));
}

// node [used, rows] f32 of routed [experts, rows] and chosen [used, rows].
void weigh_part(ggml_tensor* node, int part, int parts, void* routing) noexcept {
  const Rows rows = rows_of(node, part, parts);
  for (int64_t i = rows.begin; i < rows.end; ++i)
    weigh_experts(*static_cast<const Routing*>(routing), row<float>(node->src[0], i),
                  row<int32_t>(node->src[1], i), row<float>(node, i));
}

ggml_tensor* weighted_sum(ggml_context* context, ggml_tensor* outputs, ggml_tensor* weights) {
  const int64_t used = weights->ne[0], rows = weights->ne[1];
  ggml_tensor* weighted =
      ggml_mul(context, outputs, ggml_reshape_3d(context, weights, 1, used, rows));
  const auto output = [&](int64_t index) {
    return ggml_view_2d(context, weighted, weighted->ne[0], rows, weighted->nb[2],
                        static_cast<size_t>(index) * weighted->nb[1]);
  };
  ggml_tensor* sum = used == 1 ? ggml_cont(context, output(0)) : output(0);
  for (int64_t i = 1; i < used; ++i) sum = ggml_add(context, sum, output(i));
  return sum;
}

Result<void> check(const Routing& routing, const std::string& path) {
  if (routing.experts == 0 || routing.used == 0 || routing.used > routing.experts)
    return fail(Code::BadInput, "{}: {} of {} experts used, expected at least one and no more",
                path, routing.used, routing.experts);
  if (routing.groups == 0 || routing.experts % routing.groups != 0 || routing.used_groups == 0 ||
      routing.used_groups > routing.groups)
    return fail(Code::BadInput,
                "{}: {} experts in {} groups, {} of them used, expected equal groups of which at "
                "least one is used",
                path, routing.experts, routing.groups, routing.used_groups);
  if (routing.used > routing.experts / routing.groups * routing.used_groups)
    return fail(Code::BadInput, "{}: {} experts used, expected no more than {} groups of {} have",
                path, routing.used, routing.used_groups, routing.experts / routing.groups);
  return {};
}

}  // namespace

Result<Routing> read_routing(const Metadata& data, const std::string& architecture) {
  constexpr uint32_t kSoftmax = 1, kSigmoid = 2;
  const auto key = [&](std::string_view name) { return fmt::format("{}.{}", architecture, name); };
  Routing routing;
  routing.experts = CAIRN_TRY(data.u32(key("expert_count")));
  routing.used = CAIRN_TRY(data.u32(key("expert_used_count")));
  routing.groups = CAIRN_TRY(data.u32_or(key("expert_group_count"), 1));
  routing.used_groups = CAIRN_TRY(data.u32_or(key("expert_group_used_count"), routing.groups));
  routing.normalize = CAIRN_TRY(data.flag_or(key("expert_weights_norm"), false));
  routing.scale = CAIRN_TRY(data.f32_or(key("expert_weights_scale"), 1));
  const uint32_t scores = CAIRN_TRY(data.u32_or(key("expert_gating_func"), kSoftmax));
  if (scores != kSoftmax && scores != kSigmoid)
    return fail(Code::Unsupported, "{}: {} is {}, expected {} (softmax) or {} (sigmoid)",
                data.path(), key("expert_gating_func"), scores, kSoftmax, kSigmoid);
  routing.scores = scores == kSigmoid ? Routing::Scores::sigmoid : Routing::Scores::softmax;
  CAIRN_TRY(check(routing, data.path()));
  return routing;
}

Result<Experts> read_experts(
    Weights& weights, const Routing& routing, uint32_t layer, int64_t width, uint32_t hidden) {
  const auto named = [&](std::string_view part) { return fmt::format("blk.{}.{}", layer, part); };
  Experts experts{.routing = routing, .hidden = hidden};
  const int64_t count = routing.experts;
  experts.router = CAIRN_TRY(weights.matrix(named("ffn_gate_inp.weight"), width, count));
  if (weights.has(named("exp_probs_b.bias")))
    experts.bias = CAIRN_TRY(weights.vector(named("exp_probs_b.bias"), count));
  const std::string both = named("ffn_gate_up_exps.weight");
  if (weights.has(both)) {
    experts.gate_and_up = CAIRN_TRY(weights.matrices(both, width, int64_t{2} * hidden, count));
  } else {
    experts.gate = CAIRN_TRY(weights.matrices(named("ffn_gate_exps.weight"), width, hidden, count));
    experts.up = CAIRN_TRY(weights.matrices(named("ffn_up_exps.weight"), width, hidden, count));
  }
  experts.down = CAIRN_TRY(weights.matrices(named("ffn_down_exps.weight"), hidden, width, count));
  return experts;
}

void choose_experts(const Routing& routing,
                    const float* routed,
                    const float* bias,
                    int32_t* chosen) {
  std::vector<float> scores = scores_of(routing, routed);
  for (uint32_t i = 0; i < routing.experts; ++i) {
    if (bias != nullptr) scores[i] += bias[i];
    if (std::isnan(scores[i])) scores[i] = kLowest;
  }
  if (routing.used_groups < routing.groups) leave_best_groups(routing, scores);
  std::vector<int32_t> best;
  choose_best(scores, routing.used, best);
  std::ranges::copy(best, chosen);
}

void weigh_experts(const Routing& routing,
                   const float* routed,
                   const int32_t* chosen,
                   float* weights) {
  constexpr float kSmallest = 1e-20f;  // as the models have it: no division by zero
  const std::vector<float> scores = scores_of(routing, routed);
  float sum = 0;
  for (uint32_t i = 0; i < routing.used; ++i)
    sum += weights[i] = scores[static_cast<size_t>(chosen[i])];
  const float divisor = routing.normalize ? sum + kSmallest : 1;
  for (uint32_t i = 0; i < routing.used; ++i) weights[i] = weights[i] / divisor * routing.scale;
}

ggml_tensor* route(ggml_context* context, const Experts& experts, ggml_tensor* x) {
  const int64_t rows = x->ne[1], used = experts.routing.used;
  auto* routing = const_cast<Routing*>(&experts.routing);  // ggml's callbacks take no const
  ggml_tensor* routed[] = {ggml_mul_mat(context, experts.router, x), experts.bias};
  ggml_tensor* chosen =
      ggml_custom_4d(context, GGML_TYPE_I32, used, rows, 1, 1, routed,
                     experts.bias == nullptr ? 1 : 2, choose_part, GGML_N_TASKS_MAX, routing);
  ggml_tensor* scored[] = {routed[0], chosen};
  ggml_tensor* weights = ggml_custom_4d(context, GGML_TYPE_F32, used, rows, 1, 1, scored, 2,
                                        weigh_part, GGML_N_TASKS_MAX, routing);

  ggml_tensor* columns = ggml_reshape_3d(context, x, x->ne[0], 1, rows);
  const auto product = [&](ggml_tensor* matrices) {
    return ggml_mul_mat_id(context, matrices, columns, chosen);
  };
  ggml_tensor* inside =
      experts.gate_and_up != nullptr
          ? ggml_swiglu(context, product(experts.gate_and_up))
          : ggml_swiglu_split(context, product(experts.gate), product(experts.up));
  return weighted_sum(context, ggml_mul_mat_id(context, experts.down, inside, chosen), weights);
}

}  // namespace cairn
