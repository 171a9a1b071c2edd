// RAM over disk: one home for everything that sessions of a process publish, whatever the model.
//
//   Memory memory({.max_bytes = ...});
//   auto store = CAIRN_TRY(Store::open("cache"));
//   Tiers tiers(memory, store.get());
//
// What is published is held in RAM at once and written behind. RAM lets go of what the disk has;
// what it has not stays until it is written, unless a plan would fail for want of memory. The disk
// never blocks a producer and its failures reach nobody but through problem(), the counts and
// flush(). Thread-safe.
#ifndef CAIRN_ENGINE_TIERS_H_
#define CAIRN_ENGINE_TIERS_H_

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cairn/engine/ram_tier.h"
#include "cairn/store/store.h"
#include "cairn/store/write_behind.h"

namespace cairn {

struct TierOptions {
  uint64_t ram_bytes = UINT64_MAX;           // of published pages, shared ones included
  uint64_t queue_bytes = uint64_t{2} << 30;  // waiting for the disk; soft
  std::chrono::milliseconds retry{5000};     // after a write failed
};

// Whether everything published so far survives a power cut.
struct FlushVerdict {
  bool is_durable = false;
  uint64_t missing = 0;  // records that are neither on disk nor in RAM
  uint64_t waiting = 0;  // records in RAM that are not on disk: failed, or out of time
  double seconds = 0;
  std::string reason;  // why not; empty when durable
};

class Tiers {
 public:
  // `store` may be null: RAM only. Both outlive the tiers.
  explicit Tiers(Memory& memory, Store* store = nullptr, TierOptions options = {});
  ~Tiers();  // waits for the write in flight; what is queued is dropped, so flush() first
  Tiers(const Tiers&) = delete;
  Tiers& operator=(const Tiers&) = delete;

  RamTier& ram() { return ram_; }
  Store* store() { return store_; }

  // Lives as long as the tiers.
  const PayloadFormat& keep(PayloadFormat format);

  // A disk that fails counts as one that has nothing.
  bool contains(const RecordKey& key);

  // Into RAM, and on to the disk as one batch. A record with an owner takes the place of the
  // owner's others of its kind: in RAM at once, on disk when it is written.
  void publish(std::vector<RamRecord> records);
  // What was read from the disk, for the next hit.
  void promote(RamRecord record);
  // A chain was used, given from its root on.
  void touch(std::span<const RecordKey> keys);

  std::vector<RecordInfo> owned_by(const Digest& owner, RecordKind kind);
  // From RAM at once, from the disk in the order of the queue, after all that was published
  // before. The future is false when the disk could not do it.
  std::future<bool> remove_owned(const Digest& owner, RecordKind kind);

  // The notes of a mark, a generation or an object; none: it is not there.
  std::optional<MarkNotes> notes_of(const RecordInfo& info,
                                    const PayloadFormat& format,
                                    Pos exact_end);

  // Writes what is not on disk yet, waits for it and syncs. Concurrent callers take turns.
  FlushVerdict flush(std::chrono::milliseconds most = std::chrono::minutes(2));

  // The last failure of the disk that nobody has taken yet; to be said once.
  std::optional<Error> take_problem();
  void report(const Error& error);
  WriteCounts writes() const { return queue_.counts(); }

 private:
  void enqueue(std::vector<RecordKey> keys, uint64_t bytes);
  Result<void> write_out(std::vector<RecordKey> keys);
  Result<void> write_batch(std::span<const RecordKey>& keys);
  Result<void> remove_others(const RecordInfo& newest);
  void settle(const std::vector<RecordKey>& keys);
  void retry_failed();
  void requeue(DiskCopy disk);

  Store* const store_;
  const TierOptions options_;
  std::mutex mutex_;  // of what follows, up to the tiers
  std::vector<std::unique_ptr<const PayloadFormat>> formats_;
  std::optional<Error> problem_;
  bool is_taken_ = false;
  std::chrono::steady_clock::time_point last_failure_;
  std::mutex flushing_;
  RamTier ram_;
  WriteBehind queue_;  // the last: its thread uses the rest
};

}  // namespace cairn

#endif  // CAIRN_ENGINE_TIERS_H_
