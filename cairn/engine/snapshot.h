// Sequences and files: save one, load it, look into a file, verify it.
//
//   CAIRN_TRY(save(session, chat, tokens, "chat.cairn"));
//   const Loaded chat = CAIRN_TRY(load(session, "chat.cairn"));   // the same bits, or an error
//   that says why
//
// A file is loaded only into a session that would have computed the same: the same model,
// tokenizer, adapter, geometry, scheme, registry and namespace. Anything else is a Mismatch that
// names both sides. Under another arithmetic the numbers would differ in their last bits: such a
// file loads with a warning, and what comes of it is marked derived for good.
#ifndef CAIRN_ENGINE_SNAPSHOT_H_
#define CAIRN_ENGINE_SNAPSHOT_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cairn/format/checkpoint.h"
#include "cairn/io/file.h"
#include "cairn/session/session.h"

namespace cairn {

struct SaveOptions {
  FileSystem* fs = &posix_fs();
  std::string name_space;  // what the file must not be shared across; UTF-8
};

// Writes one sequence to `path`: the file is there whole afterwards, or `path` is as it was.
// `tokens` are the ids of all positions (a position without one: -1), and may go on with ids that
// were chosen but not yet computed. A snapshot may be saved from another thread while its session
// goes on. REQUIRES: at least one token per position.
Result<void> save(const Snapshot& snapshot,
                  std::span<const int32_t> tokens,
                  const std::string& path,
                  const SaveOptions& options = {});
Result<void> save(const Session& session,
                  SeqId seq,
                  std::span<const int32_t> tokens,
                  const std::string& path,
                  const SaveOptions& options = {});

struct LoadOptions {
  FileSystem* fs = &posix_fs();
  std::string name_space;
  uint32_t threads = 4;  // that read, verify and place; the caller's is one; mostly they wait for
                         // the disk
};

struct Loaded {
  SeqId seq;
  std::vector<int32_t> tokens;  // as they were saved
  bool is_derived = false;
  std::string warning;  // to show to whoever asked for the file; empty: none
};

// A new sequence of the session with exactly the records of the file. Every byte has been verified.
// On an error the session is as it was: NotFound, Corrupt, BadInput (no checkpoint), Unsupported (a
// newer format, a kind or an encoding that the session's registry does not have), Mismatch,
// NoSpace.
Result<Loaded> load(Session& session, const std::string& path, const LoadOptions& options = {});

struct ReadOptions {
  FileSystem* fs = &posix_fs();
  uint32_t threads = 4;
};

// What the file says about itself; only the header is read and verified.
Result<CheckpointInfo> inspect(const std::string& path, const ReadOptions& options = {});

// The token ids of the file, verified.
Result<std::vector<int32_t>> read_tokens(const std::string& path, const ReadOptions& options = {});

struct VerifyReport {
  CheckpointInfo info;
  uint64_t file_bytes = 0;
  uint64_t chunks = 0;  // stretches of positions with a checksum of their own
  std::vector<std::string>
      damage;  // "slot 3, key, values, positions 0-63", in the file's order; empty: sound
};

// Reads everything. An error when the header cannot be believed, else a report.
Result<VerifyReport> verify(const std::string& path, const ReadOptions& options = {});

}  // namespace cairn

#endif  // CAIRN_ENGINE_SNAPSHOT_H_
