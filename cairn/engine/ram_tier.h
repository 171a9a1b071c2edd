// The first tier: holds on the very pages that sessions use, found by name. Publishing copies
// nothing and a hit is one hold per page.
//
// Records leave from the least recently used end: when the tier passes its own cap, and when the
// memory is used up (the tier is the memory's reclaimer), before any plan fails. A record that is
// not on disk yet stays while that can be helped; only a plan that would fail drops it, and the
// counts say so. Thread-safe.
#ifndef CAIRN_ENGINE_RAM_TIER_H_
#define CAIRN_ENGINE_RAM_TIER_H_

#include <chrono>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "cairn/engine/payload.h"
#include "cairn/store/store.h"

namespace cairn {

// Whether a record needs the disk, and what became of that.
enum class DiskCopy : uint8_t {
  NotWanted,  // there is no disk
  Missing,    // its write was shed: may leave when the tier is full, and is counted then
  Queued,     // on its way
  Failed,     // kept for another try
  Whole,      // there
};

struct RamRecord {
  RecordInfo info;
  Pos exact_end = 0;  // positions below are exact in the sequence it is of
  MarkPages pages;    // a span: one; a mark: per group; an object: none
  MarkNotes notes;    // of marks and objects
  DiskCopy disk = DiskCopy::NotWanted;
  const PayloadFormat* format = nullptr;  // null: an object. Outlives the tier

  RamRecord share() const;  // with holds of its own
  uint64_t bytes() const;   // of its pages and notes
};

struct RamTierOptions {
  uint64_t max_bytes = UINT64_MAX;  // of pages, shared ones included; the memory's limit holds too
};

struct RamUse {
  uint64_t records = 0;
  uint64_t bytes = 0;
  uint64_t evicted = 0;  // ever; on disk or without need of it
  uint64_t dropped = 0;  // ever; wanted on disk, and not there
};

class RamTier {
 public:
  using Clock = std::chrono::steady_clock;

  explicit RamTier(Memory& memory, RamTierOptions options = {});
  ~RamTier();
  RamTier(const RamTier&) = delete;
  RamTier& operator=(const RamTier&) = delete;

  bool contains(const RecordKey& key) const;
  std::optional<RamRecord> find(const RecordKey& key) const;
  // Looks at a record where it lies, without a hold of its own: a plan that runs out of memory
  // meanwhile waits for `look`, and finds nothing held. False: it is not there.
  bool look_at(const RecordKey& key, const std::function<void(const RamRecord&)>& look) const;
  std::vector<RecordInfo> children(const Digest& parent, RecordKind kind) const;
  std::vector<RecordInfo> owned_by(const Digest& owner, RecordKind kind) const;

  // Takes the place of a record with the same key, whose disk copy counts for both. Then evicts to
  // the cap, though not this one.
  void put(RamRecord record);
  // In this order, so that the first is the last to leave: a chain goes from its root on.
  void touch(std::span<const RecordKey> keys);
  void set_disk(std::span<const RecordKey> keys, DiskCopy disk);
  void remove(std::span<const RecordKey> keys);  // not counted as dropped
  void clear();

  std::vector<RecordKey> with_disk(DiskCopy disk) const;
  uint64_t demote_idle(Clock::duration idle);  // those on disk that nobody used; how many
  // Lets go of about this many bytes of pages that nobody else holds. 0: there are none.
  uint64_t reclaim(uint64_t wanted_bytes);
  void set_max_bytes(uint64_t bytes);
  // Keys of records that were dropped and are still not known to be on disk.
  std::vector<RecordKey> lost() const;
  void forgive(std::span<const RecordKey> keys);  // they are on disk after all, or nobody minds

  RamUse use() const;

 private:
  struct Entry {
    RamRecord record;
    Clock::time_point used;
  };
  using Entries = std::list<Entry>;  // most recently used first
  struct HashKey {
    size_t operator()(const RecordKey& key) const;
  };
  struct HashDigest {
    size_t operator()(const Digest& digest) const;
  };
  using Index = std::unordered_multimap<Digest, Entries::iterator, HashDigest>;

  // With the lock held. What they return holds the last holds, to be released without it.
  void unlink(Index& index, const Digest& digest, Entries::iterator entry);
  Entries::iterator extract(Entries::iterator entry, Entries& into);
  void evict(Entries& into);
  std::vector<RecordInfo> infos(const Index& index, const Digest& digest, RecordKind kind) const;
  void drop(Entries::iterator entry, Entries& into);

  Memory& memory_;
  mutable std::mutex mutex_;
  uint64_t max_bytes_;
  Entries entries_;
  std::unordered_map<RecordKey, Entries::iterator, HashKey> by_key_;
  Index by_parent_;
  Index by_owner_;
  std::unordered_set<RecordKey, HashKey> lost_;
  RamUse use_;
};

}  // namespace cairn

#endif  // CAIRN_ENGINE_RAM_TIER_H_
