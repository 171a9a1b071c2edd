// The growing state of the slots that share one retention: pages of all their records, one table
// per sequence.
//
// Everything here moves whole records and knows no numbers, but for the one commit that encodes
// what a scheme kept exact until then. A window drops pages from its tail's front; its sinks' pages
// stay. What a sequence holds never depends on the page size: first_held counts positions, pages
// only follow it.
#ifndef CAIRN_STATE_POSITIONAL_H_
#define CAIRN_STATE_POSITIONAL_H_

#include "cairn/state/state.h"

namespace cairn {

class Positional final : public State {
 public:
  Positional(Forms forms, Retention retention) : State(std::move(forms), retention) {}

  std::unique_ptr<State> clone() const override;
  Result<void> reserve(PageTable& table,
                       Growth growth,
                       Round round,
                       Reservation& reservation) const override;
  uint64_t publish(PageTable& table,
                   Reservation& reservation,
                   Growth growth) const noexcept override;
  bool can_truncate(const PageTable& table, Pos length, Pos to) const override;
  void truncate(PageTable& table, Pos length, Pos to) const noexcept override;
  Result<PageTable> allocate(Pos length, Pos first_held, const PageSource& given) const override;
  Pos max_run(Pos length) const override;
  uint64_t bytes_for(Pos tokens) const override;
  uint64_t peak_bytes_for(Pos tokens, Pos longest_run) const override;

 private:
  Pos page_positions() const { return forms().page_positions(); }
  Pos pages_of(Pos positions) const;  // that hold positions [0, positions)
  Pos sink_pages() const { return pages_of(retention().sinks); }
  Pos dropped_pages(Pos first_held) const;  // between the sinks' pages and the tail
  Result<PageRef> take_page(Pos index, Pos exact_end) const;
  Result<PageRef> page_of(const PageSource& given, Pos index, Pos exact_end) const;
  void place_pages(PageTable& table, Reservation& reservation, Pos end) const noexcept;
  void drop_front(PageTable& table) const noexcept;
  bool reaches_encoding(Growth growth) const;
  uint64_t encode(PageTable& table, std::vector<PageRef>& pages, Pos length) const noexcept;
  uint64_t page_bytes(Pos begin, Pos end, Pos exact_end) const;  // of pages [begin, end)
  uint64_t peak_bytes_of_one_form(Pos tokens, Pos longest_run) const;

  // Calls f(index, page) for every page of the table.
  template <class F>
  static void for_each_page(PageTable& table, F f) {
    for (Pos i = 0; i < table.sinks.size(); ++i) f(i, table.sinks[i]);
    for (Pos i = 0; i < table.tail.size(); ++i) f(table.first_tail + i, table.tail[i]);
  }
};

}  // namespace cairn

#endif  // CAIRN_STATE_POSITIONAL_H_
