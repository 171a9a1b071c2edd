// Attention over encoded pages, against what the machine can do in the same run: decode against its
// limit (PagedState::limit), prefill against its f32 fused multiply-adds, one encoding against
// another, all against ggml's flash_attn_ext on the same shapes.
#include <algorithm>
#include <string>

#include "bench/ceilings.h"
#ifdef CAIRN_HAS_GGML
#include "bench/ggml_attention.h"
#endif
#include "bench/paged_state.h"
#include "bench/program.h"

namespace cairn::bench {
namespace {

struct Shape {
  std::string_view scheme;
  uint32_t group = 3;  // query heads per key head
  uint32_t head_dim = 64;
  uint32_t key_heads = 3;
  uint32_t layers = 30;
  Pos positions = 7424;  // that a query sees, or that stand before the run
  Pos queries = 1;       // of the run
  uint32_t page_positions = 64;

  Pos length() const { return queries == 1 ? positions : positions + queries; }
  PagedShape paged() const {
    return {.slot = attention({.heads = key_heads, .head_dim = head_dim}),
            .scheme = scheme,
            .layers = layers,
            .length = length(),
            .queries = queries,
            .query_heads = key_heads * group,
            .page_positions = page_positions};
  }
  std::string name() const {
    return fmt::format("{} {} g{} d{} p{}", queries == 1 ? "decode" : "prefill", scheme, group,
                       head_dim, page_positions);
  }
};

// Of limit over time, for the usual groups of 3 and 4; other schemes have none.
Goal goal_of(const Shape& shape) {
  if (shape.scheme == "f16" || shape.scheme == "bf16") return at_least(0.85, 0.65);
  if (shape.scheme == "affine8") return at_least(0.80, 0.55);
  if (shape.scheme == "affine4") return at_least(0.70, 0.50);
  if (shape.scheme == "turbo-k8v3") return at_least(0.60, 0.60);
  return {};
}

Row decode_row(const Shape& shape,
               const Program& program,
               Threads& threads,
               const ColdBytes& cold) {
  PagedState state(shape.paged());
  state.step(threads);
  std::vector<double> ratios, times, reads, limits;
  for (int i = 0; i < program.pairs(); ++i) {
    const Peaks peaks = measure_peaks(threads, cold);
    times.push_back(seconds_of([&] { state.step(threads); }));
    reads.push_back(peaks.read);
    limits.push_back(state.limit(peaks));
    ratios.push_back(limits.back() / times.back());
  }
  std::string id =
      fmt::format("attend_decode_{}_g{}_d{}", shape.scheme, shape.group, shape.head_dim);
  std::string pages;
  if (shape.page_positions != 64) {
    id += fmt::format("_pages_of_{}", shape.page_positions);
    pages = fmt::format(", pages of {}", shape.page_positions);
  }
  return make_row(id,
                  fmt::format("decode at {}: {}, {} queries per key head, dim {}{}: limit / time",
                              shape.positions, shape.scheme, shape.group, shape.head_dim, pages),
                  ratios, goal_of(shape),
                  {{"gb_per_s", state.bytes() / median(times) * 1e-9},
                   {"read_gb_per_s", median(reads) * 1e-9},
                   {"ms", median(times) * 1e3},
                   {"best_ms", least(times) * 1e3},
                   {"limit_ms", median(limits) * 1e3},
                   {"threads", threads.count()}});
}

// What the plainest loop reaches of such a limit.
Row mixed_row(size_t times, const Program& program, Threads& threads, const ColdBytes& cold) {
  std::vector<double> ratios, times_taken, limits;
  for (int i = 0; i < program.pairs(); ++i) {
    const double read = read_bandwidth(threads, cold), fma = fma_peak(threads);
    const Mixed mixed = read_and_multiply(threads, cold, times);
    limits.push_back(std::max(mixed.bytes / read, mixed.operations / fma));
    times_taken.push_back(mixed.seconds);
    ratios.push_back(limits.back() / times_taken.back());
  }
  return make_row(
      fmt::format("attend_plain_loop_{}_fma", times),
      fmt::format("a loop that reads lines and multiplies each by {} vectors of 16: limit / time",
                  times),
      ratios, {},
      {{"ms", median(times_taken) * 1e3},
       {"limit_ms", median(limits) * 1e3},
       {"threads", threads.count()}});
}

Row prefill_row(const Shape& shape, const Program& program, Threads& threads) {
  PagedState state(shape.paged());
  state.step(threads);
  std::vector<double> ratios, rates, peaks;
  for (int i = 0; i < program.pairs(); ++i) {
    peaks.push_back(fma_peak(threads));
    rates.push_back(state.operations() / seconds_of([&] { state.step(threads); }));
    ratios.push_back(rates.back() / peaks.back());
  }
  return make_row(
      fmt::format("attend_prefill_{}_at_{}_{}_g{}_d{}", shape.queries, shape.positions,
                  shape.scheme, shape.group, shape.head_dim),
      fmt::format("prefill of {} at {}: {}, {} queries per key head, dim {}: rate / f32 peak",
                  shape.queries, shape.positions, shape.scheme, shape.group, shape.head_dim),
      ratios, at_least(0.8, 0.65),
      {{"gflop_per_s", median(rates) * 1e-9},
       {"peak_gflop_per_s", median(peaks) * 1e-9},
       {"ms", state.operations() / median(rates) * 1e3},
       {"best_gflop_per_s", most(rates) * 1e-9},
       {"threads", threads.count()}});
}

// Fewer bytes must be less time.
struct Comparison {
  std::string_view scheme, other;
  Goal goal;
};
constexpr Comparison kComparisons[] = {{"affine8", "f16", at_most(0.70, 0.85)},
                                       {"affine4", "affine8", at_most(0.85, 1.0)},
                                       {"turbo-k8v3", "f16", at_most(1.0, 1.0)},
                                       {"affine8", "f32", at_most(0.40, 0.50)}};

Row comparison_row(const Comparison& comparison, const Program& program, Threads& threads) {
  const Shape shape{.scheme = comparison.scheme}, other{.scheme = comparison.other};
  PagedState ours(shape.paged()), theirs(other.paged());
  ours.step(threads);
  theirs.step(threads);
  std::vector<double> ratios, our_times, their_times;
  for (int i = 0; i < program.pairs(); ++i) {
    our_times.push_back(seconds_of([&] { ours.step(threads); }));
    their_times.push_back(seconds_of([&] { theirs.step(threads); }));
    ratios.push_back(our_times.back() / their_times.back());
  }
  return make_row(
      fmt::format("attend_{}_over_{}", comparison.scheme, comparison.other),
      fmt::format("decode at {}: time of {} / of {}", shape.positions, shape.scheme, other.scheme),
      ratios, comparison.goal,
      {{"ms", median(our_times) * 1e3},
       {"other_ms", median(their_times) * 1e3},
       {"threads", threads.count()}});
}

#ifdef CAIRN_HAS_GGML
// The same step by ggml.
struct Peer {
  Shape shape;
  std::string_view type;
  Goal goal;
};

Row peer_row(const Peer& peer, const Program& program, Threads& threads) {
  const Shape& shape = peer.shape;
  PagedState ours(shape.paged());
  GgmlAttention theirs({.type = peer.type,
                        .head_dim = shape.head_dim,
                        .key_heads = shape.key_heads,
                        .query_heads = shape.key_heads * shape.group,
                        .layers = shape.layers,
                        .positions = shape.length(),
                        .queries = shape.queries},
                       threads.count());
  ours.step(threads);
  theirs.seconds_of_step();
  std::vector<double> ratios, our_times, their_times;
  for (int i = 0; i < program.pairs(); ++i) {
    threads.run([](uint32_t) {});  // wakes them, as ggml's are woken
    our_times.push_back(seconds_of([&] { ours.step(threads); }));
    their_times.push_back(theirs.seconds_of_step());
    ratios.push_back(our_times.back() / their_times.back());
  }
  Row row = make_row(
      fmt::format("attend_over_ggml_{}_at_{}_{}", shape.queries, shape.positions, shape.scheme),
      fmt::format("{} queries at {}, dim {}: time of {} / time of ggml's {}", shape.queries,
                  shape.positions, shape.head_dim, shape.scheme, peer.type),
      ratios, peer.goal,
      {{"ms", median(our_times) * 1e3},
       {"ggml_ms", median(their_times) * 1e3},
       {"threads", threads.count()}});
  row.text["ggml"] = ggml_features();
  return row;
}

constexpr Shape kPeerDecode8k{.scheme = "f16", .positions = 8192};
constexpr Shape kPeerDecode32k{.scheme = "f16", .layers = 8, .positions = 32768};
constexpr Shape kPeerPrefill0{.scheme = "f16", .layers = 4, .positions = 0, .queries = 512};
constexpr Shape kPeerPrefill4k{.scheme = "f16", .layers = 1, .positions = 4096, .queries = 512};

std::vector<Peer> peers() {
  struct Column {
    std::string_view scheme, type;
    Goal decode, prefill;
  };
  constexpr Column kColumns[] = {{"f16", "f16", at_most(0.17, 0.25), at_most(0.35, 0.5)},
                                 {"affine8", "q8_0", at_most(0.10, 0.15), at_most(0.06, 0.1)},
                                 {"affine4", "q4_0", at_most(0.07, 0.12), at_most(0.06, 0.1)}};
  std::vector<Peer> peers;
  for (const Column& column : kColumns)
    for (Shape shape : {kPeerDecode8k, kPeerDecode32k, kPeerPrefill0, kPeerPrefill4k}) {
      shape.scheme = column.scheme;
      peers.push_back({shape, column.type, shape.queries == 1 ? column.decode : column.prefill});
    }
  return peers;
}
#endif

const Shape kShapes[] = {
    {.scheme = "f16"},
    {.scheme = "bf16"},
    {.scheme = "f32"},
    {.scheme = "f16", .group = 1},
    {.scheme = "f16", .group = 4},
    {.scheme = "f16", .group = 8},
    {.scheme = "f16", .group = 3, .head_dim = 128, .layers = 15},
    {.scheme = "f16", .group = 8, .head_dim = 128, .layers = 15},
    {.scheme = "f16", .page_positions = 16},
    {.scheme = "affine8"},
    {.scheme = "affine8", .group = 4},
    {.scheme = "affine8", .group = 8},
    {.scheme = "affine8", .group = 4, .head_dim = 128, .layers = 15},
    {.scheme = "affine8", .page_positions = 16},
    {.scheme = "affine4"},
    {.scheme = "affine4", .group = 4},
    {.scheme = "affine4", .group = 8},
    {.scheme = "affine4", .group = 4, .head_dim = 128, .layers = 15},
    {.scheme = "affine2"},
    {.scheme = "affine3"},
    {.scheme = "affine5"},
    {.scheme = "affine6"},
    {.scheme = "turbo-k8v3"},
    {.scheme = "f16", .layers = 4, .positions = 0, .queries = 512},
    {.scheme = "f16", .layers = 2, .positions = 4096, .queries = 512},
    {.scheme = "affine8", .layers = 2, .positions = 4096, .queries = 512},
    {.scheme = "affine4", .layers = 2, .positions = 4096, .queries = 512},
    {.scheme = "turbo-k8v3", .layers = 2, .positions = 4096, .queries = 512},
    {.scheme = "bf16", .layers = 2, .positions = 4096, .queries = 512},
    {.scheme = "f32", .layers = 2, .positions = 4096, .queries = 512},
    {.scheme = "f16", .group = 4, .head_dim = 128, .layers = 1, .positions = 4096, .queries = 512},
};

int run(int count, char** words) {
  Program program(count, words);
  Threads threads(program.threads());
  const ColdBytes cold(more_than_caches_hold());
  for (const Shape& shape : kShapes)
    program.add_row(shape.name(), [&] {
      return shape.queries == 1 ? decode_row(shape, program, threads, cold)
                                : prefill_row(shape, program, threads);
    });
  for (const size_t times : {6, 12, 18})
    program.add_row(fmt::format("plain loop {}", times),
                    [&, times] { return mixed_row(times, program, threads, cold); });
  for (const Comparison& comparison : kComparisons)
    program.add_row(fmt::format("compare {} {}", comparison.scheme, comparison.other),
                    [&] { return comparison_row(comparison, program, threads); });
#ifdef CAIRN_HAS_GGML
  for (const Peer& peer : peers()) {
    const Shape& shape = peer.shape;
    program.add_row(fmt::format("ggml {} {} at {}", shape.queries == 1 ? "decode" : "prefill",
                                shape.scheme, shape.positions),
                    [&, peer] { return peer_row(peer, program, threads); });
  }
#endif
  return program.run();
}

}  // namespace
}  // namespace cairn::bench

int main(int count, char** words) { return cairn::bench::run(count, words); }
