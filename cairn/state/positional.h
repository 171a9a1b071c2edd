// The growing state of the slots that share one retention (a group): pages of all their records,
// one table per sequence.
//
// Everything here moves whole records and knows no numbers. A window drops pages from its tail's
// front; its sinks' pages stay. What a sequence holds never depends on the page size: first_held
// counts positions, pages only follow it.
#ifndef CAIRN_STATE_POSITIONAL_H_
#define CAIRN_STATE_POSITIONAL_H_

#include <vector>

#include "cairn/state/page_layout.h"
#include "cairn/state/page_table.h"
#include "cairn/state/retention.h"

namespace cairn {

class Positional {
 public:
  Positional(PageLayout layout, Retention retention, PagePool& pool)
      : layout_(std::move(layout)), retention_(retention), pool_(&pool) {}

  const PageLayout& layout() const { return layout_; }
  const Retention& retention() const { return retention_; }
  const PagePool& pool() const { return *pool_; }

  // The pages one run will write: a copy of the newest page where that one is shared and not full,
  // then new ones.
  struct Reservation {
    std::vector<PageRef> pages;
    Pos first = 0;  // page index
  };
  // For `count` positions after `length`; also gives the table the capacity that publish() needs.
  // On NoSpace nothing has changed.
  Result<Reservation> reserve(PageTable& table, Pos length, Pos count) const;

  // Takes over the pages that hold the first `kept` new positions, and lets go of what the
  // retention no longer keeps.
  void publish(PageTable& table, Reservation reservation, Pos length, Pos kept) const noexcept;

  bool can_truncate(const PageTable& table, Pos length) const;
  void truncate(PageTable& table, Pos length) const noexcept;  // REQUIRES: can_truncate

  // Pages for `length` positions of which those from first_held on (and the sinks) are to be filled
  // in.
  Result<PageTable> allocate(Pos length, Pos first_held) const;

  uint64_t bytes_for(Pos tokens) const;
  uint64_t peak_bytes_for(Pos tokens, Pos longest_run) const;

 private:
  Pos pages_of(Pos positions) const;  // that hold positions [0, positions)
  Pos sink_pages() const { return pages_of(retention_.sinks); }
  Pos dropped_pages(Pos first_held) const;  // between the sinks' pages and the tail
  void drop_front(PageTable& table) const noexcept;

  PageLayout layout_;
  Retention retention_;
  PagePool* pool_;
};

}  // namespace cairn

#endif  // CAIRN_STATE_POSITIONAL_H_
