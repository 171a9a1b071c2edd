// The custom operations through which a ggml graph reaches the state: one writes a slot's new
// records, one attends over the pages that the step shows, one, of a sparse indexer, chooses the
// positions to attend to, and one advances a recurrent slot. ggml calls each on all of its threads
// with a part number, which is what write, choose and attend take; each takes the one before as an
// input, so ggml orders them, with a barrier between.
//
// A graph outlives a step: it refers to a StateSlot, whose address is stable, and begin() points
// all slots at the step at hand. Exceptions must not cross ggml's C frames: they are kept and
// thrown again by end().
#ifndef CAIRN_MODELS_STATE_OPS_H_
#define CAIRN_MODELS_STATE_OPS_H_

#include <ggml.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <vector>

#include "cairn/models/delta_net.h"
#include "cairn/session/session.h"
#include "cairn/state/attend.h"
#include "cairn/state/sparse.h"

namespace cairn {

// Time in Cairn's operations (choosing and advancing count as attention), of the thread that spent
// most on it, since the last reset.
struct StateSeconds {
  double write = 0;
  double attend = 0;
};

class StateOps {
 public:
  StateOps(std::span<const SlotSpec> slots, uint32_t threads);
  StateOps(const StateOps&) = delete;
  StateOps& operator=(const StateOps&) = delete;

  // One tensor for each of the slot's families, in their order: contiguous f32 [width, heads, rows]
  // in ggml's order. Returns a node to be passed to attend and choose.
  ggml_tensor* write(ggml_context* context, SlotId slot, std::span<ggml_tensor* const> numbers);
  // query: contiguous f32 [width, index heads, rows]; weights: contiguous f32 [index heads, rows].
  // Returns the best `count` positions of every row, to be passed to attend: of this slot, or of
  // others that share the choice. scale: of the products.
  ggml_tensor* choose(ggml_context* context,
                      SlotId slot,
                      ggml_tensor* query,
                      ggml_tensor* weights,
                      ggml_tensor* written,
                      uint32_t count,
                      float scale);
  // query: contiguous f32 [width of all scored families, query heads, rows]. Returns [width of the
  // accumulated one * query heads, rows]. scale 0: 1 / sqrt(width). chosen: null, or of choose.
  ggml_tensor* attend(ggml_context* context,
                      SlotId slot,
                      ggml_tensor* query,
                      ggml_tensor* written,
                      float scale,
                      ggml_tensor* chosen = nullptr);

  // A recurrent slot, which is net.slot(); `net` outlives this. mixed: contiguous f32 [channels,
  // rows]; gates: [gates, rows]. Returns [values, rows].
  ggml_tensor* advance(ggml_context* context,
                       SlotId slot,
                       const DeltaNet& net,
                       ggml_tensor* mixed,
                       ggml_tensor* gates);

  // Shown the queries of every attention of a pass, layer by layer, and the positions chosen for
  // them; they last for the call. May be empty.
  using QueryWatcher = std::function<void(SlotId slot, const Queries& queries, Pos rows)>;
  void watch_queries(QueryWatcher watcher) { watcher_ = std::move(watcher); }

  void begin(Step& step);  // REQUIRES: the step's session has these slots
  void end();              // throws what an operation threw

  StateSeconds seconds() const;
  void reset_seconds();

 private:
  struct Slot {
    StateOps* ops = nullptr;
    SlotId id;
    SlotSpec spec;
    View view;
    float scale = 0;                // of attention
    float choice_scale = 0;         // of an indexer's products
    const DeltaNet* net = nullptr;  // of a recurrent slot
    void advance_heads(
        size_t run, const DeltaRows& rows, uint32_t begin, uint32_t end, float* out) const;
  };
  struct alignas(64) Clock {
    std::chrono::nanoseconds write{};
    std::chrono::nanoseconds attend{};
  };

  static void write_part(ggml_tensor* node, int part, int parts, void* slot) noexcept;
  static void choose_part(ggml_tensor* node, int part, int parts, void* slot) noexcept;
  static void attend_part(ggml_tensor* node, int part, int parts, void* slot) noexcept;
  static void advance_part(ggml_tensor* node, int part, int parts, void* slot) noexcept;
  template <class Work>
  void guarded(std::chrono::nanoseconds& clock, Work work) noexcept;

  std::vector<Slot> slots_;
  std::vector<Clock> clocks_;  // one per thread
  QueryWatcher watcher_;
  Step* step_ = nullptr;  // null: no pass is running
  std::mutex mutex_;
  std::exception_ptr thrown_;  // guarded by mutex_: the first
};

}  // namespace cairn

#endif  // CAIRN_MODELS_STATE_OPS_H_
