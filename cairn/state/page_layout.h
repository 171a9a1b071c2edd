// A page's bytes: [slot][family][plane][head], and inside that records by position or words by
// position.
//
//   page of a group with slots 3, 7 (attention, f16, 2 heads, 64 positions):
//     slot 3 | key   | values | head 0: [word][position] | head 1 ...
//            | value | values | head 0: [position][record] | head 1 ...
//     slot 7 | ...
//
// Every plane of every head starts 64-byte aligned. The layout is a function of the slots, their
// codecs and the page size.
#ifndef CAIRN_STATE_PAGE_LAYOUT_H_
#define CAIRN_STATE_PAGE_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "cairn/encodings/encoding.h"
#include "cairn/state/kind.h"

namespace cairn {

struct PlanePlace {
  uint64_t offset = 0;           // of head 0, from the page's start
  uint64_t head_bytes = 0;       // between heads
  uint64_t position_stride = 0;  // bytes
  uint64_t word_stride = 0;      // bytes
  uint32_t record_bytes = 0;
  uint32_t word_bytes = 0;
};

struct FamilyPlace {
  const Family* family = nullptr;
  uint32_t heads = 0;
  Codec codec;
  std::vector<PlanePlace> planes;  // as codec.geometry.planes

  // The records [first, first + count) of one head in the page at `page`.
  Records records(std::byte* page, uint32_t head, uint32_t first, uint32_t count) const {
    Records run;  // attention makes many of them: planes that are not there are not zeroed
    run.first = first;
    run.count = count;
    run.capacity = capacity;
    for (size_t i = 0; i < planes.size(); ++i)
      run.planes[i] = {page + planes[i].offset + head * planes[i].head_bytes,
                       planes[i].position_stride, planes[i].word_stride, nullptr};
    return run;
  }
  uint32_t capacity = 0;  // positions of a page
};

struct SlotPlace {
  std::vector<FamilyPlace> families;
  const FamilyPlace* find(FamilyId family) const {
    for (const FamilyPlace& place : families)
      if (place.family->id == family) return &place;
    return nullptr;
  }
};

struct PageLayout {
  uint32_t page_positions = 0;
  uint64_t page_bytes = 0;
  uint64_t record_bytes = 0;     // of one position, all slots, without alignment
  std::vector<SlotPlace> slots;  // of the group, in model order
};

// codecs[i][j] belongs to slots[i].families[j].
PageLayout make_page_layout(std::span<const SlotSpec* const> slots,
                            const std::vector<std::vector<Codec>>& codecs,
                            uint32_t page_positions);

// Moves `count` records of one plane and head between a page, from position `first`, and dense
// records (record_bytes each, at `dense_stride` bytes apart), whatever the page's layout.
void copy_out(const PlanePlace& plane,
              uint32_t head,
              const std::byte* page,
              uint32_t first,
              uint32_t count,
              std::byte* dense,
              size_t dense_stride);
void copy_in(const PlanePlace& plane,
             uint32_t head,
             std::byte* page,
             uint32_t first,
             uint32_t count,
             const std::byte* dense,
             size_t dense_stride);

// The same for every slot, family, plane and head of a page: positions [first, first + count) as
// dense records, [slot][family][plane][position][head][record]. `stride` positions lie between
// planes, so that a prefix of what was packed can be unpacked: stride * layout.record_bytes bytes
// in all.
void pack(const PageLayout& layout,
          const std::byte* page,
          uint32_t first,
          uint32_t count,
          std::byte* dense);
void unpack(const PageLayout& layout,
            std::byte* page,
            uint32_t first,
            uint32_t count,
            const std::byte* dense,
            uint32_t stride);

// A whole page as it lies, with zeros between its planes: nothing of the memory's former owners.
void copy_page(const PageLayout& layout, const std::byte* page, std::byte* out);

// Moves `count` positions of one family, all heads, from one page to another: record by record
// where the codecs are the same, else decoded and encoded. Allocates nothing. Returns the numbers
// that saturated.
struct Spot {
  const FamilyPlace& family;
  std::byte* page;
  uint32_t first;  // position in the page
};
uint64_t transcode(Spot from, Spot to, uint32_t count) noexcept;

}  // namespace cairn

#endif  // CAIRN_STATE_PAGE_LAYOUT_H_
