// What a person reads: tables, sizes, a progress bar. And what a script reads: one JSON value.
#ifndef CAIRN_APPS_CLI_OUTPUT_H_
#define CAIRN_APPS_CLI_OUTPUT_H_

#include <cstdint>
#include <cstdio>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "apps/cli/process_clock.h"
#include "cairn/core/error.h"
#include "cairn/core/ids.h"

namespace cairn::cli {

std::string with_commas(uint64_t count);       // "7,424"
std::string megabytes(uint64_t bytes);         // "164.2 MB"; small ones in KB or bytes
std::string printable(std::string_view text);  // control characters, invalid UTF-8 as \x..

enum class Align { left, right };

// Columns as wide as their widest cell, two spaces between them. The first row is the heading.
class Table {
 public:
  explicit Table(std::vector<Align> columns) : columns_(std::move(columns)) {}
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string text(std::string_view indent = "") const;

 private:
  std::vector<Align> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Writes to stdout and flushes. Io: nobody reads, or the disk is full.
Result<void> write_out(std::string_view text);
Result<void> write_json(const nlohmann::ordered_json& value);

enum class Unit { tokens, bytes };

// One line on stderr that is redrawn in place, and only if a person watches.
class Progress {
 public:
  explicit Progress(std::string_view what, Unit unit = Unit::tokens);  // "reading"
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void show(uint64_t done, uint64_t total);
  void clear();

 private:
  std::string count(uint64_t units) const;  // "1,931 tokens", "45.3 MB"

  const std::string what_;
  const Unit unit_;
  const bool is_watched_;
  bool is_drawn_ = false;
  const Clock::time_point start_ = Clock::now();
};

}  // namespace cairn::cli

#endif  // CAIRN_APPS_CLI_OUTPUT_H_
