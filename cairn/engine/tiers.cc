#include "cairn/engine/tiers.h"

#include <set>
#include <thread>

namespace cairn {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPoll{2};
constexpr uint64_t kMostBatchBytes = uint64_t{256} << 20;  // of one sync

uint64_t payload_bytes(const std::vector<RamRecord>& records) {
  uint64_t bytes = 0;
  for (const RamRecord& record : records) bytes += record.info.payload_bytes;
  return bytes;
}

std::vector<RecordKey> keys_of(const std::vector<RamRecord>& records) {
  std::vector<RecordKey> keys;
  for (const RamRecord& record : records) keys.push_back(record.info.key);
  return keys;
}

// Memory needed a record's pages while it was about to be written.
struct Vanished {};

void fill(const RamRecord& record, std::span<std::byte> out) {
  const RecordInfo& info = record.info;
  if (info.kind == RecordKind::Span)
    record.format->fill_span(info.key.part, info.length - info.tokens.size(), record.exact_end,
                             record.pages[0], out);
  else
    record.format->fill_mark(info.length, record.exact_end, record.pages, record.notes, out);
}

}  // namespace

Tiers::Tiers(Memory& memory, Store* store, TierOptions options)
    : store_(store),
      options_(options),
      last_failure_(SteadyClock::now() - options.retry),
      ram_(memory, {.max_bytes = options.ram_bytes}),
      queue_(options.queue_bytes) {}

Tiers::~Tiers() = default;

const PayloadFormat& Tiers::keep(PayloadFormat format) {
  const std::lock_guard lock(mutex_);
  formats_.push_back(std::make_unique<const PayloadFormat>(std::move(format)));
  return *formats_.back();
}

bool Tiers::contains(const RecordKey& key) {
  if (ram_.contains(key)) return true;
  if (store_ == nullptr) return false;
  const auto there = store_->contains(key);
  if (!there) report(there.error());
  return there && *there;
}

void Tiers::publish(std::vector<RamRecord> records) {
  const std::vector<RecordKey> keys = keys_of(records);
  const uint64_t bytes = payload_bytes(records);
  for (RamRecord& record : records) {
    record.disk = store_ != nullptr ? DiskCopy::Queued : DiskCopy::NotWanted;
    const RecordInfo info = record.info;
    ram_.put(std::move(record));
    if (info.owner.is_zero()) continue;
    std::vector<RecordKey> older;
    for (const RecordInfo& other : ram_.owned_by(info.owner, info.kind))
      if (other.key != info.key) older.push_back(other.key);
    ram_.remove(older);
  }
  if (store_ == nullptr) return;
  retry_failed();
  enqueue(keys, bytes);
}

void Tiers::promote(RamRecord record) {
  record.disk = DiskCopy::Whole;
  ram_.put(std::move(record));
}

void Tiers::touch(std::span<const RecordKey> keys) {
  ram_.touch(keys);
  if (store_ == nullptr || keys.empty()) return;
  (void)queue_.enqueue({.bytes = 0,
                        .store = [this, last = keys.back()]() -> Result<void> {
                          const auto touched = store_->touch(std::span(&last, 1));
                          if (!touched) report(touched.error());
                          return {};
                        },
                        .release = {},
                        .can_drop = [] { return false; }});
}

std::vector<RecordInfo> Tiers::owned_by(const Digest& owner, RecordKind kind) {
  std::vector<RecordInfo> all = ram_.owned_by(owner, kind);
  if (store_ == nullptr) return all;
  const auto stored = store_->owned_by(owner, kind);
  if (!stored) report(stored.error());
  if (stored)
    for (const StoredRecord& record : *stored) all.push_back(record.info);
  return all;
}

std::future<bool> Tiers::remove_owned(const Digest& owner, RecordKind kind) {
  std::vector<RecordKey> in_ram;
  for (const RecordInfo& info : ram_.owned_by(owner, kind)) in_ram.push_back(info.key);
  ram_.remove(in_ram);
  if (store_ == nullptr) {
    std::promise<bool> done;
    done.set_value(true);
    return done.get_future();
  }
  const RecordInfo none{.kind = kind, .owner = owner};
  return queue_.enqueue({.bytes = 0,
                         .store = [this, none] { return remove_others(none); },
                         .release = {},
                         .can_drop = [] { return false; }});
}

std::optional<MarkNotes> Tiers::notes_of(const RecordInfo& info,
                                         const PayloadFormat& format,
                                         Pos exact_end) {
  if (auto record = ram_.find(info.key)) return std::move(record->notes);
  if (store_ == nullptr) return std::nullopt;
  const auto found = store_->find(info.key);
  if (!found) report(found.error());
  if (!found || !*found || (*found)->info.length != info.length) return std::nullopt;
  AlignedBuffer buffer;
  const auto payload = store_->read(**found, buffer);
  if (!payload) {
    if (payload.error().code != Code::NotFound) report(payload.error());
    return std::nullopt;
  }
  auto notes = format.read_notes(info.length, exact_end, *payload);
  if (!notes) {
    report(notes.error());
    return std::nullopt;
  }
  return std::move(*notes);
}

void Tiers::enqueue(std::vector<RecordKey> keys, uint64_t bytes) {
  (void)queue_.enqueue({.bytes = bytes,
                        .store = [this, keys] { return write_out(keys); },
                        .release = [this, keys] { settle(keys); },
                        .can_drop = {}});
}

// On the queue's thread. Where more items wait, theirs go along: many small ones cost one sync.
Result<void> Tiers::write_out(std::vector<RecordKey> keys) {
  const size_t own = keys.size();
  if (queue_.counts().pending > 1) {
    const std::vector<RecordKey> waiting = ram_.with_disk(DiskCopy::Queued);
    keys.insert(keys.end(), waiting.begin(), waiting.end());
  }
  std::span<const RecordKey> left = keys;
  for (size_t passed = 0; passed < own; passed = keys.size() - left.size()) {
    if (Result<void> done = write_batch(left); !done) {
      passed = std::min(own, keys.size() - left.size());
      ram_.set_disk(std::span(keys).subspan(passed, own - passed), DiskCopy::Failed);
      report(done.error());
      const std::lock_guard lock(mutex_);
      last_failure_ = SteadyClock::now();
      return done;
    }
  }
  return {};
}

// Writes the first of `keys`, as many as one sync is worth, and takes them off. A record that RAM
// had to drop is passed over: ram_.lost() has its name. Pages are copied one at a time and never
// held, so that all of them can be given up for a plan.
Result<void> Tiers::write_batch(std::span<const RecordKey>& keys) {
  std::vector<RecordKey> wanted;
  std::set<RecordKey> seen;
  uint64_t bytes = 0;
  for (; !keys.empty() && bytes < kMostBatchBytes; keys = keys.subspan(1))
    ram_.look_at(keys.front(), [&](const RamRecord& record) {
      if (record.disk == DiskCopy::Whole || !seen.insert(keys.front()).second) return;
      wanted.push_back(keys.front());
      bytes += record.info.payload_bytes;
    });

  std::vector<NewRecord> records;
  std::vector<RecordKey> written;
  Result<void> done;
  for (bool is_whole = false; !is_whole;) {
    records.clear();
    written.clear();
    for (const RecordKey& key : wanted)
      ram_.look_at(key, [&](const RamRecord& record) {
        written.push_back(key);
        records.push_back({.info = record.info, .fill = [this, key](std::span<std::byte> out) {
                             const auto copy = [&](const RamRecord& it) { fill(it, out); };
                             if (!ram_.look_at(key, copy)) throw Vanished();
                           }});
      });
    try {
      done = records.empty() ? Result<void>() : store_->write(records);
      is_whole = true;
    } catch (const Vanished&) {  // nothing was written; without it, then
    }
  }
  ram_.set_disk(written, done ? DiskCopy::Whole : DiskCopy::Failed);
  if (!done) return done;
  for (const NewRecord& record : records)  // what should be gone is at worst still there
    if (!record.info.owner.is_zero()) (void)remove_others(record.info);
  return {};
}

Result<void> Tiers::remove_others(const RecordInfo& newest) {
  const auto remove = [&]() -> Result<void> {
    std::vector<RecordKey> others;
    for (const StoredRecord& record : CAIRN_TRY(store_->owned_by(newest.owner, newest.kind)))
      if (record.info.key != newest.key) others.push_back(record.info.key);
    CAIRN_TRY(store_->remove(others));
    return {};
  };
  Result<void> removed = remove();
  if (!removed) report(removed.error());
  return removed;
}

// What was shed is still in RAM, which may let go of it when it is full.
void Tiers::settle(const std::vector<RecordKey>& keys) {
  std::vector<RecordKey> shed;
  for (const RecordKey& key : keys)
    if (const auto record = ram_.find(key); record && record->disk == DiskCopy::Queued)
      shed.push_back(key);
  ram_.set_disk(shed, DiskCopy::Missing);
}

void Tiers::retry_failed() {
  {
    const std::lock_guard lock(mutex_);
    if (SteadyClock::now() - last_failure_ < options_.retry) return;
  }
  requeue(DiskCopy::Failed);
}

void Tiers::requeue(DiskCopy disk) {
  const std::vector<RecordKey> keys = ram_.with_disk(disk);
  if (keys.empty()) return;
  ram_.set_disk(keys, DiskCopy::Queued);
  uint64_t bytes = 0;
  for (const RecordKey& key : keys)
    if (const auto record = ram_.find(key)) bytes += record->info.payload_bytes;
  enqueue(keys, bytes);
}

FlushVerdict Tiers::flush(std::chrono::milliseconds most) {
  const std::lock_guard one_at_a_time(flushing_);
  const auto begin = SteadyClock::now();
  FlushVerdict verdict;
  if (store_ == nullptr) {
    verdict.reason = "there is no disk tier";
    return verdict;
  }
  const uint64_t dropped = queue_.counts().dropped;
  const auto wait = [&] {
    while (queue_.counts().pending > 0 && SteadyClock::now() - begin < most)
      std::this_thread::sleep_for(kPoll);
  };
  // One after the other: what waits alone is never shed.
  wait();
  for (const DiskCopy disk : {DiskCopy::Failed, DiskCopy::Missing}) {
    requeue(disk);
    wait();
  }
  const Result<void> synced = store_->sync();
  if (!synced) report(synced.error());

  std::vector<RecordKey> found;
  for (const RecordKey& key : ram_.lost()) {
    if (const auto there = store_->contains(key); there && *there)
      found.push_back(key);
    else
      ++verdict.missing;
  }
  ram_.forgive(found);
  for (const DiskCopy disk : {DiskCopy::Queued, DiskCopy::Failed, DiskCopy::Missing})
    verdict.waiting += ram_.with_disk(disk).size();
  verdict.is_durable = synced && verdict.missing == 0 && verdict.waiting == 0 &&
                       queue_.counts().pending == 0 && queue_.counts().dropped == dropped;
  verdict.seconds = std::chrono::duration<double>(SteadyClock::now() - begin).count();
  if (!verdict.is_durable) {
    const std::lock_guard lock(mutex_);
    verdict.reason = verdict.missing > 0 ? "memory ran out before they were written"
                     : problem_          ? problem_->message
                                         : "there was not enough time";
  }
  return verdict;
}

std::optional<Error> Tiers::take_problem() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(is_taken_, true)) return std::nullopt;
  return problem_;
}

void Tiers::report(const Error& error) {
  const std::lock_guard lock(mutex_);
  problem_ = error;
  is_taken_ = false;
}

}  // namespace cairn
