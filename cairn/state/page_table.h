// The pages of one sequence in one group: those of the sinks, then the tail that ends at the newest
// position.
//
// Without a window there are no sink pages and the tail starts at page 0. A window drops whole
// pages from the tail's front.
#ifndef CAIRN_STATE_PAGE_TABLE_H_
#define CAIRN_STATE_PAGE_TABLE_H_

#include <functional>
#include <span>
#include <vector>

#include "cairn/core/ids.h"
#include "cairn/memory/memory.h"

namespace cairn {

// A hold on page `index` that somebody has already; empty: nobody does.
using PageSource = std::function<PageRef(Pos index)>;

struct PageTable {
  std::vector<PageRef>
      sinks;  // pages 0 .. sinks.size(); empty while the tail still starts at page 0
  std::vector<PageRef> tail;  // pages first_tail .. first_tail + tail.size()
  Pos first_tail = 0;         // page index
  Pos first_held =
      0;  // positions from the sinks' end up to here are gone, whatever the pages still contain

  PageTable share() const {  // holds on the same pages
    PageTable copy{.first_tail = first_tail, .first_held = first_held};
    copy.sinks.reserve(sinks.size());
    for (const PageRef& page : sinks) copy.sinks.push_back(page.share());
    copy.tail.reserve(tail.size());
    for (const PageRef& page : tail) copy.tail.push_back(page.share());
    return copy;
  }
  uint64_t pages() const { return sinks.size() + tail.size(); }
  // Null where the sequence has no such page, or no longer.
  const PageRef* find(Pos index) const {
    if (index < sinks.size()) return &sinks[index];
    if (index < first_tail || index - first_tail >= tail.size()) return nullptr;
    return &tail[index - first_tail];
  }
};

// A table as a step sees it: what is committed, and the step's own pages, which replace or extend
// the tail. Borrowed from the step or snapshot that made it.
struct PageMap {
  const PageTable* table = nullptr;
  std::span<const PageRef>
      fresh;  // pages first_fresh ..; they hide the table's pages of the same index
  Pos first_fresh = 0;

  std::byte* page(Pos index) const {
    if (index >= first_fresh && index - first_fresh < fresh.size())
      return fresh[index - first_fresh].data();
    if (index >= table->first_tail) return table->tail[index - table->first_tail].data();
    return table->sinks[index].data();
  }
};

}  // namespace cairn

#endif  // CAIRN_STATE_PAGE_TABLE_H_
