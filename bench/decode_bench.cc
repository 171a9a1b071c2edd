// A real model decodes on top of a long state: tokens per second, and where the time goes.
//
//   decode_bench [--json] [--model PATH] [--threads N] [--scheme TEXT] [--pairs N]
//
// Three sequences of different lengths take turns, so that a disturbance of the machine meets all
// of them. Their state is random numbers: what attention costs does not depend on them, and nobody
// waits for a prefill. The read bandwidth is measured in every round of the same run.
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "bench/ceilings.h"
#include "bench/rows.h"
#include "cairn/models/model.h"

namespace cairn::bench {
namespace {

constexpr Pos kEmpty = 1, kShort = 500, kLong = 7424, kLongest = 8000;
constexpr Pos kTokens = 8;  // decoded at each length per round
constexpr size_t kColdBytes = 512 << 20;

struct Options {
  bool is_json = false;
  std::string model = "models/smollm2.gguf";
  std::string scheme = "f16";
  uint32_t threads = 2;
  int pairs = 9;
};

template <class T>
T must(Result<T> result) {
  if (!result) {
    fmt::print(stderr, "decode_bench: {}\n", result.error().message);
    std::exit(1);
  }
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

std::vector<float> random_numbers(size_t count) {
  std::vector<float> numbers(count);
  uint64_t state = 1;
  for (float& number : numbers) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    number = static_cast<float>(static_cast<int32_t>(state >> 32)) * 0x1p-30f;  // [-2, 2)
  }
  return numbers;
}

// Seconds per token.
struct Cost {
  double token = 0;
  double write = 0, attend = 0;
  double plan_commit = 0;
  double append() const { return write + plan_commit; }
  double state() const { return append() + attend; }
};

class Decoder {
 public:
  explicit Decoder(const Options& options)
      : model_(must(
            load_model(options.model,
                       {.threads = options.threads, .expand = Expand::no, .cache_folder = {}}))),
        session_(must(open_session(model_->spec(), must(parse_scheme(options.scheme)), memory_))),
        logits_(model_->vocabulary()) {}

  // A sequence of `length` random positions.
  SeqId make(Pos length) {
    const SeqId seq = session_.start();
    for (Pos left = length; left > 0;) {
      const Pos count = std::min<Pos>(left, 512);
      Step step = must(session_.plan({{.seq = seq, .count = count}}));
      for (const SlotId slot : session_.slots())
        for (const FamilySpec& family : session_.spec().slots[slot.value].families)
          step.write(slot, family.family->id,
                     random_numbers(count * family.heads * family.width).data());
      step.commit();
      left -= count;
    }
    return seq;
  }

  // Decodes kTokens more.
  Cost decode(SeqId seq) {
    Cost cost;
    model_->reset_state_seconds();
    const double start = seconds_now();
    for (Pos i = 0; i < kTokens; ++i) cost.plan_commit += token(seq);
    cost.token = seconds_now() - start;
    cost.write = model_->state_seconds().write;
    cost.attend = model_->state_seconds().attend;
    for (double* seconds : {&cost.token, &cost.write, &cost.attend, &cost.plan_commit})
      *seconds /= kTokens;
    return cost;
  }

  // Bytes of state that one query reads.
  double bytes_seen(SeqId seq) const {
    return static_cast<double>(session_.bytes_for(session_.length(seq)));
  }

 private:
  // Returns the time of plan and commit.
  double token(SeqId seq) {
    const int32_t token = static_cast<int32_t>(session_.length(seq) * 7919 % model_->vocabulary());
    const uint32_t wanted = 0;
    const double start = seconds_now();
    Step step = must(session_.plan({{.seq = seq, .count = 1}}));
    const double planned = seconds_now();
    must(model_->forward(step, std::span(&token, 1), std::span(&wanted, 1), logits_.data()));
    const double computed = seconds_now();
    step.commit();
    return planned - start + seconds_now() - computed;
  }

  Memory memory_;
  std::unique_ptr<Model> model_;
  Session session_;
  std::vector<float> logits_;
};

// All rounds of one length.
struct Series {
  std::vector<Cost> costs;
  double median_of(double (*part)(const Cost&)) const {
    std::vector<double> values;
    for (const Cost& cost : costs) values.push_back(part(cost));
    return median(values);
  }
};

double token_seconds(const Cost& cost) { return cost.token; }
double append_seconds(const Cost& cost) { return cost.append(); }
double attend_seconds(const Cost& cost) { return cost.attend; }

Row make_row(std::string id,
             std::string name,
             std::vector<double> ratios,
             std::string better,
             double goal,
             double floor) {
  return {.id = std::move(id),
          .name = std::move(name),
          .ratio = median(ratios),
          .better = std::move(better),
          .goal = goal,
          .floor = floor,
          .spread_low = least(ratios),
          .spread_high = most(ratios),
          .detail = {},
          .text = {}};
}

std::vector<double> ratios_of(const Series& a, const Series& b, double (*part)(const Cost&)) {
  std::vector<double> ratios;
  for (size_t i = 0; i < a.costs.size(); ++i) ratios.push_back(part(a.costs[i]) / part(b.costs[i]));
  return ratios;
}

std::vector<Row> measure(const Options& options) {
  Decoder decoder(options);
  const SeqId empty = decoder.make(kEmpty), brief = decoder.make(kShort),
              lengthy = decoder.make(kLong), longest = decoder.make(kLongest);
  Series at_empty, at_short, at_long, at_longest;
  std::vector<double> bandwidths, of_bandwidth, shares;
  const ColdBytes cold(kColdBytes);
  decoder.decode(empty);  // builds the graph and wakes the threads
  for (int i = 0; i < options.pairs; ++i) {
    at_empty.costs.push_back(decoder.decode(empty));
    at_long.costs.push_back(decoder.decode(lengthy));
    at_short.costs.push_back(decoder.decode(brief));
    at_longest.costs.push_back(decoder.decode(longest));
    Threads threads(options.threads);
    bandwidths.push_back(read_bandwidth(threads, cold));
    const Cost& cost = at_long.costs.back();
    of_bandwidth.push_back(decoder.bytes_seen(lengthy) / cost.attend / bandwidths.back());
    shares.push_back(cost.state() / cost.token);
  }

  const std::string suffix = "/" + options.scheme;
  Row rate =
      make_row("decode/long" + suffix,
               "decode rate at 7,424 positions over that at an empty context (llama.cpp: 0.105)",
               ratios_of(at_empty, at_long, token_seconds), "higher", 0.5, 0.105);
  rate.detail = {{"tokens_per_s", 1 / at_long.median_of(token_seconds)},
                 {"tokens_per_s_empty", 1 / at_empty.median_of(token_seconds)},
                 {"threads", options.threads},
                 {"state_share", median(shares)},
                 {"attend_ms", 1e3 * at_long.median_of(attend_seconds)},
                 {"append_ms", 1e3 * at_long.median_of(append_seconds)}};
  Row bandwidth = make_row("decode/bandwidth" + suffix,
                           "bytes of state attended to per second over the read bandwidth",
                           of_bandwidth, "higher", 0.85, 0.5);
  bandwidth.detail = {{"state_gb_per_s", median(of_bandwidth) * median(bandwidths) / 1e9},
                      {"read_gb_per_s", median(bandwidths) / 1e9}};
  Row append = make_row("decode/append" + suffix,
                        "a step's write, plan and commit at 8,000 positions over that at 500",
                        ratios_of(at_longest, at_short, append_seconds), "lower", 1.0, 1.2);
  append.detail = {{"us_at_8000", 1e6 * at_longest.median_of(append_seconds)},
                   {"us_at_500", 1e6 * at_short.median_of(append_seconds)}};
  return {rate, bandwidth, append};
}

Options parse(int count, char** words) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const auto value = [&] { return i + 1 < count ? std::string(words[++i]) : std::string(); };
    if (word == "--json")
      options.is_json = true;
    else if (word == "--model")
      options.model = value();
    else if (word == "--scheme")
      options.scheme = value();
    else if (word == "--threads")
      options.threads = static_cast<uint32_t>(std::atoi(value().c_str()));
    else if (word == "--pairs")
      options.pairs = std::max(1, std::atoi(value().c_str()));
    else {
      fmt::print(stderr, "decode_bench: {}: not an option\n", word);
      std::exit(2);
    }
  }
  return options;
}

}  // namespace
}  // namespace cairn::bench

int main(int count, char** words) {
  using namespace cairn::bench;
  const Options options = parse(count, words);
  const std::vector<Row> rows = measure(options);
  if (options.is_json) {
    print_json(rows);
  } else {
    for (const Row& row : rows) print_row(row);
  }
}
