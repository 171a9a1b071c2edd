#include "cairn/runtime/stop.h"

#include <algorithm>
#include <utility>

#include "cairn/core/error.h"

namespace cairn {

StopStrings::StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) CAIRN_CHECK(!stop.empty(), "an empty stop string");
}

std::string StopStrings::add(std::string_view text) {
  if (is_found_) return "";
  waiting_ += text;
  size_t found = std::string::npos;
  for (const std::string& stop : stops_) found = std::min(found, waiting_.find(stop));
  is_found_ = found != std::string::npos;
  const size_t shown = is_found_ ? found : safe_length();
  std::string safe = waiting_.substr(0, shown);
  waiting_.erase(0, is_found_ ? std::string::npos : shown);
  return safe;
}

std::string StopStrings::rest() { return std::exchange(waiting_, {}); }

// All but the longest end that begins a stop string.
size_t StopStrings::safe_length() const {
  size_t held = 0;
  for (const std::string& stop : stops_)
    for (size_t bytes = std::min(stop.size() - 1, waiting_.size()); bytes > held; --bytes)
      if (std::string_view(waiting_).ends_with(std::string_view(stop).substr(0, bytes)))
        held = bytes;
  return waiting_.size() - held;
}

}  // namespace cairn
