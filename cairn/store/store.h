// The store: a folder of records that any number of processes of one host share, found by name.
// Bytes are opaque here; engine/prefix.h says what they mean. docs/store.md is its manual.
//
//   DIR/index.sqlite      the index (WAL). A row is inserted after its bytes are synced: the row is
//                         the proof
//   DIR/segments/NAME     append-only files, one open per process, made with a fixed size:
//                         records of {header: name, part, parent, kind, tokens, lengths,
//                         checksums; payload}, header and payload each 4 KiB aligned (record.h)
//
// A record never changes. What is evicted loses its row, then its bytes (a punched hole); a segment
// without rows that nobody writes is unlinked; bytes that a dead process left without a row are
// reclaimed by gc(), and by open(), which evicts nothing. A row that vanished under a reader is a
// miss. A row whose bytes are wrong is set aside with its reason and never served again; its name
// may be written anew. Its bytes stay for who wants to look at them, count against the budget, and
// go with the next gc(), or before anything else when something is evicted.
//
// Errors: NoSpace (the disk is full), Io, Corrupt (the index; `rebuild` makes a new one from the
// segments), Unsupported (a newer layout). Everything is thread-safe; write() takes one caller at a
// time.
#ifndef CAIRN_STORE_STORE_H_
#define CAIRN_STORE_STORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cairn/core/hash.h"
#include "cairn/io/aligned.h"
#include "cairn/io/file.h"

namespace cairn {

enum class RecordKind : uint8_t {
  Span = 1,        // a page
  Mark = 2,        // what no span holds, at a position below its parent
  Generation = 3,  // a mark of an unfinished answer; found by its own name only
  Object = 4,      // named tensors of the host's own; found by its own name only
};

struct RecordKey {
  Digest name;
  uint32_t part = 0;  // which group's page of a span; 0 for other kinds
  auto operator<=>(const RecordKey&) const = default;
};

struct RecordInfo {
  RecordKey key;
  RecordKind kind = RecordKind::Span;
  Digest parent;                // zero: none. Rows with a child are not evicted before it
  Digest owner;                 // the conversation that made it; zero: none
  std::vector<int32_t> tokens;  // its own, after the parent's
  uint64_t length = 0;          // tokens from the first one on, its own included
  uint64_t payload_bytes = 0;
  bool operator==(const RecordInfo&) const = default;
};

// A record to be written. `fill` is called once, on the writing thread, with payload_bytes; not at
// all where the record is there already.
struct NewRecord {
  RecordInfo info;
  std::function<void(std::span<std::byte> out)> fill;
};

struct StoredRecord {
  RecordInfo info;
  uint64_t stored_bytes = 0;  // on disk, header and alignment included
  int64_t last_used = 0;      // nanoseconds since 1970
  int64_t row = 0;            // the index's own
};

struct StoreOptions {
  FileSystem* fs = &posix_fs();  // of the segments; SQLite has its own way to the disk
  // Of records; holds within one segment per process. None: what the store was last given, 20 GiB
  // at first.
  std::optional<uint64_t> max_bytes;
  uint64_t segment_bytes = uint64_t{256} << 20;
};

struct StoreUse {
  uint64_t records = 0;
  uint64_t bytes = 0;  // of records, headers and alignment included
  uint64_t max_bytes = 0;
  uint64_t segments = 0;
  uint64_t allocated_bytes = 0;  // what the segments take on disk
  uint64_t set_aside = 0;        // rows whose bytes were wrong
  uint64_t evicted = 0;          // by this process, since it opened the store
};

// What verify() and rebuild() found.
struct StoreReport {
  uint64_t records = 0;             // looked at
  uint64_t bytes = 0;               // of their payloads
  uint64_t orphaned_bytes = 0;      // in segments, without a row
  std::vector<std::string> damage;  // one line each; empty: sound
};

using StoreProgress = std::function<void(uint64_t done, uint64_t total)>;  // bytes; may be empty

class Store {
 public:
  // Makes the folder (0700; its parent must exist) and the index where they are missing.
  static Result<std::unique_ptr<Store>> open(const std::string& folder,
                                             const StoreOptions& options = {});
  // A new index from what the segments hold. REQUIRES: no process has the store open; NoSpace or Io
  // leave the old index where it was.
  static Result<StoreReport> rebuild(const std::string& folder,
                                     const StoreOptions& options = {},
                                     const StoreProgress& progress = {});
  ~Store();  // closes the segment; what is not synced by then may be lost to a power cut
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  const std::string& folder() const;

  // --- finding; reads the index only
  Result<bool> contains(const RecordKey& key);
  Result<std::optional<StoredRecord>> find(const RecordKey& key);
  // The greatest n such that keys[0 .. n) are there, if presence is a prefix (it is but for records
  // that were set aside): probes logarithmic in the number of keys.
  Result<size_t> longest_prefix(std::span<const RecordKey> keys);
  // Records of a kind right below `parent`, part 0, most recently used first.
  Result<std::vector<StoredRecord>> children(const Digest& parent, RecordKind kind);
  Result<std::vector<StoredRecord>> owned_by(const Digest& owner, RecordKind kind);
  // Every record, most recently used first, without a lock between the calls of `visit`, which ends
  // the walk with false.
  Result<void> for_each(const std::function<bool(const StoredRecord&)>& visit);

  // --- reading and writing
  // The payload, verified, with header and index agreeing on everything; it lies in `buffer` until
  // that is used again. NotFound: the row vanished (a miss). Corrupt: the bytes are wrong, and the
  // row has been set aside.
  Result<std::span<const std::byte>> read(const StoredRecord& record, AlignedBuffer& buffer);

  // Writes records one after the other, syncs them, and inserts their rows in one transaction:
  // afterwards all are found (those that were there already count as written, and nothing is
  // written for them). On an error none of the new ones is. Then evicts to the budget, though never
  // what this call wrote or found there. Records that are together larger than the budget are
  // NoSpace.
  Result<void> write(std::span<const NewRecord> records);

  // Marks as used now. Enough for the last record of a chain: eviction goes by leaves.
  Result<void> touch(std::span<const RecordKey> keys);

  // Rows and their bytes, children that hang below them included. Returns the bytes.
  Result<uint64_t> remove(std::span<const RecordKey> keys);

  // Everything written so far survives a power cut once this returns.
  Result<void> sync();

  // --- upkeep
  Result<void> set_max_bytes(uint64_t bytes);  // holds from the next write or gc on
  // Evicts to the budget, reclaims what dead processes left, unlinks empty segments. Returns the
  // bytes given back.
  Result<uint64_t> gc();
  // Reads and checks everything: SQLite's own integrity check, every row against its record. What
  // is wrong is set aside.
  Result<StoreReport> verify(const StoreProgress& progress = {});
  Result<StoreUse> use();

 private:
  struct State;
  explicit Store(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace cairn

#endif  // CAIRN_STORE_STORE_H_
