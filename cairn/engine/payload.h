// What a record of the store holds, for one model, scheme and page size: a span is a page's own
// bytes, a mark is what no span holds.
//
//   span   the page of one group, as it lies, zeros between its planes
//   mark   64-byte head: version, tail positions, pending token, attachments
//          per positional group  the tail's records, packed (state/page_layout.h)
//          recurrent group       its tensors, packed
//          attachments           {name bytes u32, bytes u64, name, bytes}, one after the other
#ifndef CAIRN_ENGINE_PAYLOAD_H_
#define CAIRN_ENGINE_PAYLOAD_H_

#include <optional>
#include <string>
#include <vector>

#include "cairn/session/session.h"

namespace cairn {

// Companion state of a generation method, named by it; opaque here.
struct Attachment {
  std::string name;
  std::vector<std::byte> bytes;
  bool operator==(const Attachment&) const = default;
};

// What a mark carries beside records. A mark with attachments is used in full or not at all: they
// belong to exactly its position.
struct MarkNotes {
  std::optional<int32_t> pending;  // a token that was chosen, but neither shown nor computed
  std::vector<Attachment> attachments;
  bool operator==(const MarkNotes&) const = default;
  uint64_t bytes() const;
};

// The pages that a mark needs: of each positional group the one its tail lies in (none where the
// tail is empty), of the recurrent group its state.
using MarkPages = std::vector<PageRef>;

class PayloadFormat {
 public:
  PayloadFormat() = default;  // of objects: notes only
  explicit PayloadFormat(const Session& session);

  uint32_t page_positions() const { return page_positions_; }
  size_t groups() const { return groups_.size(); }
  bool is_recurrent(size_t group) const { return groups_[group].is_recurrent; }
  bool has_recurrent() const;
  const Retention& retention(size_t group) const { return groups_[group].retention; }
  // Of the page that starts at `first`, in a sequence whose positions below exact_end are exact.
  const PageLayout& layout(size_t group, Pos first, Pos exact_end) const;

  // What the bytes of a span are: where its pages have every plane. Spans of another layout are not
  // ours, so it is part of their names.
  Digest layouts() const;

  // `part` counts the positional groups: it is that of the span's key.
  size_t group_of(uint32_t part) const;
  void fill_span(
      uint32_t part, Pos first, Pos exact_end, const PageRef& page, std::span<std::byte> out) const;

  // A mark at `length`, whose tail begins at the last multiple of the page size.
  uint64_t mark_bytes(Pos length, Pos exact_end, const MarkNotes& notes) const;
  void fill_mark(Pos length,
                 Pos exact_end,
                 const MarkPages& pages,
                 const MarkNotes& notes,
                 std::span<std::byte> out) const;
  // Corrupt: not what fill_mark writes for a mark at `length`.
  Result<MarkNotes> read_notes(Pos length, Pos exact_end, std::span<const std::byte> payload) const;
  // The first `count` positions of the tail, or a recurrent group's state, into a page. REQUIRES:
  // read_notes() accepted the payload.
  void place_mark(Pos length,
                  Pos exact_end,
                  std::span<const std::byte> payload,
                  size_t group,
                  uint32_t count,
                  std::byte* page) const;

 private:
  struct Group {
    bool is_recurrent = false;
    Retention retention;
    PageLayout encoded;
    std::optional<PageLayout> exact;
  };
  uint64_t part_bytes(size_t group, Pos length, Pos exact_end) const;  // of a mark

  std::vector<Group> groups_;
  uint32_t page_positions_ = 1;
};

}  // namespace cairn

#endif  // CAIRN_ENGINE_PAYLOAD_H_
