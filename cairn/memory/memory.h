// Memory: the bytes that states live in. Made by the caller, shared by any number of sessions and
// caches, outlives them.
//
// An arena hands out slabs (anonymous mappings, 2 MiB aligned, huge pages asked for); a pool cuts
// slabs into equal pages. The byte limit counts slabs, so what the process really holds stays under
// it. When the limit is met, empty slabs of other pools are returned first, then the reclaimer is
// asked to let go of pages nobody needs, and only then a take fails with NoSpace, having changed
// nothing.
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

 private:
  friend class Memory;
  friend class PageRef;
  PagePool(Memory& memory, uint64_t page_bytes);
  PageRef take_free();  // empty when no page is free
  void give_back(internal::PageRecord* page) noexcept;
  // With the memory's lock held:
  Result<void> add_slab(uint64_t room_bytes);
  uint64_t return_empty_slabs() noexcept;  // bytes returned to the system

  Memory& memory_;
  const uint64_t page_bytes_;
  std::vector<std::unique_ptr<internal::Slab>> slabs_;
  std::vector<internal::PageRecord*>
      free_;  // capacity for every page, so that giving back cannot fail
};

struct MemoryOptions {
  uint64_t max_bytes = uint64_t{1} << 40;  // of slabs; the default is "as much as the machine has"
};

struct MemoryUse {
  uint64_t limit_bytes = 0;
  uint64_t arena_bytes = 0;   // slabs held from the operating system; never more than the limit
  uint64_t live_bytes = 0;    // pages that somebody holds
  uint64_t shared_bytes = 0;  // of those, pages with more than one hold
  uint64_t free_bytes = 0;    // arena_bytes - live_bytes
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

  uint64_t
  trim();  // returns slabs without a held page to the system; happens by itself before NoSpace

  MemoryUse use() const;

 private:
  friend class PagePool;
  Result<void> grow(PagePool& pool);  // sees to it that a page of the pool is free
  uint64_t trim_locked();

  const MemoryOptions options_;
  mutable std::mutex
      mutex_;  // guards everything below and the pools' lists; never held across the reclaimer
  std::map<uint64_t, std::unique_ptr<PagePool>> pools_;  // by page bytes
  Reclaimer reclaimer_;
  uint64_t arena_bytes_ = 0;
};

}  // namespace cairn

#endif  // CAIRN_MEMORY_MEMORY_H_
