#include <algorithm>
#include <atomic>

#include "cairn/kernels/dispatch.h"
#include "cairn/session/state.h"

namespace cairn {
namespace internal {
namespace {

constexpr size_t kStagingFloats = 8192;  // the widest vector, or several narrow ones

}  // namespace

// Reservations keep their lists, and the list its reservations.
void StepState::end() noexcept {
  session = nullptr;
  for (Reservation& reservation : reservations) reservation.clear();
  runs.clear();
  counts.clear();
  views.clear();
  rows = 0;
  saturated = 0;
}

StepState::StepRun& StepState::run(size_t index) {
  CAIRN_CHECK(index < runs.size(), "step: run {} of {}", index, runs.size());
  return runs[index];
}

Reservation& StepState::reservation(size_t run, size_t group) {
  return reservations[run * session->groups.states.size() + group];
}

std::span<const RunView> StepState::views_of(size_t group) const {
  return std::span(views).subspan(group * runs.size(), runs.size());
}

Written& StepState::written_of(SlotId slot, size_t family, size_t run) {
  return written[(session->first_family[slot.value] + family) * runs.size() + run];
}

void StepState::check_written() {
  for (SlotId slot : session->slots) {
    const auto& families = session->groups.place(slot).families;
    for (size_t family = 0; family < families.size(); ++family)
      for (size_t run = 0; run < runs.size(); ++run)
        CAIRN_CHECK(runs[run].count == 0 || written_of(slot, family, run).is_complete(),
                    "step: slot {}, {}, run {} is not written", slot.value,
                    families[family].family->name, run);
  }
}

namespace {

// One part of a family's new positions in one run, a row being one head of one position, by heads.
struct EncodeJob {
  const View& view;
  const RunView& run;
  size_t family;
  const Numbers& numbers;
  Part part;
};

uint64_t encode_rows(const EncodeJob& job) {
  const FamilyPlace& encoded = job.view.slot->families[job.family];
  const uint32_t width = encoded.codec.width;
  const ptrdiff_t head_stride = job.numbers.head_stride ? job.numbers.head_stride : width;
  const ptrdiff_t position_stride =
      job.numbers.position_stride ? job.numbers.position_stride : ptrdiff_t{width} * encoded.heads;
  const Pos page_positions = job.view.page_positions;
  const RoundingScope rounding;
  alignas(64) float staging[kStagingFloats];
  const Pos most = std::min<Pos>(page_positions, kStagingFloats / width);

  uint64_t saturated = 0;
  const Pos rows = job.run.count * encoded.heads;
  Pos row = rows * job.part.index / job.part.count;
  const Pos end = rows * (job.part.index + 1) / job.part.count;
  while (row < end) {
    const auto head = static_cast<uint32_t>(row / job.run.count);
    const Pos offset = row % job.run.count;
    const Pos position = job.run.first + offset;
    const Pos in_page = position % page_positions;
    const Pos length =
        std::min({most, page_positions - in_page, job.run.count - offset, end - row});
    for (Pos i = 0; i < length; ++i)
      load_f32(job.numbers,
               static_cast<ptrdiff_t>(offset + i) * position_stride + ptrdiff_t{head} * head_stride,
               width, staging + i * width);
    const FamilyPlace& place = job.view.place(job.run, position).families[job.family];
    saturated += place.codec.encoding->functions().encode(
        place.codec, staging,
        place.records(job.run.pages.page(position / page_positions), head,
                      static_cast<uint32_t>(in_page), static_cast<uint32_t>(length)));
    row += length;
  }
  return saturated;
}

size_t family_index(const SlotPlace& slot, SlotId id, FamilyId family) {
  const FamilyPlace* place = slot.find(family);
  CAIRN_CHECK(place != nullptr, "step: slot {} has no family {}", id.value, family.value);
  return static_cast<size_t>(place - slot.families.data());
}

}  // namespace

void SessionState::check_closed(SeqId seq, const char* verb) const {
  for (const StepState::StepRun& run : step.runs)
    CAIRN_CHECK(run.seq != seq, "session: sequence {} cannot be {} while a step on it is open",
                seq.value, verb);
}

}  // namespace internal

using internal::Sequence;
using internal::SessionState;
using internal::StepState;

namespace {

Result<void> check_limits(const SessionState& session, const Sequence& sequence, const Run& run) {
  for (size_t slot = 0; slot < session.spec.slots.size(); ++slot)
    if (const Pos limit = session.spec.slots[slot].max_positions;
        limit != 0 && (run.count > limit || sequence.length > limit - run.count))
      return fail(Code::BadInput, "slot {}: {} positions and {} more, expected at most {}", slot,
                  sequence.length, run.count, limit);
  for (const auto& state : session.groups.states)
    if (run.count > state->max_run(sequence.length))
      return fail(Code::BadInput,
                  "session: a run of {} after {} positions crosses the {} at which the sequence is "
                  "encoded, expected at most {}",
                  run.count, sequence.length, state->forms().after,
                  state->max_run(sequence.length));
  return {};
}

Result<void> add_run(StepState& step, SessionState& session, const Run& run) {
  Sequence& sequence = session.sequence(run.seq);
  CAIRN_CHECK(
      std::ranges::none_of(step.runs, [&](const auto& other) { return other.seq == run.seq; }),
      "session: sequence {} appears twice in a batch", run.seq.value);
  CAIRN_TRY(check_limits(session, sequence, run));
  const Growth growth{.length = sequence.length, .count = run.count, .kept = run.count};
  const size_t groups = session.groups.states.size();
  const size_t first = step.runs.size() * groups;  // of its reservations
  if (step.reservations.size() < first + groups) step.reservations.resize(first + groups);
  for (size_t group = 0; group < groups; ++group)
    CAIRN_TRY(session.groups.states[group]->reserve(sequence.tables[group], growth, step.round,
                                                    step.reservations[first + group]));
  step.counts.push_back(run.count);
  step.runs.push_back(
      {.seq = run.seq, .sequence = &sequence, .count = run.count, .row = step.rows});
  step.rows += run.count;
  return {};
}

void make_views(StepState& step) {
  const internal::Groups& groups = step.session->groups;
  for (size_t group = 0; group < groups.states.size(); ++group)
    for (size_t i = 0; i < step.runs.size(); ++i) {
      const StepState::StepRun& run = step.runs[i];
      const Reservation& reservation = step.reservation(i, group);
      step.views.push_back(
          {.pages = {.table = &run.sequence->tables[group],
                     .fresh = reservation.pages,
                     .first_fresh = reservation.first},
           .first = run.sequence->length,
           .count = run.count,
           .row = run.row,
           .exact_end = groups.states[group]->forms().exact_end(run.sequence->length)});
    }
  const size_t wanted = step.session->families * step.runs.size();
  if (step.written_room < wanted) {
    step.written = std::make_unique<internal::Written[]>(wanted);
    step.written_room = wanted;
  }
  for (size_t i = 0; i < wanted; ++i) step.written[i].done = step.written[i].expected = 0;
}

}  // namespace

Result<Step> Session::plan(std::span<const Run> batch, Round round) {
  StepState& step = state_->step;
  CAIRN_CHECK(step.session == nullptr,
              "session: a step is open, expected it to end before the next plan");
  Step planned(&step);  // ends it, should a run fail
  step.round = round;
  for (const Run& run : batch) CAIRN_TRY(add_run(step, *state_, run));
  step.session = state_.get();
  make_views(step);
  return planned;
}

void Step::End::operator()(StepState* state) const noexcept { state->end(); }

Step::Step(StepState* state) : state_(state) {}
Step::Step(Step&&) noexcept = default;
Step& Step::operator=(Step&&) noexcept = default;
Step::~Step() = default;

Pos Step::rows() const { return state_->rows; }
uint64_t Step::saturated() const { return state_->saturated; }

View Step::view(SlotId slot) const {
  CAIRN_CHECK(state_ != nullptr, "step: it is over");
  SessionState& session = *state_->session;
  session.check_slot(slot);
  View view = session.groups.view(slot, state_->views_of(session.groups.slots[slot.value].group));
  view.rows = state_->rows;
  view.workspace = &session.workspace;
  return view;
}

void Step::write_run(SlotId slot, FamilyId family, size_t run, const Numbers& numbers, Part part) {
  const View seen = view(slot);
  CAIRN_CHECK(!state_->session->groups.is_recurrent(slot),
              "step: slot {} is recurrent, expected next() and mark_written()", slot.value);
  CAIRN_CHECK(part.index < part.count, "step: part {} of {}", part.index, part.count);
  const size_t index = internal::family_index(*seen.slot, slot, family);
  state_->run(run);
  state_->saturated += internal::encode_rows({seen, seen.runs[run], index, numbers, part});
  state_->written_of(slot, index, run).add(part);
}

void Step::write(SlotId slot, FamilyId family, const Numbers& numbers, Part part) {
  const View seen = view(slot);
  const FamilyPlace& place = seen.slot->families[internal::family_index(*seen.slot, slot, family)];
  const ptrdiff_t row_stride = numbers.position_stride ? numbers.position_stride
                                                       : ptrdiff_t{place.codec.width} * place.heads;
  for (size_t run = 0; run < seen.runs.size(); ++run) {
    Numbers of_run = numbers;
    of_run.data = static_cast<const std::byte*>(numbers.data) +
                  static_cast<ptrdiff_t>(seen.runs[run].row) * row_stride *
                      static_cast<ptrdiff_t>(bytes_of(numbers.dtype));
    write_run(slot, family, run, of_run, part);
  }
}

const float* Step::previous(SlotId slot, FamilyId tensor, size_t run) const {
  const internal::Groups& groups = state_->session->groups;
  const internal::SlotIndex& index = groups.slots[slot.value];
  return groups.recurrent(slot).previous(state_->run(run).sequence->tables[index.group],
                                         index.place, tensor);
}

bool Step::holds_states(SlotId slot) const {
  return state_->round == Round::yes && !state_->session->groups.recurrent(slot).replays();
}

float* Step::next(SlotId slot, FamilyId tensor, size_t run, Pos index) {
  const internal::Groups& groups = state_->session->groups;
  const internal::SlotIndex& place = groups.slots[slot.value];
  const Pos count = state_->run(run).count, last = count - 1;
  CAIRN_CHECK(count > 0 && (holds_states(slot) ? index <= last : index == last),
              "step: the tensors after new position {} of {}", index, count);
  const auto& pages = state_->reservation(run, place.group).pages;
  return groups.recurrent(slot).tensor(pages[holds_states(slot) ? index : 0].data(), place.place,
                                       tensor);
}

std::byte* Step::round_inputs(SlotId slot, size_t run) {
  const internal::Groups& groups = state_->session->groups;
  const internal::SlotIndex& place = groups.slots[slot.value];
  const Pos count = state_->run(run).count;
  return groups.recurrent(slot).inputs(state_->reservation(run, place.group), place.place, count);
}

void Step::mark_written(SlotId slot, size_t run, Part part) {
  const size_t families = state_->session->groups.place(slot).families.size();
  state_->run(run);
  for (size_t family = 0; family < families; ++family)
    state_->written_of(slot, family, run).add(part);
}

void Step::commit() {
  CAIRN_CHECK(state_ != nullptr, "step: it is over");
  finish(state_->counts);
}

void Step::commit(std::span<const Pos> keep) {
  CAIRN_CHECK(state_ != nullptr, "step: it is over");
  CAIRN_CHECK(state_->round == Round::yes,
              "step: only a round's commit may keep a part of its positions");
  CAIRN_CHECK(keep.size() == state_->runs.size(), "step: {} counts to keep for {} runs",
              keep.size(), state_->runs.size());
  for (size_t run = 0; run < keep.size(); ++run)
    CAIRN_CHECK(keep[run] <= state_->runs[run].count, "step: keep {} of {} positions", keep[run],
                state_->runs[run].count);
  finish(keep);
}

void Step::finish(std::span<const Pos> keep) {
  state_->check_written();
  const RoundingScope rounding;  // a commit may encode
  SessionState& session = *state_->session;
  uint64_t saturated = state_->saturated;
  for (size_t i = 0; i < keep.size(); ++i) {  // from here on nothing can fail
    StepState::StepRun& run = state_->runs[i];
    for (size_t group = 0; group < session.groups.states.size(); ++group)
      saturated += session.groups.states[group]->publish(
          run.sequence->tables[group], state_->reservation(i, group),
          {.length = run.sequence->length, .count = run.count, .kept = keep[i]});
    run.sequence->length += keep[i];
  }
  session.saturated += saturated;
  state_.reset();
}

}  // namespace cairn
