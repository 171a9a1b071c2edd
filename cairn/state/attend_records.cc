#include "cairn/state/attend_records.h"

#include <span>

#include "cairn/core/bytes.h"

namespace cairn::attending {
namespace {

constexpr uint32_t kGathered = 64;    // chosen positions that are brought together for one call
constexpr uint32_t kNeighbours = 16;  // so many chosen in a row are read where they lie

// Of kGathered records of one head, by planes.
uint64_t gathered_bytes(const FamilyPlace& place) {
  uint64_t bytes = 0;
  for (const PlanePlace& plane : place.planes)
    bytes += round_up(uint64_t{kGathered} * plane.record_bytes, 64);
  return bytes;
}

}  // namespace

uint64_t gathered_bytes(const Call& call) {
  uint64_t bytes = 0;
  for (uint32_t form = 0; form < call.form_count; ++form) {
    bytes = std::max(bytes, gathered_bytes(*call.forms[form].value));
    for (uint32_t i = 0; i < call.forms[form].scored_count; ++i)
      bytes = std::max(bytes, gathered_bytes(*call.forms[form].scored[i].place));
  }
  return bytes;
}

Stretch RecordReader::chosen_stretch(Range piece) const {
  const uint32_t page_positions = call_.view.page_positions;
  const uint32_t* chosen = item_->chosen.data() + piece.begin;
  const uint32_t position = chosen[0], first = position % page_positions;
  Stretch stretch{piece.begin, position / page_positions, first, 1, form_at(position), false};
  const Pos on_page = std::min<Pos>(piece.end - piece.begin, page_positions - first);
  while (stretch.count < on_page && chosen[stretch.count] == position + stretch.count)
    ++stretch.count;
  stretch.is_scattered = stretch.count < kNeighbours;
  if (!stretch.is_scattered) return stretch;
  const auto most = static_cast<uint32_t>(std::min<Pos>(kGathered, piece.end - piece.begin));
  while (stretch.count < most && form_at(chosen[stretch.count]) == stretch.form) ++stretch.count;
  return stretch;
}

Records RecordReader::gather(const FamilyPlace& place,
                             uint32_t head,
                             const Stretch& stretch) const {
  constexpr uint32_t kAhead = 4, kLine = 64;  // records, bytes
  const Pos page_positions = call_.view.page_positions;
  const std::span<const uint32_t> chosen = item_->chosen.subspan(stretch.index, stretch.count);
  const auto page_of = [&](Pos position) { return run_->pages.page(position / page_positions); };
  Records records{.count = stretch.count, .capacity = kGathered};
  std::byte* to = gathered_;
  for (size_t i = 0; i < place.planes.size(); ++i) {
    const PlanePlace& plane = place.planes[i];
    records.planes[i] = {to, plane.record_bytes, plane.word_bytes, nullptr};
    // What a record has in lines of memory: words that lie apart have one each.
    const bool is_dense = plane.word_stride == plane.word_bytes;
    const uint64_t part_stride = is_dense ? kLine : plane.word_stride;
    const uint64_t parts = ceil_div(plane.record_bytes, is_dense ? kLine : plane.word_bytes);
    for (size_t at = 0; at < chosen.size(); ++at) {
      if (const size_t next = at + kAhead; next < chosen.size()) {
        const std::byte* record = page_of(chosen[next]) + plane.offset + head * plane.head_bytes +
                                  chosen[next] % page_positions * plane.position_stride;
        for (uint64_t part = 0; part < parts; ++part)
          __builtin_prefetch(record + part * part_stride);
      }
      copy_out(plane, head, page_of(chosen[at]), static_cast<uint32_t>(chosen[at] % page_positions),
               1, to + at * plane.record_bytes, plane.record_bytes);
    }
    to += round_up(uint64_t{kGathered} * plane.record_bytes, 64);
  }
  return records;
}

}  // namespace cairn::attending
