// The arithmetic of a sparse indexer that no encoding knows: one score from its heads' products,
// and the choice of the best.
#ifndef CAIRN_KERNELS_CHOICE_H_
#define CAIRN_KERNELS_CHOICE_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace cairn {

// scores[i], for i below `count`: from +0, heads ascending, fma(weights[head], relu(product), sum),
// the product at products[head * stride + i]. relu of a NaN is the NaN.
void weigh_heads(const float* products,
                 size_t stride,
                 const float* weights,
                 uint32_t heads,
                 uint32_t count,
                 float* scores);

// Writes the places of the min(k, scores.size()) greatest scores, ascending, and returns how many.
// Equal scores go to the lower place (zeros are equal, whatever their sign); NaN counts as minus
// infinity. `scratch` has room for as many numbers as there are scores.
uint32_t choose_best(std::span<const float> scores,
                     uint32_t k,
                     uint32_t* places,
                     uint32_t* scratch);

}  // namespace cairn

#endif  // CAIRN_KERNELS_CHOICE_H_
