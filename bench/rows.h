// The rows that benchmarks print: a table for people, one JSON array for scripts.
#ifndef CAIRN_BENCH_ROWS_H_
#define CAIRN_BENCH_ROWS_H_

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace cairn::bench {

struct Row {
  std::string id;
  std::string name;
  double ratio = 0;    // to a ceiling or a peer of the same run
  std::string better;  // "higher" or "lower"
  double goal = 0;
  double floor = 0;
  double spread_low = 0;  // of the ratio
  double spread_high = 0;
  std::map<std::string, double> detail;
  std::map<std::string, std::string> text;  // more detail
};

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}
inline double least(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}
inline double most(const std::vector<double>& values) {
  return *std::max_element(values.begin(), values.end());
}

inline void print_row(const Row& row) {
  fmt::print("{:<44} {:>7.3f} [{:.3f}, {:.3f}] goal {} floor {} |", row.id, row.ratio,
             row.spread_low, row.spread_high, row.goal, row.floor);
  for (const auto& [name, value] : row.detail) fmt::print(" {} {:.4g}", name, value);
  for (const auto& [name, value] : row.text) fmt::print(" {} {}", name, value);
  fmt::print("\n");
  std::fflush(stdout);
}

// Strings are our own: nothing in them needs escaping.
inline void print_json(std::span<const Row> rows) {
  fmt::print("[");
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    fmt::print(
        "{}\n  {{\"id\": \"{}\", \"name\": \"{}\", \"ratio\": {:.6g}, \"better\": \"{}\", "
        "\"goal\": {}, \"floor\": {}, \"spread\": [{:.6g}, {:.6g}], \"detail\": {{",
        i == 0 ? "" : ",", row.id, row.name, row.ratio, row.better, row.goal, row.floor,
        row.spread_low, row.spread_high);
    const char* separator = "";
    for (const auto& [name, value] : row.detail) {
      fmt::print("{}\"{}\": {:.6g}", separator, name, value);
      separator = ", ";
    }
    for (const auto& [name, value] : row.text) {
      fmt::print("{}\"{}\": \"{}\"", separator, name, value);
      separator = ", ";
    }
    fmt::print("}}}}");
  }
  fmt::print("\n]\n");
}

}  // namespace cairn::bench

#endif  // CAIRN_BENCH_ROWS_H_
