#include "apps/cli/output.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "cairn/format/json_fields.h"

namespace cairn::cli {
namespace {

// Characters, not bytes: the columns of a terminal for the scripts that names are written in.
size_t width_of(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

std::string padded(const std::string& cell, size_t width, Align align) {
  const std::string spaces(width - std::min(width, width_of(cell)), ' ');
  return align == Align::left ? cell + spaces : spaces + cell;
}

}  // namespace

std::string with_commas(uint64_t count) {
  std::string text = std::to_string(count);
  for (size_t at = text.size(); at > 3;) text.insert(at -= 3, ",");
  return text;
}

std::string megabytes(uint64_t bytes) {
  if (bytes < 1000) return fmt::format("{} bytes", bytes);
  if (bytes < 1'000'000) return fmt::format("{:.1f} KB", static_cast<double>(bytes) / 1e3);
  const std::string tenths = fmt::format("{:.1f}", static_cast<double>(bytes) / 1e6);
  const size_t point = tenths.size() - 2;
  return with_commas(std::stoull(tenths.substr(0, point))) + tenths.substr(point) + " MB";
}

std::string printable(std::string_view text) {
  const bool is_text = is_utf8(text);
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if ((byte < ' ' && c != '\n' && c != '\t') || byte == 0x7F || (byte >= 0x80 && !is_text))
      out += fmt::format("\\x{:02x}", byte);
    else
      out += c;
  }
  return out;
}

std::string Table::text(std::string_view indent) const {
  std::vector<size_t> widths(columns_.size(), 0);
  for (const auto& row : rows_)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  std::string out;
  for (const auto& row : rows_) {
    std::string line(indent);
    for (size_t i = 0; i < row.size(); ++i)
      line += (i > 0 ? "  " : "") + padded(row[i], widths[i], columns_[i]);
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

Result<void> write_out(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    return fail(Code::Io, "stdout: {}", std::strerror(errno));
  return {};
}

Result<void> write_json(const nlohmann::ordered_json& value) {
  // Bytes of a text that are no UTF-8 become U+FFFD.
  return write_out(value.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

Progress::Progress(std::string_view what, Unit unit)
    : what_(what), unit_(unit), is_watched_(isatty(STDERR_FILENO) == 1) {}

std::string Progress::count(uint64_t units) const {
  return unit_ == Unit::bytes ? megabytes(units) : with_commas(units) + " tokens";
}

void Progress::show(uint64_t done, uint64_t total) {
  if (!is_watched_ || done >= total) return clear();
  constexpr size_t kWidth = 32;
  const double share = static_cast<double>(done) / static_cast<double>(total);
  const size_t filled = static_cast<size_t>(share * kWidth);
  std::string rate;
  if (done > 0) {
    const double seconds = seconds_between(start_, Clock::now());
    rate = fmt::format("  {}/s, {:.0f} s left",
                       count(static_cast<uint64_t>(static_cast<double>(done) / seconds)),
                       seconds * (1 / share - 1));
  }
  std::string bar;
  for (size_t i = 0; i < kWidth; ++i) bar += i < filled ? "━" : "─";
  fmt::print(stderr, "\r\x1b[K  {} {}  {} of {}{}", what_, bar, count(done), count(total), rate);
  std::fflush(stderr);
  is_drawn_ = true;
}

void Progress::clear() {
  if (!is_drawn_) return;
  fmt::print(stderr, "\r\x1b[K");
  std::fflush(stderr);
  is_drawn_ = false;
}

}  // namespace cairn::cli
