#include "cairn/session/session.h"

#include <algorithm>
#include <bit>
#include <unordered_set>

#include "cairn/session/state.h"
#include "cairn/state/positional.h"

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

namespace internal {

Groups Groups::clone() const {
  Groups copy{.slots = slots, .recurrent_group = recurrent_group};
  for (const auto& state : states) copy.states.push_back(state->clone());
  return copy;
}

View Groups::view(SlotId slot, std::span<const RunView> runs) const {
  return {.slot = &place(slot),
          .exact = exact_place(slot),
          .retention = of(slot).retention(),
          .page_positions = of(slot).forms().page_positions(),
          .runs = runs};
}

}  // namespace internal

namespace {

using internal::Groups;

bool is_recurrent(const SlotSpec& slot) { return slot.families[0].family->is_fixed; }

// The recurrent slots, and the others by retention, in the order in which they first appear.
std::vector<std::vector<SlotId>> group_slots(const ModelSpec& spec) {
  std::vector<std::vector<SlotId>> groups;
  const auto alike = [&](SlotId a, SlotId b) {
    const SlotSpec &x = spec.slots[a.value], &y = spec.slots[b.value];
    return is_recurrent(x) == is_recurrent(y) && x.retention == y.retention;
  };
  for (uint32_t slot = 0; slot < spec.slots.size(); ++slot) {
    const auto same = std::ranges::find_if(
        groups, [&](const auto& group) { return alike(group[0], SlotId{slot}); });
    if (same != groups.end())
      same->push_back(SlotId{slot});
    else
      groups.push_back({SlotId{slot}});
  }
  return groups;
}

Form make_form(PageLayout layout, Memory& memory) {
  PagePool& pool = memory.pool(layout.page_bytes);
  return {std::move(layout), &pool};
}

using Codecs = std::vector<std::vector<Codec>>;  // per slot, per family

// The form of the same families that `keep` and `after` ask for: f32 need not take every width that
// an encoding takes.
Result<Codecs> exact_codecs(const Scheme& scheme, const ModelSpec& spec) {
  Codecs exact(spec.slots.size());
  for (size_t slot = 0; slot < spec.slots.size(); ++slot)
    for (const FamilySpec& family : spec.slots[slot].families) {
      if (family.family->is_fixed) continue;
      auto codec = make_codec(kF32, {}, family.width);
      if (!codec)
        return fail(codec.error().code, "scheme {}: slot {}, {}, exact: {}", print(scheme), slot,
                    family.family->name, codec.error().message);
      exact[slot].push_back(std::move(*codec));
    }
  return exact;
}

struct AllCodecs {
  Codecs encoded;
  Codecs exact;  // empty where the scheme has no use for it
};

Codecs of_slots(const Codecs& codecs, std::span<const SlotId> slots) {
  Codecs chosen;
  for (SlotId slot : slots) chosen.push_back(codecs[slot.value]);
  return chosen;
}

std::unique_ptr<State> make_state(const SessionState& session,
                                  std::span<const SlotId> slots,
                                  const AllCodecs& codecs,
                                  Memory& memory) {
  std::vector<const SlotSpec*> specs;
  for (SlotId slot : slots) specs.push_back(&session.spec.slots[slot.value]);
  if (is_recurrent(*specs[0])) {
    std::vector<SlotSpec> copies;
    for (const SlotSpec* spec : specs) copies.push_back(*spec);
    return std::make_unique<Recurrent>(make_form(make_tensor_layout(specs), memory),
                                       std::move(copies), memory);
  }
  const auto form_of = [&](const Codecs& all) {
    return make_form(make_page_layout(specs, of_slots(all, slots), session.options.page_positions),
                     memory);
  };
  Forms forms{.encoded = form_of(codecs.encoded),
              .keep = session.scheme.keeps_exact(),
              .after = session.scheme.after};
  if (session.scheme.has_exact_form()) forms.exact = form_of(codecs.exact);
  return std::make_unique<Positional>(std::move(forms), specs[0]->retention);
}

Groups make_groups(const SessionState& session, const AllCodecs& codecs, Memory& memory) {
  Groups groups;
  groups.slots.resize(session.spec.slots.size());
  for (const auto& slots : group_slots(session.spec)) {
    for (size_t place = 0; place < slots.size(); ++place)
      groups.slots[slots[place].value] = {.group = groups.states.size(), .place = place};
    if (is_recurrent(session.spec.slots[slots[0].value]))
      groups.recurrent_group = groups.states.size();
    groups.states.push_back(make_state(session, slots, codecs, memory));
  }
  return groups;
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
  AllCodecs codecs;
  codecs.encoded = CAIRN_TRY(resolve(scheme, spec));
  if (scheme.has_exact_form()) codecs.exact = CAIRN_TRY(exact_codecs(scheme, spec));
  auto state = std::make_unique<SessionState>();
  state->spec = std::move(spec);
  state->scheme = std::move(scheme);
  state->registry = &registry;
  state->options = options;
  for (uint32_t slot = 0; slot < state->spec.slots.size(); ++slot)
    state->slots.push_back(SlotId{slot});
  state->groups = make_groups(*state, codecs, memory);
  for (const SlotSpec& slot : state->spec.slots) {
    state->first_family.push_back(state->families);
    state->families += slot.families.size();
  }
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

size_t Session::groups() const { return state_->groups.states.size(); }
const State& Session::group(size_t group) const { return *state_->groups.states[group]; }
bool Session::is_recurrent(size_t group) const { return group == state_->groups.recurrent_group; }
size_t Session::group_of(SlotId slot) const {
  state_->check_slot(slot);
  return state_->groups.slots[slot.value].group;
}

SeqId Session::start() {
  Sequence empty;
  empty.tables.resize(state_->groups.states.size());
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
  for (size_t group = 0; group < state_->groups.states.size(); ++group)
    if (!state_->groups.states[group]->can_truncate(sequence.tables[group], sequence.length,
                                                    length))
      return false;
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
    return fail(
        Code::BadInput,
        "session: a sequence of {} positions no longer holds what it needs to go on from {}",
        sequence.length, length);
  if (length == sequence.length) return {};
  for (size_t group = 0; group < state_->groups.states.size(); ++group)
    state_->groups.states[group]->truncate(sequence.tables[group], sequence.length, length);
  sequence.length = length;
  return {};
}

Pos Session::max_run(SeqId seq) const {
  const Sequence& sequence = state_->sequence(seq);
  Pos most = UINT64_MAX;
  for (const auto& state : state_->groups.states)
    most = std::min(most, state->max_run(sequence.length));
  for (const SlotSpec& slot : state_->spec.slots)
    if (slot.max_positions != 0)
      most = std::min(most, slot.max_positions - std::min(slot.max_positions, sequence.length));
  return most;
}

uint64_t Session::bytes_for(Pos tokens) const {
  uint64_t bytes = 0;
  for (const auto& state : state_->groups.states) bytes += state->bytes_for(tokens);
  return bytes;
}

uint64_t Session::peak_bytes_for(Pos tokens, Pos longest_run) const {
  uint64_t bytes = 0;
  for (const auto& state : state_->groups.states)
    bytes += state->peak_bytes_for(tokens, longest_run);
  return bytes;
}

SessionUse Session::use() const {
  SessionUse use{.sequences = state_->sequences.size(), .saturated = state_->saturated};
  std::unordered_set<const std::byte*> seen;
  const auto count = [&](const PageRef& page) {
    if (!seen.insert(page.data()).second) return;
    use.live_bytes += page.cost();
    if (page.is_shared()) use.shared_bytes += page.cost();
  };
  for (const auto& [seq, sequence] : state_->sequences)
    for (const PageTable& table : sequence.tables) {
      std::ranges::for_each(table.sinks, count);
      std::ranges::for_each(table.tail, count);
    }
  return use;
}

}  // namespace cairn
