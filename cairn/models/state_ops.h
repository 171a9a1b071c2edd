// The two custom operations through which a ggml graph reaches the state: one writes a slot's new
// keys and values, one attends over the pages that the step shows. ggml calls each on all of its
// threads with a part number, which is what write and attend take; the second takes the first as an
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
#include <mutex>
#include <span>
#include <vector>

#include "cairn/session/session.h"
#include "cairn/state/attend.h"

namespace cairn {

// Time in Cairn's operations, of the thread that spent most on it, since the last reset.
struct StateSeconds {
  double write = 0;
  double attend = 0;
};

class StateOps {
 public:
  StateOps(std::span<const SlotSpec> slots, uint32_t threads);
  StateOps(const StateOps&) = delete;
  StateOps& operator=(const StateOps&) = delete;

  // key, value: contiguous f32 [width, heads, rows] in ggml's order. Returns a node to be passed to
  // attend.
  ggml_tensor* write(ggml_context* context, SlotId slot, ggml_tensor* key, ggml_tensor* value);
  // query: contiguous f32 [width, query heads, rows]. Returns [value width * query heads, rows].
  // scale 0: 1 / sqrt(width).
  ggml_tensor* attend(
      ggml_context* context, SlotId slot, ggml_tensor* query, ggml_tensor* written, float scale);

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
    float scale = 0;
  };
  struct alignas(64) Clock {
    std::chrono::nanoseconds write{};
    std::chrono::nanoseconds attend{};
  };

  static void write_part(ggml_tensor* node, int part, int parts, void* slot) noexcept;
  static void attend_part(ggml_tensor* node, int part, int parts, void* slot) noexcept;
  template <class Work>
  void guarded(std::chrono::nanoseconds& clock, Work work) noexcept;

  std::vector<Slot> slots_;
  std::vector<Clock> clocks_;  // one per thread
  Step* step_ = nullptr;       // null: no pass is running
  std::mutex mutex_;
  std::exception_ptr thrown_;  // guarded by mutex_: the first
};

}  // namespace cairn

#endif  // CAIRN_MODELS_STATE_OPS_H_
