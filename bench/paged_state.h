// Sequences in the pages of a group of equal slots, as a session lays them out, full of random
// numbers: attention without a session, over pages whose order and sharing a benchmark chooses.
#ifndef CAIRN_BENCH_PAGED_STATE_H_
#define CAIRN_BENCH_PAGED_STATE_H_

#include <functional>
#include <string_view>
#include <vector>

#include "bench/ceilings.h"
#include "cairn/memory/memory.h"
#include "cairn/state/attend.h"
#include "cairn/state/kind.h"

namespace cairn::bench {

// Of this machine, now, all threads together: per second.
struct Peaks {
  double read = 0;     // bytes
  double fma = 0;      // f32 operations
  double integer = 0;  // 16-bit products and their sums
  double convert = 0;  // numbers made f32
};
Peaks measure_peaks(Threads& threads, const ColdBytes& cold);

double seconds_of(const std::function<void()>& work);

struct PagedShape {
  SlotSpec slot;
  std::string_view scheme;
  uint32_t layers = 1;
  Pos length = 0;  // of every sequence, its queries' own positions included
  Pos queries = 1;
  uint32_t query_heads = 0;
  uint32_t sequences = 1;
  Pos shared = 0;  // their first positions are in pages that all of them hold: whole pages
  uint32_t page_positions = 64;
  bool is_shuffled = false;  // pages in random order in memory, else a sequence's ascend
};

class PagedState {
 public:
  explicit PagedState(const PagedShape& shape);

  // One step: every layer, all threads on one layer at a time.
  void step(Threads& threads);
  // The same of one layer, over chosen positions where they are given.
  void attend_layer(Threads& threads, size_t layer, const Chosen* chosen = nullptr);
  View view(size_t layer);

  const PagedShape& shape() const { return shape_; }
  uint64_t record_bytes() const { return layout_.record_bytes; }  // of one position, all layers
  double bytes() const;       // that the queries see: shared ones count for each sequence
  double operations() const;  // of all queries: products and sums
  // The least time in which one token of each sequence can be decoded: that of reading its bytes,
  // or that of the instructions that the definition (docs/numbers.md) asks for. Numbers are
  // converted once for all queries of a key head. Codes meet the query in 16-bit products and the
  // weights in f32.
  double limit(const Peaks& peaks) const;

 private:
  PagedShape shape_;
  Memory memory_;
  PageLayout layout_;
  std::vector<PageTable> tables_;
  std::vector<RunView> runs_;
  AttendWorkspace workspace_;
  std::vector<float> queries_, out_;
  uint32_t key_heads_ = 0, scored_width_ = 0, value_width_ = 0;
};

}  // namespace cairn::bench

#endif  // CAIRN_BENCH_PAGED_STATE_H_
