#include "bench/program.h"

#include <benchmark/benchmark.h>

#include "cairn/kernels/dispatch.h"

namespace cairn::bench {
namespace {

// Rows print themselves as they come.
class Silent : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>&) override {}
};

void count_row(benchmark::State& state, const Row& row, const std::string& prefix) {
  const auto count = [&](std::string_view name, double value) {
    state.counters[prefix + std::string(name)] = value;
  };
  count("ratio", row.ratio);
  count("low", row.spread_low);
  count("high", row.spread_high);
  count("goal", row.goal);
  count("floor", row.floor);
  for (const auto& [name, value] : row.detail) count(name, value);
}

}  // namespace

Row make_row(std::string id,
             std::string name,
             const std::vector<double>& ratios,
             Goal goal,
             std::map<std::string, double> detail) {
  return {.id = std::move(id),
          .name = std::move(name),
          .ratio = median(ratios),
          .better = std::string(goal.better),
          .goal = goal.goal,
          .floor = goal.floor,
          .spread_low = least(ratios),
          .spread_high = most(ratios),
          .detail = std::move(detail),
          .text = {}};
}

Program::Program(int count, char** words, std::map<std::string, std::string> own)
    : own_(std::move(own)) {
  for (int i = 1; i < count; ++i)
    is_foreign_ |= std::string_view(words[i]).starts_with("--benchmark_format");
  benchmark::Initialize(&count, words);  // takes its own words away
  filter_ = benchmark::GetBenchmarkFilter();
  bool is_wrong = false;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    if (word == "--json") {
      is_json_ = true;
      continue;
    }
    const std::string name = word.starts_with("--") ? word.substr(2) : "";
    const std::string value = i + 1 < count ? words[++i] : "";
    if (name == "filter")
      filter_ = value;
    else if (name == "pairs")
      pairs_ = std::atoi(value.c_str());
    else if (name == "threads")
      threads_ = static_cast<uint32_t>(std::max(0, std::atoi(value.c_str())));
    else if (own_.contains(name))
      own_[name] = value;
    else
      is_wrong = true;
  }
  if (!is_wrong && pairs_ > 0 && threads_ > 0) return;
  fmt::print(stderr, "usage: {} [--json] [--filter REGEX] [--pairs N] [--threads N]", words[0]);
  for (const auto& [name, value] : own_) fmt::print(stderr, " [--{} {}]", name, value);
  fmt::print(stderr, " [--benchmark_..]\n");
  std::exit(2);
}

void Program::add(const std::string& name, std::function<std::vector<Row>()> measure) {
  benchmark::RegisterBenchmark(
      name.c_str(),
      [this, measure = std::move(measure)](benchmark::State& state) {
        for ([[maybe_unused]] auto iteration : state) {
          std::vector<Row> rows = measure();
          for (const Row& row : rows) count_row(state, row, rows.size() == 1 ? "" : row.id + "/");
          const auto ms = rows.front().detail.find("ms");
          state.SetIterationTime(ms == rows.front().detail.end() ? 0 : ms->second * 1e-3);
          state.SetLabel(kernel_target());
          report(std::move(rows));
        }
      })
      ->Iterations(1)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

void Program::report(std::vector<Row> rows) {
  for (Row& row : rows) {
    row.text["target"] = kernel_target();
    if (!is_json_ && !is_foreign_) print_row(row);
    rows_.push_back(std::move(row));
  }
}

int Program::run() {
  Silent silent;
  const size_t matched =
      benchmark::RunSpecifiedBenchmarks(is_foreign_ ? nullptr : &silent, filter_);
  if (is_json_) print_json(rows_);
  return matched == 0 ? 1 : 0;
}

}  // namespace cairn::bench
