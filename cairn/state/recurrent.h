// The state of recurrent slots: a few tensors of fixed shape per sequence, the last value only.
//
// A page holds the tensors of all recurrent slots of one sequence: [slot][tensor][heads][width]
// f32, every tensor 64-byte aligned. A step reads the previous page (zeros for a new sequence) and
// writes the next one, so forks and failed steps share and drop pages like everything else.
//
// A round must be able to keep any prefix. Where every slot can be advanced from recorded inputs
// (SlotSpec::advance), the round records them and a commit of a prefix replays that prefix from the
// previous page: exact, because a recurrence advances position by position. Otherwise the round
// holds one page per new position.
#ifndef CAIRN_STATE_RECURRENT_H_
#define CAIRN_STATE_RECURRENT_H_

#include "cairn/state/kind.h"
#include "cairn/state/state.h"

namespace cairn {

class Recurrent final : public State {
 public:
  Recurrent(Form form, std::vector<SlotSpec> slots, Memory& memory);

  std::unique_ptr<State> clone() const override;
  Result<void> reserve(PageTable& table,
                       Growth growth,
                       Round round,
                       Reservation& reservation) const override;
  uint64_t publish(PageTable& table,
                   Reservation& reservation,
                   Growth growth) const noexcept override;
  bool can_truncate(const PageTable& table, Pos length, Pos to) const override;
  void truncate(PageTable& table, Pos length, Pos to) const noexcept override;
  Result<PageTable> allocate(Pos length, Pos first_held, const PageSource& given) const override;
  Pos max_run(Pos length) const override;
  uint64_t bytes_for(Pos tokens) const override;
  uint64_t peak_bytes_for(Pos tokens, Pos longest_run) const override;

  bool replays() const { return input_bytes_ > 0; }
  // A tensor of the slot at `place` in a state's page; of a sequence without a page: zeros.
  float* tensor(std::byte* page, size_t place, FamilyId family) const;
  const float* previous(const PageTable& table, size_t place, FamilyId family) const;
  // Of a round that records inputs: those of the slot at `place`, [count][round_input_bytes].
  std::byte* inputs(const Reservation& reservation, size_t place, Pos count) const;

 private:
  const FamilyPlace& family_place(size_t place, FamilyId family) const;
  void replay(const PageTable& table, Reservation& reservation, Growth growth) const noexcept;

  std::vector<SlotSpec> slots_;
  Memory* memory_;
  uint64_t input_bytes_ = 0;  // per position, all slots; 0: rounds hold a state per position
  std::vector<float> zeros_;  // as many as the largest tensor has
};

// A tensor as it is stored, always exact; and the layout of a page of the slots' tensors.
Codec tensor_codec(const FamilySpec& tensor);
PageLayout make_tensor_layout(std::span<const SlotSpec* const> slots);

}  // namespace cairn

#endif  // CAIRN_STATE_RECURRENT_H_
