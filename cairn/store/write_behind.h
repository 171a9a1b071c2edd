// A bounded serial queue of writes: producers never wait for the disk and never see its failures,
// except through the future of an item and the counts (state-spec.md section 7, SPQ-1 to SPQ-11).
//
// An item counts against the cap from enqueue until its store has settled. When the cap is passed
// the oldest droppable items are shed, first those that wait longest; the newest and the one in
// flight never are, so the cap is soft. What an item owns is released as soon as it is shed, and
// after its future has settled otherwise.
#ifndef CAIRN_STORE_WRITE_BEHIND_H_
#define CAIRN_STORE_WRITE_BEHIND_H_

#include <cstdint>
#include <functional>
#include <future>
#include <memory>

#include "cairn/core/error.h"

namespace cairn {

struct WriteItem {
  uint64_t bytes = 0;                   // measured once
  std::function<Result<void>()> store;  // called once, on the queue's thread
  std::function<void()> release;        // called once, after the future settled or when shed
  std::function<bool()> can_drop;       // empty: yes
  uint64_t tag = 0;                     // for cancel_where; the caller's own
};

struct WriteCounts {
  uint64_t pending = 0;  // in flight included
  uint64_t pending_bytes = 0;
  uint64_t stored = 0;  // cumulative, like those below
  uint64_t dropped = 0;
  uint64_t failed = 0;
};

class WriteBehind {
 public:
  static constexpr uint64_t kUnbounded = UINT64_MAX;
  explicit WriteBehind(uint64_t max_bytes = uint64_t{2}
                                            << 30);  // 0: the newest and the one in flight
  ~WriteBehind();  // waits for the item in flight; what is queued is dropped

  std::future<bool> enqueue(WriteItem item);                                // true: stored
  uint64_t cancel_where(const std::function<bool(uint64_t tag)>& matches);  // not the one in flight
  void drain();  // returns when everything enqueued before the call has settled
  WriteCounts counts() const;
  Result<void> last_error() const;  // of the item that failed last; none: nothing failed

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cairn

#endif  // CAIRN_STORE_WRITE_BEHIND_H_
