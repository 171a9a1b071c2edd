#include "cairn/session/session.h"

#include <algorithm>
#include <bit>
#include <unordered_map>

#include "cairn/session/state.h"

namespace cairn {

using internal::Sequence;
using internal::SessionState;

namespace internal {

Sequence& SessionState::sequence(SeqId seq) {
  const auto found = sequences.find(seq);
  CAIRN_CHECK(found != sequences.end(), "session: there is no sequence {}", seq.value);
  return found->second;
}

SeqId SessionState::add(Sequence sequence) {
  const SeqId seq{next_seq++};
  sequences.emplace(seq, std::move(sequence));
  return seq;
}

void SessionState::check_slot(SlotId slot) const {
  CAIRN_CHECK(slot.value < slots.size(), "session: slot {} of {}", slot.value, slots.size());
}

}  // namespace internal

namespace {

// The slots of each retention, in the order in which the retentions first appear.
std::vector<std::vector<SlotId>> group_slots(const ModelSpec& spec) {
  std::vector<std::vector<SlotId>> groups;
  for (uint32_t slot = 0; slot < spec.slots.size(); ++slot) {
    const auto same = std::ranges::find_if(groups, [&](const std::vector<SlotId>& group) {
      return spec.slots[group[0].value].retention == spec.slots[slot].retention;
    });
    if (same != groups.end())
      same->push_back(SlotId{slot});
    else
      groups.push_back({SlotId{slot}});
  }
  return groups;
}

void add_group(SessionState& session,
               std::span<const SlotId> slots,
               const std::vector<std::vector<Codec>>& codecs,
               Memory& memory) {
  std::vector<const SlotSpec*> specs;
  std::vector<std::vector<Codec>> of_group;
  for (size_t place = 0; place < slots.size(); ++place) {
    specs.push_back(&session.spec.slots[slots[place].value]);
    of_group.push_back(codecs[slots[place].value]);
    session.slot_index[slots[place].value] = {.group = session.groups.size(), .place = place};
  }
  PageLayout layout = make_page_layout(specs, of_group, session.options.page_positions);
  PagePool& pool = memory.pool(layout.page_bytes);
  session.groups.emplace_back(std::move(layout), specs[0]->retention, pool);
}

}  // namespace

Result<Session> open_session(ModelSpec spec,
                             Scheme scheme,
                             Memory& memory,
                             SessionOptions options,
                             const Registry& registry) {
  if (!std::has_single_bit(options.page_positions) || options.page_positions > 64)
    return fail(Code::BadInput, "session: pages of {} positions, expected a power of two up to 64",
                options.page_positions);
  CAIRN_TRY(validate(spec, registry));
  const std::vector<std::vector<Codec>> codecs = CAIRN_TRY(resolve(scheme, spec));
  auto state = std::make_unique<SessionState>();
  state->spec = std::move(spec);
  state->scheme = std::move(scheme);
  state->registry = &registry;
  state->options = options;
  state->slot_index.resize(state->spec.slots.size());
  for (uint32_t slot = 0; slot < state->spec.slots.size(); ++slot)
    state->slots.push_back(SlotId{slot});
  for (const auto& slots : group_slots(state->spec)) add_group(*state, slots, codecs, memory);
  return Session(std::move(state));
}

Session::Session(std::unique_ptr<SessionState> state) : state_(std::move(state)) {}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

const ModelSpec& Session::spec() const { return state_->spec; }
const Scheme& Session::scheme() const { return state_->scheme; }
const Registry& Session::registry() const { return *state_->registry; }
uint32_t Session::page_positions() const { return state_->options.page_positions; }
std::span<const SlotId> Session::slots() const { return state_->slots; }

SeqId Session::start() {
  Sequence empty;
  empty.tables.resize(state_->groups.size());
  return state_->add(std::move(empty));
}

SeqId Session::fork(SeqId seq) {
  state_->check_closed(seq, "forked");
  const Sequence& from = state_->sequence(seq);
  Sequence copy{.length = from.length, .is_derived = from.is_derived};
  for (const PageTable& table : from.tables) copy.tables.push_back(table.share());
  return state_->add(std::move(copy));
}

void Session::drop(SeqId seq) {
  state_->check_closed(seq, "dropped");
  state_->sequence(seq);  // a contract error if there is none
  state_->sequences.erase(seq);
}

Pos Session::length(SeqId seq) const { return state_->sequence(seq).length; }
bool Session::is_derived(SeqId seq) const { return state_->sequence(seq).is_derived; }

bool Session::can_truncate(SeqId seq, Pos length) const {
  const Sequence& sequence = state_->sequence(seq);
  if (length >= sequence.length) return length == sequence.length;
  for (size_t group = 0; group < state_->groups.size(); ++group)
    if (!state_->groups[group].can_truncate(sequence.tables[group], length)) return false;
  return true;
}

Result<void> Session::truncate(SeqId seq, Pos length) {
  state_->check_closed(seq, "cut");
  Sequence& sequence = state_->sequence(seq);
  if (length > sequence.length)
    return fail(Code::BadInput,
                "session: a sequence of {} positions, expected at least {} to cut it there",
                sequence.length, length);
  if (!can_truncate(seq, length))
    return fail(Code::BadInput,
                "session: a window no longer holds what position {} sees of {} positions", length,
                sequence.length);
  if (length == sequence.length) return {};
  for (size_t group = 0; group < state_->groups.size(); ++group)
    state_->groups[group].truncate(sequence.tables[group], length);
  sequence.length = length;
  return {};
}

uint64_t Session::bytes_for(Pos tokens) const {
  uint64_t bytes = 0;
  for (const Positional& group : state_->groups) bytes += group.bytes_for(tokens);
  return bytes;
}

uint64_t Session::peak_bytes_for(Pos tokens, Pos longest_run) const {
  uint64_t bytes = 0;
  for (const Positional& group : state_->groups) bytes += group.peak_bytes_for(tokens, longest_run);
  return bytes;
}

SessionUse Session::use() const {
  SessionUse use{.sequences = state_->sequences.size()};
  std::unordered_map<const std::byte*, bool> seen;
  for (size_t group = 0; group < state_->groups.size(); ++group) {
    const uint64_t page_bytes = state_->groups[group].layout().page_bytes;
    const auto count = [&](const PageRef& page) {
      if (!seen.emplace(page.data(), true).second) return;
      use.live_bytes += page_bytes;
      if (page.is_shared()) use.shared_bytes += page_bytes;
    };
    for (const auto& [seq, sequence] : state_->sequences) {
      std::ranges::for_each(sequence.tables[group].sinks, count);
      std::ranges::for_each(sequence.tables[group].tail, count);
    }
  }
  return use;
}

}  // namespace cairn
