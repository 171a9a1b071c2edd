// Sequences that leave a session (snapshots) and come into one (arrivals, adoption).
#include <algorithm>

#include "cairn/session/state.h"

namespace cairn {

using internal::Sequence;
using internal::SessionState;

namespace internal {

struct SnapshotState {
  ModelSpec spec;
  Scheme scheme;
  const Registry* registry = nullptr;
  std::vector<Positional> groups;
  std::vector<SlotIndex> slot_index;
  Sequence sequence;
  std::vector<RunView> views;  // per group

  const Positional& group_of(SlotId slot) const { return groups[slot_index[slot.value].group]; }
  const PageTable& table_of(SlotId slot) const {
    return sequence.tables[slot_index[slot.value].group];
  }
};

}  // namespace internal

using internal::SnapshotState;

Snapshot::Snapshot(std::unique_ptr<SnapshotState> state) : state_(std::move(state)) {}
Snapshot::Snapshot(Snapshot&&) noexcept = default;
Snapshot& Snapshot::operator=(Snapshot&&) noexcept = default;
Snapshot::~Snapshot() = default;

Pos Snapshot::length() const { return state_->sequence.length; }
bool Snapshot::is_derived() const { return state_->sequence.is_derived; }
const ModelSpec& Snapshot::spec() const { return state_->spec; }
const Scheme& Snapshot::scheme() const { return state_->scheme; }
const Registry& Snapshot::registry() const { return *state_->registry; }

View Snapshot::view(SlotId slot) const {
  CAIRN_CHECK(slot.value < state_->slot_index.size(), "snapshot: slot {} of {}", slot.value,
              state_->slot_index.size());
  const internal::SlotIndex& index = state_->slot_index[slot.value];
  const Positional& group = state_->groups[index.group];
  return {.slot = &group.layout().slots[index.place],
          .retention = group.retention(),
          .page_positions = group.layout().page_positions,
          .runs = std::span(&state_->views[index.group], 1)};
}

Pos Snapshot::first_kept(SlotId slot) const {
  CAIRN_CHECK(slot.value < state_->slot_index.size(), "snapshot: slot {} of {}", slot.value,
              state_->slot_index.size());
  return std::max(state_->table_of(slot).first_held,
                  std::min(length(), state_->group_of(slot).retention().sinks));
}

Snapshot Session::snapshot(SeqId seq) const {
  const Sequence& sequence = state_->sequence(seq);
  auto snapshot = std::make_unique<SnapshotState>();
  snapshot->spec = state_->spec;
  snapshot->scheme = state_->scheme;
  snapshot->registry = state_->registry;
  snapshot->groups = state_->groups;
  snapshot->slot_index = state_->slot_index;
  snapshot->sequence.length = sequence.length;
  snapshot->sequence.is_derived = sequence.is_derived;
  for (const PageTable& table : sequence.tables) snapshot->sequence.tables.push_back(table.share());
  for (const PageTable& table : snapshot->sequence.tables)
    snapshot->views.push_back({.pages = {.table = &table}, .first = sequence.length});
  return Snapshot(std::move(snapshot));
}

struct Session::Arrival::State {
  SessionState* session = nullptr;
  Sequence sequence;

  PageTable& table_of(SlotId slot) {
    return sequence.tables[session->slot_index[slot.value].group];
  }
};

Session::Arrival::Arrival(std::unique_ptr<State> state) : state_(std::move(state)) {}
Session::Arrival::Arrival(Arrival&&) noexcept = default;
Session::Arrival& Session::Arrival::operator=(Arrival&&) noexcept = default;
Session::Arrival::~Arrival() = default;

namespace {

// What a sequence of `length` positions may lack: nothing that the next query sees.
Result<void> check_first_kept(const Retention& retention, size_t slot, Pos length, Pos first_kept) {
  const Pos least = std::min(length, retention.sinks);
  const Pos most = std::max(least, std::min(length, retention.first_needed(length)));
  if (first_kept < least || first_kept > most)
    return fail(Code::BadInput,
                "slot {}: kept from position {} on, expected {} to {} for {} positions", slot,
                first_kept, least, most, length);
  return {};
}

}  // namespace

Result<Session::Arrival> Session::arrive(Pos length, std::span<const Pos> first_kept) {
  CAIRN_CHECK(first_kept.size() == state_->slots.size(),
              "session: first kept positions of {} slots, expected {}", first_kept.size(),
              state_->slots.size());
  auto arrival = std::make_unique<Arrival::State>();
  arrival->session = state_.get();
  arrival->sequence.length = length;
  std::vector<Pos> first_held(state_->groups.size(), UINT64_MAX);
  for (size_t slot = 0; slot < first_kept.size(); ++slot) {
    const size_t group = state_->slot_index[slot].group;
    const Retention& retention = state_->groups[group].retention();
    CAIRN_TRY(check_first_kept(retention, slot, length, first_kept[slot]));
    const Pos held = first_kept[slot] <= retention.sinks ? 0 : first_kept[slot];
    if (first_held[group] != UINT64_MAX && first_held[group] != held)
      return fail(Code::BadInput, "slot {}: kept from position {} on, expected {} as its group",
                  slot, held, first_held[group]);
    first_held[group] = held;
    if (const Pos limit = state_->spec.slots[slot].max_positions; limit != 0 && length > limit)
      return fail(Code::BadInput, "slot {}: {} positions, expected at most {}", slot, length,
                  limit);
  }
  for (size_t group = 0; group < state_->groups.size(); ++group)
    arrival->sequence.tables.push_back(
        CAIRN_TRY(state_->groups[group].allocate(length, first_held[group])));
  return Arrival(std::move(arrival));
}

void Session::Arrival::place(
    SlotId slot, FamilyId family, size_t plane, Pos first, Pos count, const std::byte* records) {
  SessionState& session = *state_->session;
  session.check_slot(slot);
  const FamilyPlace* place = session.place_of(slot).find(family);
  CAIRN_CHECK(place != nullptr && plane < place->planes.size(),
              "arrival: slot {} has no plane {} of family {}", slot.value, plane, family.value);
  CAIRN_CHECK(count <= state_->sequence.length && first <= state_->sequence.length - count,
              "arrival: positions {} to {} of {}", first, first + count, state_->sequence.length);
  const PlanePlace& to = place->planes[plane];
  const PageMap pages{.table = &state_->table_of(slot)};
  const Pos page_positions = session.options.page_positions;
  const size_t dense_stride = size_t{place->heads} * to.record_bytes;
  while (count > 0) {
    const Pos in_page = first % page_positions;
    const Pos length = std::min(count, page_positions - in_page);
    for (uint32_t head = 0; head < place->heads; ++head)
      copy_in(to, head, pages.page(first / page_positions), static_cast<uint32_t>(in_page),
              static_cast<uint32_t>(length), records + size_t{head} * to.record_bytes,
              dense_stride);
    records += length * dense_stride;
    first += length;
    count -= length;
  }
}

void Session::Arrival::mark_derived() { state_->sequence.is_derived = true; }

SeqId Session::Arrival::commit() {
  const SeqId seq = state_->session->add(std::move(state_->sequence));
  state_.reset();
  return seq;
}

namespace {

Result<void> check_same_model(const ModelSpec& ours, const ModelSpec& theirs) {
  const auto differs = [](const char* what, const std::string& theirs_text,
                          const std::string& ours_text) {
    return fail(Code::Mismatch, "session: a sequence of {} {}, expected {}", what, theirs_text,
                ours_text);
  };
  if (ours.identity != theirs.identity)
    return differs("model", hex(theirs.identity), hex(ours.identity));
  if (ours.tokenizer != theirs.tokenizer)
    return differs("tokenizer", hex(theirs.tokenizer), hex(ours.tokenizer));
  if (ours.adapter != theirs.adapter)
    return differs("adapter", hex(theirs.adapter), hex(ours.adapter));
  if (ours.slots.size() != theirs.slots.size())
    return differs("slots:", std::to_string(theirs.slots.size()),
                   std::to_string(ours.slots.size()));
  for (size_t slot = 0; slot < ours.slots.size(); ++slot)
    if (ours.slots[slot] != theirs.slots[slot])
      return fail(Code::Mismatch,
                  "session: slot {} of the sequence has another kind, shape or retention than ours",
                  slot);
  return {};
}

bool same_pages(const std::vector<Positional>& ours, const std::vector<Positional>& theirs) {
  for (size_t group = 0; group < ours.size(); ++group)
    if (&ours[group].pool() != &theirs[group].pool() ||
        ours[group].layout().page_positions != theirs[group].layout().page_positions)
      return false;
  return true;
}

// Positions [first, first + count) of one family, from the pages of one codec to those of another.
void move_positions(const FamilyPlace& from,
                    const PageMap& from_pages,
                    Pos from_page_positions,
                    const FamilyPlace& to,
                    const PageMap& to_pages,
                    Pos to_page_positions,
                    Pos first,
                    Pos count) {
  const bool same_codec =
      from.codec.encoding == to.codec.encoding && from.codec.params == to.codec.params;
  std::vector<std::byte> bytes;
  std::vector<float> numbers;
  while (count > 0) {
    const Pos from_in = first % from_page_positions, to_in = first % to_page_positions;
    const Pos length = std::min({count, from_page_positions - from_in, to_page_positions - to_in});
    std::byte* source = from_pages.page(first / from_page_positions);
    std::byte* target = to_pages.page(first / to_page_positions);
    const auto n = static_cast<uint32_t>(length);
    for (uint32_t head = 0; head < from.heads; ++head) {
      if (same_codec) {
        for (size_t plane = 0; plane < from.planes.size(); ++plane) {
          const size_t record = from.planes[plane].record_bytes;
          bytes.resize(length * record);
          copy_out(from.planes[plane], head, source, static_cast<uint32_t>(from_in), n,
                   bytes.data(), record);
          copy_in(to.planes[plane], head, target, static_cast<uint32_t>(to_in), n, bytes.data(),
                  record);
        }
        continue;
      }
      numbers.resize(length * from.codec.width);
      from.codec.encoding->functions().decode(
          from.codec, from.records(source, head, static_cast<uint32_t>(from_in), n),
          numbers.data());
      to.codec.encoding->functions().encode(
          to.codec, numbers.data(), to.records(target, head, static_cast<uint32_t>(to_in), n));
    }
    first += length;
    count -= length;
  }
}

}  // namespace

Result<SeqId> Session::adopt(const Snapshot& snapshot) {
  const SnapshotState& from = *snapshot.state_;
  CAIRN_TRY(check_same_model(state_->spec, from.spec));
  const bool same_scheme = state_->scheme == from.scheme;
  const bool is_derived = from.sequence.is_derived || (!same_scheme && snapshot.length() > 0) ||
                          state_->spec.arithmetic != from.spec.arithmetic;
  if (same_scheme && same_pages(state_->groups, from.groups)) {
    Sequence shared{.length = snapshot.length(), .is_derived = is_derived};
    for (const PageTable& table : from.sequence.tables) shared.tables.push_back(table.share());
    return state_->add(std::move(shared));
  }
  std::vector<Pos> first_kept;
  for (SlotId slot : state_->slots) first_kept.push_back(snapshot.first_kept(slot));
  Arrival arrival = CAIRN_TRY(arrive(snapshot.length(), first_kept));
  if (is_derived) arrival.mark_derived();
  for (SlotId slot : state_->slots) {
    const View source = snapshot.view(slot);
    const SlotPlace& target = state_->place_of(slot);
    const PageMap target_pages{.table = &arrival.state_->table_of(slot)};
    const Pos kept = first_kept[slot.value];
    const Pos sinks = std::min(kept, source.retention.sinks);
    for (size_t family = 0; family < target.families.size(); ++family)
      for (const auto& [first, count] :
           {std::pair{Pos{0}, sinks}, std::pair{kept, snapshot.length() - kept}})
        move_positions(source.slot->families[family], source.runs[0].pages, source.page_positions,
                       target.families[family], target_pages, state_->options.page_positions, first,
                       count);
  }
  return arrival.commit();
}

}  // namespace cairn
