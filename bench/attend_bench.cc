// Attention over encoded pages, against what the machine can do in the same run: decode against its
// read bandwidth, prefill against its f32 fused multiply-adds.
//
//   attend_bench [--json] [--filter TEXT] [--threads N] [--pairs N]
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>

#include "bench/ceilings.h"
#include "bench/rows.h"
#include "cairn/kernels/dispatch.h"
#include "cairn/memory/memory.h"
#include "cairn/state/attend.h"
#include "cairn/state/registry.h"

namespace cairn::bench {
namespace {

struct Options {
  bool is_json = false;
  std::string filter;
  uint32_t threads = 2;
  int pairs = 9;
};

struct Shape {
  std::string_view encoding;
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
    const EncodingChoice choice = parse_encoding(builtin(), shape.encoding).value();
    const Codec codec = make_codec(*choice.encoding, choice.params, shape.head_dim).value();
    const std::vector<const SlotSpec*> slots(shape.layers, &slot);
    layout_ = make_page_layout(slots, std::vector(shape.layers, std::vector{codec, codec}),
                               shape.page_positions);
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

Row decode_row(const Shape& shape,
               const Options& options,
               Threads& threads,
               const ColdBytes& cold) {
  State state(shape);
  state.step(threads);
  std::vector<double> ratios, rates, reads;
  for (int i = 0; i < options.pairs; ++i) {
    reads.push_back(read_bandwidth(threads, cold));
    rates.push_back(state.bytes() / timed([&] { state.step(threads); }));
    ratios.push_back(rates.back() / reads.back());
  }
  return {
      .id = fmt::format("attend_decode_{}_g{}_d{}", shape.encoding, shape.group, shape.head_dim),
      .name = fmt::format(
          "decode at {}: {}, {} queries per key head, dim {}: state read / read bandwidth",
          shape.positions, shape.encoding, shape.group, shape.head_dim),
      .ratio = median(ratios),
      .better = "higher",
      .goal = 0.85,
      .floor = 0.65,
      .spread_low = least(ratios),
      .spread_high = most(ratios),
      .detail = {{"gb_per_s", median(rates) * 1e-9},
                 {"read_gb_per_s", median(reads) * 1e-9},
                 {"ms", state.bytes() / median(rates) * 1e3},
                 {"best_gb_per_s", most(rates) * 1e-9},
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
                            shape.encoding, shape.group, shape.head_dim),
          .name = fmt::format(
              "prefill of {} at {}: {}, {} queries per key head, dim {}: rate / f32 peak",
              shape.queries, shape.positions, shape.encoding, shape.group, shape.head_dim),
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

const Shape kShapes[] = {
    {.encoding = "f16"},
    {.encoding = "bf16"},
    {.encoding = "f32"},
    {.encoding = "f16", .group = 1},
    {.encoding = "f16", .group = 4},
    {.encoding = "f16", .group = 8},
    {.encoding = "f16", .group = 3, .head_dim = 128, .layers = 15},
    {.encoding = "f16", .group = 8, .head_dim = 128, .layers = 15},
    {.encoding = "f16", .page_positions = 16},
    {.encoding = "f16", .layers = 4, .positions = 0, .queries = 512},
    {.encoding = "f16", .layers = 2, .positions = 4096, .queries = 512},
    {.encoding = "bf16", .layers = 2, .positions = 4096, .queries = 512},
    {.encoding = "f32", .layers = 2, .positions = 4096, .queries = 512},
    {.encoding = "f16",
     .group = 4,
     .head_dim = 128,
     .layers = 1,
     .positions = 4096,
     .queries = 512},
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
  if (!options.is_json)
    fmt::print("target {}, {} threads, {} pairs\n", kernel_target(), options.threads,
               options.pairs);
  for (const Shape& shape : kShapes) {
    const std::string name =
        fmt::format("{} {} g{} d{} p{}", shape.queries == 1 ? "decode" : "prefill", shape.encoding,
                    shape.group, shape.head_dim, shape.page_positions);
    if (name.find(options.filter) == std::string::npos) continue;
    Row row = shape.queries == 1 ? decode_row(shape, options, threads, cold)
                                 : prefill_row(shape, options, threads);
    if (shape.page_positions != 64) row.id += fmt::format("_pages_of_{}", shape.page_positions);
    row.text["target"] = kernel_target();
    if (!options.is_json) print_row(row);
    rows.push_back(std::move(row));
  }
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
