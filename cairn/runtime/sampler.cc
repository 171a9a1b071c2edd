#include "cairn/runtime/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

namespace cairn {
namespace {

// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014): its state
// only counts, so draw i needs no draw before it. The seed is mixed once, so that neighbouring
// seeds are no shifted copies of each other.
constexpr uint64_t kGamma = 0x9e3779b97f4a7c15;

constexpr uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

constexpr auto kInverseFactorials = [] {
  std::array<double, 14> inverse{1};
  for (size_t k = 1; k < inverse.size(); ++k) inverse[k] = inverse[k - 1] / static_cast<double>(k);
  return inverse;
}();

// e^x for x <= 0 within 1e-12, in plain multiplications and additions: the same bits everywhere,
// which the C library does not promise. x = n ln 2 + y with |y| <= ln 2 / 2; e^y by its series, 2^n
// by its exponent.
double exp_nonpositive(double x) {
  constexpr double kLn2 = 0.693147180559945309417;
  if (x < -700) return 0;
  const auto n = static_cast<int64_t>(x / kLn2 - 0.5);  // rounds to nearest: x is not positive
  const double y = x - static_cast<double>(n) * kLn2;
  double sum = 0;
  for (size_t term = kInverseFactorials.size(); term-- > 0;)
    sum = kInverseFactorials[term] + sum * y;
  return sum * std::bit_cast<double>(static_cast<uint64_t>(n + 1023) << 52);
}

Result<void> check_range(const char* name, float value, float low, float high) {
  if (value >= low && value <= high) return {};
  return fail(Code::BadInput, "{}: found {}, expected {} to {}", name, value, low, high);
}

}  // namespace

double uniform_draw(uint64_t seed, uint64_t index) {
  const uint64_t bits = mix(mix(seed + kGamma) + (index + 1) * kGamma);
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

Result<Sampler> make_sampler(const SamplingOptions& options) {
  constexpr float kMax = std::numeric_limits<float>::max();
  CAIRN_TRY(check_range("temperature", options.temperature, 0, kMax));
  CAIRN_TRY(check_range("top_p", options.top_p, 0, 1));
  CAIRN_TRY(check_range("min_p", options.min_p, 0, 1));
  CAIRN_TRY(check_range("repetition_penalty", options.repetition_penalty,
                        std::numeric_limits<float>::min(), kMax));
  return Sampler(options);
}

Result<int32_t> Sampler::sample(std::span<const float> logits, std::span<const int32_t> history) {
  CAIRN_CHECK(!logits.empty(), "no logits");
  logits_.assign(logits.begin(), logits.end());
  penalize(history);
  const int32_t top = CAIRN_TRY(best());
  if (options_.temperature == 0) return top;
  collect_candidates();
  keep_top_k();
  if (options_.top_p < 1 || options_.min_p > 0) {
    weigh(logits_[top], 1);
    keep_top_p();
    keep_min_p();
  }
  return draw(logits_[top]);
}

void Sampler::penalize(std::span<const int32_t> history) {
  if (options_.repetition_penalty == 1) return;
  const size_t window = std::min<size_t>(options_.repetition_window, history.size());
  std::vector<int32_t> recent(history.end() - static_cast<ptrdiff_t>(window), history.end());
  std::ranges::sort(recent);
  recent.erase(std::unique(recent.begin(), recent.end()), recent.end());
  for (const int32_t token : recent) {
    CAIRN_CHECK(token >= 0 && static_cast<size_t>(token) < logits_.size(),
                "token {} in the history, {} logits", token, logits_.size());
    float& logit = logits_[token];
    logit = logit > 0 ? logit / options_.repetition_penalty : logit * options_.repetition_penalty;
  }
}

Result<int32_t> Sampler::best() const {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  size_t best = 0;
  for (size_t token = 0; token < logits_.size(); ++token) {
    if (!(logits_[token] < kInfinity))
      return fail(Code::BadInput, "logits: token {}: found {}, expected a number", token,
                  logits_[token]);
    if (logits_[token] > logits_[best]) best = token;
  }
  if (logits_[best] == -kInfinity)
    return fail(Code::BadInput,
                "logits: all {} are minus infinity, expected a token that is possible",
                logits_.size());
  return static_cast<int32_t>(best);
}

void Sampler::collect_candidates() {
  candidates_.clear();
  for (size_t token = 0; token < logits_.size(); ++token) {
    const float logit = logits_[token];
    if (logit == -std::numeric_limits<float>::infinity()) continue;
    candidates_.push_back({static_cast<int32_t>(token), logit, 1});
  }
}

void Sampler::weigh(float best_logit, float temperature) {
  const double inverse = 1.0 / temperature;
  for (Candidate& each : candidates_)
    each.weight = exp_nonpositive((double{each.logit} - best_logit) * inverse);
}

namespace {

// The most probable first; equals by id, so that the order is one and only one.
constexpr auto kMoreProbable = [](const auto& a, const auto& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
};

template <class Candidates>
void keep_first(Candidates& candidates, size_t count) {
  candidates.resize(count);
  std::ranges::sort(candidates, {}, [](const auto& each) { return each.token; });
}

template <class Candidates>
double sum_of_weights(const Candidates& candidates) {
  double sum = 0;
  for (const auto& each : candidates) sum += each.weight;
  return sum;
}

}  // namespace

void Sampler::keep_top_k() {
  if (options_.top_k == 0 || options_.top_k >= candidates_.size()) return;
  std::nth_element(candidates_.begin(), candidates_.begin() + options_.top_k, candidates_.end(),
                   kMoreProbable);
  keep_first(candidates_, options_.top_k);
}

// Sorts no more than it must: a head of 64, then four times as many, until the head holds enough.
void Sampler::keep_top_p() {
  if (options_.top_p == 1) return;
  const double wanted = options_.top_p * sum_of_weights(candidates_);
  double sum = 0;
  size_t sorted = 0, kept = 0;
  while (kept == 0 || (kept < candidates_.size() && sum < wanted)) {
    if (kept == sorted) {
      const size_t head = std::min(candidates_.size(), std::max<size_t>(64, 4 * sorted));
      const auto begin = candidates_.begin() + static_cast<ptrdiff_t>(sorted);
      std::partial_sort(begin, candidates_.begin() + static_cast<ptrdiff_t>(head),
                        candidates_.end(), kMoreProbable);
      sorted = head;
    }
    sum += candidates_[kept++].weight;
  }
  keep_first(candidates_, kept);
}

void Sampler::keep_min_p() {
  if (options_.min_p == 0) return;
  std::erase_if(candidates_,
                [this](const Candidate& each) { return each.weight < double{options_.min_p}; });
}

int32_t Sampler::draw(float best_logit) {
  weigh(best_logit, options_.temperature);
  const double target = uniform_draw(state_.seed, state_.draws++) * sum_of_weights(candidates_);
  double sum = 0;
  int32_t chosen = candidates_.front().token;
  for (const Candidate& each : candidates_) {
    if (each.weight == 0) continue;
    chosen = each.token;  // the last possible one when rounding leaves the sum at the target
    sum += each.weight;
    if (sum > target) break;
  }
  return chosen;
}

}  // namespace cairn
