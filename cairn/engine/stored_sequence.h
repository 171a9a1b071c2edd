// A sequence that lies in a file: what it says about itself, and its records on demand.
//
// Wrapped in another one it reads as if it were stored otherwise: in other encodings, or with the
// numbers of its keys in another order. Whoever writes a file asks for a stretch of rows at a time,
// and each wrapping asks the one below for what that takes; so memory holds a few stretches,
// however long the sequence is.
#ifndef CAIRN_ENGINE_STORED_SEQUENCE_H_
#define CAIRN_ENGINE_STORED_SEQUENCE_H_

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cairn/format/checkpoint_writer.h"
#include "cairn/io/aligned.h"
#include "cairn/session/model_spec.h"
#include "cairn/state/page_layout.h"

namespace cairn {

// Indices into CheckpointInfo; kTokens: the token ids, one I32 per row.
struct PlaneId {
  uint32_t slot = CheckpointTensor::kTokens;
  uint32_t family = 0;
  uint32_t plane = 0;
  auto operator<=>(const PlaneId&) const = default;
};

class StoredSequence {
 public:
  virtual ~StoredSequence() = default;
  virtual const CheckpointInfo& info() const = 0;
  // Fills `out` with the rows [first_row, first_row + rows) of one tensor, dense.
  virtual Result<void> read(PlaneId plane,
                            uint64_t first_row,
                            uint64_t rows,
                            std::span<std::byte> out) = 0;
};

// A checkpoint; every byte that it hands out has been verified. As CheckpointReader::open().
Result<std::unique_ptr<StoredSequence>> open_checkpoint(FileSystem& fs, const std::string& path);

// The sequence of `from` as `info` describes it: the same slots, families and stored positions, in
// other encodings and forms. Where an encoding stays, records are copied; elsewhere they are
// decoded and encoded.
class Recoded final : public StoredSequence {
 public:
  // BadInput or Unsupported: an encoding that the registry does not have, or that does not fit.
  static Result<std::unique_ptr<Recoded>> make(StoredSequence& from,
                                               CheckpointInfo info,
                                               const Registry& registry);

  const CheckpointInfo& info() const override { return info_; }
  Result<void> read(PlaneId plane,
                    uint64_t first_row,
                    uint64_t rows,
                    std::span<std::byte> out) override;
  uint64_t saturated() const { return saturated_; }  // numbers beyond their encoding's range

 private:
  using Codecs = std::vector<std::vector<Codec>>;  // per slot and family object

  Recoded(
      StoredSequence& from, CheckpointInfo info, ModelSpec spec, Codecs from_codecs, Codecs codecs)
      : from_(from),
        info_(std::move(info)),
        spec_(std::move(spec)),
        from_codecs_(std::move(from_codecs)),
        codecs_(std::move(codecs)) {}
  static Result<Codecs> codecs_of(const CheckpointInfo& info, const Registry& registry);
  Result<void> recode(PlaneId to, uint32_t form, PositionRun run, std::span<std::byte> out);

  StoredSequence& from_;
  CheckpointInfo info_;
  ModelSpec spec_;  // of either
  Codecs from_codecs_, codecs_;
  std::vector<std::byte> rows_;  // of one plane on its way into a page
  AlignedBuffer from_page_, to_page_;
  uint64_t saturated_ = 0;
};

// The order of the numbers in a key that rotary embedding turns in pairs: the two of a pair side by
// side, or a half of the rotated part between them.
enum class PairOrder { adjacent, halves };

// Keys in f32, f16 or bf16 with the pairs of their first `rotated` numbers brought into the other
// order, `to`. Everything else is as in `from`.
class Reordered final : public StoredSequence {
 public:
  Reordered(StoredSequence& from, PairOrder to, uint32_t rotated)
      : from_(from), to_(to), rotated_(rotated) {}
  const CheckpointInfo& info() const override { return from_.info(); }
  Result<void> read(PlaneId plane,
                    uint64_t first_row,
                    uint64_t rows,
                    std::span<std::byte> out) override;

 private:
  StoredSequence& from_;
  PairOrder to_;
  uint32_t rotated_;
};

// Whether Reordered can read the family as it is.
bool holds_plain_numbers(const CheckpointFamily& family);

// The family in f32.
CheckpointFamily in_f32(CheckpointFamily family);

// The encodings, and the families in them, whose records `to` does not take over as they are
// although they lost something when they were made.
using Losses = std::map<std::string, std::set<std::string>>;
Losses losses_of(const CheckpointInfo& from, const CheckpointInfo& to);

}  // namespace cairn

#endif  // CAIRN_ENGINE_STORED_SEQUENCE_H_
