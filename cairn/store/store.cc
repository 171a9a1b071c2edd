#include "cairn/store/store.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "cairn/core/bytes.h"
#include "cairn/store/index.h"
#include "cairn/store/segment.h"

namespace cairn {
namespace {

std::string index_path(const std::string& folder) { return folder + "/index.sqlite"; }
std::string segments_path(const std::string& folder) { return folder + "/segments"; }

std::vector<StoredRecord> without_places(std::vector<IndexedRecord> found) {
  std::vector<StoredRecord> records;
  records.reserve(found.size());
  for (IndexedRecord& each : found) records.push_back(std::move(each.record));
  return records;
}

using Records = std::vector<const NewRecord*>;

// Whether one of them is of the same key.
bool has(const Records& records, const NewRecord* record) {
  return std::ranges::any_of(
      records, [&](const NewRecord* other) { return other->info.key == record->info.key; });
}

void check(const NewRecord& record) {
  const RecordInfo& info = record.info;
  CAIRN_CHECK(!info.key.name.is_zero(), "record: without a name");
  CAIRN_CHECK(info.key.name != info.parent, "record: its own parent");
  CAIRN_CHECK(info.tokens.size() <= kMaxRecordTokens, "record: {} tokens, at most {}",
              info.tokens.size(), kMaxRecordTokens);
  CAIRN_CHECK(info.payload_bytes <= kMaxPayloadBytes, "record: {} bytes, at most {}",
              info.payload_bytes, kMaxPayloadBytes);
}

}  // namespace

struct Store::State {
  State(std::string where, const StoreOptions& options)
      : fs(*options.fs),
        folder(std::move(where)),
        segments(segments_path(folder)),
        appender(fs, segments, options.segment_bytes),
        readers(fs, segments) {}

  std::string path_of(uint64_t segment) const { return segments + "/" + segment_name(segment); }

  Result<void> write(std::span<const NewRecord> records);
  Result<Records> missing(const Records& records);
  Result<Index::Inserted> append(const Records& records, const Records& used);
  Result<IndexedRecord> row_of(const StoredRecord& record);
  Result<std::span<const std::byte>> read(const IndexedRecord& row, AlignedBuffer& buffer);
  tl::unexpected<Error> refuse(const IndexedRecord& row, const Error& error);
  tl::unexpected<Error> set_aside(const IndexedRecord& row, const std::string& damage);
  Result<void> evict(int64_t before, uint64_t expected_excess);
  Result<void> give_back_freed();
  Result<void> unlink_empty();
  enum class Closed { trusted, looked_into };
  Result<void> reclaim(Closed closed);
  Result<void> reclaim_segment(uint64_t segment);
  Result<void> give_back_gaps(uint64_t segment);
  Result<uint64_t> allocated_bytes();
  Result<uint64_t> orphaned_bytes();

  FileSystem& fs;
  const std::string folder;
  const std::string segments;
  std::atomic<uint64_t> max_bytes = 0;
  std::atomic<uint64_t> evicted = 0;
  std::unique_ptr<Index> index;
  std::mutex writing;  // guards the appender
  Appender appender;
  SegmentReaders readers;
};

Store::Store(std::unique_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<Store>> Store::open(const std::string& folder, const StoreOptions& options) {
  CAIRN_TRY(options.fs->make_folder(folder));
  CAIRN_TRY(options.fs->make_folder(segments_path(folder)));
  auto state = std::make_unique<State>(folder, options);
  auto index = Index::open(index_path(folder));
  if (!index && index.error().code == Code::Corrupt)
    return fail(Code::Corrupt, "{}; rebuilding makes a new index from the segments",
                index.error().message);
  state->index = CAIRN_TRY(std::move(index));
  if (options.max_bytes) CAIRN_TRY(state->index->set_max_bytes(*options.max_bytes));
  state->max_bytes = CAIRN_TRY(state->index->max_bytes());
  CAIRN_TRY(state->fs.sync_folder(folder));
  CAIRN_TRY(state->reclaim(State::Closed::trusted));
  return std::unique_ptr<Store>(new Store(std::move(state)));
}

Store::~Store() {
  const std::lock_guard lock(state_->writing);
  if (const auto closed = state_->appender.close())
    (void)state_->index->add_closed(std::span(&*closed, 1));  // gc finds out by itself otherwise
}

const std::string& Store::folder() const { return state_->folder; }

// --- finding ---------------------------------------------------------------------------------

Result<bool> Store::contains(const RecordKey& key) { return state_->index->contains(key); }

Result<std::optional<StoredRecord>> Store::find(const RecordKey& key) {
  std::optional<IndexedRecord> found = CAIRN_TRY(state_->index->find(key));
  if (!found) return std::nullopt;
  return std::move(found->record);
}

Result<size_t> Store::longest_prefix(std::span<const RecordKey> keys) {
  return state_->index->longest_prefix(keys);
}

Result<std::vector<StoredRecord>> Store::children(const Digest& parent, RecordKind kind) {
  return without_places(CAIRN_TRY(state_->index->children(parent, kind)));
}

Result<std::vector<StoredRecord>> Store::owned_by(const Digest& owner, RecordKind kind) {
  return without_places(CAIRN_TRY(state_->index->owned_by(owner, kind)));
}

Result<void> Store::for_each(const std::function<bool(const StoredRecord&)>& visit) {
  for (int64_t row : CAIRN_TRY(state_->index->rows(Index::Order::newest_first))) {
    const auto found = CAIRN_TRY(state_->index->find_row(row));
    if (found && !visit(found->record)) break;
  }
  return {};
}

// --- reading ---------------------------------------------------------------------------------

Result<std::span<const std::byte>> Store::read(const StoredRecord& record, AlignedBuffer& buffer) {
  return state_->read(CAIRN_TRY(state_->row_of(record)), buffer);
}

Result<IndexedRecord> Store::State::row_of(const StoredRecord& record) {
  auto row = CAIRN_TRY(index->find_row(record.row));
  if (!row || row->record.info != record.info)
    return fail(Code::NotFound, "{}: record {} is gone", folder, hex(record.info.key.name));
  return std::move(*row);
}

Result<std::span<const std::byte>> Store::State::read(const IndexedRecord& row,
                                                      AlignedBuffer& buffer) {
  const RecordInfo& info = row.record.info;
  const auto bytes = readers.read(row.place, stored_bytes(info), buffer);
  if (!bytes) return refuse(row, bytes.error());
  if (const auto damage = damage_of(*bytes, info, row.place)) return set_aside(row, *damage);
  return bytes->subspan(header_bytes(info), info.payload_bytes);
}

// A segment that is missing, or no file, is damage; other errors may pass.
tl::unexpected<Error> Store::State::refuse(const IndexedRecord& row, const Error& error) {
  if (error.code != Code::NotFound && error.code != Code::BadInput)
    return tl::unexpected<Error>(error);
  return set_aside(row, error.message);
}

// Bytes that are wrong for good, unless the record is gone meanwhile: a miss.
tl::unexpected<Error> Store::State::set_aside(const IndexedRecord& row, const std::string& damage) {
  const RecordInfo& info = row.record.info;
  const bool is_there = CAIRN_TRY(index->find_row(row.record.row)).has_value();
  if (!is_there) return fail(Code::NotFound, "{}: record {} is gone", folder, hex(info.key.name));
  const std::string reason = fmt::format("{}: record at byte {}: {}", path_of(row.place.segment),
                                         row.place.offset, damage);
  CAIRN_TRY(index->set_aside(row.record.row, reason));
  return fail(Code::Corrupt, "{}", reason);
}

// --- writing ---------------------------------------------------------------------------------

Result<void> Store::write(std::span<const NewRecord> records) {
  for (const NewRecord& record : records) check(record);
  if (records.empty()) return {};
  const std::lock_guard lock(state_->writing);
  auto written = state_->write(records);
  // The index may be what fills the disk; the next call is better off then.
  if (!written && written.error().code == Code::NoSpace) (void)state_->index->shrink();
  return written;
}

// Those that are there may be evicted before the others are written; then they are missing in the
// next round.
Result<void> Store::State::write(std::span<const NewRecord> records) {
  uint64_t bytes = 0;
  Records waiting;  // not written by this call so far
  for (const NewRecord& record : records) {
    bytes += stored_bytes(record.info);
    waiting.push_back(&record);
  }
  if (bytes > max_bytes)
    return fail(Code::NoSpace, "{}: records of {} bytes, the store holds at most {}", folder, bytes,
                max_bytes.load());
  constexpr int kRounds = 100;
  for (int round = 0; round < kRounds; ++round) {
    const auto wanted = CAIRN_TRY(missing(waiting));
    const auto inserted = CAIRN_TRY(append(wanted, waiting));
    std::erase_if(waiting, [&](const NewRecord* each) { return has(wanted, each); });
    if (!inserted.all_there) continue;
    // The records are there; where old ones cannot go now, the next write or gc() sees to it.
    (void)evict(inserted.time, bytes);
    return {};
  }
  return fail(Code::Io, "{}: records vanished {} times while others of the same call were written",
              folder, kRounds);
}

Result<Records> Store::State::missing(const Records& records) {
  Records missing;
  for (const NewRecord* record : records)
    if (!CAIRN_TRY(index->contains(record->info.key)) && !has(missing, record))
      missing.push_back(record);
  return missing;
}

// The records, and that all of `used` are used now.
Result<Index::Inserted> Store::State::append(const Records& records, const Records& used) {
  // Unless the rows are there in the end, no byte of the batch stays.
  struct Rollback {
    Appender* appender;
    ~Rollback() {
      if (appender != nullptr) appender->roll_back();
    }
  } rollback{&appender};
  std::vector<IndexedRecord> rows;
  for (const NewRecord* record : records) {
    const Place place = CAIRN_TRY(appender.add(*record));
    rows.push_back({.record = {.info = record->info}, .place = place});
  }
  if (!rows.empty()) CAIRN_TRY(appender.sync());
  std::vector<RecordKey> keys;
  for (const NewRecord* record : used) keys.push_back(record->info.key);
  const auto inserted = CAIRN_TRY(index->insert(rows, keys));
  rollback.appender = nullptr;
  (void)index->add_closed(appender.keep());
  return inserted;
}

Result<void> Store::touch(std::span<const RecordKey> keys) {
  return keys.empty() ? Result<void>() : state_->index->touch(keys);
}

Result<uint64_t> Store::remove(std::span<const RecordKey> keys) {
  const uint64_t bytes = CAIRN_TRY(state_->index->remove(keys));
  CAIRN_TRY(state_->give_back_freed());
  CAIRN_TRY(state_->unlink_empty());
  return bytes;
}

// Rows follow the sync of their bytes, so only the index is left.
Result<void> Store::sync() { return state_->index->sync(); }

// --- upkeep ----------------------------------------------------------------------------------

Result<void> Store::set_max_bytes(uint64_t bytes) {
  state_->max_bytes = bytes;
  return state_->index->set_max_bytes(bytes);
}

// Evicts what was last used before `before`. Totals that are far from what this call may have added
// could be damaged ones, so they are counted anew before anything goes.
Result<void> Store::State::evict(int64_t before, uint64_t expected_excess) {
  const Index::Totals totals = CAIRN_TRY(index->totals());
  const uint64_t bytes = totals.bytes + totals.set_aside_bytes;
  if (bytes <= max_bytes) return {};
  if (bytes - max_bytes > expected_excess + max_bytes / 4) CAIRN_TRY(index->recount());
  for (;;) {
    const uint64_t gone = CAIRN_TRY(index->evict(max_bytes, before));
    evicted += gone;
    if (gone == 0) break;
    CAIRN_TRY(give_back_freed());
  }
  return unlink_empty();
}

// Holes for all that lost its row, of whatever process.
Result<void> Store::State::give_back_freed() {
  for (int64_t last = 0;;) {
    const std::vector<Freed> freed = CAIRN_TRY(index->freed(last));
    if (freed.empty()) return {};
    last = freed.back().row;
    for (const Freed& each : freed) {
      if (each.is_shared) continue;
      const Result<void> erased = erase(fs, segments, each.extent.place, each.extent.bytes);
      if (!erased && erased.error().code != Code::NotFound) return erased;
    }
    CAIRN_TRY(index->forget_freed(freed));
  }
}

Result<void> Store::State::unlink_empty() {
  for (uint64_t segment : CAIRN_TRY(index->empty_segments())) {
    const Result<void> removed = fs.remove(path_of(segment));
    if (!removed && removed.error().code != Code::NotFound) return removed;
    CAIRN_TRY(index->forget_segment(segment));
  }
  readers.forget_removed();
  return {};
}

// What dead processes left: ranges without a row, and rooms that nobody fills any more. A segment
// that was closed in order has none.
Result<void> Store::State::reclaim(Closed closed) {
  for (uint64_t segment : CAIRN_TRY(list_segments(fs, segments)))
    if (closed == Closed::looked_into || !CAIRN_TRY(index->is_closed(segment)))
      CAIRN_TRY(reclaim_segment(segment));
  CAIRN_TRY(give_back_freed());
  return unlink_empty();
}

// The lock is asked for before the rows are: nobody adds to a segment without a lock, so its rows
// are all there are.
Result<void> Store::State::reclaim_segment(uint64_t segment) {
  if (!fs.is_abandoned(path_of(segment))) return {};
  if (CAIRN_TRY(index->extents(segment)).empty()) {
    fs.remove_abandoned(path_of(segment));
    return {};
  }
  if (const auto given_back = give_back_gaps(segment);
      !given_back && given_back.error().code != Code::NotFound)  // another process was faster
    return given_back;
  return index->add_closed(std::span(&segment, 1));
}

Result<void> Store::State::give_back_gaps(uint64_t segment) {
  const std::unique_ptr<File> file = CAIRN_TRY(fs.open_update(path_of(segment)));
  const uint64_t size = CAIRN_TRY(file->size());
  uint64_t end = 0;
  for (const auto& [place, bytes] : CAIRN_TRY(index->extents(segment))) {
    if (place.offset > size || bytes > size) continue;  // a damaged row
    if (place.offset > end) {
      const auto punched = file->punch_hole(end, place.offset - end);
      if (!punched && punched.error().code != Code::Unsupported) return punched;
    }
    end = std::max(end, place.offset + bytes);
  }
  return end < size ? file->set_size(end) : Result<void>();
}

Result<uint64_t> Store::gc() {
  const uint64_t before = CAIRN_TRY(state_->allocated_bytes());
  CAIRN_TRY(state_->index->forget_set_aside());
  CAIRN_TRY(state_->index->recount());
  CAIRN_TRY(state_->evict(INT64_MAX, 0));
  CAIRN_TRY(state_->reclaim(State::Closed::looked_into));
  const uint64_t after = CAIRN_TRY(state_->allocated_bytes());
  return before - std::min(before, after);
}

Result<uint64_t> Store::State::allocated_bytes() {
  uint64_t bytes = 0;
  for (uint64_t segment : CAIRN_TRY(list_segments(fs, segments)))
    if (const auto file = fs.open_read(path_of(segment)))
      bytes += CAIRN_TRY((*file)->allocated_bytes());
  return bytes;
}

// In segments that nobody writes, what no row claims, but for a block that the file system may
// need for itself to keep track of holes.
Result<uint64_t> Store::State::orphaned_bytes() {
  uint64_t orphaned = 0;
  for (uint64_t segment : CAIRN_TRY(list_segments(fs, segments))) {
    const auto file = fs.open_read(path_of(segment));
    if (!file || !fs.is_abandoned(path_of(segment))) continue;
    const uint64_t allocated = CAIRN_TRY((*file)->allocated_bytes());
    uint64_t claimed = kRecordAlignment;
    for (const Extent& extent : CAIRN_TRY(index->extents(segment))) claimed += extent.bytes;
    orphaned += allocated - std::min(allocated, claimed);
  }
  return orphaned;
}

Result<StoreReport> Store::verify(const StoreProgress& progress) {
  StoreReport report;
  report.damage = CAIRN_TRY(state_->index->integrity_errors());
  const std::vector<std::string> wrong = CAIRN_TRY(state_->index->recount());
  report.damage.insert(report.damage.end(), wrong.begin(), wrong.end());
  const uint64_t total = CAIRN_TRY(state_->index->totals()).bytes;
  uint64_t done = 0;
  AlignedBuffer buffer;
  for (int64_t row : CAIRN_TRY(state_->index->rows(Index::Order::by_place))) {
    const auto found = CAIRN_TRY(state_->index->find_row(row));
    if (!found) continue;
    const auto bytes = state_->read(*found, buffer);
    if (!bytes && bytes.error().code == Code::NotFound) continue;
    ++report.records;
    if (bytes)
      report.bytes += bytes->size();
    else
      report.damage.push_back(bytes.error().message);
    done += found->record.stored_bytes;
    if (progress) progress(done, std::max(done, total));
  }
  report.orphaned_bytes = CAIRN_TRY(state_->orphaned_bytes());
  return report;
}

Result<StoreUse> Store::use() {
  const Index::Totals totals = CAIRN_TRY(state_->index->totals());
  StoreUse use{.records = totals.records,
               .bytes = totals.bytes,
               .max_bytes = state_->max_bytes,
               .set_aside = totals.set_aside,
               .evicted = state_->evicted};
  use.segments = CAIRN_TRY(list_segments(state_->fs, state_->segments)).size();
  use.allocated_bytes = CAIRN_TRY(state_->allocated_bytes());
  return use;
}

}  // namespace cairn
