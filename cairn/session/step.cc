#include <algorithm>

#include "cairn/kernels/dispatch.h"
#include "cairn/session/state.h"

namespace cairn {
namespace internal {
namespace {

constexpr size_t kStagingFloats = 8192;  // the widest vector, or several narrow ones

// Counts the parts of one family of one run that have been written.
struct Written {
  std::atomic<uint32_t> done{0};
  std::atomic<uint32_t> expected{0};
  bool is_complete() const { return done > 0 && done == expected; }
};

}  // namespace

struct StepState {
  struct StepRun {
    SeqId seq;
    Sequence* sequence = nullptr;  // stays where it is while the step is open
    Pos count = 0;
    Pos row = 0;
    std::vector<Positional::Reservation> reservations;  // per group
  };

  SessionState* session = nullptr;
  Round round = Round::no;
  Pos rows = 0;
  std::vector<StepRun> runs;
  std::vector<Pos> counts;                  // per run
  std::vector<std::vector<RunView>> views;  // per group, per run
  std::vector<size_t> first_family;  // per slot: its first index among all families of the session
  std::unique_ptr<Written[]> written;  // [families of all slots][runs]
  std::atomic<uint64_t> saturated{0};

  ~StepState() {
    if (session != nullptr) session->open_step = nullptr;
  }
  Written& written_of(size_t family, size_t run) { return written[family * runs.size() + run]; }
  size_t family_index(SlotId slot, const FamilyPlace& place) const {
    return first_family[slot.value] +
           static_cast<size_t>(&place - session->place_of(slot).families.data());
  }
  void check_written() {
    for (SlotId slot : session->slots)
      for (const FamilyPlace& place : session->place_of(slot).families)
        for (size_t run = 0; run < runs.size(); ++run)
          CAIRN_CHECK(
              runs[run].count == 0 || written_of(family_index(slot, place), run).is_complete(),
              "step: slot {}, {}, run {} is not written", slot.value, place.family->name, run);
  }
};

uint64_t encode_rows(const FamilyPlace& place,
                     const PageMap& pages,
                     uint32_t page_positions,
                     Pos first,
                     Pos count,
                     const Numbers& numbers,
                     Part part) {
  const uint32_t width = place.codec.width;
  const ptrdiff_t head_stride = numbers.head_stride ? numbers.head_stride : width;
  const ptrdiff_t position_stride =
      numbers.position_stride ? numbers.position_stride : ptrdiff_t{width} * place.heads;
  const RecordFunctions& functions = place.codec.encoding->functions();
  const RoundingScope rounding;
  alignas(64) float staging[kStagingFloats];
  const Pos most = std::min<Pos>(page_positions, kStagingFloats / width);

  uint64_t saturated = 0;
  const Pos rows = count * place.heads;
  Pos row = rows * part.index / part.count;
  const Pos end = rows * (part.index + 1) / part.count;
  while (row < end) {
    const uint32_t head = static_cast<uint32_t>(row / count);
    const Pos offset = row % count;  // within the run
    const Pos in_page = (first + offset) % page_positions;
    const Pos length = std::min({most, page_positions - in_page, count - offset, end - row});
    for (Pos i = 0; i < length; ++i)
      load_f32(numbers,
               static_cast<ptrdiff_t>(offset + i) * position_stride + ptrdiff_t{head} * head_stride,
               width, staging + i * width);
    std::byte* page = pages.page((first + offset) / page_positions);
    saturated += functions.encode(
        place.codec, staging,
        place.records(page, head, static_cast<uint32_t>(in_page), static_cast<uint32_t>(length)));
    row += length;
  }
  return saturated;
}

void SessionState::check_closed(SeqId seq, const char* verb) const {
  if (open_step == nullptr) return;
  for (const StepState::StepRun& run : open_step->runs)
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
  return {};
}

void make_views(StepState& step) {
  const SessionState& session = *step.session;
  step.views.resize(session.groups.size());
  for (size_t group = 0; group < session.groups.size(); ++group)
    for (const auto& run : step.runs)
      step.views[group].push_back({.pages = {.table = &run.sequence->tables[group],
                                             .fresh = run.reservations[group].pages,
                                             .first_fresh = run.reservations[group].first},
                                   .first = run.sequence->length,
                                   .count = run.count,
                                   .row = run.row});
  size_t families = 0;
  for (SlotId slot : session.slots) {
    step.first_family.push_back(families);
    families += session.place_of(slot).families.size();
  }
  step.written = std::make_unique<internal::Written[]>(families * step.runs.size());
}

}  // namespace

Result<Step> Session::plan(std::span<const Run> batch, Round round) {
  CAIRN_CHECK(state_->open_step == nullptr,
              "session: a step is open, expected it to end before the next plan");
  auto step = std::make_unique<StepState>();
  step->round = round;
  for (const Run& run : batch) {
    Sequence& sequence = state_->sequence(run.seq);
    CAIRN_CHECK(
        std::ranges::none_of(step->runs, [&](const auto& other) { return other.seq == run.seq; }),
        "session: sequence {} appears twice in a batch", run.seq.value);
    CAIRN_TRY(check_limits(*state_, sequence, run));
    StepState::StepRun planned{
        .seq = run.seq, .sequence = &sequence, .count = run.count, .row = step->rows};
    for (size_t group = 0; group < state_->groups.size(); ++group)
      planned.reservations.push_back(CAIRN_TRY(
          state_->groups[group].reserve(sequence.tables[group], sequence.length, run.count)));
    step->rows += run.count;
    step->counts.push_back(run.count);
    step->runs.push_back(std::move(planned));
  }
  step->session = state_.get();
  make_views(*step);
  state_->open_step = step.get();
  return Step(std::move(step));
}

Step::Step(std::unique_ptr<StepState> state) : state_(std::move(state)) {}
Step::Step(Step&&) noexcept = default;
Step& Step::operator=(Step&&) noexcept = default;
Step::~Step() = default;

Pos Step::rows() const { return state_->rows; }
uint64_t Step::saturated() const { return state_->saturated; }

View Step::view(SlotId slot) const {
  CAIRN_CHECK(state_ != nullptr, "step: it is over");
  SessionState& session = *state_->session;
  session.check_slot(slot);
  const Positional& group = session.group_of(slot);
  return {.slot = &session.place_of(slot),
          .retention = group.retention(),
          .page_positions = group.layout().page_positions,
          .runs = state_->views[session.slot_index[slot.value].group],
          .rows = state_->rows,
          .workspace = &session.workspace};
}

void Step::write_run(SlotId slot, FamilyId family, size_t run, const Numbers& numbers, Part part) {
  const View seen = view(slot);
  const FamilyPlace* place = seen.slot->find(family);
  CAIRN_CHECK(place != nullptr, "step: slot {} has no family {}", slot.value, family.value);
  CAIRN_CHECK(run < seen.runs.size(), "step: run {} of {}", run, seen.runs.size());
  CAIRN_CHECK(part.index < part.count, "step: part {} of {}", part.index, part.count);
  const RunView& target = seen.runs[run];
  state_->saturated += internal::encode_rows(*place, target.pages, seen.page_positions,
                                             target.first, target.count, numbers, part);
  internal::Written& written = state_->written_of(state_->family_index(slot, *place), run);
  written.expected = part.count;
  ++written.done;
}

void Step::write(SlotId slot, FamilyId family, const Numbers& numbers, Part part) {
  const View seen = view(slot);
  const FamilyPlace* place = seen.slot->find(family);
  CAIRN_CHECK(place != nullptr, "step: slot {} has no family {}", slot.value, family.value);
  const ptrdiff_t row_stride = numbers.position_stride
                                   ? numbers.position_stride
                                   : ptrdiff_t{place->codec.width} * place->heads;
  for (size_t run = 0; run < seen.runs.size(); ++run) {
    Numbers of_run = numbers;
    of_run.data = static_cast<const std::byte*>(numbers.data) +
                  static_cast<ptrdiff_t>(seen.runs[run].row) * row_stride *
                      static_cast<ptrdiff_t>(bytes_of(numbers.dtype));
    write_run(slot, family, run, of_run, part);
  }
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
  for (size_t i = 0; i < keep.size(); ++i) {  // from here on nothing can fail
    StepState::StepRun& run = state_->runs[i];
    for (size_t group = 0; group < run.reservations.size(); ++group)
      state_->session->groups[group].publish(run.sequence->tables[group],
                                             std::move(run.reservations[group]),
                                             run.sequence->length, keep[i]);
    run.sequence->length += keep[i];
  }
  state_.reset();
}

}  // namespace cairn
