// Which records a piece of what an item sees is made of, in the order in which kernels read them;
// of attend.cc alone.
//
// A stretch is a page's adjacent positions, which are in one form: a kernel reads them where they
// lie. Chosen positions that are no neighbours are brought together first, because a kernel's call
// costs about as much as a vector of positions does.
#ifndef CAIRN_STATE_ATTEND_RECORDS_H_
#define CAIRN_STATE_ATTEND_RECORDS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cairn/state/attend_plan.h"

namespace cairn::attending {

// Adjacent positions of one page; or chosen ones of one form, wherever they are.
struct Stretch {
  Pos index;  // of the first: its position, or its rank in a chosen list
  Pos page;   // of the first, and its place there
  uint32_t first;
  uint32_t count;
  uint32_t form;
  bool is_scattered;
};

// What RecordReader needs for records that it brings together: of the largest family of a call.
uint64_t gathered_bytes(const Call& call);

class RecordReader {
 public:
  // gathered: gathered_bytes(call), 64-byte aligned; not used unless positions are chosen.
  RecordReader(const Call& call, std::byte* gathered) : call_(call), gathered_(gathered) {}

  // recent: what some query of the item sees of its window.
  void start(const Item& item, Range recent) {
    item_ = &item;
    recent_ = recent;
  }
  // Whose pages are read from now on.
  void read(const RunView& run) { run_ = &run; }

  // Calls f(stretch) for a piece of the positions, or of the chosen list.
  template <class F>
  void each_stretch(Range piece, F f) const {
    if (piece.empty()) return;
    const uint32_t page_positions = call_.view.page_positions;
    if (item_->is_sparse()) {
      for (Pos index = piece.begin; index < piece.end;) {
        const Stretch stretch = chosen_stretch({index, piece.end});
        f(stretch);
        index += stretch.count;
      }
      return;
    }
    Pos page = piece.begin / page_positions;
    auto first = static_cast<uint32_t>(piece.begin % page_positions);
    for (Pos index = piece.begin; index < piece.end; ++page, first = 0) {
      const auto count =
          static_cast<uint32_t>(std::min<Pos>(piece.end - index, page_positions - first));
      f(Stretch{index, page, first, count, form_at(index), false});
      index += count;
    }
  }

  // Calls f(head, records) for each head of the item, counted from its first: in the order in which
  // they lie in memory.
  template <class F>
  void each_head(const FamilyPlace& place, const Stretch& stretch, F f) const {
    const uint32_t heads = item_->heads, first_head = item_->first_head;
    if (stretch.is_scattered) {
      for (uint32_t head = 0; head < heads; ++head)
        f(head, gather(place, first_head + head, stretch));
      return;
    }
    Records records =
        place.records(run_->pages.page(stretch.page), first_head, stretch.first, stretch.count);
    // Kernels ask early for the records that come kAheadPositions later in this order.
    uint32_t next_head = std::max(1u, kAheadPositions / call_.view.page_positions);
    Pos next_page = stretch.page;
    for (; next_head >= heads; next_head -= heads) ++next_page;
    const std::byte* next = page_ahead(next_page);
    for (uint32_t head = 0; head < heads; ++head) {
      for (size_t i = 0; i < place.planes.size(); ++i)
        records.planes[i].next = next == nullptr
                                     ? nullptr
                                     : next + place.planes[i].offset +
                                           (first_head + next_head) * place.planes[i].head_bytes;
      f(head, records);
      for (size_t i = 0; i < place.planes.size(); ++i)
        records.planes[i].data += place.planes[i].head_bytes;
      if (++next_head < heads) continue;
      next_head = 0;
      next = page_ahead(++next_page);
    }
  }

 private:
  static constexpr uint32_t kAheadPositions = 64;  // how far prefetches run ahead, per head

  uint32_t form_at(Pos position) const {
    return position < run_->exact_end ? call_.form_count - 1 : 0;
  }

  // Null unless the page belongs to what the item sees.
  const std::byte* page_ahead(Pos page) const {
    const Pos begin = page * call_.view.page_positions;
    const bool is_seen =
        begin >= recent_.begin && begin < recent_.end && begin < run_->first + run_->count;
    return is_seen && !item_->is_sparse() ? run_->pages.page(page) : nullptr;
  }

  // What comes first of a piece of the chosen list: neighbours where there are several, else some
  // of one form.
  Stretch chosen_stretch(Range piece) const;

  Records gather(const FamilyPlace& place, uint32_t head, const Stretch& stretch) const;

  const Call& call_;
  std::byte* gathered_;
  const Item* item_ = nullptr;
  Range recent_;
  const RunView* run_ = nullptr;
};

}  // namespace cairn::attending

#endif  // CAIRN_STATE_ATTEND_RECORDS_H_
