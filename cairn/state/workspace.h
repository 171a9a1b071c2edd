// What the parts of a call over a view share: one buffer, cut into pieces by everyone alike.
#ifndef CAIRN_STATE_WORKSPACE_H_
#define CAIRN_STATE_WORKSPACE_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>

#include "cairn/core/bytes.h"
#include "cairn/state/attend.h"

namespace cairn {

struct AlignedDelete {
  void operator()(std::byte* bytes) const { ::operator delete[](bytes, std::align_val_t{64}); }
};
using AlignedBytes = std::unique_ptr<std::byte[], AlignedDelete>;

inline AlignedBytes make_aligned(uint64_t bytes) {
  return AlignedBytes(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{64})));
}

// Hands out pieces of a buffer, each at a multiple of 64 bytes; with no buffer it measures.
class Carver {
 public:
  explicit Carver(std::byte* begin) : begin_(begin) {}
  template <class T>
  T* take(uint64_t count) {
    std::byte* piece = begin_ == nullptr ? nullptr : begin_ + used_;
    used_ += round_up(count * sizeof(T), 64);
    return reinterpret_cast<T*>(piece);
  }
  uint64_t used() const { return used_; }

 private:
  std::byte* begin_;
  uint64_t used_ = 0;
};

struct AttendWorkspace::State {
  std::mutex mutex;
  AlignedBytes bytes;
  uint64_t byte_count = 0;
  std::unique_ptr<std::atomic<uint64_t>[]>
      done;  // per share: blocks of an item, and of a segment, that begins in it; 0 between calls
  uint32_t share_count = 0;
  // The first share that nobody has taken, and the parts that have left; 0 between calls.
  std::atomic<uint32_t> next_share{0}, parts_gone{0};

  // Room for one call; what the last one left there is gone. All parts of a call ask for the same,
  // so only the first one can find too little. Doubling keeps the cost of a sequence that grows
  // token by token constant.
  std::byte* reserve(uint64_t wanted_bytes, uint32_t shares) {
    const std::lock_guard lock(mutex);
    if (byte_count < wanted_bytes) {
      const uint64_t grown = std::max(wanted_bytes, 2 * byte_count);
      bytes.reset();
      byte_count = 0;
      bytes = make_aligned(grown);
      byte_count = grown;
    }
    if (share_count < shares) {
      done = std::make_unique<std::atomic<uint64_t>[]>(uint64_t{2} * shares);
      share_count = shares;
    }
    return bytes.get();
  }

  // Every part of a call has one. The last to go makes the workspace ready for the next call, even
  // where a part fails.
  class Visit {
   public:
    Visit(State& state, uint32_t parts) : state_(state), parts_(parts) {}
    ~Visit() {
      if (state_.parts_gone.fetch_add(1, std::memory_order_acq_rel) + 1 != parts_) return;
      state_.next_share.store(0, std::memory_order_relaxed);
      state_.parts_gone.store(0, std::memory_order_relaxed);
    }
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;

   private:
    State& state_;
    uint32_t parts_;
  };
};

}  // namespace cairn

#endif  // CAIRN_STATE_WORKSPACE_H_
