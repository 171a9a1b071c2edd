// A small seeded source of randomness: the same numbers on every machine, so that a printed seed
// reproduces a failure.
#ifndef CAIRN_TESTS_SUPPORT_RANDOM_H_
#define CAIRN_TESTS_SUPPORT_RANDOM_H_

#include <cmath>
#include <cstdint>
#include <vector>

namespace cairn::testing {

// splitmix64 (Steele, Lea, Flood 2014): a bijection of 64 bits that scatters neighbours.
constexpr uint64_t scatter(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t bits() { return scatter(state_++); }
  uint64_t below(uint64_t bound) { return bits() % bound; }
  bool one_in(uint64_t n) { return below(n) == 0; }
  double unit() { return static_cast<double>(bits() >> 11) * 0x1p-53; }  // [0, 1)
  float normal() {                                                       // Box-Muller
    const double u = 1 - unit(), v = unit();
    return static_cast<float>(std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v));
  }

 private:
  uint64_t state_;
};

inline std::vector<float> random_floats(uint64_t seed, size_t count, float scale = 1) {
  Random random(seed);
  std::vector<float> numbers(count);
  for (float& number : numbers) number = scale * random.normal();
  return numbers;
}

}  // namespace cairn::testing

#endif  // CAIRN_TESTS_SUPPORT_RANDOM_H_
