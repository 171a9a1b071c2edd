#include "cairn/engine/prefault.h"

#include <algorithm>

#include "cairn/core/bytes.h"
#include "cairn/engine/workers.h"
#include "cairn/memory/memory.h"

namespace cairn {
namespace {

using Bytes = std::span<std::byte>;

constexpr uint64_t kHugePage = uint64_t{2} << 20;
constexpr ptrdiff_t kSystemPage = 4096;

// The same bytes by address, cut where one of the system's huge pages ends and only there; pages
// that share a small page of the system are one piece.
std::vector<Bytes> by_huge_pages(std::vector<Bytes> pages) {
  std::ranges::sort(pages, {}, [](const Bytes& page) { return page.data(); });
  std::vector<Bytes> pieces;
  for (Bytes rest : pages)
    while (!rest.empty()) {
      const uint64_t in_huge_page = reinterpret_cast<uintptr_t>(rest.data()) % kHugePage;
      const Bytes piece = rest.first(std::min<uint64_t>(rest.size(), kHugePage - in_huge_page));
      std::byte* const end = piece.data() + piece.size();
      if (in_huge_page != 0 && !pieces.empty() &&
          piece.data() - (pieces.back().data() + pieces.back().size()) < kSystemPage)
        pieces.back() = {pieces.back().data(), end};
      else
        pieces.push_back(piece);
      rest = rest.subspan(piece.size());
    }
  return pieces;
}

}  // namespace

void prefault_pages(std::vector<std::span<std::byte>> pages, uint32_t threads) {
  const auto pieces = by_huge_pages(std::move(pages));
  (void)run_jobs(pieces.size(), threads, [&](size_t piece, uint32_t) -> Result<void> {
    prefault(pieces[piece]);
    return {};
  });
}

}  // namespace cairn
