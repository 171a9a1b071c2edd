#include "cairn/engine/ram_tier.h"

#include <algorithm>
#include <cstring>

namespace cairn {
namespace {

// Asked for one page, the tier lets go of more: the next pages are wanted right away.
constexpr uint64_t kReclaimShare = 64;

bool may_evict(DiskCopy disk) {
  return disk == DiskCopy::NotWanted || disk == DiskCopy::Missing || disk == DiskCopy::Whole;
}

bool is_safe(DiskCopy disk) { return disk == DiskCopy::NotWanted || disk == DiskCopy::Whole; }

// Bytes that come back when this record's holds go.
uint64_t unshared_bytes(const RamRecord& record) {
  uint64_t bytes = 0;
  for (const PageRef& page : record.pages)
    if (page && !page.is_shared()) bytes += page.cost();
  return bytes;
}

}  // namespace

RamRecord RamRecord::share() const {
  RamRecord copy{.info = info,
                 .exact_end = exact_end,
                 .pages = {},
                 .notes = notes,
                 .disk = disk,
                 .format = format};
  for (const PageRef& page : pages) copy.pages.push_back(page.share());
  return copy;
}

uint64_t RamRecord::bytes() const {
  uint64_t bytes = notes.bytes();
  for (const PageRef& page : pages)
    if (page) bytes += page.cost();
  return bytes;
}

size_t RamTier::HashDigest::operator()(const Digest& digest) const {
  size_t hash = 0;
  std::memcpy(&hash, digest.bytes.data(), sizeof(hash));
  return hash;
}

size_t RamTier::HashKey::operator()(const RecordKey& key) const {
  return HashDigest()(key.name) + key.part;
}

RamTier::RamTier(Memory& memory, RamTierOptions options)
    : memory_(memory), max_bytes_(options.max_bytes) {
  memory_.set_reclaimer([this](uint64_t wanted) { return reclaim(wanted); });
}

RamTier::~RamTier() { memory_.set_reclaimer({}); }

bool RamTier::contains(const RecordKey& key) const {
  const std::lock_guard lock(mutex_);
  return by_key_.contains(key);
}

std::optional<RamRecord> RamTier::find(const RecordKey& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return std::nullopt;
  return found->second->record.share();
}

bool RamTier::look_at(const RecordKey& key,
                      const std::function<void(const RamRecord&)>& look) const {
  const std::lock_guard lock(mutex_);
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return false;
  look(found->second->record);
  return true;
}

std::vector<RecordInfo> RamTier::infos(const Index& index,
                                       const Digest& digest,
                                       RecordKind kind) const {
  std::vector<RecordInfo> infos;
  for (auto [at, end] = index.equal_range(digest); at != end; ++at) {
    const RecordInfo& info = at->second->record.info;
    if (info.kind == kind && info.key.part == 0) infos.push_back(info);
  }
  return infos;
}

std::vector<RecordInfo> RamTier::children(const Digest& parent, RecordKind kind) const {
  const std::lock_guard lock(mutex_);
  return infos(by_parent_, parent, kind);
}

std::vector<RecordInfo> RamTier::owned_by(const Digest& owner, RecordKind kind) const {
  const std::lock_guard lock(mutex_);
  return infos(by_owner_, owner, kind);
}

void RamTier::unlink(Index& index, const Digest& digest, Entries::iterator entry) {
  for (auto [at, end] = index.equal_range(digest); at != end; ++at)
    if (at->second == entry) {
      index.erase(at);
      return;
    }
}

RamTier::Entries::iterator RamTier::extract(Entries::iterator entry, Entries& into) {
  const RecordInfo& info = entry->record.info;
  by_key_.erase(info.key);
  unlink(by_parent_, info.parent, entry);
  if (!info.owner.is_zero()) unlink(by_owner_, info.owner, entry);
  use_.bytes -= entry->record.bytes();
  --use_.records;
  const auto next = std::next(entry);
  into.splice(into.end(), entries_, entry);
  return next;
}

void RamTier::drop(Entries::iterator entry, Entries& into) {
  if (is_safe(entry->record.disk)) {
    ++use_.evicted;
  } else {
    ++use_.dropped;
    lost_.insert(entry->record.info.key);
  }
  extract(entry, into);
}

void RamTier::evict(Entries& into) {
  auto entry = entries_.end();
  while (use_.bytes > max_bytes_ && entry != entries_.begin()) {
    --entry;
    if (!may_evict(entry->record.disk) || entry == entries_.begin()) continue;
    const auto next = std::next(entry);
    drop(entry, into);
    entry = next;
  }
}

void RamTier::put(RamRecord record) {
  Entries gone;
  const std::lock_guard lock(mutex_);
  if (const auto found = by_key_.find(record.info.key); found != by_key_.end()) {
    if (found->second->record.disk > record.disk) record.disk = found->second->record.disk;
    extract(found->second, gone);
  }
  use_.bytes += record.bytes();
  ++use_.records;
  lost_.erase(record.info.key);
  entries_.push_front({.record = std::move(record), .used = Clock::now()});
  const auto entry = entries_.begin();
  const RecordInfo& info = entry->record.info;
  by_key_.emplace(info.key, entry);
  by_parent_.emplace(info.parent, entry);
  if (!info.owner.is_zero()) by_owner_.emplace(info.owner, entry);
  evict(gone);
}

void RamTier::touch(std::span<const RecordKey> keys) {
  const std::lock_guard lock(mutex_);
  const Clock::time_point now = Clock::now();
  for (size_t i = keys.size(); i-- > 0;) {
    const auto found = by_key_.find(keys[i]);
    if (found == by_key_.end()) continue;
    found->second->used = now;
    entries_.splice(entries_.begin(), entries_, found->second);
  }
}

void RamTier::set_disk(std::span<const RecordKey> keys, DiskCopy disk) {
  Entries gone;
  const std::lock_guard lock(mutex_);
  for (const RecordKey& key : keys) {
    const auto found = by_key_.find(key);
    if (found != by_key_.end()) found->second->record.disk = disk;
    if (disk == DiskCopy::Whole) lost_.erase(key);
  }
  evict(gone);
}

void RamTier::remove(std::span<const RecordKey> keys) {
  Entries gone;
  const std::lock_guard lock(mutex_);
  for (const RecordKey& key : keys) {
    lost_.erase(key);
    if (const auto found = by_key_.find(key); found != by_key_.end()) extract(found->second, gone);
  }
}

void RamTier::clear() {
  Entries gone;
  const std::lock_guard lock(mutex_);
  while (!entries_.empty()) extract(entries_.begin(), gone);
  lost_.clear();
}

std::vector<RecordKey> RamTier::with_disk(DiskCopy disk) const {
  const std::lock_guard lock(mutex_);
  std::vector<RecordKey> keys;
  for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry)
    if (entry->record.disk == disk) keys.push_back(entry->record.info.key);
  return keys;
}

uint64_t RamTier::demote_idle(Clock::duration idle) {
  Entries gone;
  const std::lock_guard lock(mutex_);
  const Clock::time_point now = Clock::now();
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    if (entry->record.disk == DiskCopy::Whole && now - entry->used >= idle) {
      const auto next = std::next(entry);
      drop(entry, gone);
      entry = next;
    } else {
      ++entry;
    }
  }
  return gone.size();
}

uint64_t RamTier::reclaim(uint64_t wanted_bytes) {
  Entries gone;
  const std::lock_guard lock(mutex_);
  wanted_bytes = std::max(wanted_bytes, use_.bytes / kReclaimShare);
  uint64_t freed = 0;
  for (const bool only_safe : {true, false}) {
    for (auto entry = entries_.end(); freed < wanted_bytes && entry != entries_.begin();) {
      --entry;
      if (only_safe && !is_safe(entry->record.disk)) continue;
      const uint64_t bytes = unshared_bytes(entry->record);
      if (bytes == 0) continue;
      freed += bytes;
      const auto next = std::next(entry);
      drop(entry, gone);
      entry = next;
    }
    if (freed > 0) break;  // what the disk still lacks goes only when a plan would fail
  }
  return freed;
}

void RamTier::set_max_bytes(uint64_t bytes) {
  Entries gone;
  const std::lock_guard lock(mutex_);
  max_bytes_ = bytes;
  evict(gone);
}

std::vector<RecordKey> RamTier::lost() const {
  const std::lock_guard lock(mutex_);
  return {lost_.begin(), lost_.end()};
}

void RamTier::forgive(std::span<const RecordKey> keys) {
  const std::lock_guard lock(mutex_);
  for (const RecordKey& key : keys) lost_.erase(key);
}

RamUse RamTier::use() const {
  const std::lock_guard lock(mutex_);
  return use_;
}

}  // namespace cairn
