// Programs of session operations, run against a session and against a plain model of it, step by
// step.
//
// The model keeps, per sequence and position, one stamp; the numbers of every slot, family, head
// and dimension follow from the stamp, so a record that lands in the wrong place, page, sequence or
// slot shows at once. What a window still holds is kept as a plain set of positions. An operation
// picks its sequence by index modulo the sequences that exist, so every subset of a program is a
// program: a failure is shrunk by leaving operations out.
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
  std::string scheme = "f32";
  uint32_t page_positions = 16;
  uint64_t max_bytes = uint64_t{1} << 32;  // of the memory: small ones make plans fail
  std::vector<Op> ops;
};

std::vector<Op> random_ops(uint64_t seed, size_t count);

// Attention and window slots of several windows, with and without sinks, and different shapes.
ModelSpec mixed_spec();

// Runs it. What went wrong, or nothing.
std::optional<std::string> run(const Program& program);

// Leaves out halves, quarters, ... of the operations as long as it still fails.
Program shrink(Program failing);
std::string describe(const Program& program);

}  // namespace cairn::testing

#endif  // CAIRN_TESTS_SUPPORT_PROGRAM_H_
