// A session: all states of one model for many sequences.
//
//   auto step = CAIRN_TRY(session.plan({{.seq = chat, .count = 512}}));   // may fail; then nothing
//   has changed for (SlotId slot : session.slots()) { step.write(...); attend(step.view(slot),
//   ...); } step.commit();                                                      // cannot fail
//
// A session belongs to one thread at a time; the parts of write and attend may run on several.
#ifndef CAIRN_SESSION_SESSION_H_
#define CAIRN_SESSION_SESSION_H_

#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cairn/core/ids.h"
#include "cairn/core/numbers.h"
#include "cairn/memory/memory.h"
#include "cairn/session/model_spec.h"
#include "cairn/session/scheme.h"
#include "cairn/state/state.h"
#include "cairn/state/view.h"

namespace cairn {

// `count` new positions of a sequence.
struct Run {
  SeqId seq;
  Pos count = 0;
};

struct SessionOptions {
  uint32_t page_positions = 64;  // a power of two up to 64; changes no bit of any result
};

namespace internal {
struct SessionState;
struct StepState;
struct SnapshotState;
}  // namespace internal

// One forward pass over a batch of runs. Owns the pages it reserved: dropping it is the rollback.
class Step {
 public:
  Step(Step&&) noexcept;
  Step& operator=(Step&&) noexcept;
  ~Step();

  Pos rows() const;  // the sum of the runs' counts

  // Encodes the new positions of one family: `numbers` is [rows, heads, width], the rows of all
  // runs in batch order. Part i of n: parts may run at once; the family counts as written when all
  // n have.
  void write(SlotId slot, FamilyId family, const Numbers& numbers, Part part = {});
  // The same for one run: [count, heads, width].
  void write_run(SlotId slot, FamilyId family, size_t run, const Numbers& numbers, Part part = {});

  // The pages to attend over, the new positions included (once they are written). Valid until the
  // step ends.
  View view(SlotId slot) const;

  // Recurrent slots: a tensor of one run's sequence before the step (zeros for a new one), and
  // where the one after it goes. Where a round holds a state per position, `next` takes the one
  // after new position `index`; otherwise index must be the run's last.
  const float* previous(SlotId slot, FamilyId tensor, size_t run) const;
  float* next(SlotId slot, FamilyId tensor, size_t run, Pos index);
  bool holds_states(SlotId slot) const;
  // In a round that is replayed: [count][input_bytes] to record; null otherwise.
  std::byte* round_inputs(SlotId slot, size_t run);
  // Says that a part of a run's tensors and inputs is written: all of the slot's families.
  void mark_written(SlotId slot, size_t run, Part part = {});

  // Publishes the new lengths of all slots at once. ContractError for a family that was not
  // written, before anything changes; otherwise it cannot fail. The step is over.
  void commit();
  // A round: keeps the first keep[i] positions of run i, 0 <= keep[i] <= count. The rest leaves no
  // trace.
  void commit(std::span<const Pos> keep);

  // Numbers that did not fit their encoding's range and were saturated, so far.
  uint64_t saturated() const;

 private:
  friend class Session;
  struct End {  // gives back what the step reserved; its memory stays with the session
    void operator()(internal::StepState* state) const noexcept;
  };
  explicit Step(internal::StepState* state);
  void finish(std::span<const Pos> keep);
  std::unique_ptr<internal::StepState, End> state_;
};

// One sequence as it was: holds on its pages, independent of the session (not of the memory).
// Nothing is copied.
class Snapshot {
 public:
  Snapshot(Snapshot&&) noexcept;
  Snapshot& operator=(Snapshot&&) noexcept;
  ~Snapshot();

  Pos length() const;
  bool is_derived() const;  // re-encoded with loss, imported, or made under another arithmetic: not
                            // the real thing
  const ModelSpec& spec() const;
  const Scheme& scheme() const;
  const Registry& registry() const;
  View view(SlotId slot) const;  // one run of no new positions; for decode() and copying
  const float* tensor(SlotId slot, FamilyId tensor) const;  // of a recurrent slot
  Pos first_kept(SlotId slot) const;  // positions [sinks, first_kept) are gone; 0 without a window
  // A hold on one page of a group, as it lies; empty where the sequence holds none there.
  PageRef page(size_t group, Pos index) const;

 private:
  friend class Session;
  explicit Snapshot(std::unique_ptr<internal::SnapshotState> state);
  std::unique_ptr<internal::SnapshotState> state_;
};

struct SessionUse {
  uint64_t live_bytes = 0;    // pages of this session's sequences, each counted once
  uint64_t shared_bytes = 0;  // of those, pages that more than one holder holds
  uint64_t sequences = 0;
  uint64_t saturated = 0;  // numbers that did not fit their encoding's range, ever
};

class Session {
 public:
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  ~Session();  // no step may be open

  const ModelSpec& spec() const;
  const Scheme& scheme() const;
  const Registry& registry() const;
  uint32_t page_positions() const;
  std::span<const SlotId> slots() const;

  // The slots with the same retention form a group and share pages; recurrent ones form one of
  // their own, whose only page, 0, is the state after the last position.
  size_t groups() const;
  const State& group(size_t group) const;
  bool is_recurrent(size_t group) const;
  size_t group_of(SlotId slot) const;

  // Sequences.
  SeqId start();          // an empty one
  SeqId fork(SeqId seq);  // shares every page; copies nothing
  void drop(SeqId seq);
  Pos length(SeqId seq) const;
  bool is_derived(SeqId seq) const;

  // How many positions a run of this sequence may have: under `after N` no run crosses N.
  Pos max_run(SeqId seq) const;

  // Checks every precondition and reserves every page of every group. One step is open at a time; a
  // sequence appears once; truncate, drop and fork of its sequences wait until it ends. BadInput
  // past a slot's max_positions or max_run, NoSpace when memory is used up; in both cases nothing
  // has changed.
  // Nothing is allocated from here to the step's end once the session has had a step of as many
  // runs over as long a sequence: what has to grow (a sequence's table of pages, scratch) doubles,
  // and pages come from the memory's slabs.
  Result<Step> plan(std::span<const Run> batch, Round round = Round::no);
  Result<Step> plan(std::initializer_list<Run> batch, Round round = Round::no) {
    return plan(std::span(batch.begin(), batch.size()), round);
  }

  // A sequence can be cut to `length` iff every slot still holds what a query at `length` sees.
  bool can_truncate(SeqId seq, Pos length) const;
  // BadInput when it cannot be cut there; nothing has changed.
  Result<void> truncate(SeqId seq, Pos length);

  Snapshot snapshot(SeqId seq) const;
  // Another session's sequence (or this one's). Pages are shared where memory and layout are the
  // same; else records are copied where the encoding is the same and re-encoded where it differs
  // (the sequence is derived then: a run under this session's scheme would have computed other
  // numbers). Mismatch when the model, its geometry or its windows differ (rewind may), BadInput
  // past a slot's max_positions, NoSpace; then nothing has changed.
  Result<SeqId> adopt(const Snapshot& snapshot);

  // A sequence whose records come from elsewhere (a file): reserves the pages for `length`
  // positions, of which slot i holds its sinks and those from first_kept[i] on (BadInput where no
  // sequence of that slot can look so). Slots of one window hold what all of them have.
  // Arrival::place then fills in the records; nothing is visible before its commit.
  // `given` may have holds on whole pages, as Snapshot::page gives them out: they are shared
  // instead of filled in. REQUIRES: they are of this session's memory, geometry and scheme.
  class Arrival;
  using GivenPages = std::function<PageRef(size_t group, Pos index)>;  // empty: not that one
  Result<Arrival> arrive(Pos length, std::span<const Pos> first_kept, const GivenPages& given = {});

  // Bytes.
  uint64_t bytes_for(Pos tokens) const;  // live, of a fresh unshared sequence, however built
  uint64_t peak_bytes_for(Pos tokens, Pos longest_run) const;  // bounds every moment of building it
  SessionUse use() const;

 private:
  friend Result<Session> open_session(ModelSpec, Scheme, Memory&, SessionOptions, const Registry&);
  explicit Session(std::unique_ptr<internal::SessionState> state);
  std::unique_ptr<internal::SessionState> state_;
};

// Pages of a sequence in the making. Dropping it gives everything back.
class Session::Arrival {
 public:
  Arrival(Arrival&&) noexcept;
  Arrival& operator=(Arrival&&) noexcept;
  ~Arrival();
  // Dense records of one plane, [count, heads, record], for positions [first, first + count) of the
  // sequence, in the form that a sequence of its length has them in; those that the slot does not
  // hold are left out. REQUIRES: all are in one form. The tensors of a recurrent slot are position
  // 0 of a sequence that is not empty. Calls for different positions or planes may run at once.
  void place(
      SlotId slot, FamilyId family, size_t plane, Pos first, Pos count, const std::byte* records);
  // A page to be filled in as it lies. REQUIRES: it was not given.
  std::span<std::byte> page(size_t group, Pos index);
  void mark_derived();
  SeqId commit();  // every held position must have been placed; that is the caller's promise

 private:
  friend class Session;
  struct State;
  explicit Arrival(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// `memory` outlives the session. `registry` is kept by reference.
Result<Session> open_session(ModelSpec spec,
                             Scheme scheme,
                             Memory& memory,
                             SessionOptions options = {},
                             const Registry& registry = builtin());

}  // namespace cairn

#endif  // CAIRN_SESSION_SESSION_H_
