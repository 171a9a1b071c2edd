// What a checkpoint file says about itself: which model, whose conversation, how many positions,
// how each slot is stored.
//
// Plain structs; docs/format.md describes the file. The format moves records and knows no kinds and
// no encodings: names are texts here, and only the engine asks whether this build knows them.
#ifndef CAIRN_FORMAT_CHECKPOINT_H_
#define CAIRN_FORMAT_CHECKPOINT_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cairn/core/error.h"
#include "cairn/core/hash.h"
#include "cairn/core/ids.h"

namespace cairn {

inline constexpr uint64_t kCheckpointFormat = 1;

// One array of records: a tensor [stored positions, heads, record_bytes / bytes of dtype].
struct CheckpointPlane {
  std::string name;
  std::string dtype;  // as safetensors spells it
  uint64_t record_bytes = 0;

  bool operator==(const CheckpointPlane&) const = default;
  static void fields(auto& io, auto& plane) {
    io("name", plane.name);
    io("dtype", plane.dtype);
    io("record_bytes", plane.record_bytes);
  }
};

// The records of one family in one form: the slot's stored positions within [begin, end).
struct CheckpointFamily {
  std::string name;
  std::string encoding;  // its text, parameters included
  uint64_t heads = 0;
  uint64_t width = 0;  // numbers per head
  Pos begin = 0;
  Pos end = 0;
  std::vector<CheckpointPlane> planes;

  bool operator==(const CheckpointFamily&) const = default;
  static void fields(auto& io, auto& family) {
    io("name", family.name);
    io("encoding", family.encoding);
    io("heads", family.heads);
    io("width", family.width);
    io("begin", family.begin);
    io("end", family.end);
    io("planes", family.planes);
  }
};

// A slot stores the positions [0, sinks) and [first_kept, length); all of [0, length) when
// first_kept is 0. One of fixed tensors stores a single row, its state after `length` positions,
// as position 0; none when the sequence is empty.
//
// Families lists every family once; in a slot of two forms twice in a row, first the exact form
// from position 0 on, then the encoded one from where that ends. Both are listed even where one
// covers nothing, so that the list is the same at every length.
struct CheckpointSlot {
  std::string kind;
  bool is_fixed = false;
  Pos window = 0;  // 0: keeps everything
  Pos sinks = 0;
  Pos rewind = 0;
  Pos max_positions = 0;  // 0: no limit
  Pos first_kept = 0;     // 0, or beyond the sinks
  std::vector<CheckpointFamily> families;

  bool operator==(const CheckpointSlot&) const = default;
  static void fields(auto& io, auto& slot) {
    io("kind", slot.kind);
    io("fixed", slot.is_fixed);
    io("window", slot.window);
    io("sinks", slot.sinks);
    io("rewind", slot.rewind);
    io("max_positions", slot.max_positions);
    io("first_kept", slot.first_kept);
    io("families", slot.families);
  }
};

struct CheckpointInfo {
  uint64_t format = kCheckpointFormat;
  std::string registry;    // the registry that names kinds and encodings
  Digest identity;         // of the weights
  Digest tokenizer;        // zero: none
  Digest adapter;          // zero: none
  std::string arithmetic;  // the arithmetic id
  std::string name_space;  // what this must not be shared across
  bool is_derived = false;
  std::string scheme;     // its text
  Pos encoded_after = 0;  // a shorter sequence is exact as a whole; 0: no such length
  Pos length = 0;         // positions of the sequence
  uint64_t tokens = 0;    // ids stored: one per position, then those chosen but not yet computed
  Digest fingerprint;     // fingerprint_of() the rest
  std::vector<CheckpointSlot> slots;

  bool operator==(const CheckpointInfo&) const = default;
  static void fields(auto& io, auto& info) {
    io("format", info.format);
    io("registry", info.registry);
    io("identity", info.identity);
    io("tokenizer", info.tokenizer);
    io("adapter", info.adapter);
    io("arithmetic", info.arithmetic);
    io("namespace", info.name_space);
    io("derived", info.is_derived);
    io("scheme", info.scheme);
    io("encoded_after", info.encoded_after);
    io("length", info.length);
    io("tokens", info.tokens);
    io("fingerprint", info.fingerprint);
    io("slots", info.slots);
  }
};

// Who may read the bytes: SHA-256 over the JSON of `info` without what varies between files of one
// model and scheme (registry, namespace, derived, length, tokens, fingerprint; of the slots rewind,
// max_positions and first_kept, of their families begin and end), which is emptied.
Digest fingerprint_of(CheckpointInfo info);

// True when every slot still holds what a sequence of `position` positions holds, as far as its
// next query sees it, so that this one can be cut there and go on.
bool can_resume_at(const CheckpointInfo& info, Pos position);

// True when a window's slot of this length holds all that the next query sees.
bool holds_window(const CheckpointSlot& slot, Pos length);

// Positions [first, first + count).
struct PositionRun {
  Pos first = 0;
  Pos count = 0;
};

// All positions that can_resume_at says yes to: ascending runs with gaps between them.
std::vector<PositionRun> resume_positions(const CheckpointInfo& info);

// How often families lists each family: 2 where the slot has an exact form beside the encoded one.
size_t forms_of(const CheckpointSlot& slot);

// Positions that the slot stores in a sequence of this length, in all forms; and in one form of a
// family.
Pos stored_rows(const CheckpointSlot& slot, Pos length);
Pos stored_rows(const CheckpointSlot& slot, const CheckpointFamily& family);

// The positions of the stored rows [first_row, first_row + rows), of all forms or of one form of a
// family: one or two runs, ascending; an unused run is empty.
std::array<PositionRun, 2> positions_of(const CheckpointSlot& slot,
                                        uint64_t first_row,
                                        uint64_t rows);
std::array<PositionRun, 2> positions_of(const CheckpointSlot& slot,
                                        const CheckpointFamily& family,
                                        uint64_t first_row,
                                        uint64_t rows);

}  // namespace cairn

#endif  // CAIRN_FORMAT_CHECKPOINT_H_
