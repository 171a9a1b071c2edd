#include "cairn/engine/payload.h"

#include <algorithm>
#include <cstring>

#include "cairn/core/hash.h"

namespace cairn {
namespace {

constexpr uint32_t kVersion = 1;

struct Head {
  uint32_t version = kVersion;
  uint32_t tail = 0;  // positions
  uint32_t has_pending = 0;
  int32_t pending = 0;
  uint64_t attachments = 0;
  uint8_t reserved[40] = {};
};
static_assert(sizeof(Head) == 64);

// Of one attachment: the sizes that precede it.
constexpr uint64_t kSizes = sizeof(uint32_t) + sizeof(uint64_t);

// Reads a payload front to back; a read past its end gives nothing and is remembered.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  T number() {
    T value{};
    if (const auto from = take(sizeof(T)); !from.empty())
      std::memcpy(&value, from.data(), sizeof(T));
    return value;
  }
  std::span<const std::byte> take(uint64_t count) {
    if (count > bytes_.size()) {
      is_short_ = true;
      bytes_ = {};
      return {};
    }
    const auto front = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return front;
  }
  bool is_short() const { return is_short_; }
  bool is_at_end() const { return bytes_.empty(); }

 private:
  std::span<const std::byte> bytes_;
  bool is_short_ = false;
};

std::byte* append(std::byte* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return to + bytes;
}

}  // namespace

uint64_t MarkNotes::bytes() const {
  uint64_t bytes = 0;
  for (const Attachment& attachment : attachments)
    bytes += kSizes + attachment.name.size() + attachment.bytes.size();
  return bytes;
}

PayloadFormat::PayloadFormat(const Session& session) : page_positions_(session.page_positions()) {
  for (size_t i = 0; i < session.groups(); ++i) {
    const State& state = session.group(i);
    Group group{.is_recurrent = session.is_recurrent(i),
                .retention = state.retention(),
                .encoded = state.forms().encoded.layout};
    if (state.forms().exact) group.exact = state.forms().exact->layout;
    groups_.push_back(std::move(group));
  }
}

bool PayloadFormat::has_recurrent() const {
  return std::ranges::any_of(groups_, &Group::is_recurrent);
}

const PageLayout& PayloadFormat::layout(size_t group, Pos first, Pos exact_end) const {
  const Group& of = groups_[group];
  return !of.is_recurrent && first < exact_end ? *of.exact : of.encoded;
}

size_t PayloadFormat::group_of(uint32_t part) const {
  size_t group = 0;
  while (groups_[group].is_recurrent || part-- > 0) ++group;
  return group;
}

Digest PayloadFormat::layouts() const {
  std::vector<uint64_t> numbers;
  const auto add = [&](const PageLayout& layout) {
    for (const SlotPlace& slot : layout.slots)
      for (const FamilyPlace& family : slot.families)
        for (const PlanePlace& plane : family.planes)
          numbers.insert(numbers.end(), {plane.offset, plane.head_bytes, plane.position_stride,
                                         plane.word_stride, plane.record_bytes});
    numbers.push_back(layout.page_bytes);
  };
  for (const Group& group : groups_) {
    add(group.encoded);
    if (group.exact) add(*group.exact);
  }
  return Sha256().add(std::as_bytes(std::span(numbers))).digest();
}

void PayloadFormat::fill_span(
    uint32_t part, Pos first, Pos exact_end, const PageRef& page, std::span<std::byte> out) const {
  copy_page(layout(group_of(part), first, exact_end), page.data(), out.data());
}

uint64_t PayloadFormat::part_bytes(size_t group, Pos length, Pos exact_end) const {
  if (groups_[group].is_recurrent) return groups_[group].encoded.record_bytes;
  const Pos tail = length % page_positions_;
  return tail * layout(group, length - tail, exact_end).record_bytes;
}

uint64_t PayloadFormat::mark_bytes(Pos length, Pos exact_end, const MarkNotes& notes) const {
  uint64_t bytes = sizeof(Head) + notes.bytes();
  for (size_t group = 0; group < groups_.size(); ++group)
    bytes += part_bytes(group, length, exact_end);
  return bytes;
}

void PayloadFormat::fill_mark(Pos length,
                              Pos exact_end,
                              const MarkPages& pages,
                              const MarkNotes& notes,
                              std::span<std::byte> out) const {
  const auto tail = static_cast<uint32_t>(length % page_positions_);
  const Head head{.tail = tail,
                  .has_pending = notes.pending.has_value(),
                  .pending = notes.pending.value_or(0),
                  .attachments = notes.attachments.size()};
  std::byte* to = append(out.data(), &head, sizeof(head));
  for (size_t group = 0; group < groups_.size(); ++group) {
    const uint32_t count = groups_[group].is_recurrent ? 1 : tail;
    if (count > 0) pack(layout(group, length - tail, exact_end), pages[group].data(), 0, count, to);
    to += part_bytes(group, length, exact_end);
  }
  for (const Attachment& attachment : notes.attachments) {
    const auto name_bytes = static_cast<uint32_t>(attachment.name.size());
    const uint64_t bytes = attachment.bytes.size();
    to = append(to, &name_bytes, sizeof(name_bytes));
    to = append(to, &bytes, sizeof(bytes));
    to = append(to, attachment.name.data(), name_bytes);
    to = append(to, attachment.bytes.data(), bytes);
  }
}

Result<MarkNotes> PayloadFormat::read_notes(Pos length,
                                            Pos exact_end,
                                            std::span<const std::byte> payload) const {
  Reader reader(payload);
  const auto head = reader.number<Head>();
  if (reader.is_short() || head.version != kVersion || head.tail != length % page_positions_)
    return fail(Code::Corrupt, "mark: a tail of {} positions, expected {} (version {})", head.tail,
                length % page_positions_, head.version);
  for (size_t group = 0; group < groups_.size(); ++group)
    reader.take(part_bytes(group, length, exact_end));
  MarkNotes notes;
  if (head.has_pending != 0) notes.pending = head.pending;
  for (uint64_t i = 0; i < head.attachments && !reader.is_short(); ++i) {
    const auto name_bytes = reader.number<uint32_t>();
    const auto bytes = reader.number<uint64_t>();
    const auto name = reader.take(name_bytes);
    const auto contents = reader.take(bytes);
    notes.attachments.push_back({.name = {reinterpret_cast<const char*>(name.data()), name.size()},
                                 .bytes = {contents.begin(), contents.end()}});
  }
  if (reader.is_short() || !reader.is_at_end())
    return fail(Code::Corrupt,
                "mark: {} bytes, expected others for {} positions and {} attachments",
                payload.size(), head.tail, head.attachments);
  return notes;
}

void PayloadFormat::place_mark(Pos length,
                               Pos exact_end,
                               std::span<const std::byte> payload,
                               size_t group,
                               uint32_t count,
                               std::byte* page) const {
  const std::byte* from = payload.data() + sizeof(Head);
  for (size_t i = 0; i < group; ++i) from += part_bytes(i, length, exact_end);
  const auto tail = static_cast<uint32_t>(length % page_positions_);
  const bool is_state = groups_[group].is_recurrent;
  unpack(layout(group, length - tail, exact_end), page, 0, is_state ? 1 : count, from,
         is_state ? 1 : tail);
}

}  // namespace cairn
