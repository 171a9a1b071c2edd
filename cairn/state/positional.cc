#include "cairn/state/positional.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "cairn/core/bytes.h"

namespace cairn {

std::unique_ptr<State> Positional::clone() const { return std::make_unique<Positional>(*this); }

Pos Positional::pages_of(Pos positions) const { return ceil_div(positions, page_positions()); }

Pos Positional::dropped_pages(Pos first_held) const {
  const Pos first_page = first_held / page_positions();
  return first_page > sink_pages() ? first_page - sink_pages() : 0;
}

Result<PageRef> Positional::take_page(Pos index, Pos exact_end) const {
  return forms().at(index * page_positions(), exact_end).pool->take();
}

bool Positional::reaches_encoding(Growth growth) const {
  return growth.length < forms().after && growth.length + growth.kept >= forms().after;
}

Result<void> Positional::reserve(PageTable& table,
                                 Growth growth,
                                 Round,
                                 Reservation& reservation) const {
  const Pos length = growth.length;
  reservation.first = pages_of(length);
  if (growth.count == 0) return {};
  const Pos exact_end = forms().exact_end(length);
  const Pos newest = length / page_positions();
  const bool is_partial = length % page_positions() != 0;
  const bool is_present = is_partial && newest - table.first_tail < table.tail.size();
  const PageRef* shared = nullptr;
  if (is_present && table.tail[newest - table.first_tail].is_shared())
    shared = &table.tail[newest - table.first_tail];
  if (is_partial && (shared != nullptr || !is_present)) reservation.first = newest;

  const Pos end = pages_of(length + growth.count);
  reservation.pages.reserve(end - reservation.first);
  while (reservation.first + reservation.pages.size() < end) {
    PageRef page = CAIRN_TRY(take_page(reservation.first + reservation.pages.size(), exact_end));
    reservation.pages.push_back(std::move(page));
  }
  if (shared != nullptr)
    std::memcpy(reservation.pages[0].data(), shared->data(),
                forms().at(newest * page_positions(), exact_end).layout.page_bytes);
  growth.kept = growth.count;
  if (reaches_encoding(growth)) {
    const Pos pages = pages_of(length + growth.count);  // more than the held ones, if a window slid
    while (reservation.encoded.size() < pages - std::min(pages, pages_of(forms().keep))) {
      PageRef page = CAIRN_TRY(forms().encoded.pool->take());
      reservation.encoded.push_back(std::move(page));
    }
  }
  // So that publish cannot fail. Doubling keeps the cost of many small steps constant.
  if (const size_t wanted = end - table.first_tail; wanted > table.tail.capacity())
    table.tail.reserve(std::max(wanted, 2 * table.tail.capacity()));
  table.sinks.reserve(sink_pages());
  return {};
}

uint64_t Positional::publish(PageTable& table,
                             Reservation& reservation,
                             Growth growth) const noexcept {
  if (growth.kept == 0) return 0;
  const Pos length = growth.length + growth.kept;
  place_pages(table, reservation, pages_of(length));
  table.first_held = std::max(table.first_held, retention().first_kept(length));
  drop_front(table);
  return reaches_encoding(growth) ? encode(table, reservation.encoded, length) : 0;
}

void Positional::place_pages(PageTable& table, Reservation& reservation, Pos end) const noexcept {
  for (Pos i = 0; i < reservation.pages.size() && reservation.first + i < end; ++i) {
    const Pos place = reservation.first + i - table.first_tail;
    if (place < table.tail.size())
      table.tail[place] = std::move(reservation.pages[i]);
    else
      table.tail.push_back(std::move(reservation.pages[i]));
  }
}

void Positional::drop_front(PageTable& table) const noexcept {
  const Pos first_page = table.first_held / page_positions();
  if (dropped_pages(table.first_held) == 0 || first_page <= table.first_tail) return;
  if (table.first_tail == 0)
    for (Pos i = 0; i < sink_pages(); ++i) table.sinks.push_back(std::move(table.tail[i]));
  const Pos dropped = std::min<Pos>(first_page - table.first_tail, table.tail.size());
  table.tail.erase(table.tail.begin(), table.tail.begin() + static_cast<ptrdiff_t>(dropped));
  table.first_tail = first_page;
}

// The exact pages beyond `keep` become encoded ones, page by page.
uint64_t Positional::encode(PageTable& table,
                            std::vector<PageRef>& pages,
                            Pos length) const noexcept {
  uint64_t saturated = 0;
  for_each_page(table, [&](Pos index, PageRef& page) {
    const Pos first = index * page_positions();
    if (first < forms().keep) return;
    PageRef encoded = std::move(pages.back());
    pages.pop_back();
    const auto count = static_cast<uint32_t>(std::min<Pos>(page_positions(), length - first));
    const PageLayout& from = forms().exact->layout;
    const PageLayout& to = forms().encoded.layout;
    for (size_t slot = 0; slot < to.slots.size(); ++slot)
      for (size_t family = 0; family < to.slots[slot].families.size(); ++family)
        saturated += transcode({from.slots[slot].families[family], page.data(), 0},
                               {to.slots[slot].families[family], encoded.data(), 0}, count);
    page = std::move(encoded);
  });
  return saturated;
}

bool Positional::can_truncate(const PageTable& table, Pos length, Pos to) const {
  if (to == length || to == 0) return true;
  if (length >= forms().after && to < forms().after) return false;  // its exact numbers are gone
  const Pos needed = std::max(retention().sinks, retention().first_needed(to));
  return needed >= table.first_held || needed >= to;
}

void Positional::truncate(PageTable& table, Pos, Pos to) const noexcept {
  const Pos end = pages_of(to);
  const bool into_sinks = table.first_tail > 0 && to / page_positions() < sink_pages();
  if (into_sinks) {  // the sinks' pages are the tail again
    table.tail = std::move(table.sinks);
    table.sinks.clear();
    table.first_tail = 0;
  }
  const Pos kept = end > table.first_tail ? end - table.first_tail : 0;
  if (kept < table.tail.size())
    table.tail.erase(table.tail.begin() + static_cast<ptrdiff_t>(kept), table.tail.end());
  if (table.tail.empty() && table.first_tail > 0) table.first_tail = to / page_positions();
  table.first_held = std::min(table.first_held, to);
}

Result<PageRef> Positional::page_of(const PageSource& given, Pos index, Pos exact_end) const {
  PageRef page = given ? given(index) : PageRef();
  if (!page) return take_page(index, exact_end);
  const uint64_t expected = forms().at(index * page_positions(), exact_end).pool->page_bytes();
  CAIRN_CHECK(page.bytes() == expected, "state: given a page of {} bytes as page {}, expected {}",
              page.bytes(), index, expected);
  return page;
}

Result<PageTable> Positional::allocate(Pos length, Pos first_held, const PageSource& given) const {
  PageTable table{.first_held = first_held};
  const Pos dropped = dropped_pages(first_held);
  const Pos sinks = dropped > 0 ? sink_pages() : 0;
  const Pos exact_end = forms().exact_end(length);
  table.first_tail = dropped > 0 ? sink_pages() + dropped : 0;
  for (Pos i = 0; i < sinks; ++i) {
    PageRef page = CAIRN_TRY(page_of(given, i, exact_end));
    table.sinks.push_back(std::move(page));
  }
  for (Pos i = table.first_tail; i < pages_of(length); ++i) {
    PageRef page = CAIRN_TRY(page_of(given, i, exact_end));
    table.tail.push_back(std::move(page));
  }
  return table;
}

Pos Positional::max_run(Pos length) const {
  return length < forms().after ? forms().after - length : UINT64_MAX;
}

uint64_t Positional::page_bytes(Pos begin, Pos end, Pos exact_end) const {
  const Pos exact_pages = exact_end / page_positions();  // whole pages: keep is a multiple of 64
  const Pos middle = std::clamp(exact_pages, begin, std::max(begin, end));
  const uint64_t exact = middle > begin ? forms().exact->pool->page_cost() : 0;
  return (middle - begin) * exact + (end - middle) * forms().encoded.pool->page_cost();
}

uint64_t Positional::bytes_for(Pos tokens) const {
  const Pos exact_end = forms().exact_end(tokens);
  const Pos dropped = dropped_pages(retention().first_kept(tokens));
  if (dropped == 0) return page_bytes(0, pages_of(tokens), exact_end);
  return page_bytes(0, sink_pages(), exact_end) +
         page_bytes(sink_pages() + dropped, pages_of(tokens), exact_end);
}

uint64_t Positional::peak_bytes_for(Pos tokens, Pos longest_run) const {
  const bool is_encoded = forms().after > 0 && tokens >= forms().after;
  if (is_encoded) {
    // Until the commit that reaches `after`, everything is exact; at it, both forms are there.
    const Pos pages = pages_of(forms().after);
    const uint64_t both =
        page_bytes(0, pages, UINT64_MAX) +
        (pages - std::min(pages, pages_of(forms().keep))) * forms().encoded.pool->page_cost();
    return std::max(both, peak_bytes_of_one_form(tokens, longest_run));
  }
  return peak_bytes_of_one_form(tokens, longest_run);
}

// What a run sees and writes is one stretch of positions, which may start anywhere in a page,
// beside the sinks.
uint64_t Positional::peak_bytes_of_one_form(Pos tokens, Pos longest_run) const {
  const Pos exact_end = forms().exact_end(tokens);
  const Pos pages = pages_of(tokens);
  if (retention().keeps_all()) return page_bytes(0, pages, exact_end);
  const Pos stretch = retention().window + retention().rewind + std::min(longest_run, tokens);
  const Pos most = sink_pages() + (stretch + page_positions() - 2) / page_positions() + 1;
  return page_bytes(0, std::min(pages, most), exact_end);
}

}  // namespace cairn
