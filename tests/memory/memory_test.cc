#include "cairn/memory/memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <thread>

#include "tests/support/random.h"

namespace cairn {
namespace {

constexpr uint64_t kPage = 8192;

TEST(Memory, GivesPagesBackWhenTheLastHoldGoes) {
  Memory memory;
  PagePool& pool = memory.pool(kPage);
  {
    PageRef page = pool.take().value();
    EXPECT_FALSE(page.is_shared());
    PageRef same = page.share();
    EXPECT_TRUE(page.is_shared());
    EXPECT_EQ(page.data(), same.data());
    EXPECT_EQ(memory.use().live_bytes, kPage);
    EXPECT_EQ(memory.use().shared_bytes, kPage);
    page = PageRef();
    EXPECT_FALSE(same.is_shared());
    EXPECT_EQ(memory.use().shared_bytes, 0u);
    EXPECT_EQ(memory.use().live_bytes, kPage);
  }
  EXPECT_EQ(memory.use().live_pages, 0u);
}

TEST(Memory, FailsCleanlyAtItsLimitAndRecovers) {
  Memory memory({.max_bytes = 10 * kPage});
  PagePool& pool = memory.pool(kPage);
  std::vector<PageRef> pages;
  for (int i = 0; i < 10; ++i) pages.push_back(pool.take().value());
  for (int i = 0; i < 3; ++i) {
    const auto refused = pool.take();
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::NoSpace);
    EXPECT_NE(refused.error().message.find("81920"), std::string::npos) << refused.error().message;
  }
  EXPECT_EQ(memory.use().live_pages, 10u);
  EXPECT_LE(memory.use().committed_bytes, 10 * kPage);
  pages.pop_back();
  EXPECT_TRUE(pool.take());
}

TEST(Memory, ReturnsFreePagesOfOnePoolToAnother) {
  Memory memory({.max_bytes = uint64_t{4} << 20});
  {
    std::vector<PageRef> small;
    for (int i = 0; i < 400; ++i) small.push_back(memory.pool(kPage).take().value());
  }
  EXPECT_EQ(memory.use().committed_bytes, 400 * kPage);
  std::vector<PageRef> large;
  for (int i = 0; i < 4; ++i) large.push_back(memory.pool(uint64_t{1} << 20).take().value());
  EXPECT_LE(memory.use().committed_bytes, uint64_t{4} << 20);
}

TEST(Memory, TrimReturnsWhatNobodyHolds) {
  Memory memory;
  std::vector<PageRef> pages;
  for (int i = 0; i < 5000; ++i) pages.push_back(memory.pool(kPage).take().value());
  EXPECT_EQ(memory.trim(), 0u);
  pages.clear();
  EXPECT_GT(memory.use().committed_bytes, 0u);
  EXPECT_GT(memory.trim(), 0u);
  EXPECT_EQ(memory.use().committed_bytes, 0u);
}

// Whether all of it is backed by memory.
bool is_resident(std::span<std::byte> bytes) {
  std::vector<unsigned char> pages(bytes.size() / 4096);
  EXPECT_EQ(mincore(bytes.data(), bytes.size(), pages.data()), 0);
  return std::ranges::all_of(pages, [](unsigned char page) { return (page & 1) != 0; });
}

TEST(Memory, PrefaultBacksAPageAndChangesNothingElse) {
  constexpr uint64_t kLarge = uint64_t{3} << 20;
  Memory memory({.max_bytes = 2 * kLarge});
  PageRef page = memory.pool(kLarge).take().value();
  std::memset(page.data() + 4096, 0x5a, 4096);
  const MemoryUse before = memory.use();
  const std::span bytes(page.data(), page.bytes());
  prefault(bytes.subspan(100, kLarge - 300));  // of any bounds
  if (!is_resident(bytes)) GTEST_SKIP() << "this system backs no memory ahead of its use";
  EXPECT_EQ(memory.use().committed_bytes, before.committed_bytes);
  EXPECT_EQ(memory.use().live_bytes, before.live_bytes);
  for (uint64_t i = 0; i < kLarge; ++i)
    ASSERT_EQ(bytes[i], std::byte(i / 4096 == 1 ? 0x5a : 0)) << i;
  prefault({});
}

TEST(Memory, AsksTheReclaimerBeforeItRefuses) {
  Memory memory({.max_bytes = 4 * kPage});
  PagePool& pool = memory.pool(kPage);
  std::vector<PageRef> cached;
  for (int i = 0; i < 4; ++i) cached.push_back(pool.take().value());
  int asked = 0;
  memory.set_reclaimer([&](uint64_t wanted) -> uint64_t {
    ++asked;
    EXPECT_EQ(wanted, kPage);
    if (cached.empty()) return 0;
    cached.pop_back();
    return kPage;
  });
  std::vector<PageRef> live;
  for (int i = 0; i < 4; ++i) live.push_back(pool.take().value());
  EXPECT_EQ(asked, 4);
  EXPECT_FALSE(pool.take());
  EXPECT_EQ(asked, 5);
}

TEST(Memory, AReclaimerThatPromisesMoreThanItGivesDoesNotHang) {
  Memory memory({.max_bytes = kPage});
  PageRef only = memory.pool(kPage).take().value();
  int left = 3;
  memory.set_reclaimer([&](uint64_t) -> uint64_t { return left-- > 0 ? kPage : 0; });
  EXPECT_FALSE(memory.pool(kPage).take());
}

TEST(Memory, RefusesPagesThatAreNoMultipleOf64) {
  Memory memory;
  EXPECT_THROW((void)memory.pool(0), ContractError);
  EXPECT_THROW((void)memory.pool(100), ContractError);
}

TEST(Memory, PagesOfManyThreadsNeverOverlap) {
  Memory memory({.max_bytes = uint64_t{8} << 20});
  auto work = [&](uint64_t id) {
    testing::Random random(id);
    PagePool& pool = memory.pool(kPage);
    std::vector<PageRef> held;
    for (int i = 0; i < 2000; ++i) {
      if (random.one_in(2) && !held.empty()) {
        const size_t at = random.below(held.size());
        uint64_t stamp = 0;
        std::memcpy(&stamp, held[at].data(), sizeof(stamp));
        ASSERT_EQ(stamp, id);
        PageRef also = held[at].share();
        held.erase(held.begin() + static_cast<ptrdiff_t>(at));
      } else if (auto page = pool.take()) {
        std::memcpy(page->data(), &id, sizeof(id));
        held.push_back(std::move(*page));
      }
    }
  };
  std::vector<std::jthread> threads;
  for (uint64_t id = 1; id <= 4; ++id) threads.emplace_back(work, id);
  threads.clear();
  EXPECT_EQ(memory.use().live_pages, 0u);
}

// cases.md C35: offsets past 4 GiB. The pages are mapped, hardly touched.
TEST(Memory, PagesBeyondFourGigabytesAreTheirOwn) {
  Memory memory;
  PagePool& pool = memory.pool(uint64_t{48} << 20);
  std::vector<PageRef> pages;
  for (uint64_t i = 0; i < 100; ++i) {
    pages.push_back(pool.take().value());
    std::memcpy(pages.back().data() + pool.page_bytes() - sizeof(i), &i, sizeof(i));
  }
  for (uint64_t i = 0; i < 100; ++i) {
    uint64_t stamp = 0;
    std::memcpy(&stamp, pages[i].data() + pool.page_bytes() - sizeof(stamp), sizeof(stamp));
    ASSERT_EQ(stamp, i);
  }
}

TEST(Fill, CopiesAnyNumberOfBytesAndTouchesNoOther) {
  Memory memory;
  PageRef page = memory.pool(4096).take().value();
  std::vector<std::byte> from(4096 + 1);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 31 + 7);
  for (const size_t bytes : {0u, 1u, 15u, 16u, 17u, 100u, 4095u, 4096u}) {
    std::memset(page.data(), 0, 4096);
    fill(page.data(), std::span(from).subspan(1, bytes));  // from any address
    EXPECT_EQ(std::memcmp(page.data(), from.data() + 1, bytes), 0) << bytes;
    for (size_t i = bytes; i < 4096; ++i) ASSERT_EQ(page.data()[i], std::byte{0}) << bytes;
  }
}

}  // namespace
}  // namespace cairn
