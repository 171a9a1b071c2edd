// One thread stores; everybody else only takes the lock for a moment. Nothing that belongs to an
// item is called with the lock held: who may be dropped is asked outside, and the answer counts
// only if the item still waits then.
#include "cairn/store/write_behind.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace cairn {
namespace {

struct Waiting {
  uint64_t number;  // counted from 1, in the order of enqueue
  WriteItem item;
  std::promise<bool> stored;
};

void release(const WriteItem& item) {
  if (item.release) item.release();
}

Result<void> store(const WriteItem& item) {
  try {
    return item.store();
  } catch (const std::exception& thrown) {
    return fail(Code::Io, "write-behind: {}", thrown.what());
  }
}

}  // namespace

struct WriteBehind::State {
  explicit State(uint64_t cap) : max_bytes(cap) {}

  std::optional<Waiting> take(std::deque<Waiting>::iterator waiting) {
    Waiting taken = std::move(*waiting);
    queue.erase(waiting);
    return taken;
  }

  // Drops the item of this number if it still waits; what it owned is released before this returns.
  bool drop(uint64_t number) {
    std::optional<Waiting> dropped;
    {
      const std::lock_guard lock(mutex);
      const auto waiting = std::ranges::find(queue, number, &Waiting::number);
      if (waiting == queue.end()) return false;
      dropped = take(waiting);
      pending_bytes -= dropped->item.bytes;
      ++dropped_count;
      dropped->stored.set_value(false);
    }
    settled.notify_all();
    release(dropped->item);
    return true;
  }

  // Drops the oldest that may be dropped, and were enqueued before `newest`, until the cap holds.
  void shed(uint64_t newest) {
    uint64_t asked = 0;
    for (;;) {
      std::function<bool()> can_drop;
      {
        const std::lock_guard lock(mutex);
        if (pending_bytes <= max_bytes) return;
        const auto oldest =
            std::ranges::find_if(queue, [&](const Waiting& w) { return w.number > asked; });
        if (oldest == queue.end() || oldest->number >= newest) return;
        asked = oldest->number;
        can_drop = oldest->item.can_drop;
      }
      if (!can_drop || can_drop()) drop(asked);
    }
  }

  // The next one, once there is one; nothing when the queue closes.
  std::optional<Waiting> next() {
    std::unique_lock lock(mutex);
    arrived.wait(lock, [&] { return is_closing || !queue.empty(); });
    if (is_closing) return std::nullopt;
    in_flight = queue.front().number;
    return take(queue.begin());
  }

  void settle(Waiting& done, Result<void> result) {
    {
      const std::lock_guard lock(mutex);
      pending_bytes -= done.item.bytes;
      is_settled = true;
      ++(result ? stored_count : failed_count);
      if (!result) last_error = result;
      done.stored.set_value(result.has_value());
    }
    release(done.item);
    {
      const std::lock_guard lock(mutex);
      in_flight = 0;
      is_settled = false;
    }
    settled.notify_all();
  }

  void run() {
    while (std::optional<Waiting> item = next()) settle(*item, store(item->item));
  }

  const uint64_t max_bytes;
  std::mutex mutex;  // guards everything below
  std::condition_variable arrived;
  std::condition_variable settled;
  std::deque<Waiting> queue;
  uint64_t last_number = 0;
  uint64_t in_flight = 0;   // its number; 0: none
  bool is_settled = false;  // the one in flight, which is being released
  bool is_closing = false;
  uint64_t pending_bytes = 0;
  uint64_t stored_count = 0, dropped_count = 0, failed_count = 0;
  Result<void> last_error;
  std::thread thread;
};

WriteBehind::WriteBehind(uint64_t max_bytes) : state_(std::make_unique<State>(max_bytes)) {
  state_->thread = std::thread([state = state_.get()] { state->run(); });
}

WriteBehind::~WriteBehind() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->is_closing = true;
  }
  state_->arrived.notify_all();
  state_->thread.join();
  while (!state_->queue.empty()) state_->drop(state_->queue.front().number);
}

std::future<bool> WriteBehind::enqueue(WriteItem item) {
  std::future<bool> stored;
  uint64_t number;
  {
    const std::lock_guard lock(state_->mutex);
    number = ++state_->last_number;
    state_->pending_bytes += item.bytes;
    state_->queue.push_back({.number = number, .item = std::move(item)});
    stored = state_->queue.back().stored.get_future();
  }
  state_->arrived.notify_one();
  state_->shed(number);
  return stored;
}

uint64_t WriteBehind::cancel_where(const std::function<bool(uint64_t tag)>& matches) {
  std::vector<std::pair<uint64_t, uint64_t>> waiting;  // number, tag
  {
    const std::lock_guard lock(state_->mutex);
    for (const Waiting& w : state_->queue) waiting.emplace_back(w.number, w.item.tag);
  }
  uint64_t cancelled = 0;
  for (const auto& [number, tag] : waiting) cancelled += matches(tag) && state_->drop(number);
  return cancelled;
}

void WriteBehind::drain() {
  std::unique_lock lock(state_->mutex);
  const uint64_t last = state_->last_number;
  state_->settled.wait(lock, [&] {
    const bool is_in_flight = state_->in_flight != 0 && state_->in_flight <= last;
    const bool is_waiting = !state_->queue.empty() && state_->queue.front().number <= last;
    return !is_in_flight && !is_waiting;
  });
}

WriteCounts WriteBehind::counts() const {
  const std::lock_guard lock(state_->mutex);
  const bool is_storing = state_->in_flight != 0 && !state_->is_settled;
  return {.pending = state_->queue.size() + (is_storing ? 1 : 0),
          .pending_bytes = state_->pending_bytes,
          .stored = state_->stored_count,
          .dropped = state_->dropped_count,
          .failed = state_->failed_count};
}

Result<void> WriteBehind::last_error() const {
  const std::lock_guard lock(state_->mutex);
  return state_->last_error;
}

}  // namespace cairn
