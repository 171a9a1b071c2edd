// Memory: the bytes that states live in. Made by the caller, shared by any number of sessions and
// caches, outlives them.
//
// A pool reserves address space in slabs (anonymous mappings, 2 MiB aligned, huge pages asked for)
// and cuts them into equal pages. The byte limit counts committed pages: those held, and those
// given back but still backed by memory for the next taker. When the limit is met, pages of the
// second sort are returned to the system, whatever pool they are of; then the reclaimer is asked to
// let go of pages nobody needs; only then a take fails with NoSpace, having changed nothing.
//
// A page is held by PageRefs; the last one to go gives it back. Everything here is thread-safe; one
// PageRef is not.
#ifndef CAIRN_MEMORY_MEMORY_H_
#define CAIRN_MEMORY_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "cairn/core/error.h"

namespace cairn {

class PagePool;
class Memory;

namespace internal {
struct Slab;
// The pool's record of one page. Its address is stable while the page is held.
struct PageRecord {
  std::atomic<uint32_t> holds{0};
  std::byte* data = nullptr;
  Slab* slab = nullptr;
};
}  // namespace internal

// A hold on one page: leaving the scope is the release.
class PageRef {
 public:
  PageRef() = default;
  PageRef(PageRef&& other) noexcept : page_(std::exchange(other.page_, nullptr)) {}
  PageRef& operator=(PageRef&& other) noexcept {
    std::swap(page_, other.page_);
    return *this;
  }
  ~PageRef() {
    if (page_ != nullptr) release();
  }

  PageRef share() const;   // one more hold on the same page
  bool is_shared() const;  // somebody else holds it too: copy before writing
  std::byte* data() const { return page_->data; }
  uint64_t bytes() const;
  uint64_t cost()
      const;  // bytes that it takes, and counts against the limit: bytes() or a few more
  explicit operator bool() const { return page_ != nullptr; }
  bool operator==(const PageRef& other) const { return page_ == other.page_; }

 private:
  friend class PagePool;
  explicit PageRef(internal::PageRecord* page) : page_(page) {}
  void release() noexcept;

  internal::PageRecord* page_ = nullptr;  // null: holds nothing
};

// Equal pages of one size. Obtained from Memory::pool.
class PagePool {
 public:
  ~PagePool();
  Result<PageRef> take();  // contents are whatever the last owner left; NoSpace changes nothing
  uint64_t page_bytes() const { return page_bytes_; }
  uint64_t page_cost() const {
    return stride_bytes_;
  }  // bytes that a page counts against the limit

 private:
  friend class Memory;
  friend class PageRef;
  PagePool(Memory& memory, uint64_t page_bytes);
  void give_back(internal::PageRecord* page) noexcept;
  // With the memory's lock held:
  PageRef hold(std::vector<internal::PageRecord*>& list);
  Result<void> add_slab();
  uint64_t decommit() noexcept;  // bytes returned to the system

  Memory& memory_;
  const uint64_t page_bytes_;
  const uint64_t stride_bytes_;  // between pages of a slab; what a page counts against the limit
  std::vector<std::unique_ptr<internal::Slab>> slabs_;
  // Capacity for every page in both, so that giving back cannot fail.
  std::vector<internal::PageRecord*> free_;   // committed
  std::vector<internal::PageRecord*> fresh_;  // not backed by memory
};

// Has the system put memory behind a part of a page, which else happens at the first touch: a
// little at a time, and twice over where two threads first touch neighbours at once. Changes no
// byte and no count; does nothing where the system cannot.
void prefault(std::span<std::byte> bytes);

// `from` to the start of a page, past the caches: a page is not read again soon, and a store that
// goes through them reads its lines first.
void fill(std::byte* page, std::span<const std::byte> from);

struct MemoryOptions {
  uint64_t max_bytes = uint64_t{1} << 40;  // of committed pages; default: all the machine has
};

struct MemoryUse {
  uint64_t limit_bytes = 0;
  uint64_t committed_bytes = 0;  // never more than the limit
  uint64_t live_bytes = 0;       // pages that somebody holds
  uint64_t shared_bytes = 0;     // of those, pages with more than one hold
  uint64_t free_bytes = 0;       // committed, not live
  uint64_t live_pages = 0;
};

class Memory {
 public:
  explicit Memory(MemoryOptions options = {});
  ~Memory();  // every page must have been given back
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // The pool of pages of this size (a multiple of 64 bytes), made at the first call. Lives as long
  // as the memory.
  PagePool& pool(uint64_t page_bytes);

  // Asked, without any lock held, when the limit is met: let go of holds on about `wanted_bytes` of
  // pages that nobody needs, and return the bytes let go of; 0 ends the asking.
  using Reclaimer = std::function<uint64_t(uint64_t wanted_bytes)>;
  void set_reclaimer(Reclaimer reclaimer);

  // Returns committed pages that nobody holds to the system, and says how many bytes. Happens by
  // itself before NoSpace.
  uint64_t trim();

  MemoryUse use() const;

 private:
  friend class PagePool;
  uint64_t trim_locked();

  const MemoryOptions options_;
  // Guards everything below and the pools' lists; never held across the reclaimer.
  mutable std::mutex mutex_;
  std::map<uint64_t, std::unique_ptr<PagePool>> pools_;  // by page bytes
  Reclaimer reclaimer_;
  uint64_t committed_bytes_ = 0;
};

}  // namespace cairn

#endif  // CAIRN_MEMORY_MEMORY_H_
