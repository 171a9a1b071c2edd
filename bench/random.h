// Random numbers for benchmarks: never zeros, always the same.
#ifndef CAIRN_BENCH_RANDOM_H_
#define CAIRN_BENCH_RANDOM_H_

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace cairn::bench {

class Random {
 public:
  explicit Random(uint64_t seed = 1) : state_(seed) {}

  uint64_t bits() {  // 32 of them
    state_ = state_ * 6364136223846793005 + 1442695040888963407;
    return state_ >> 32;
  }
  uint64_t below(uint64_t end) { return bits() % end; }
  float number() {  // in [-1.7, 1.7): of variance 1
    return static_cast<float>(static_cast<int32_t>(bits())) * (1.7320508f * 0x1p-31f);
  }
  void fill(std::span<float> numbers) {
    for (float& x : numbers) x = number();
  }
  std::vector<float> numbers(size_t count) {
    std::vector<float> numbers(count);
    fill(numbers);
    return numbers;
  }
  template <class T>
  void shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }

 private:
  uint64_t state_;
};

}  // namespace cairn::bench

#endif  // CAIRN_BENCH_RANDOM_H_
