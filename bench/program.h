// What every benchmark program does: measurements are registered by name, each becomes one Google
// Benchmark (one iteration, which takes its own pairs; the row's numbers are its counters), and
// what was asked for is printed: a table for people, our array of rows, or Google Benchmark's own
// output.
//
//   PROGRAM [--json] [--filter REGEX] [--pairs N] [--threads N] [--benchmark_list_tests]
//           [--benchmark_format=json|csv|console] [--benchmark_out=FILE] ..
#ifndef CAIRN_BENCH_PROGRAM_H_
#define CAIRN_BENCH_PROGRAM_H_

#include <fmt/core.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "bench/rows.h"
#include "cairn/core/error.h"

namespace cairn::bench {

// What is asked of a ratio; 0 and 0: nothing.
struct Goal {
  std::string_view better = "higher";
  double goal = 0;
  double floor = 0;
};
constexpr Goal at_least(double goal, double floor) { return {"higher", goal, floor}; }
constexpr Goal at_most(double goal, double floor) { return {"lower", goal, floor}; }

// A row of the median of `ratios`, one per interleaved pair. detail's "ms", where it has one, is
// what the row's subject took.
Row make_row(std::string id,
             std::string name,
             const std::vector<double>& ratios,
             Goal goal,
             std::map<std::string, double> detail);

class Program {
 public:
  // `own`: the program's own words, "--name VALUE", with their defaults. Anything else ends the
  // program with its usage.
  Program(int count, char** words, std::map<std::string, std::string> own = {});

  int pairs() const { return pairs_; }
  uint32_t threads() const { return threads_; }
  const std::string& own(const std::string& name) const { return own_.at(name); }

  // `measure` is called once if the filter lets it, after everything is registered.
  void add(const std::string& name, std::function<std::vector<Row>()> measure);
  void add_row(const std::string& name, std::function<Row()> measure) {
    add(name, [measure = std::move(measure)] { return std::vector{measure()}; });
  }

  int run();  // the exit status

 private:
  void report(std::vector<Row> rows);

  std::map<std::string, std::string> own_;
  bool is_json_ = false, is_foreign_ = false;  // our array; Google Benchmark's output
  int pairs_ = 9;
  uint32_t threads_ = 2;
  std::string filter_;
  std::vector<Row> rows_;
};

// A benchmark that cannot do its work says why and ends.
template <class T>
T must(Result<T> result) {
  if (!result) {
    fmt::print(stderr, "benchmark: {}\n", result.error().message);
    std::exit(1);
  }
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

}  // namespace cairn::bench

#endif  // CAIRN_BENCH_PROGRAM_H_
