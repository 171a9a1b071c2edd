// Which positions a slot keeps: all of them, or the newest `window` plus the first `sinks`.
#ifndef CAIRN_STATE_RETENTION_H_
#define CAIRN_STATE_RETENTION_H_

#include <algorithm>

#include "cairn/core/ids.h"
#include "cairn/kernels/softmax.h"

namespace cairn {

struct Retention {
  Pos window =
      0;  // a query sees itself and the window - 1 positions before it; 0: it sees everything
  Pos sinks = 0;  // the first positions, seen by every query; only with a window
  Pos rewind =
      256;  // positions kept beyond the window, so that a turn can be redone; only with a window
  auto operator<=>(const Retention&) const = default;

  bool keeps_all() const { return window == 0; }

  // What the query at `position` sees: the sinks, then the window; one range when they touch.
  struct Visible {
    Range sinks;
    Range recent;
  };
  Visible visible(Pos position) const {
    const Pos end = position + 1;
    if (keeps_all()) return {{0, 0}, {0, end}};
    const Pos low = end > window ? end - window : 0;
    if (low <= sinks) return {{0, 0}, {0, end}};
    return {{0, sinks}, {low, end}};
  }

  // The first position beyond the sinks that a sequence of this length still holds.
  Pos first_kept(Pos length) const {
    if (keeps_all() || length <= window + rewind) return 0;
    return length - window - rewind;
  }

  // The first position beyond the sinks that a sequence must hold to go on from `length`: the next
  // query sees it.
  Pos first_needed(Pos length) const {
    if (keeps_all() || length < window) return 0;
    return length - window + 1;
  }
};

}  // namespace cairn

#endif  // CAIRN_STATE_RETENTION_H_
