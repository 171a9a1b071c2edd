#include "cairn/runtime/fidelity.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "cairn/runtime/attention_error.h"
#include "cairn/runtime/sampler.h"

namespace cairn {
namespace {

using Clock = std::chrono::steady_clock;
using Logits = std::span<const float>;

constexpr std::string_view kReference = "f32";
constexpr uint64_t kLogitBytes = uint64_t{64} << 20;  // of one step's, so few of a big vocabulary
constexpr uint64_t kResamplings = 2000;

// What a softmax needs to know of all its logits.
struct Normalizer {
  double log_sum = 0;
  size_t likeliest = 0;  // among equals the lower id, as a greedy sampler has it
  explicit Normalizer(Logits logits)
      : likeliest(static_cast<size_t>(std::ranges::max_element(logits) - logits.begin())) {
    const double greatest = logits[likeliest];
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - greatest);
    log_sum = greatest + std::log(sum);
  }
  double log_probability(float logit) const { return static_cast<double>(logit) - log_sum; }
};

// KL(p || q). Exactly 0 for equal logits; not below it, where rounding would have it so.
double divergence(Logits p, const Normalizer& of_p, Logits q, const Normalizer& of_q) {
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double log_p = of_p.log_probability(p[i]);
    sum += std::exp(log_p) * (log_p - of_q.log_probability(q[i]));
  }
  return std::max(sum, 0.0);
}

struct Stretch {
  double kl = 0;  // summed
  uint64_t rows = 0;
};

double mean_of(std::span<const Stretch> stretches) {
  Stretch sum;
  for (const Stretch& stretch : stretches) {
    sum.kl += stretch.kl;
    sum.rows += stretch.rows;
  }
  return sum.kl / static_cast<double>(sum.rows);
}

// Percentile bootstrap. Every scheme sees the same draws, so what one stretch of the text does to
// all of them does not blur their order.
void set_interval(std::span<const Stretch> stretches, uint64_t seed, SchemeFidelity& result) {
  std::vector<double> means;
  std::vector<Stretch> drawn(stretches.size());
  for (uint64_t i = 0; i < kResamplings; ++i) {
    for (size_t j = 0; j < drawn.size(); ++j) {
      const double where = uniform_draw(seed, i * drawn.size() + j);
      drawn[j] = stretches[static_cast<size_t>(where * static_cast<double>(drawn.size()))];
    }
    means.push_back(mean_of(drawn));
  }
  std::ranges::sort(means);
  constexpr size_t kOutside = kResamplings / 40;  // 2.5 % on either side
  result.kl_low = means[kOutside];
  result.kl_high = means[kResamplings - 1 - kOutside];
}

double nearest_rank(std::vector<double> numbers, double share) {
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(numbers.size())));
  const auto at = numbers.begin() + static_cast<std::ptrdiff_t>(std::max<size_t>(rank, 1) - 1);
  std::ranges::nth_element(numbers, at);
  return *at;
}

size_t stretches_of(std::span<const int32_t> sequence) {
  return (sequence.size() - 1 + kStretch - 1) / kStretch;
}

// A state of the model, and what was seen of its predictions.
struct Lane {
  std::string scheme;
  Session session;
  SeqId seq{};
  double seconds = 0;
  double surprise = 0;  // negative log-likelihood of the text, summed
  uint64_t agreed = 0;
  std::vector<double> kl;  // of every prediction
  std::vector<Stretch> stretches;
  AttentionError attention;
  std::optional<Drift> drift;
};

// One call of measure_fidelity().
class Measurement {
 public:
  Measurement(Model& model, std::span<const int32_t> tokens, const FidelityOptions& options)
      : model_(model), tokens_(tokens), options_(options), probe_(model) {}

  Result<Fidelity> run(std::span<const std::string> schemes) {
    CAIRN_TRY(check(schemes));
    CAIRN_TRY(open(kReference));
    for (const std::string& scheme : schemes) CAIRN_TRY(open(scheme));
    cut_text();
    if (stretch_count() < 2)
      return fail(
          Code::BadInput,
          "text: {} tokens make {} stretch of predictions (of {}, or what a context holds), "
          "expected at least 2: give a longer text",
          tokens_.size(), stretch_count(), kStretch);
    report_progress();
    for (const std::vector<int32_t>& sequence : sequences_) CAIRN_TRY(measure(sequence));
    if (options_.drift_tokens > 0) CAIRN_TRY(measure_drift());
    return result();
  }

 private:
  Result<void> check(std::span<const std::string> schemes) const {
    if (schemes.empty())
      return fail(Code::BadInput, "fidelity: no scheme, expected one to measure");
    if (options_.context < 2 || options_.context > model_.context_length())
      return fail(Code::BadInput, "context: {} positions, expected 2 to {}, which the model has",
                  options_.context, model_.context_length());
    CAIRN_CHECK(options_.step > 0, "fidelity: steps of 0 tokens");
    CAIRN_CHECK(options_.prompts > 0 && options_.prompt_tokens > 0, "fidelity: no prompts");
    if (tokens_of_an_answer() > model_.context_length())
      return fail(Code::BadInput,
                  "drift: prompts of {} tokens with answers of {}, expected at most {} in all, "
                  "which the model has",
                  options_.prompt_tokens, options_.drift_tokens, model_.context_length());
    return {};
  }

  Result<void> open(std::string_view scheme) {
    Scheme parsed = CAIRN_TRY(parse_scheme(scheme));
    Session session = CAIRN_TRY(open_session(model_.spec(), std::move(parsed), memory_));
    lanes_.push_back({.scheme = std::string(scheme), .session = std::move(session)});
    return {};
  }

  void cut_text() {
    const size_t length = options_.context - (options_.bos ? 1 : 0);
    for (size_t first = 0; first < tokens_.size(); first += length) {
      const auto piece = tokens_.subspan(first, std::min(length, tokens_.size() - first));
      std::vector<int32_t> sequence;
      if (options_.bos) sequence.push_back(*options_.bos);
      sequence.insert(sequence.end(), piece.begin(), piece.end());
      if (sequence.size() > 1) sequences_.push_back(std::move(sequence));
    }
  }

  size_t stretch_count() const {
    size_t count = 0;
    for (const auto& sequence : sequences_) count += stretches_of(sequence);
    return count;
  }

  // The last token is only predicted.
  Result<void> measure(std::span<const int32_t> sequence) {
    const size_t rows = sequence.size() - 1;
    first_stretch_ = lanes_[0].stretches.size();
    for (Lane& lane : lanes_) {
      lane.seq = lane.session.start();
      lane.stretches.resize(first_stretch_ + stretches_of(sequence));
    }
    const size_t probed = rows - std::min<size_t>(rows, kProbed);  // the first of these rows
    for (size_t done = 0; done < rows;) {
      const bool is_probed = done >= probed;
      const size_t count =
          std::min<size_t>(is_probed ? rows - done : probed - done, longest_step());
      CAIRN_TRY(measure_step(sequence, done, count, is_probed));
      done += count;
    }
    for (Lane& lane : lanes_) lane.session.drop(lane.seq);
    return {};
  }

  // What every state takes at once, and memory for its logits.
  size_t longest_step() const {
    uint64_t most =
        std::min<uint64_t>(options_.step, kLogitBytes / (model_.vocabulary() * sizeof(float)));
    for (const Lane& lane : lanes_) most = std::min<uint64_t>(most, lane.session.max_run(lane.seq));
    return std::max<uint64_t>(most, 1);  // where a state takes no more, its plan says why
  }

  Result<void> measure_step(std::span<const int32_t> sequence,
                            size_t first,
                            size_t count,
                            bool is_probed) {
    const auto inputs = sequence.subspan(first, count),
               targets = sequence.subspan(first + 1, count);
    std::optional<Snapshot> before;
    if (is_probed) before = lanes_[0].session.snapshot(lanes_[0].seq);
    CAIRN_TRY(compute(lanes_[0], inputs, reference_, is_probed ? &probe_ : nullptr));
    std::vector<Normalizer> normalizers;
    for (size_t row = 0; row < count; ++row) {
      const Logits logits = of_row(reference_, row);
      normalizers.emplace_back(logits);
      CAIRN_TRY(note(lanes_[0], first + row, logits, normalizers[row], targets[row], 0));
    }
    for (Lane& lane : std::span(lanes_).subspan(1)) {
      if (before) CAIRN_TRY(probe_.measure(lane.session, *before, lane.attention));
      CAIRN_TRY(compute(lane, inputs, logits_));
      for (size_t row = 0; row < count; ++row) {
        const Logits reference = of_row(reference_, row), logits = of_row(logits_, row);
        const Normalizer normalizer(logits);
        const double kl = divergence(reference, normalizers[row], logits, normalizer);
        CAIRN_TRY(note(lane, first + row, logits, normalizer, targets[row], kl));
        lane.agreed += normalizer.likeliest == normalizers[row].likeliest;
      }
    }
    return {};
  }

  // probe: null, or what watches the pass.
  Result<void> compute(Lane& lane,
                       std::span<const int32_t> inputs,
                       std::vector<float>& logits,
                       AttentionProbe* probe = nullptr) {
    const auto start = Clock::now();
    logits.resize(inputs.size() * model_.vocabulary());
    wanted_.resize(inputs.size());
    std::iota(wanted_.begin(), wanted_.end(), 0);
    Step step = CAIRN_TRY(lane.session.plan({{.seq = lane.seq, .count = inputs.size()}}));
    if (probe != nullptr) probe->watch();
    CAIRN_TRY(model_.forward(step, inputs, wanted_, logits.data()));
    if (probe != nullptr) probe->finish(step);
    step.commit();
    lane.seconds += std::chrono::duration<double>(Clock::now() - start).count();
    computed_ += inputs.size();
    report_progress();
    return {};
  }

  Logits of_row(const std::vector<float>& logits, size_t row) const {
    return Logits(logits).subspan(row * model_.vocabulary(), model_.vocabulary());
  }

  Result<void> note(Lane& lane,
                    size_t position,
                    Logits logits,
                    const Normalizer& normalizer,
                    int32_t target,
                    double kl) {
    if (target < 0 || static_cast<size_t>(target) >= logits.size())
      return fail(Code::BadInput, "token {}: the vocabulary has {}", target, logits.size());
    if (!std::isfinite(normalizer.log_sum) || !std::isfinite(kl))
      return fail(Code::BadInput,
                  "scheme {}: the logits at position {} are no finite numbers; the model cannot be "
                  "measured with it",
                  lane.scheme, position);
    lane.surprise -= normalizer.log_probability(logits[static_cast<size_t>(target)]);
    lane.kl.push_back(kl);
    Stretch& stretch = lane.stretches[first_stretch_ + position / kStretch];
    stretch.kl += kl;
    stretch.rows += 1;
    return {};
  }

  Pos tokens_of_an_answer() const {
    if (options_.drift_tokens == 0) return 0;
    return (options_.bos ? 1 : 0) + options_.prompt_tokens + options_.drift_tokens;
  }
  uint64_t drift_tokens() const { return options_.prompts * tokens_of_an_answer(); }

  // Pieces of the text, evenly spread over it.
  TokenLists prompts() const {
    TokenLists prompts;
    const size_t length = std::min<size_t>(options_.prompt_tokens, tokens_.size());
    for (size_t i = 0; i < options_.prompts; ++i) {
      const auto piece = tokens_.subspan(i * (tokens_.size() - length) / options_.prompts, length);
      std::vector<int32_t>& prompt = prompts.emplace_back();
      if (options_.bos) prompt.push_back(*options_.bos);
      prompt.insert(prompt.end(), piece.begin(), piece.end());
    }
    return prompts;
  }

  Result<void> measure_drift() {
    const TokenLists prompts = this->prompts();
    TokenLists answers;
    for (Lane& lane : lanes_) {
      if (answers.empty()) {  // of the first, the reference
        answers =
            CAIRN_TRY(greedy_answers(model_, lane.session, prompts,
                                     {.tokens = options_.drift_tokens, .ends = options_.ends}));
      } else {
        lane.drift = drift_of(CAIRN_TRY(first_differences(model_, lane.session, prompts, answers)));
      }
      computed_ += drift_tokens();
      report_progress();
    }
    return {};
  }

  void report_progress() const {
    if (!options_.on_progress) return;
    uint64_t total = drift_tokens() * lanes_.size();
    for (const auto& sequence : sequences_) total += (sequence.size() - 1) * lanes_.size();
    options_.on_progress(computed_, total);
  }

  double perplexity(const Lane& lane) const {
    return std::exp(lane.surprise / static_cast<double>(lane.kl.size()));
  }

  // A state in f32 has four bytes for every number that it holds, whatever its retention.
  double bits_per_number(const Lane& lane) const {
    const Pos length = sequences_.front().size() - 1;  // the others are no longer
    const auto bytes = static_cast<double>(lane.session.bytes_for(length));
    return 32 * bytes / static_cast<double>(lanes_[0].session.bytes_for(length));
  }

  Fidelity result() const {
    Fidelity result{.perplexity = perplexity(lanes_[0]), .seconds = lanes_[0].seconds};
    for (const Lane& lane : std::span(lanes_).subspan(1)) {
      const auto count = static_cast<double>(lane.kl.size());
      SchemeFidelity scheme{.scheme = lane.scheme,
                            .tokens = lane.kl.size(),
                            .kl_mean = mean_of(lane.stretches),
                            .kl_p999 = nearest_rank(lane.kl, 0.999),
                            .top1 = static_cast<double>(lane.agreed) / count,
                            .perplexity = perplexity(lane),
                            .bits_per_number = bits_per_number(lane),
                            .seconds = lane.seconds,
                            .attention_error = lane.attention.mean(),
                            .drift = lane.drift};
      set_interval(lane.stretches, options_.seed, scheme);
      result.schemes.push_back(std::move(scheme));
    }
    return result;
  }

  Model& model_;
  const std::span<const int32_t> tokens_;
  const FidelityOptions& options_;
  Memory memory_;
  AttentionProbe probe_;
  std::vector<Lane> lanes_;  // the first is the reference
  std::vector<std::vector<int32_t>> sequences_;
  size_t first_stretch_ = 0;               // of the sequence at hand
  std::vector<float> reference_, logits_;  // of the step at hand: [rows, vocabulary]
  std::vector<uint32_t> wanted_;
  uint64_t computed_ = 0;
};

}  // namespace

Result<Fidelity> measure_fidelity(Model& model,
                                  std::span<const int32_t> tokens,
                                  std::span<const std::string> schemes,
                                  const FidelityOptions& options) {
  return Measurement(model, tokens, options).run(schemes);
}

std::optional<size_t> recommend(std::span<const SchemeFidelity> schemes, double kl) {
  std::optional<size_t> best;
  const auto cost = [&](size_t i) {
    return std::pair(schemes[i].bits_per_number, schemes[i].kl_mean);
  };
  for (size_t i = 0; i < schemes.size(); ++i)
    if (schemes[i].kl_high < kl && (!best || cost(i) < cost(*best))) best = i;
  return best;
}

}  // namespace cairn
