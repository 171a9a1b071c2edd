// A layer of linear attention, the gated delta net: a causal convolution over queries, keys and
// values, and per value head a matrix that maps keys to values. The matrix decays, learns what its
// answer to the key lacked of the value, and answers the query.
//
// The state advances position by position, in one order of operations that neither the cut of a
// prompt into runs nor the batch, the threads or the SIMD target change. docs/numbers.md defines
// it; for one position and one value head, in short:
//
//   x = silu(convolution)             of queries, keys and values
//   q, k of length 1, q / sqrt(width)
//   g = exp(decay softplus(a + bias)), b = sigmoid(b)
//   S = g S;  S = S + b (v - S k) k^T;  answer = S q
#ifndef CAIRN_MODELS_DELTA_NET_H_
#define CAIRN_MODELS_DELTA_NET_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cairn/state/kind.h"

namespace cairn {

struct DeltaShape {
  uint32_t key_heads = 0;
  uint32_t value_heads = 0;  // a multiple of key_heads: neighbours share a query and a key
  uint32_t key_dim = 0;      // of a head's query and key
  uint32_t value_dim = 0;
  uint32_t taps = 0;  // positions that the convolution sees, its own included

  uint32_t sharers() const { return value_heads / key_heads; }  // value heads of a key head
  uint32_t keys() const { return key_heads * key_dim; }
  uint32_t values() const { return value_heads * value_dim; }
  uint32_t channels() const { return 2 * keys() + values(); }
  uint32_t gates() const { return 2 * value_heads; }
};

// BadInput or Unsupported says which number does not fit. `path` stands first in the message.
Result<void> validate(const DeltaShape& shape, const std::string& path);

// The positions of a run, as rows of f32.
struct DeltaRows {
  const float* mixed = nullptr;  // [count][channels]: all queries, all keys, all values
  size_t mixed_stride = 0;       // numbers from one position to the next
  const float* gates = nullptr;  // [count][key head][b of its sharers, a of its sharers]
  size_t gates_stride = 0;
  Pos count = 0;
};

// The tensors of a sequence, as recurrent slots hold them.
template <class Float>
struct DeltaState {
  Float* conv = nullptr;      // [taps - 1][channels]: the newest rows of `mixed`
  Float* matrices = nullptr;  // [value heads][value_dim][key_dim]
};

class DeltaNet {
 public:
  // taps: [channels][taps], the oldest position first. decays: below 0.
  // REQUIRES: the shape is valid, and as many numbers as it says.
  DeltaNet(const DeltaShape& shape,
           std::span<const float> taps,
           std::span<const float> decays,
           std::span<const float> biases);

  const DeltaShape& shape() const { return shape_; }

  // Takes value head `head` through the rows: from `previous` to `next`, which lie apart. The
  // answers go to out + i * out_stride, value_dim numbers each; null: nobody wants them. Heads may
  // be advanced at the same time. REQUIRES: rows.count > 0.
  void advance(uint32_t head,
               const DeltaState<const float>& previous,
               const DeltaRows& rows,
               const DeltaState<float>& next,
               float* out,
               size_t out_stride) const;

  // The state as a slot, which refers to this net: sessions in whose rounds it takes part must not
  // outlive it. A round records a position's [mixed, gates].
  SlotSpec slot(Pos max_positions) const;

 private:
  static void replay(const void* net,
                     const float* const* previous,
                     const std::byte* inputs,
                     Pos count,
                     float* const* next);
  struct Block;
  void convolve(uint32_t channel,
                uint32_t count,
                const float* previous,
                const DeltaRows& rows,
                Block block,
                float* out) const;
  void keep_newest(uint32_t channel,
                   uint32_t count,
                   const float* previous,
                   const DeltaRows& rows,
                   float* next) const;

  DeltaShape shape_;
  std::vector<float> taps_;  // [taps][channels]
  std::vector<float> decays_, biases_;
};

}  // namespace cairn

#endif  // CAIRN_MODELS_DELTA_NET_H_
