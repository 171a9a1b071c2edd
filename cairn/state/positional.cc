#include "cairn/state/positional.h"

#include <algorithm>
#include <cstring>

#include "cairn/core/bytes.h"

namespace cairn {

Pos Positional::pages_of(Pos positions) const {
  return ceil_div(positions, layout_.page_positions);
}

Pos Positional::dropped_pages(Pos first_held) const {
  const Pos first_page = first_held / layout_.page_positions;
  return first_page > sink_pages() ? first_page - sink_pages() : 0;
}

Result<Positional::Reservation> Positional::reserve(PageTable& table, Pos length, Pos count) const {
  Reservation reservation{.first = pages_of(length)};
  if (count == 0) return reservation;
  const Pos newest = length / layout_.page_positions;
  const bool is_partial = length % layout_.page_positions != 0;
  const bool is_present = is_partial && newest - table.first_tail < table.tail.size();
  const PageRef* shared = nullptr;
  if (is_present && table.tail[newest - table.first_tail].is_shared())
    shared = &table.tail[newest - table.first_tail];
  if (is_partial && (shared != nullptr || !is_present)) reservation.first = newest;

  const Pos end = pages_of(length + count);
  reservation.pages.reserve(end - reservation.first);
  while (reservation.first + reservation.pages.size() < end) {
    PageRef page = CAIRN_TRY(pool_->take());
    reservation.pages.push_back(std::move(page));
  }
  if (shared != nullptr)
    std::memcpy(reservation.pages[0].data(), shared->data(), layout_.page_bytes);
  // So that publish cannot fail. Doubling keeps the cost of a long conversation's many small steps
  // constant.
  if (const size_t wanted = end - table.first_tail; wanted > table.tail.capacity())
    table.tail.reserve(std::max(wanted, 2 * table.tail.capacity()));
  table.sinks.reserve(sink_pages());
  return reservation;
}

void Positional::publish(PageTable& table,
                         Reservation reservation,
                         Pos length,
                         Pos kept) const noexcept {
  if (kept == 0) return;
  const Pos end = pages_of(length + kept);
  for (Pos i = 0; i < reservation.pages.size() && reservation.first + i < end; ++i) {
    const Pos place = reservation.first + i - table.first_tail;
    if (place < table.tail.size())
      table.tail[place] = std::move(reservation.pages[i]);
    else
      table.tail.push_back(std::move(reservation.pages[i]));
  }
  table.first_held = std::max(table.first_held, retention_.first_kept(length + kept));
  drop_front(table);
}

void Positional::drop_front(PageTable& table) const noexcept {
  const Pos first_page = table.first_held / layout_.page_positions;
  if (dropped_pages(table.first_held) == 0 || first_page <= table.first_tail) return;
  auto begin = table.tail.begin();
  if (table.first_tail == 0)
    for (Pos i = 0; i < sink_pages(); ++i) table.sinks.push_back(std::move(table.tail[i]));
  table.tail.erase(begin, begin + static_cast<ptrdiff_t>(std::min<Pos>(
                                      first_page - table.first_tail, table.tail.size())));
  table.first_tail = first_page;
}

bool Positional::can_truncate(const PageTable& table, Pos length) const {
  const Pos needed = std::max(retention_.sinks, retention_.first_needed(length));
  return needed >= table.first_held || needed >= length;
}

void Positional::truncate(PageTable& table, Pos length) const noexcept {
  const Pos P = layout_.page_positions;
  const Pos end = pages_of(length);
  const bool into_sinks = table.first_tail > 0 && length / P < sink_pages();
  if (into_sinks) {  // the sinks' pages are the tail again
    table.tail = std::move(table.sinks);
    table.sinks.clear();
    table.first_tail = 0;
  }
  const Pos kept = end > table.first_tail ? end - table.first_tail : 0;
  if (kept < table.tail.size())
    table.tail.erase(table.tail.begin() + static_cast<ptrdiff_t>(kept), table.tail.end());
  if (table.tail.empty() && table.first_tail > 0) table.first_tail = length / P;
  table.first_held = std::min(table.first_held, length);
}

Result<PageTable> Positional::allocate(Pos length, Pos first_held) const {
  PageTable table{.first_held = first_held};
  const Pos dropped = dropped_pages(first_held);
  const Pos sinks = dropped > 0 ? sink_pages() : 0;
  table.first_tail = dropped > 0 ? sink_pages() + dropped : 0;
  for (Pos i = 0; i < sinks; ++i) {
    PageRef page = CAIRN_TRY(pool_->take());
    table.sinks.push_back(std::move(page));
  }
  for (Pos i = table.first_tail; i < pages_of(length); ++i) {
    PageRef page = CAIRN_TRY(pool_->take());
    table.tail.push_back(std::move(page));
  }
  return table;
}

uint64_t Positional::bytes_for(Pos tokens) const {
  return (pages_of(tokens) - dropped_pages(retention_.first_kept(tokens))) * layout_.page_bytes;
}

uint64_t Positional::peak_bytes_for(Pos tokens, Pos longest_run) const {
  uint64_t pages = pages_of(tokens);
  if (!retention_.keeps_all()) {
    // What a run sees and writes is one stretch of positions, which may start anywhere in a page,
    // beside the sinks.
    const Pos stretch = retention_.window + retention_.rewind + std::min(longest_run, tokens);
    const Pos P = layout_.page_positions;
    pages = std::min(pages, sink_pages() + (stretch + P - 2) / P + 1);
  }
  return pages * layout_.page_bytes;
}

}  // namespace cairn
