// A real model decodes on top of a long state, and reads a long prompt: tokens per second, and
// where the time goes.
//
//   decode_bench [--model PATH] ..
//
// Sequences of different lengths take turns, so that a disturbance of the machine meets all of
// them. Their state is random numbers: what attention costs does not depend on them, and nobody
// waits for a prefill. The read bandwidth is measured in every round of the same run.
#include <algorithm>
#include <string>

#include "bench/ceilings.h"
#include "bench/program.h"
#include "bench/random.h"
#include "cairn/models/model.h"

namespace cairn::bench {
namespace {

constexpr Pos kEmpty = 64, kShort = 500, kLong = 7424, kLongest = 8000;
constexpr Pos kTokens = 8;  // decoded at each length per round

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
  Decoder(const Program& program, std::string_view scheme)
      : model_(must(
            load_model(program.own("model"),
                       {.threads = program.threads(), .expand = Expand::no, .cache_folder = {}}))),
        session_(must(open_session(model_->spec(), must(parse_scheme(scheme)), memory_))),
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
                     random_.numbers(count * family.heads * family.width).data());
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

  // Seconds of a step over `count` new positions, and of its attention and writes.
  struct Read {
    double step = 0, state = 0;
  };
  Read read(SeqId seq, Pos count) {
    std::vector<int32_t> tokens(count);
    for (int32_t& token : tokens)
      token = static_cast<int32_t>(random_.below(static_cast<uint64_t>(model_->vocabulary())));
    const auto wanted = static_cast<uint32_t>(count - 1);
    model_->reset_state_seconds();
    const double start = seconds_now();
    Step step = must(session_.plan({{.seq = seq, .count = count}}));
    must(model_->forward(step, tokens, std::span(&wanted, 1), logits_.data()));
    step.commit();
    return {seconds_now() - start, model_->state_seconds().write + model_->state_seconds().attend};
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
  Random random_;
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

std::vector<double> ratios_of(const Series& a, const Series& b, double (*part)(const Cost&)) {
  std::vector<double> ratios;
  for (size_t i = 0; i < a.costs.size(); ++i) ratios.push_back(part(a.costs[i]) / part(b.costs[i]));
  return ratios;
}

// Of the rate at 7,424 positions over that at 64.
Goal goal_of(std::string_view scheme) {
  if (scheme == "f16") return at_least(0.53, 0.4);
  if (scheme == "affine8") return at_least(0.62, 0.5);
  return at_least(0.64, 0.5);
}

// The same of llama.cpp, with f16, q8_0 and q4_0 state.
double llama_cpp(std::string_view scheme) {
  if (scheme == "f16") return 0.105;
  return scheme == "affine8" ? 0.144 : 0.068;
}

std::vector<Row> decode_rows(std::string_view scheme, const Program& program) {
  Decoder decoder(program, scheme);
  const SeqId empty = decoder.make(kEmpty), brief = decoder.make(kShort),
              lengthy = decoder.make(kLong), longest = decoder.make(kLongest);
  Series at_empty, at_short, at_long, at_longest;
  std::vector<double> bandwidths, of_bandwidth, shares, writes, plans;
  const ColdBytes cold(more_than_caches_hold());
  decoder.decode(empty);  // builds the graph and wakes the threads
  for (int i = 0; i < program.pairs(); ++i) {
    at_empty.costs.push_back(decoder.decode(empty));
    at_long.costs.push_back(decoder.decode(lengthy));
    at_short.costs.push_back(decoder.decode(brief));
    at_longest.costs.push_back(decoder.decode(longest));
    Threads threads(program.threads());
    bandwidths.push_back(read_bandwidth(threads, cold));
    const Cost& cost = at_long.costs.back();
    of_bandwidth.push_back(decoder.bytes_seen(lengthy) / cost.attend / bandwidths.back());
    shares.push_back(cost.state() / cost.token);
    writes.push_back(cost.write / cost.token);
    plans.push_back(cost.plan_commit / cost.token);
  }
  const auto id = [&](std::string_view name) { return fmt::format("decode/{}/{}", name, scheme); };
  const auto name = [&](std::string_view what) { return fmt::format("{}: {}", scheme, what); };
  return {
      make_row(id("long"),
               name(fmt::format("decode rate at 7,424 positions over that at 64 (llama.cpp: {})",
                                llama_cpp(scheme))),
               ratios_of(at_empty, at_long, token_seconds), goal_of(scheme),
               {{"ms", 1e3 * at_long.median_of(token_seconds)},
                {"tokens_per_s", 1 / at_long.median_of(token_seconds)},
                {"tokens_per_s_at_64", 1 / at_empty.median_of(token_seconds)},
                {"threads", program.threads()},
                {"state_share", median(shares)},
                {"attend_ms", 1e3 * at_long.median_of(attend_seconds)},
                {"append_ms", 1e3 * at_long.median_of(append_seconds)}}),
      make_row(id("bandwidth"),
               name("bytes of state attended to per second over the read bandwidth"), of_bandwidth,
               {},
               {{"state_gb_per_s", median(of_bandwidth) * median(bandwidths) / 1e9},
                {"read_gb_per_s", median(bandwidths) / 1e9}}),
      make_row(id("append"),
               name("a step's write, plan and commit at 8,000 positions over that at 500"),
               ratios_of(at_longest, at_short, append_seconds), at_most(1.0, 1.2),
               {{"us_at_8000", 1e6 * at_longest.median_of(append_seconds)},
                {"us_at_500", 1e6 * at_short.median_of(append_seconds)}}),
      make_row(id("encoding"), name("encoding a token's state over its step, at 7,424 positions"),
               writes, at_most(0.01, 0.03), {}),
      make_row(id("bookkeeping"), name("planning and committing over the step, at 7,424 positions"),
               plans, at_most(0.01, 0.01), {})};
}

// A prompt of 7,136 tokens, 512 at a time; once, since it takes most of a minute.
Row prefill_row(const Program& program) {
  constexpr Pos kPrompt = 7136, kRun = 512;
  Decoder decoder(program, "f16");
  decoder.read(decoder.make(0), kRun);  // builds the graph and wakes the threads
  const SeqId seq = decoder.make(0);
  const Decoder::Read first = decoder.read(seq, kRun);
  Decoder::Read all = first;
  for (Pos done = kRun; done < kPrompt; done += kRun) {
    const Decoder::Read next = decoder.read(seq, std::min(kRun, kPrompt - done));
    all.step += next.step;
    all.state += next.state;
  }
  return make_row("prefill/f16",
                  "prefill rate of 7,136 tokens over that of the first 512 (llama.cpp: 0.40)",
                  {kPrompt / all.step / (kRun / first.step)}, at_least(0.65, 0.5),
                  {{"ms", 1e3 * all.step},
                   {"tokens_per_s", kPrompt / all.step},
                   {"tokens_per_s_first", kRun / first.step},
                   {"state_share", all.state / all.step},
                   {"threads", program.threads()}});
}

}  // namespace
}  // namespace cairn::bench

int main(int count, char** words) {
  using namespace cairn::bench;
  Program program(count, words, {{"model", "models/smollm2.gguf"}});
  for (const std::string_view scheme : {"f16", "affine8", "affine4"})
    program.add(fmt::format("decode/{}", scheme),
                [&, scheme] { return decode_rows(scheme, program); });
  program.add_row("prefill/f16", [&] { return prefill_row(program); });
  return program.run();
}
