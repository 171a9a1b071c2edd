// Sequences that leave a session (snapshots) and come into one (arrivals, adoption).
#include <algorithm>

#include "cairn/kernels/dispatch.h"
#include "cairn/session/state.h"

namespace cairn {

using internal::Sequence;
using internal::SessionState;

namespace internal {

struct SnapshotState {
  ModelSpec spec;
  Scheme scheme;
  const Registry* registry = nullptr;
  Groups groups;
  Sequence sequence;
  std::vector<RunView> views;  // per group

  const PageTable& table_of(SlotId slot) const {
    return sequence.tables[groups.slots[slot.value].group];
  }
  void check_slot(SlotId slot) const {
    CAIRN_CHECK(slot.value < groups.slots.size(), "snapshot: slot {} of {}", slot.value,
                groups.slots.size());
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
  state_->check_slot(slot);
  return state_->groups.view(slot,
                             std::span(&state_->views[state_->groups.slots[slot.value].group], 1));
}

Pos Snapshot::first_kept(SlotId slot) const {
  state_->check_slot(slot);
  const Pos sinks = state_->groups.of(slot).retention().sinks;
  return std::max(state_->table_of(slot).first_held, std::min(length(), sinks));
}

PageRef Snapshot::page(size_t group, Pos index) const {
  CAIRN_CHECK(group < state_->sequence.tables.size(), "snapshot: group {} of {}", group,
              state_->sequence.tables.size());
  const PageRef* page = state_->sequence.tables[group].find(index);
  return page != nullptr ? page->share() : PageRef();
}

const float* Snapshot::tensor(SlotId slot, FamilyId tensor) const {
  state_->check_slot(slot);
  return state_->groups.recurrent(slot).previous(state_->table_of(slot),
                                                 state_->groups.slots[slot.value].place, tensor);
}

Snapshot Session::snapshot(SeqId seq) const {
  const Sequence& sequence = state_->sequence(seq);
  auto snapshot = std::make_unique<SnapshotState>();
  snapshot->spec = state_->spec;
  snapshot->scheme = state_->scheme;
  snapshot->registry = state_->registry;
  snapshot->groups = state_->groups.clone();
  snapshot->sequence.length = sequence.length;
  snapshot->sequence.is_derived = sequence.is_derived;
  for (const PageTable& table : sequence.tables) snapshot->sequence.tables.push_back(table.share());
  for (size_t group = 0; group < snapshot->sequence.tables.size(); ++group)
    snapshot->views.push_back(
        {.pages = {.table = &snapshot->sequence.tables[group]},
         .first = sequence.length,
         .exact_end = state_->groups.states[group]->forms().exact_end(sequence.length)});
  return Snapshot(std::move(snapshot));
}

struct Session::Arrival::State {
  SessionState* session = nullptr;
  Sequence sequence;

  PageTable& table_of(SlotId slot) {
    return sequence.tables[session->groups.slots[slot.value].group];
  }
  // The sequence in the making, as a view has it.
  RunView run(SlotId slot) {
    return {.pages = {.table = &table_of(slot)},
            .first = sequence.length,
            .exact_end = session->groups.of(slot).forms().exact_end(sequence.length)};
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

Result<void> check_length(const ModelSpec& spec, Pos length) {
  for (size_t slot = 0; slot < spec.slots.size(); ++slot)
    if (const Pos limit = spec.slots[slot].max_positions; limit != 0 && length > limit)
      return fail(Code::BadInput, "slot {}: {} positions, expected at most {}", slot, length,
                  limit);
  return {};
}

}  // namespace

Result<Session::Arrival> Session::arrive(Pos length,
                                         std::span<const Pos> first_kept,
                                         const GivenPages& given) {
  CAIRN_CHECK(first_kept.size() == state_->slots.size(),
              "session: first kept positions of {} slots, expected {}", first_kept.size(),
              state_->slots.size());
  CAIRN_TRY(check_length(state_->spec, length));
  auto arrival = std::make_unique<Arrival::State>();
  arrival->session = state_.get();
  arrival->sequence.length = length;
  std::vector<Pos> first_held(state_->groups.states.size());
  for (size_t slot = 0; slot < first_kept.size(); ++slot) {
    const size_t group = state_->groups.slots[slot].group;
    const Retention& retention = state_->groups.states[group]->retention();
    CAIRN_TRY(check_first_kept(retention, slot, length, first_kept[slot]));
    if (first_kept[slot] > retention.sinks)
      first_held[group] = std::max(first_held[group], first_kept[slot]);
  }
  for (size_t group = 0; group < state_->groups.states.size(); ++group) {
    PageSource of_group;
    if (given) of_group = [&given, group](Pos index) { return given(group, index); };
    arrival->sequence.tables.push_back(
        CAIRN_TRY(state_->groups.states[group]->allocate(length, first_held[group], of_group)));
  }
  return Arrival(std::move(arrival));
}

std::span<std::byte> Session::Arrival::page(size_t group, Pos index) {
  CAIRN_CHECK(group < state_->sequence.tables.size(), "arrival: group {} of {}", group,
              state_->sequence.tables.size());
  const PageRef* page = state_->sequence.tables[group].find(index);
  CAIRN_CHECK(page != nullptr && !page->is_shared(),
              "arrival: page {} of group {} is not there to be filled in", index, group);
  return {page->data(), page->bytes()};
}

void Session::Arrival::place(
    SlotId slot, FamilyId family, size_t plane, Pos first, Pos count, const std::byte* records) {
  SessionState& session = *state_->session;
  session.check_slot(slot);
  const Pos positions = session.groups.is_recurrent(slot)
                            ? std::min<Pos>(1, state_->sequence.length)
                            : state_->sequence.length;
  CAIRN_CHECK(count <= positions && first <= positions - count, "arrival: positions {} to {} of {}",
              first, first + count, positions);
  const RunView run = state_->run(slot);
  const View view = session.groups.view(slot, std::span(&run, 1));
  const Pos end = first + count, held = run.pages.table->first_held;
  CAIRN_CHECK(first >= run.exact_end || end <= run.exact_end,
              "arrival: positions {} to {} lie in two forms, which meet at {}", first, end,
              run.exact_end);
  const FamilyPlace* place = view.place(run, first).find(family);
  CAIRN_CHECK(place != nullptr && plane < place->planes.size(),
              "arrival: slot {} has no plane {} of family {}", slot.value, plane, family.value);
  const PlanePlace& to = place->planes[plane];
  const size_t dense_stride = size_t{place->heads} * to.record_bytes;
  for (Pos position = first; position < end;) {
    const Pos in_page = position % view.page_positions;
    Pos length = std::min(end - position, view.page_positions - in_page);
    if (position >= view.retention.sinks && position < held)
      length = std::min(end, held) - position;
    else
      for (uint32_t head = 0; head < place->heads; ++head)
        copy_in(to, head, run.pages.page(position / view.page_positions),
                static_cast<uint32_t>(in_page), static_cast<uint32_t>(length),
                records + size_t{head} * to.record_bytes, dense_stride);
    records += length * dense_stride;
    position += length;
  }
}

void Session::Arrival::mark_derived() { state_->sequence.is_derived = true; }

SeqId Session::Arrival::commit() {
  const SeqId seq = state_->session->add(std::move(state_->sequence));
  state_.reset();
  return seq;
}

namespace {

// Not rewind, which says how much more than the window is kept, and not max_positions, which is
// checked against the length.
bool same_state(const SlotSpec& ours, const SlotSpec& theirs) {
  return ours.kind == theirs.kind && ours.families == theirs.families &&
         ours.retention.window == theirs.retention.window &&
         ours.retention.sinks == theirs.retention.sinks;
}

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
    if (!same_state(ours.slots[slot], theirs.slots[slot]))
      return fail(Code::Mismatch,
                  "session: slot {} of the sequence has another kind, shape or window than ours",
                  slot);
  return {};
}

bool same_pages(const internal::Groups& ours, const internal::Groups& theirs) {
  if (ours.slots != theirs.slots) return false;  // another rewind groups them otherwise
  for (size_t group = 0; group < ours.states.size(); ++group) {
    const Forms &a = ours.states[group]->forms(), &b = theirs.states[group]->forms();
    if (a.encoded.pool != b.encoded.pool || a.page_positions() != b.page_positions()) return false;
    if (a.exact && a.exact->pool != b.exact->pool) return false;
  }
  return true;
}

// Positions [first, first + count) of all families of a slot, from one run's pages to another's.
void move_positions(const View& from, const View& to, Pos first, Pos count) {
  const RunView &source = from.runs[0], &target = to.runs[0];
  while (count > 0) {
    const Pos from_in = first % from.page_positions, to_in = first % to.page_positions;
    const Pos length = std::min({count, from.page_positions - from_in, to.page_positions - to_in});
    const SlotPlace &a = from.place(source, first), &b = to.place(target, first);
    for (size_t family = 0; family < a.families.size(); ++family)
      transcode({a.families[family], source.pages.page(first / from.page_positions),
                 static_cast<uint32_t>(from_in)},
                {b.families[family], target.pages.page(first / to.page_positions),
                 static_cast<uint32_t>(to_in)},
                static_cast<uint32_t>(length));
    first += length;
    count -= length;
  }
}

}  // namespace

Result<SeqId> Session::adopt(const Snapshot& snapshot) {
  const SnapshotState& from = *snapshot.state_;
  CAIRN_TRY(check_same_model(state_->spec, from.spec));
  CAIRN_TRY(check_length(state_->spec, snapshot.length()));
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
  const RoundingScope rounding;
  for (SlotId slot : state_->slots) {
    const View source = snapshot.view(slot);
    const RunView run = arrival.state_->run(slot);
    const View target = state_->groups.view(slot, std::span(&run, 1));
    if (state_->groups.is_recurrent(slot)) {
      move_positions(source, target, 0, std::min<Pos>(1, snapshot.length()));
      continue;
    }
    const Pos kept = std::max(first_kept[slot.value], run.pages.table->first_held);
    move_positions(source, target, 0, std::min(kept, source.retention.sinks));
    move_positions(source, target, kept, snapshot.length() - kept);
  }
  return arrival.commit();
}

}  // namespace cairn
