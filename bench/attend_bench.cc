// Attention over encoded pages, against what the machine can do in the same run: decode against its
// limit (below), prefill against its f32 fused multiply-adds, both against ggml's flash_attn_ext on
// the same shapes.
//
//   attend_bench [--json] [--filter TEXT] [--threads N] [--pairs N]
//
// The limit of a step is a time: that of reading its bytes at the machine's read bandwidth, or that
// of the instructions that its definition asks for (docs/numbers.md) at their peak rates, whichever
// is longer.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>

#include "bench/ceilings.h"
#ifdef CAIRN_HAS_GGML
#include "bench/ggml_attention.h"
#endif
#include "bench/rows.h"
#include "cairn/kernels/dispatch.h"
#include "cairn/memory/memory.h"
#include "cairn/session/scheme.h"
#include "cairn/state/attend.h"

namespace cairn::bench {
namespace {

struct Options {
  bool is_json = false;
  std::string filter;
  uint32_t threads = 2;
  int pairs = 9;
};

// Of this machine, now: per second.
struct Peaks {
  double read = 0;     // bytes
  double fma = 0;      // f32 operations
  double integer = 0;  // 16-bit products and their sums
  double convert = 0;  // numbers made f32
};

bool is_raw(std::string_view scheme) {
  return scheme == "f32" || scheme == "f16" || scheme == "bf16";
}

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
};

// A sequence in the pages of one group of `layers` slots, as a session lays them out, full of
// random numbers.
class State {
 public:
  explicit State(const Shape& shape) : shape_(shape) {
    const SlotSpec slot = attention({.heads = shape.key_heads, .head_dim = shape.head_dim});
    const std::vector<const SlotSpec*> slots(shape.layers, &slot);
    const auto codecs =
        resolve(parse_scheme(shape.scheme).value(), {.slots = std::vector(shape.layers, slot)});
    layout_ = make_page_layout(slots, codecs.value(), shape.page_positions);
    PagePool& pool = memory_.pool(layout_.page_bytes);
    std::vector<float> x(uint64_t{shape.page_positions} * shape.head_dim);
    for (Pos first = 0; first < shape.length(); first += shape.page_positions) {
      table_.tail.push_back(std::move(pool.take().value()));
      for (const SlotPlace& place : layout_.slots)
        for (const FamilyPlace& family : place.families)
          for (uint32_t head = 0; head < family.heads; ++head) {
            for (float& value : x) value = next_float();
            family.codec.encoding->functions().encode(
                family.codec, x.data(),
                family.records(table_.tail.back().data(), head, 0, shape.page_positions));
          }
    }
    run_ = {.pages = {.table = &table_},
            .first = shape.length() - shape.queries,
            .count = shape.queries};
    const uint64_t floats = shape.queries * shape.key_heads * shape.group * shape.head_dim;
    for (uint64_t i = 0; i < floats; ++i) queries_.push_back(next_float());
    out_.resize(floats);
  }

  // One step: every layer, all threads on one layer at a time.
  void step(Threads& threads) {
    for (const SlotPlace& slot : layout_.slots)
      threads.run([&](uint32_t i) {
        attend({.slot = &slot,
                .retention = {},
                .page_positions = shape_.page_positions,
                .runs = {&run_, 1},
                .rows = shape_.queries,
                .workspace = &workspace_},
               {.data = queries_.data(), .heads = shape_.key_heads * shape_.group},
               {.data = out_.data()}, {i, threads.count()});
      });
  }

  double bytes() const { return static_cast<double>(layout_.record_bytes * shape_.length()); }
  double operations() const {  // two products of 2 head_dim operations for every pair
    const double n = static_cast<double>(shape_.queries);
    const double pairs =
        n * static_cast<double>(shape_.length() - shape_.queries) + n * (n + 1) / 2;
    return pairs * 4 * shape_.head_dim * shape_.key_heads * shape_.group * shape_.layers;
  }
  // Of decoding one token, in seconds. Numbers are converted once for all queries of a key head.
  // Codes meet the query in 16-bit products and the weights in f32.
  double limit(const Peaks& peaks) const {
    const double numbers = static_cast<double>(shape_.length()) * shape_.head_dim *
                           shape_.key_heads * shape_.layers;  // of keys, and as many of values
    const double products = numbers * shape_.group;
    const bool has_codes = !is_raw(shape_.scheme);
    const double converted = shape_.scheme == "f32" ? 0 : has_codes ? numbers : 2 * numbers;
    const double f32 = 2 * products * (has_codes ? 1 : 2) / peaks.fma;
    const double integer = has_codes ? 2 * products / peaks.integer : 0;
    return std::max(bytes() / peaks.read, f32 + integer + converted / peaks.convert);
  }

 private:
  float next_float() {  // in [-1.7, 1.7): of variance 1
    seed_ = seed_ * 6364136223846793005 + 1442695040888963407;
    return static_cast<float>(static_cast<int64_t>(seed_) >> 40) * (1.7320508f * 0x1p-23f);
  }

  Shape shape_;
  Memory memory_;
  PageLayout layout_;
  PageTable table_;
  RunView run_;
  AttendWorkspace workspace_;
  std::vector<float> queries_, out_;
  uint64_t seed_ = 1;
};

double timed(const std::function<void()>& work) {
  const double start = seconds_now();
  work();
  return seconds_now() - start;
}

struct Goal {
  double goal = 0, floor = 0;
};
// Of limit over time, for the usual groups of 3 and 4; other schemes have none.
Goal goal_of(const Shape& shape) {
  if (shape.scheme == "f16" || shape.scheme == "bf16") return {0.85, 0.65};
  if (shape.scheme == "affine8") return {0.80, 0.55};
  if (shape.scheme == "affine4") return {0.70, 0.50};
  if (shape.scheme == "turbo-k8v3") return {0.60, 0.60};
  return {};
}

Row decode_row(const Shape& shape,
               const Options& options,
               Threads& threads,
               const ColdBytes& cold) {
  State state(shape);
  state.step(threads);
  std::vector<double> ratios, times, reads, limits;
  for (int i = 0; i < options.pairs; ++i) {
    const Peaks peaks{.read = read_bandwidth(threads, cold),
                      .fma = fma_peak(threads),
                      .integer = integer_peak(threads),
                      .convert = convert_peak(threads)};
    times.push_back(timed([&] { state.step(threads); }));
    reads.push_back(peaks.read);
    limits.push_back(state.limit(peaks));
    ratios.push_back(limits.back() / times.back());
  }
  const Goal goal = goal_of(shape);
  return {.id = fmt::format("attend_decode_{}_g{}_d{}", shape.scheme, shape.group, shape.head_dim),
          .name = fmt::format("decode at {}: {}, {} queries per key head, dim {}: limit / time",
                              shape.positions, shape.scheme, shape.group, shape.head_dim),
          .ratio = median(ratios),
          .better = "higher",
          .goal = goal.goal,
          .floor = goal.floor,
          .spread_low = least(ratios),
          .spread_high = most(ratios),
          .detail = {{"gb_per_s", state.bytes() / median(times) * 1e-9},
                     {"read_gb_per_s", median(reads) * 1e-9},
                     {"ms", median(times) * 1e3},
                     {"best_ms", least(times) * 1e3},
                     {"limit_ms", median(limits) * 1e3},
                     {"threads", threads.count()}}};
}

Row prefill_row(const Shape& shape, const Options& options, Threads& threads) {
  State state(shape);
  state.step(threads);
  std::vector<double> ratios, rates, peaks;
  for (int i = 0; i < options.pairs; ++i) {
    peaks.push_back(fma_peak(threads));
    rates.push_back(state.operations() / timed([&] { state.step(threads); }));
    ratios.push_back(rates.back() / peaks.back());
  }
  return {.id = fmt::format("attend_prefill_{}_at_{}_{}_g{}_d{}", shape.queries, shape.positions,
                            shape.scheme, shape.group, shape.head_dim),
          .name = fmt::format(
              "prefill of {} at {}: {}, {} queries per key head, dim {}: rate / f32 peak",
              shape.queries, shape.positions, shape.scheme, shape.group, shape.head_dim),
          .ratio = median(ratios),
          .better = "higher",
          .goal = 0.8,
          .floor = 0.65,
          .spread_low = least(ratios),
          .spread_high = most(ratios),
          .detail = {{"gflop_per_s", median(rates) * 1e-9},
                     {"peak_gflop_per_s", median(peaks) * 1e-9},
                     {"ms", state.operations() / median(rates) * 1e3},
                     {"best_gflop_per_s", most(rates) * 1e-9},
                     {"threads", threads.count()}}};
}

#ifdef CAIRN_HAS_GGML
// The same step by ggml.
struct Peer {
  Shape shape;
  std::string_view type;
  Goal goal;
};

Row peer_row(const Peer& peer, const Options& options, Threads& threads) {
  const Shape& shape = peer.shape;
  State ours(shape);
  GgmlAttention theirs({.type = peer.type,
                        .head_dim = shape.head_dim,
                        .key_heads = shape.key_heads,
                        .query_heads = shape.key_heads * shape.group,
                        .layers = shape.layers,
                        .positions = shape.length(),
                        .queries = shape.queries},
                       threads.count());
  ours.step(threads);
  theirs.step();
  std::vector<double> ratios, our_times, their_times;
  for (int i = 0; i < options.pairs; ++i) {
    our_times.push_back(timed([&] { ours.step(threads); }));
    their_times.push_back(timed([&] { theirs.step(); }));
    ratios.push_back(our_times.back() / their_times.back());
  }
  return {
      .id =
          fmt::format("attend_over_ggml_{}_at_{}_{}", shape.queries, shape.positions, shape.scheme),
      .name = fmt::format("{} queries at {}, dim {}: time of {} / time of ggml's {}", shape.queries,
                          shape.positions, shape.head_dim, shape.scheme, peer.type),
      .ratio = median(ratios),
      .better = "lower",
      .goal = peer.goal.goal,
      .floor = peer.goal.floor,
      .spread_low = least(ratios),
      .spread_high = most(ratios),
      .detail = {{"ms", median(our_times) * 1e3},
                 {"ggml_ms", median(their_times) * 1e3},
                 {"threads", threads.count()}},
      .text = {{"ggml", ggml_features()}}};
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
  constexpr Column kColumns[] = {{"f16", "f16", {0.17, 0.25}, {0.35, 0.5}},
                                 {"affine8", "q8_0", {0.10, 0.15}, {0.06, 0.1}},
                                 {"affine4", "q4_0", {0.07, 0.12}, {0.06, 0.1}}};
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

std::optional<Options> parse(int count, char** arguments) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string argument = arguments[i];
    const auto value = [&] { return i + 1 < count ? arguments[++i] : ""; };
    if (argument == "--json")
      options.is_json = true;
    else if (argument == "--filter")
      options.filter = value();
    else if (argument == "--threads")
      options.threads = static_cast<uint32_t>(std::atoi(value()));
    else if (argument == "--pairs")
      options.pairs = std::atoi(value());
    else
      return std::nullopt;
  }
  if (options.threads == 0 || options.pairs <= 0) return std::nullopt;
  return options;
}

int run(const Options& options) {
  Threads threads(options.threads);
  const ColdBytes cold(size_t{256} << 20);
  std::vector<Row> rows;
  const auto add = [&](Row row) {
    row.text["target"] = kernel_target();
    if (!options.is_json) print_row(row);
    rows.push_back(std::move(row));
  };
  if (!options.is_json)
    fmt::print("target {}, {} threads, {} pairs\n", kernel_target(), options.threads,
               options.pairs);
  for (const Shape& shape : kShapes) {
    const std::string name =
        fmt::format("{} {} g{} d{} p{}", shape.queries == 1 ? "decode" : "prefill", shape.scheme,
                    shape.group, shape.head_dim, shape.page_positions);
    if (name.find(options.filter) == std::string::npos) continue;
    Row row = shape.queries == 1 ? decode_row(shape, options, threads, cold)
                                 : prefill_row(shape, options, threads);
    if (shape.page_positions != 64) row.id += fmt::format("_pages_of_{}", shape.page_positions);
    add(std::move(row));
  }
#ifdef CAIRN_HAS_GGML
  for (const Peer& peer : peers()) {
    const Shape& shape = peer.shape;
    const std::string name =
        fmt::format("ggml {} {} at {}", shape.queries == 1 ? "decode" : "prefill", shape.scheme,
                    shape.positions);
    if (name.find(options.filter) == std::string::npos) continue;
    add(peer_row(peer, options, threads));
  }
#endif
  if (options.is_json) print_json(rows);
  return 0;
}

}  // namespace
}  // namespace cairn::bench

int main(int count, char** arguments) {
  const auto options = cairn::bench::parse(count, arguments);
  if (!options) {
    fmt::print(stderr, "usage: attend_bench [--json] [--filter TEXT] [--threads N] [--pairs N]\n");
    return 2;
  }
  return cairn::bench::run(*options);
}
