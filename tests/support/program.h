// Programs of session operations, run against a session and against a plain model of it, step by
// step.
//
// The model keeps, per sequence and position, one stamp; the numbers of every slot, family, head
// and dimension follow from the stamp, so a record that lands in the wrong place, page, sequence or
// slot shows at once. Under an encoding that loses, the model puts a position's numbers through
// encode and decode once. A recurrent tensor follows from a chain over the stamps. What a window
// still holds is a plain set of positions.
//
// An operation picks its sequence by index modulo the sequences that exist, so every subset of a
// program is a program: a failure is shrunk by leaving operations out.
#ifndef CAIRN_TESTS_SUPPORT_PROGRAM_H_
#define CAIRN_TESTS_SUPPORT_PROGRAM_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cairn/session/session.h"

namespace cairn::testing {

struct Op {
  enum class Verb : uint8_t {
    start,
    append,       // a step over one to three sequences, committed
    append_part,  // a round of which a prefix is kept
    drop_step,    // planned, written or not, and dropped
    fork,
    truncate,
    drop,
    adopt,  // into the other session or back
    count
  };
  Verb verb = Verb::start;
  uint32_t which = 0;   // picks sequences
  uint32_t amount = 0;  // picks counts, lengths
};

struct Program {
  ModelSpec spec;
  const Registry* registry = &builtin();
  std::string scheme = "f32";
  uint32_t page_positions = 16;
  uint64_t max_bytes = uint64_t{1} << 32;  // of the memory: small ones make plans fail
  size_t most_sequences = 6;
  Pos longest = 400;
  std::vector<Op> ops;
};

std::vector<Op> random_ops(uint64_t seed, size_t count);

// Attention and window slots of several windows, with and without sinks, of widths 8 to 24: too
// narrow for encodings in groups.
ModelSpec mixed_spec();

// What suites that walk the kinds of a registry hold: a model of each kind's samples, and one of
// all kinds together. Where there are fixed tensors, one whose rounds hold a state per position and
// one whose rounds are replayed.
struct KindModel {
  std::string name;
  ModelSpec spec;
};
std::vector<KindModel> kind_models(const Registry& registry = builtin());

// Runs it. What went wrong, or nothing; and how often a sequence reached the length at which it is
// encoded.
struct Outcome {
  std::optional<std::string> wrong;
  size_t encodings = 0;
};
Outcome run(const Program& program);

// Leaves out halves, quarters, ... of the operations as long as it still fails.
Program shrink(Program failing);
std::string describe(const Program& program);

}  // namespace cairn::testing

#endif  // CAIRN_TESTS_SUPPORT_PROGRAM_H_
