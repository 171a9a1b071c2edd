#include "cairn/engine/prefault.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "cairn/memory/memory.h"
#include "tests/support/must.h"

namespace cairn::testing {
namespace {

using Bytes = std::span<std::byte>;

bool is_resident(Bytes bytes) {
  std::byte* const first = bytes.data() - reinterpret_cast<uintptr_t>(bytes.data()) % 4096;
  const auto length = static_cast<size_t>(bytes.data() + bytes.size() - first);
  std::vector<unsigned char> pages((length + 4095) / 4096);
  EXPECT_EQ(mincore(first, length, pages.data()), 0);
  return std::ranges::all_of(pages, [](unsigned char page) { return (page & 1) != 0; });
}

// Pages that share the system's pages, that straddle its huge ones, and that span several; in any
// order, with others in between that were written before.
TEST(Prefault, BacksEveryPageAndChangesNoByte) {
  for (const uint64_t page_bytes :
       {uint64_t{960}, uint64_t{69632}, uint64_t{1} << 20 | 4096, uint64_t{5} << 20})
    for (const uint32_t threads : {1u, 3u}) {
      SCOPED_TRACE(::testing::Message() << page_bytes << " bytes, " << threads << " threads");
      Memory memory;
      std::vector<PageRef> taken;
      for (int i = 0; i < 12; ++i) taken.push_back(must(memory.pool(page_bytes).take()));
      const auto bytes_of = [&](size_t i) { return Bytes(taken[i].data(), taken[i].bytes()); };
      for (size_t i = 0; i < taken.size(); i += 5)
        std::memset(taken[i].data(), 7, taken[i].bytes());
      const uint64_t committed = memory.use().committed_bytes;
      std::vector<Bytes> wanted;
      for (size_t i = taken.size(); i-- > 0;)
        if (i != 4) wanted.push_back(bytes_of(i));
      prefault_pages(wanted, threads);
      EXPECT_EQ(memory.use().committed_bytes, committed);
      for (size_t i = 0; i < taken.size(); i += 5)
        EXPECT_TRUE(
            std::ranges::all_of(bytes_of(i), [](std::byte b) { return b == std::byte{7}; }));
      if (!is_resident(wanted[0])) GTEST_SKIP() << "this system backs no memory ahead of its use";
      for (const Bytes page : wanted) EXPECT_TRUE(is_resident(page));
    }
  prefault_pages({}, 2);
}

}  // namespace
}  // namespace cairn::testing
