#include "cairn/memory/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cassert>

#include "cairn/core/bytes.h"

namespace cairn {
namespace {

constexpr uint64_t kHugePage = uint64_t{2} << 20;
constexpr uint64_t kSystemPage = 4096;
constexpr uint64_t kSmallestSlab = kHugePage;
constexpr uint64_t kLargestSlab = uint64_t{64} << 20;

// An anonymous mapping, 2 MiB aligned where it is at least that large; null when the system
// refuses.
std::byte* map(uint64_t bytes) {
  const uint64_t slack = bytes >= kHugePage ? kHugePage : 0;
  void* got =
      ::mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (got == MAP_FAILED) return nullptr;
  const auto start = reinterpret_cast<uintptr_t>(got);
  const uintptr_t aligned = slack ? round_up(start, kHugePage) : start;
  if (aligned > start) ::munmap(got, aligned - start);
  if (const uintptr_t behind = start + slack - aligned; behind > 0)
    ::munmap(reinterpret_cast<void*>(aligned + bytes), behind);
  if (slack)
    ::madvise(reinterpret_cast<void*>(aligned), bytes, MADV_HUGEPAGE);  // a wish; may be refused
  return reinterpret_cast<std::byte*>(aligned);
}

}  // namespace

namespace internal {

struct Slab {
  PagePool* pool = nullptr;
  std::byte* base = nullptr;
  uint64_t bytes = 0;
  uint64_t pages = 0;
  uint64_t live = 0;  // pages with a hold
  std::unique_ptr<PageRecord[]> records;
};

}  // namespace internal

using internal::PageRecord;
using internal::Slab;

PageRef PageRef::share() const {
  if (page_ == nullptr) return {};
  page_->holds.fetch_add(1, std::memory_order_relaxed);
  return PageRef(page_);
}

bool PageRef::is_shared() const { return page_->holds.load(std::memory_order_acquire) > 1; }

void PageRef::release() noexcept {
  if (page_->holds.fetch_sub(1, std::memory_order_acq_rel) == 1)
    page_->slab->pool->give_back(page_);
  page_ = nullptr;
}

PagePool::PagePool(Memory& memory, uint64_t page_bytes)
    : memory_(memory), page_bytes_(page_bytes) {}
PagePool::~PagePool() = default;

Result<PageRef> PagePool::take() {
  for (;;) {
    if (PageRef page = take_free()) return page;
    CAIRN_TRY(memory_.grow(*this));
  }
}

PageRef PagePool::take_free() {
  std::lock_guard lock(memory_.mutex_);
  if (free_.empty()) return {};
  PageRecord* page = free_.back();
  free_.pop_back();
  ++page->slab->live;
  page->holds.store(1, std::memory_order_relaxed);
  return PageRef(page);
}

void PagePool::give_back(PageRecord* page) noexcept {
  std::lock_guard lock(memory_.mutex_);
  --page->slab->live;
  free_.push_back(page);  // within the capacity that grow() reserved
}

uint64_t PagePool::return_empty_slabs() noexcept {
  uint64_t returned = 0;
  std::erase_if(free_, [](const PageRecord* page) { return page->slab->live == 0; });
  std::erase_if(slabs_, [&](const std::unique_ptr<Slab>& slab) {
    if (slab->live != 0) return false;
    ::munmap(slab->base, slab->bytes);
    returned += slab->bytes;
    return true;
  });
  return returned;
}

// A new slab as large as the pool is already, within bounds: few mappings for the large, no waste
// for the small.
Result<void> PagePool::add_slab(uint64_t room_bytes) {
  uint64_t pool_bytes = 0, pool_pages = 0;
  for (const auto& slab : slabs_) {
    pool_bytes += slab->bytes;
    pool_pages += slab->pages;
  }
  const uint64_t wanted = std::clamp(pool_bytes, kSmallestSlab, kLargestSlab);
  const uint64_t pages =
      std::max<uint64_t>(1, std::min(wanted, room_bytes / kSystemPage * kSystemPage) / page_bytes_);
  auto slab = std::make_unique<Slab>();
  slab->pool = this;
  slab->pages = pages;
  slab->bytes = round_up(pages * page_bytes_, kSystemPage);
  slab->records = std::make_unique<PageRecord[]>(pages);
  free_.reserve(pool_pages + pages);
  slabs_.reserve(slabs_.size() + 1);
  slab->base = map(slab->bytes);
  if (slab->base == nullptr)
    return fail(Code::NoSpace, "memory: the system refuses {} bytes", slab->bytes);
  for (uint64_t i = pages; i-- > 0;) {  // lowest address on top
    slab->records[i].data = slab->base + i * page_bytes_;
    slab->records[i].slab = slab.get();
    free_.push_back(&slab->records[i]);
  }
  memory_.arena_bytes_ += slab->bytes;
  slabs_.push_back(std::move(slab));
  return {};
}

Memory::Memory(MemoryOptions options) : options_(options) {}

Memory::~Memory() {
  for (auto& [bytes, pool] : pools_) {
    pool->return_empty_slabs();
    assert(pool->slabs_.empty() && "a page outlives its memory");
  }
}

PagePool& Memory::pool(uint64_t page_bytes) {
  CAIRN_CHECK(page_bytes > 0 && page_bytes % 64 == 0,
              "memory: pages of {} bytes, expected a multiple of 64", page_bytes);
  std::lock_guard lock(mutex_);
  auto& pool = pools_[page_bytes];
  if (!pool) pool.reset(new PagePool(*this, page_bytes));
  return *pool;
}

void Memory::set_reclaimer(Reclaimer reclaimer) {
  std::lock_guard lock(mutex_);
  reclaimer_ = std::move(reclaimer);
}

uint64_t Memory::trim() {
  std::lock_guard lock(mutex_);
  return trim_locked();
}

uint64_t Memory::trim_locked() {
  uint64_t returned = 0;
  for (auto& [bytes, pool] : pools_) returned += pool->return_empty_slabs();
  arena_bytes_ -= returned;
  return returned;
}

Result<void> Memory::grow(PagePool& pool) {
  const uint64_t least = round_up(pool.page_bytes(), kSystemPage);
  for (;;) {
    Reclaimer reclaimer;
    {
      std::lock_guard lock(mutex_);
      if (!pool.free_.empty()) return {};
      if (options_.max_bytes - arena_bytes_ < least) trim_locked();
      if (const uint64_t room = options_.max_bytes - arena_bytes_; room >= least)
        return pool.add_slab(room);
      reclaimer = reclaimer_;
    }
    if (!reclaimer || reclaimer(pool.page_bytes()) == 0) {
      const MemoryUse now = use();
      return fail(Code::NoSpace, "memory: a page of {} bytes wanted, {} of {} bytes are live",
                  pool.page_bytes(), now.live_bytes, now.limit_bytes);
    }
  }
}

MemoryUse Memory::use() const {
  std::lock_guard lock(mutex_);
  MemoryUse use{.limit_bytes = options_.max_bytes, .arena_bytes = arena_bytes_};
  for (const auto& [page_bytes, pool] : pools_)
    for (const auto& slab : pool->slabs_) {
      use.live_pages += slab->live;
      use.live_bytes += slab->live * page_bytes;
      for (uint64_t i = 0; i < slab->pages; ++i)
        if (slab->records[i].holds.load(std::memory_order_relaxed) > 1)
          use.shared_bytes += page_bytes;
    }
  use.free_bytes = use.arena_bytes - use.live_bytes;
  return use;
}

}  // namespace cairn
