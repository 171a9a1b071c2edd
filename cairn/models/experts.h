// A feed-forward network of many experts, of which each row goes to a few: DeepSeek's grouped
// routing, and plain routing, which is one group.
//
// A router's product gives a row one number per expert. The scores are their sigmoids, or their
// softmax. With groups, a group counts as much as its two best experts, and only the experts of the
// best groups can be chosen. The best `used` of them are: by score plus bias, where the model has a
// bias; ties go to the lower index, and a score that is no number counts as the lowest. What the
// row gets is the sum of their outputs, in ascending order of their indices, weighted by score
// (without bias).
//
// Whom other rows choose changes no bit of a row: an expert's product is one per row.
#ifndef CAIRN_MODELS_EXPERTS_H_
#define CAIRN_MODELS_EXPERTS_H_

#include <ggml.h>

#include <cstdint>
#include <span>
#include <string>

#include "cairn/models/weights.h"

namespace cairn {

struct Routing {
  enum class Scores { softmax, sigmoid };
  Scores scores = Scores::softmax;
  uint32_t experts = 0;
  uint32_t used = 0;  // experts of a row
  uint32_t groups = 1;
  uint32_t used_groups = 1;  // of a row
  bool normalize = false;    // a row's weights are divided by their sum
  float scale = 1;           // and then multiplied by this
};

// A layer's experts. Adjoining gate and up matrices are one tensor in some files.
struct Experts {
  Routing routing;
  uint32_t hidden = 0;                 // numbers inside an expert
  ggml_tensor* router = nullptr;       // [width, experts]
  ggml_tensor* bias = nullptr;         // [experts]; null: none
  ggml_tensor* gate = nullptr;         // [width, hidden, experts]
  ggml_tensor* up = nullptr;           // the same
  ggml_tensor* gate_and_up = nullptr;  // [width, 2 * hidden, experts]; null: they are apart
  ggml_tensor* down = nullptr;         // [hidden, width, experts]
};

// From the keys "<architecture>.expert_count", ..., as llama.cpp's files have them. BadInput names
// what does not fit together.
Result<Routing> read_routing(const Metadata& data, const std::string& architecture);

// Layer `layer`'s experts for rows of `width` numbers; a bias is read where the file has one.
Result<Experts> read_experts(
    Weights& weights, const Routing& routing, uint32_t layer, int64_t width, uint32_t hidden);

// The chosen experts' weighted sum for each row of x, f32 [width, rows]. `experts` must outlive the
// graph.
ggml_tensor* route(ggml_context* context, const Experts& experts, ggml_tensor* x);
inline constexpr size_t kMostRoutingNodes = 16;  // of a graph, besides two per expert used

// One row: scores and the choice, ascending. `routed`: the router's numbers, one per expert;
// `bias`: null, or one per expert; `chosen` and `weights` take routing.used each.
void choose_experts(const Routing& routing,
                    const float* routed,
                    const float* bias,
                    int32_t* chosen);
void weigh_experts(const Routing& routing,
                   const float* routed,
                   const int32_t* chosen,
                   float* weights);

}  // namespace cairn

#endif  // CAIRN_MODELS_EXPERTS_H_
