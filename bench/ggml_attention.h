// The peer of attend_bench: ggml's flash_attn_ext on the same shapes, with as many threads.
#ifndef CAIRN_BENCH_GGML_ATTENTION_H_
#define CAIRN_BENCH_GGML_ATTENTION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace cairn::bench {

struct GgmlShape {
  std::string_view type;  // of keys and values: f16, q8_0, q4_0
  uint32_t head_dim = 0;
  uint32_t key_heads = 0;
  uint32_t query_heads = 0;
  uint32_t layers = 0;
  uint64_t positions = 0;  // of keys and values
  uint64_t queries = 0;    // the last ones, causal
};

class GgmlAttention {
 public:
  GgmlAttention(const GgmlShape& shape, uint32_t threads);  // pinned to cores 0, 1, ..
  ~GgmlAttention();
  double seconds_of_step();  // all layers, one after the other, by threads that are awake

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string ggml_features();  // of the processor, that ggml was built to use: "avx2 f16c fma"

}  // namespace cairn::bench

#endif  // CAIRN_BENCH_GGML_ATTENTION_H_
