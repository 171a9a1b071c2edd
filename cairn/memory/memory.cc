#include "cairn/memory/memory.h"

#include <sys/mman.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cassert>
#include <cstring>

#include "cairn/core/bytes.h"

namespace cairn {
namespace {

constexpr uint64_t kHugePage = uint64_t{2} << 20;
constexpr uint64_t kSystemPage = 4096;
constexpr uint64_t kSlab = uint64_t{64} << 20;  // of address space; a larger page has its own
constexpr uint64_t kMostPagesOfASlab = 1024;
constexpr uint64_t kLargePage = 32768;  // from here on pages fill whole pages of the system

// Address space, 2 MiB aligned; null when the system refuses.
std::byte* reserve(uint64_t bytes) {
  void* got = ::mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED) return nullptr;
  const auto start = reinterpret_cast<uintptr_t>(got);
  const uintptr_t aligned = round_up(start, kHugePage);
  if (aligned > start) ::munmap(got, aligned - start);
  if (const uintptr_t behind = start + kHugePage - aligned; behind > 0)
    ::munmap(reinterpret_cast<void*>(aligned + bytes), behind);
  ::madvise(reinterpret_cast<void*>(aligned), bytes, MADV_HUGEPAGE);  // a wish; may be refused
  return reinterpret_cast<std::byte*>(aligned);
}

// Returns to the system what lies wholly inside [data, data + bytes).
void return_to_system(std::byte* data, uint64_t bytes) {
  const auto begin = round_up(reinterpret_cast<uintptr_t>(data), kSystemPage);
  const auto end = (reinterpret_cast<uintptr_t>(data) + bytes) / kSystemPage * kSystemPage;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace

namespace internal {

struct Slab {
  PagePool* pool = nullptr;
  std::byte* base = nullptr;
  uint64_t bytes = 0;
  uint64_t pages = 0;
  std::unique_ptr<PageRecord[]> records;
  ~Slab() {
    if (base != nullptr) ::munmap(base, bytes);
  }
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

uint64_t PageRef::bytes() const { return page_->slab->pool->page_bytes(); }

uint64_t PageRef::cost() const { return page_->slab->pool->page_cost(); }

void PageRef::release() noexcept {
  if (page_->holds.fetch_sub(1, std::memory_order_acq_rel) == 1)
    page_->slab->pool->give_back(page_);
  page_ = nullptr;
}

PagePool::PagePool(Memory& memory, uint64_t page_bytes)
    : memory_(memory),
      page_bytes_(page_bytes),
      stride_bytes_(page_bytes < kLargePage ? page_bytes : round_up(page_bytes, kSystemPage)) {}
PagePool::~PagePool() = default;

Result<PageRef> PagePool::take() {
  for (;;) {
    Memory::Reclaimer reclaimer;
    {
      std::lock_guard lock(memory_.mutex_);
      if (!free_.empty()) return hold(free_);
      const uint64_t limit = memory_.options_.max_bytes;
      if (limit - memory_.committed_bytes_ < stride_bytes_) memory_.trim_locked();
      if (limit - memory_.committed_bytes_ >= stride_bytes_) {
        if (fresh_.empty()) CAIRN_TRY(add_slab());
        memory_.committed_bytes_ += stride_bytes_;
        return hold(fresh_);
      }
      reclaimer = memory_.reclaimer_;
    }
    if (!reclaimer || reclaimer(page_bytes_) == 0) {
      const MemoryUse now = memory_.use();
      return fail(Code::NoSpace, "memory: a page of {} bytes wanted, {} of {} bytes are live",
                  page_bytes_, now.live_bytes, now.limit_bytes);
    }
  }
}

PageRef PagePool::hold(std::vector<PageRecord*>& list) {
  PageRecord* page = list.back();
  list.pop_back();
  page->holds.store(1, std::memory_order_relaxed);
  return PageRef(page);
}

void PagePool::give_back(PageRecord* page) noexcept {
  std::lock_guard lock(memory_.mutex_);
  free_.push_back(page);  // within the capacity that add_slab() reserved
}

uint64_t PagePool::decommit() noexcept {
  const uint64_t bytes = free_.size() * stride_bytes_;
  for (PageRecord* page : free_) {
    return_to_system(page->data, stride_bytes_);
    fresh_.push_back(page);
  }
  free_.clear();
  return bytes;
}

Result<void> PagePool::add_slab() {
  auto slab = std::make_unique<Slab>();
  slab->pool = this;
  slab->pages = std::clamp<uint64_t>(kSlab / stride_bytes_, 1, kMostPagesOfASlab);
  slab->bytes = round_up(slab->pages * stride_bytes_, kSystemPage);
  slab->records = std::make_unique<PageRecord[]>(slab->pages);
  uint64_t pages = slab->pages;
  for (const auto& other : slabs_) pages += other->pages;
  free_.reserve(pages);
  fresh_.reserve(pages);
  slabs_.reserve(slabs_.size() + 1);
  slab->base = reserve(slab->bytes);
  if (slab->base == nullptr)
    return fail(Code::NoSpace, "memory: the system refuses {} bytes", slab->bytes);
  for (uint64_t i = slab->pages; i-- > 0;) {  // lowest address on top
    slab->records[i].data = slab->base + i * stride_bytes_;
    slab->records[i].slab = slab.get();
    fresh_.push_back(&slab->records[i]);
  }
  slabs_.push_back(std::move(slab));
  return {};
}

void prefault(std::span<std::byte> bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data()) / kSystemPage * kSystemPage;
  const auto end = round_up(reinterpret_cast<uintptr_t>(bytes.data()) + bytes.size(), kSystemPage);
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_WRITE);  // a wish, too
}

void fill(std::byte* page, std::span<const std::byte> from) {
#ifdef __SSE2__
  for (; from.size() >= sizeof(__m128i); from = from.subspan(sizeof(__m128i))) {
    const auto* source = reinterpret_cast<const __m128i*>(from.data());
    _mm_stream_si128(reinterpret_cast<__m128i*>(page), _mm_loadu_si128(source));
    page += sizeof(__m128i);
  }
  _mm_sfence();  // whoever sees what this thread writes next sees these bytes too
#endif
  std::memcpy(page, from.data(), from.size());
}

Memory::Memory(MemoryOptions options) : options_(options) {}

Memory::~Memory() { assert(use().live_pages == 0 && "a page outlives its memory"); }

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
  for (auto& [bytes, pool] : pools_) returned += pool->decommit();
  committed_bytes_ -= returned;
  return returned;
}

MemoryUse Memory::use() const {
  std::lock_guard lock(mutex_);
  MemoryUse use{.limit_bytes = options_.max_bytes, .committed_bytes = committed_bytes_};
  for (const auto& [page_bytes, pool] : pools_)
    for (const auto& slab : pool->slabs_)
      for (uint64_t i = 0; i < slab->pages; ++i) {
        const uint32_t holds = slab->records[i].holds.load(std::memory_order_relaxed);
        use.live_pages += holds > 0;
        use.live_bytes += holds > 0 ? pool->page_cost() : 0;
        use.shared_bytes += holds > 1 ? pool->page_cost() : 0;
      }
  use.free_bytes = use.committed_bytes - use.live_bytes;
  return use;
}

}  // namespace cairn
