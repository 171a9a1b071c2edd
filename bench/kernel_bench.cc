// What attention is made of beside plain sequences (attend_bench): pages that sequences share,
// pages in any order, latents, sparse choices; each against a ceiling of the same run.
#include <algorithm>
#include <numeric>

#include "bench/paged_state.h"
#include "bench/program.h"
#include "bench/random.h"
#include "cairn/state/sparse.h"

namespace cairn::bench {
namespace {

constexpr uint32_t kHeads = 3, kGroup = 3;  // SmolLM2's
constexpr uint32_t kHeadDim = 64;

struct Machine {
  Threads threads;
  ColdBytes cold{more_than_caches_hold()};
};

// The seconds of both, one after the other, `pairs` times.
struct Pairs {
  std::vector<double> ours, theirs;
  std::vector<double> ratios;  // ours over theirs
};
Pairs measure(int pairs,
              const std::function<double()>& ours,
              const std::function<double()>& theirs) {
  Pairs result;
  for (int i = 0; i < pairs; ++i) {
    result.ours.push_back(ours());
    result.theirs.push_back(theirs());
    result.ratios.push_back(result.ours.back() / result.theirs.back());
  }
  return result;
}

SlotSpec grouped() { return attention({.heads = kHeads, .head_dim = kHeadDim}); }

// Eight sequences that share a prefix against eight that do not.
Row shared_row(std::string_view scheme, const Program& program, Machine& machine) {
  constexpr Pos kPrefix = 32768, kOwn = 64;
  PagedShape shape{.slot = grouped(),
                   .scheme = scheme,
                   .layers = 6,
                   .length = kPrefix + kOwn,
                   .query_heads = kHeads * kGroup,
                   .sequences = 8};
  PagedState separate(shape);
  shape.shared = kPrefix;
  PagedState shared(shape);
  const auto seconds = [&](PagedState& state) {
    return seconds_of([&] { state.step(machine.threads); });
  };
  seconds(separate);
  seconds(shared);
  const Pairs pairs = measure(
      program.pairs(), [&] { return seconds(shared); }, [&] { return seconds(separate); });
  return make_row(
      fmt::format("kernel_shared_prefix_{}", scheme),
      fmt::format("time of 8 sequences sharing 32k positions / of 8 separate ones: {}", scheme),
      pairs.ratios, at_most(0.5, 0.7),
      {{"ms", median(pairs.ours) * 1e3},
       {"separate_ms", median(pairs.theirs) * 1e3},
       {"separate_gb_per_s", separate.bytes() / median(pairs.theirs) * 1e-9},
       {"read_gb_per_s", read_bandwidth(machine.threads, machine.cold) * 1e-9}});
}

// Pages that lie anywhere against pages that follow one another, of a sequence that no cache holds.
Row order_row(std::string_view scheme,
              uint32_t page_positions,
              const Program& program,
              Machine& machine) {
  constexpr int kSweeps = 5;
  PagedShape shape{.slot = grouped(),
                   .scheme = scheme,
                   .length = scheme == "f16" ? 180'224u : 327'680u,
                   .query_heads = kHeads * kGroup,
                   .page_positions = page_positions};
  PagedState contiguous(shape);
  shape.is_shuffled = true;
  PagedState shuffled(shape);
  const auto seconds = [&](PagedState& state) {  // several sweeps: one takes few milliseconds
    return seconds_of([&] {
             for (int i = 0; i < kSweeps; ++i) state.step(machine.threads);
           }) /
           kSweeps;
  };
  seconds(contiguous);
  seconds(shuffled);
  const Pairs pairs = measure(
      program.pairs(), [&] { return seconds(contiguous); }, [&] { return seconds(shuffled); });
  return make_row(
      fmt::format("kernel_page_order_{}_p{}", scheme, page_positions),
      fmt::format("time of pages of {} in order / in random order: {}", page_positions, scheme),
      pairs.ratios, at_least(0.97, 0.93),
      {{"ms", median(pairs.theirs) * 1e3},
       {"contiguous_ms", median(pairs.ours) * 1e3},
       {"gb_per_s", shuffled.bytes() / median(pairs.theirs) * 1e-9},
       {"read_gb_per_s", read_bandwidth(machine.threads, machine.cold) * 1e-9}});
}

// Latent attention in absorbed form, DeepSeek's widths.
PagedShape latent_shape(std::string_view scheme, uint32_t layers, Pos length) {
  return {.slot = latent({.latent_dim = 512, .rope_dim = 64}),
          .scheme = scheme,
          .layers = layers,
          .length = length,
          .query_heads = 16};
}

Row latent_row(std::string_view scheme, const Program& program, Machine& machine) {
  PagedState state(latent_shape(scheme, 10, scheme == "affine4" ? 40960 : 24576));
  state.step(machine.threads);
  double limit = 0;
  const Pairs pairs = measure(
      program.pairs(),
      [&] { return limit = state.limit(measure_peaks(machine.threads, machine.cold)); },
      [&] { return seconds_of([&] { state.step(machine.threads); }); });
  const bool is_eight = scheme == "affine8";
  return make_row(
      fmt::format("kernel_latent_{}", scheme),
      fmt::format("latents, 16 heads, at {}: {}: limit / time", state.shape().length, scheme),
      pairs.ratios, is_eight ? at_least(0.6, 0.35) : Goal{},
      {{"ms", median(pairs.theirs) * 1e3},
       {"limit_ms", median(pairs.ours) * 1e3},
       {"gb_per_s", state.bytes() / median(pairs.theirs) * 1e-9},
       {"gop_per_s", state.operations() / median(pairs.theirs) * 1e-9}});
}

Row latent_over_f32_row(std::string_view scheme, const Program& program, Machine& machine) {
  PagedState exact(latent_shape("f32", 10, 8192)), encoded(latent_shape(scheme, 10, 8192));
  const auto seconds = [&](PagedState& state) {
    return seconds_of([&] { state.step(machine.threads); });
  };
  seconds(exact);
  seconds(encoded);
  const Pairs pairs = measure(
      program.pairs(), [&] { return seconds(exact); }, [&] { return seconds(encoded); });
  return make_row(fmt::format("kernel_latent_{}_over_f32", scheme),
                  fmt::format("latents, 16 heads, at 8,192: time of f32 / of {}", scheme),
                  pairs.ratios, scheme == "affine8" ? at_least(1.2, 1.2) : Goal{},
                  {{"ms", median(pairs.theirs) * 1e3}, {"f32_ms", median(pairs.ours) * 1e3}});
}

// A lightning indexer over 65,536 positions; every thread has a query.
struct Indexer {
  static constexpr Pos kPositions = 65536;
  static constexpr uint32_t kWidth = 128, kBest = 2048;

  Indexer(uint32_t threads, uint32_t heads)
      : state({.slot = latent({.latent_dim = 64, .rope_dim = 64, .index_dim = kWidth}),
               .scheme = "affine8",
               .length = kPositions,
               .queries = threads,
               .query_heads = 1}),
        numbers(Random(5).numbers(threads * heads * kWidth)),
        weights(Random(6).numbers(threads * heads)),
        queries{.data = numbers.data(), .weights = weights.data(), .heads = heads},
        scores(threads, std::vector<float>(kPositions)),
        positions(threads * kBest),
        counts(threads) {}

  // Seconds of the scores alone, and of the scores with the choice.
  double score(Threads& threads) {
    return seconds_of([&] {
      threads.run([&](uint32_t i) { index_scores(state.view(0), queries, i, scores[i].data()); });
    });
  }
  double choose_best(Threads& threads) {
    return seconds_of([&] {
      threads.run([&](uint32_t i) {
        choose(state.view(0), queries, kBest,
               {.positions = positions.data(), .counts = counts.data(), .row_stride = kBest},
               {i, threads.count()});
      });
    });
  }

  PagedState state;
  std::vector<float> numbers, weights;
  IndexQueries queries;
  std::vector<std::vector<float>> scores;
  std::vector<uint32_t> positions, counts;
};

// Scores of DeepSeek-V3.2's shape against the peak of 16-bit products, and the exact choice against
// those scores. What the choice takes is the difference to scores of one head, which are cheap.
std::vector<Row> indexer_rows(const Program& program, Machine& machine) {
  constexpr uint32_t kIndexHeads = 64;
  constexpr int kRepeats = 10;  // a choice takes about a millisecond
  Threads& threads = machine.threads;
  Indexer indexer(threads.count(), kIndexHeads), cheap(threads.count(), 1);
  const double operations =
      2.0 * Indexer::kWidth * kIndexHeads * Indexer::kPositions * threads.count();
  indexer.score(threads);
  cheap.choose_best(threads);
  const Pairs scoring = measure(
      program.pairs(), [&] { return operations / integer_peak(threads); },
      [&] { return indexer.score(threads); });
  const Pairs choosing = measure(
      program.pairs(),
      [&] {
        double difference = 0;
        for (int i = 0; i < kRepeats; ++i) {
          difference -= cheap.score(threads);
          difference += cheap.choose_best(threads);
        }
        return difference / kRepeats;
      },
      [&] { return indexer.score(threads); });
  return {
      make_row("kernel_index_scores",
               "scores of an indexer, 64 heads of 128, 64k positions: rate / integer peak",
               scoring.ratios, at_least(0.6, 0.4),
               {{"ms", median(scoring.theirs) * 1e3},
                {"gop_per_s", operations / median(scoring.theirs) * 1e-9},
                {"peak_gop_per_s", operations / median(scoring.ours) * 1e-9}}),
      make_row("kernel_top_k", "exact choice of 2,048 of 64k scores / time of the scores",
               choosing.ratios, at_most(0.10, 0.25),
               {{"ms", median(choosing.ours) * 1e3}, {"score_ms", median(choosing.theirs) * 1e3}})};
}

// Attention over 2,048 positions of 65,536: any of them, against neighbours.
Row gather_row(std::string_view scheme, const Program& program, Machine& machine) {
  constexpr Pos kPositions = 65536;
  constexpr uint32_t kChosen = 2048, kLayers = 4;
  PagedState state(latent_shape(scheme, kLayers, kPositions));
  Random random(7);
  std::vector<uint32_t> all(kPositions), positions(kChosen);
  std::iota(all.begin(), all.end(), 0u);
  const uint32_t count = kChosen;
  const Chosen chosen{.positions = positions.data(), .counts = &count, .row_stride = kChosen};
  // Every layer and pair chooses anew, and no cache holds what was chosen before.
  const auto seconds = [&](bool is_sparse) {
    read_bandwidth(machine.threads, machine.cold);
    double sum = 0;
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      if (is_sparse) {
        random.shuffle(all);
        std::copy_n(all.begin(), kChosen, positions.begin());
        std::sort(positions.begin(), positions.end());
      } else {
        std::iota(positions.begin(), positions.end(),
                  static_cast<uint32_t>(random.below(kPositions - kChosen)));
      }
      sum += seconds_of([&] { state.attend_layer(machine.threads, layer, &chosen); });
    }
    return sum;
  };
  seconds(true);
  const Pairs pairs = measure(
      program.pairs(), [&] { return seconds(false); }, [&] { return seconds(true); });
  const double bytes =
      static_cast<double>(state.record_bytes()) * kChosen;  // record_bytes() counts all layers
  return make_row(
      fmt::format("kernel_gather_{}", scheme),
      fmt::format("latents, 16 heads: time of 2,048 neighbours / of any 2,048 of 64k: {}", scheme),
      pairs.ratios, at_least(0.8, 0.6),
      {{"ms", median(pairs.theirs) * 1e3},
       {"neighbours_ms", median(pairs.ours) * 1e3},
       {"gb_per_s", bytes / median(pairs.theirs) * 1e-9},
       {"read_gb_per_s", read_bandwidth(machine.threads, machine.cold) * 1e-9}});
}

int run(int count, char** words) {
  Program program(count, words);
  Machine machine{.threads = Threads(program.threads())};
  for (const std::string_view scheme : {"f16", "affine8"})
    program.add_row(fmt::format("shared_prefix/{}", scheme),
                    [&, scheme] { return shared_row(scheme, program, machine); });
  for (const std::string_view scheme : {"f16", "affine8"})
    for (const uint32_t page_positions : {16u, 32u, 64u})
      program.add_row(fmt::format("page_order/{}/{}", scheme, page_positions),
                      [&, scheme, page_positions] {
                        return order_row(scheme, page_positions, program, machine);
                      });
  for (const std::string_view scheme : {"f32", "f16", "affine8", "affine4"})
    program.add_row(fmt::format("latent/{}", scheme),
                    [&, scheme] { return latent_row(scheme, program, machine); });
  for (const std::string_view scheme : {"affine8", "affine4"})
    program.add_row(fmt::format("latent_over_f32/{}", scheme),
                    [&, scheme] { return latent_over_f32_row(scheme, program, machine); });
  program.add("indexer", [&] { return indexer_rows(program, machine); });
  for (const std::string_view scheme : {"f16", "affine8", "affine4"})
    program.add_row(fmt::format("gather/{}", scheme),
                    [&, scheme] { return gather_row(scheme, program, machine); });
  return program.run();
}

}  // namespace
}  // namespace cairn::bench

int main(int count, char** words) { return cairn::bench::run(count, words); }
