// The index of a store: which record lies where, what is used least, what may be given back.
//
// A SQLite database that any number of processes share (WAL). Triggers keep what must never differ
// from the rows in the very transaction that changes them: the totals, which names are leaves, and
// what was freed. A range stays in `freed` until its bytes have been given back, so nothing is lost
// when a process dies in between.
//
// Two connections, one for questions and one for changes, each behind its own lock. Every time of
// use comes from one clock that only moves forward, whatever the wall clock does.
#ifndef CAIRN_STORE_INDEX_H_
#define CAIRN_STORE_INDEX_H_

#include <map>
#include <mutex>

#include "cairn/store/record.h"
#include "cairn/store/sqlite.h"

namespace cairn {

// A row: a record and its place.
struct IndexedRecord {
  StoredRecord record;
  Place place;
};

struct Extent {
  Place place;
  uint64_t bytes = 0;
};

struct Freed {
  int64_t row = 0;
  Extent extent;
  bool is_shared = false;  // a row claims these bytes too: they stay
};

class Index {
 public:
  // Corrupt: not an index, or a damaged one. Unsupported: of a newer version.
  static Result<std::unique_ptr<Index>> open(const std::string& path);

  // --- questions. A row that makes no sense is set aside, and is not there.
  Result<bool> contains(const RecordKey& key);
  Result<std::optional<IndexedRecord>> find(const RecordKey& key);
  Result<std::optional<IndexedRecord>> find_row(int64_t row);
  Result<size_t> longest_prefix(std::span<const RecordKey> keys);
  Result<std::vector<IndexedRecord>> children(const Digest& parent, RecordKind kind);
  Result<std::vector<IndexedRecord>> owned_by(const Digest& owner, RecordKind kind);
  enum class Order { newest_first, by_place };
  Result<std::vector<int64_t>> rows(Order order);
  // What rows claim of a segment, those set aside included, by offset.
  Result<std::vector<Extent>> extents(uint64_t segment);
  struct Totals {
    uint64_t records = 0, bytes = 0;
    uint64_t set_aside = 0, set_aside_bytes = 0;
  };
  Result<Totals> totals();
  Result<uint64_t> max_bytes();  // the store's budget
  Result<std::vector<std::string>> integrity_errors();

  // --- changes, each one transaction
  // Adds rows and marks `used` as used now. Returns the time, and whether all of `used` are there.
  struct Inserted {
    int64_t time = 0;
    bool all_there = true;
  };
  Result<Inserted> insert(std::span<const IndexedRecord> rows, std::span<const RecordKey> used);
  Result<void> touch(std::span<const RecordKey> keys);
  Result<void> set_max_bytes(uint64_t bytes);
  // Takes leaves away, the least recently used first, until at most `max_bytes` are left, or
  // nothing that was last used before `time`, or so many are gone that others want a turn; rows set
  // aside go first. Returns the count of records, 0 when there is nothing to do. Durable: their
  // bytes may go.
  Result<uint64_t> evict(uint64_t max_bytes, int64_t time);
  // Everything at or below the names; what hangs lowest goes first.
  Result<uint64_t> remove(std::span<const RecordKey> keys);
  Result<void> set_aside(int64_t row, const std::string& reason);
  Result<void> forget_set_aside();
  Result<std::vector<Freed>> freed(int64_t after);  // some of those behind that row
  Result<void> forget_freed(std::span<const Freed> freed);
  Result<void> add_closed(std::span<const uint64_t> segments);
  Result<bool> is_closed(uint64_t segment);
  Result<std::vector<uint64_t>> empty_segments();  // closed, and no row points into them
  Result<void> forget_segment(uint64_t segment);
  Result<void> sync();    // every commit up to now survives a power cut
  Result<void> shrink();  // moves the log into the database, and gives its bytes back
  // Totals and leaves as the rows have them; what was wrong, one line each.
  Result<std::vector<std::string>> recount();
  // One file, with nothing beside it; no more calls but the destructor's.
  Result<void> seal();

 private:
  // A connection with its queries, made when they are first asked.
  struct Connection {
    std::mutex mutex;
    std::optional<Database> database;
    std::map<std::string_view, Query> queries;  // by their text, a literal
    Result<Query*> query(std::string_view statement);
  };
  template <class... Values>
  Result<std::vector<IndexedRecord>> collect(const char* statement, const Values&... values);
  Result<Totals> totals(Connection& connection);
  Result<std::vector<Digest>> below(std::span<const RecordKey> keys);

  // Parts of a change: REQUIRES a transaction of changes_.
  Result<int64_t> tick();
  template <class... Values>
  Result<uint64_t> change(const char* statement, const Values&... values);
  Result<void> use(const Digest& name, int64_t time);
  Result<uint64_t> evict_one(int64_t time);

  Connection questions_;
  Connection changes_;
};

}  // namespace cairn

#endif  // CAIRN_STORE_INDEX_H_
