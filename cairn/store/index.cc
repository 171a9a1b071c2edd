#include "cairn/store/index.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

namespace cairn {
namespace {

constexpr int64_t kVersion = 1;
constexpr int64_t kApplication = 0x4361726e;  // "Carn"
constexpr uint64_t kBatch = 256;              // names per transaction, so that others have a turn

constexpr const char* kSchema = R"sql(
CREATE TABLE records (
  row INTEGER PRIMARY KEY AUTOINCREMENT,
  name BLOB NOT NULL, part INTEGER NOT NULL, kind INTEGER NOT NULL,
  parent BLOB, owner BLOB, tokens BLOB NOT NULL, length INTEGER NOT NULL,
  payload_bytes INTEGER NOT NULL,
  segment INTEGER NOT NULL, offset INTEGER NOT NULL, stored_bytes INTEGER NOT NULL,
  last_used INTEGER NOT NULL, is_leaf INTEGER NOT NULL DEFAULT 1) STRICT;
CREATE UNIQUE INDEX records_by_name ON records (name, part);
CREATE INDEX records_by_parent ON records (parent, kind) WHERE parent IS NOT NULL;
CREATE INDEX records_by_owner ON records (owner, kind) WHERE owner IS NOT NULL;
CREATE INDEX records_by_place ON records (segment, offset);
CREATE INDEX records_by_use ON records (is_leaf, last_used);

CREATE TABLE set_aside (
  row INTEGER PRIMARY KEY, name BLOB NOT NULL, part INTEGER NOT NULL,
  segment INTEGER NOT NULL, offset INTEGER NOT NULL, stored_bytes INTEGER NOT NULL,
  reason TEXT NOT NULL) STRICT;
CREATE TABLE freed (
  row INTEGER PRIMARY KEY AUTOINCREMENT,
  segment INTEGER NOT NULL, offset INTEGER NOT NULL, stored_bytes INTEGER NOT NULL) STRICT;
CREATE TABLE closed_segments (segment INTEGER PRIMARY KEY) STRICT;
CREATE TABLE totals (
  id INTEGER PRIMARY KEY CHECK (id = 1), records INTEGER NOT NULL, bytes INTEGER NOT NULL,
  clock INTEGER NOT NULL, syncs INTEGER NOT NULL, max_bytes INTEGER NOT NULL) STRICT;
INSERT INTO totals VALUES (1, 0, 0, 0, 0, 20 << 30);

CREATE TRIGGER record_added AFTER INSERT ON records BEGIN
  UPDATE totals SET records = records + 1, bytes = bytes + NEW.stored_bytes;
  UPDATE records SET is_leaf = 0 WHERE name = NEW.parent AND is_leaf;
  UPDATE records SET is_leaf = 0
    WHERE row = NEW.row AND EXISTS (SELECT 1 FROM records WHERE parent = NEW.name);
END;
CREATE TRIGGER record_gone AFTER DELETE ON records BEGIN
  UPDATE totals SET records = records - 1, bytes = bytes - OLD.stored_bytes;
  INSERT INTO freed (segment, offset, stored_bytes)
    SELECT OLD.segment, OLD.offset, OLD.stored_bytes
    WHERE NOT EXISTS (SELECT 1 FROM set_aside WHERE row = OLD.row);
  UPDATE records SET last_used = max(last_used, OLD.last_used),
                     is_leaf = NOT EXISTS (SELECT 1 FROM records WHERE parent = OLD.parent)
    WHERE name = OLD.parent;
END;
CREATE TRIGGER set_aside_gone AFTER DELETE ON set_aside BEGIN
  INSERT INTO freed (segment, offset, stored_bytes)
    VALUES (OLD.segment, OLD.offset, OLD.stored_bytes);
END;
)sql";

// "SELECT * FROM records", if it is a row that write() could have made.
std::optional<IndexedRecord> parse(const Cursor& row) {
  IndexedRecord found;
  auto& [record, place] = found;
  RecordInfo& info = record.info;
  const std::span<const std::byte> tokens = row.blob(6);
  const int64_t part = row.integer(2), kind = row.integer(3);
  record.row = row.integer(0);
  info.key = {.name = row.digest(1), .part = static_cast<uint32_t>(part)};
  info.kind = static_cast<RecordKind>(kind);
  info.parent = row.digest(4);
  info.owner = row.digest(5);
  info.tokens.resize(tokens.size() / sizeof(int32_t));
  std::ranges::copy(tokens.first(info.tokens.size() * sizeof(int32_t)),
                    std::as_writable_bytes(std::span(info.tokens)).begin());
  info.length = static_cast<uint64_t>(row.integer(7));
  info.payload_bytes = static_cast<uint64_t>(row.integer(8));
  place = {.segment = static_cast<uint64_t>(row.integer(9)),
           .offset = static_cast<uint64_t>(row.integer(10))};
  record.stored_bytes = static_cast<uint64_t>(row.integer(11));
  record.last_used = row.integer(12);
  const bool is_sound =
      !info.key.name.is_zero() && part >= 0 && part <= UINT32_MAX && kind >= 1 && kind <= 4 &&
      tokens.size() % sizeof(int32_t) == 0 && info.tokens.size() <= kMaxRecordTokens &&
      info.payload_bytes <= kMaxPayloadBytes && record.stored_bytes == stored_bytes(info) &&
      place.offset <= INT64_MAX / 2 && place.offset % kRecordAlignment == 0;
  if (!is_sound) return std::nullopt;
  return found;
}

Extent extent_of(const Cursor& row, int first_column) {
  return {.place = {.segment = static_cast<uint64_t>(row.integer(first_column)),
                    .offset = static_cast<uint64_t>(row.integer(first_column + 1))},
          .bytes = static_cast<uint64_t>(row.integer(first_column + 2))};
}

int64_t wall_clock() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

Result<void> expect_version(Database& database, int64_t version) {
  if (version > kVersion)
    return fail(Code::Unsupported, "{}: of version {}, this program knows versions up to {}",
                database.path(), version, kVersion);
  const bool is_ours = CAIRN_TRY(database.integer("PRAGMA application_id")) == kApplication;
  if (!is_ours)
    return fail(Code::Corrupt, "{}: a database, but not the index of a store", database.path());
  return {};
}

Result<void> make_schema(Database& database) {
  Transaction transaction = CAIRN_TRY(Transaction::begin(database, Commit::durable));
  // Another process may have been first.
  if (const int64_t version = CAIRN_TRY(database.integer("PRAGMA user_version")); version != 0)
    return expect_version(database, version);
  if (CAIRN_TRY(database.integer("SELECT count(*) FROM sqlite_schema")) != 0)
    return fail(Code::Corrupt, "{}: a database, but not the index of a store", database.path());
  CAIRN_TRY(database.execute(kSchema));
  CAIRN_TRY(database.execute(
      fmt::format("PRAGMA application_id = {}; PRAGMA user_version = {}", kApplication, kVersion)));
  return transaction.commit();
}

Result<Database> connect(const std::string& path) {
  Database database = CAIRN_TRY(Database::open(path));
  if (const int64_t version = CAIRN_TRY(database.integer("PRAGMA user_version")); version != 0)
    CAIRN_TRY(expect_version(database, version));
  CAIRN_TRY(database.execute(
      "PRAGMA cache_size = -65536; PRAGMA temp_store = MEMORY; PRAGMA cell_size_check = ON;"
      "PRAGMA journal_size_limit = 67108864"));
  CAIRN_TRY(database.execute_patiently("PRAGMA journal_mode = WAL"));
  return database;
}

}  // namespace

Result<Query*> Index::Connection::query(std::string_view statement) {
  const auto known = queries.find(statement);
  if (known != queries.end()) return &known->second;
  Query prepared = CAIRN_TRY(database->prepare(statement));
  return &queries.emplace(statement, std::move(prepared)).first->second;
}

Result<std::unique_ptr<Index>> Index::open(const std::string& path) {
  auto index = std::make_unique<Index>();
  index->changes_.database = CAIRN_TRY(connect(path));
  if (CAIRN_TRY(index->changes_.database->integer("PRAGMA user_version")) == 0)
    CAIRN_TRY(make_schema(*index->changes_.database));
  index->questions_.database = CAIRN_TRY(connect(path));
  return index;
}

// --- questions -------------------------------------------------------------------------------

Result<bool> Index::contains(const RecordKey& key) {
  const std::lock_guard lock(questions_.mutex);
  Query& there = *CAIRN_TRY(questions_.query("SELECT 1 FROM records WHERE name = ? AND part = ?"));
  return there(key.name, key.part).next();
}

Result<std::optional<IndexedRecord>> Index::find(const RecordKey& key) {
  std::vector<IndexedRecord> found =
      CAIRN_TRY(collect("SELECT * FROM records WHERE name = ? AND part = ?", key.name, key.part));
  if (found.empty()) return std::nullopt;
  return std::move(found.front());
}

Result<std::optional<IndexedRecord>> Index::find_row(int64_t row) {
  std::vector<IndexedRecord> found = CAIRN_TRY(collect("SELECT * FROM records WHERE row = ?", row));
  if (found.empty()) return std::nullopt;
  return std::move(found.front());
}

Result<std::vector<IndexedRecord>> Index::children(const Digest& parent, RecordKind kind) {
  return collect(
      "SELECT * FROM records WHERE parent = ? AND kind = ? AND part = 0 ORDER BY last_used DESC",
      parent, static_cast<int>(kind));
}

Result<std::vector<IndexedRecord>> Index::owned_by(const Digest& owner, RecordKind kind) {
  return collect("SELECT * FROM records WHERE owner = ? AND kind = ? ORDER BY last_used DESC",
                 owner, static_cast<int>(kind));
}

// A row that makes no sense is a miss from now on.
template <class... Values>
Result<std::vector<IndexedRecord>> Index::collect(const char* statement, const Values&... values) {
  std::vector<IndexedRecord> found;
  std::vector<int64_t> malformed;
  {
    const std::lock_guard lock(questions_.mutex);
    Query& query = *CAIRN_TRY(questions_.query(statement));
    Cursor rows = query(values...);
    while (CAIRN_TRY(rows.next()))
      if (auto record = parse(rows))
        found.push_back(std::move(*record));
      else
        malformed.push_back(rows.integer(0));
  }
  for (int64_t row : malformed) CAIRN_TRY(set_aside(row, "its row in the index makes no sense"));
  return found;
}

// The first `low` are there, key `high` is not.
Result<size_t> Index::longest_prefix(std::span<const RecordKey> keys) {
  const std::lock_guard lock(questions_.mutex);
  Query& there = *CAIRN_TRY(questions_.query("SELECT 1 FROM records WHERE name = ? AND part = ?"));
  size_t low = 0, high = keys.size();
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (CAIRN_TRY(there(keys[middle].name, keys[middle].part).next()))
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

Result<std::vector<int64_t>> Index::rows(Order order) {
  const std::lock_guard lock(questions_.mutex);
  Query& query = *CAIRN_TRY(questions_.query(
      order == Order::by_place ? "SELECT row FROM records ORDER BY segment, offset"
                               : "SELECT row FROM records ORDER BY last_used DESC, row DESC"));
  std::vector<int64_t> found;
  Cursor rows = query();
  while (CAIRN_TRY(rows.next())) found.push_back(rows.integer(0));
  return found;
}

Result<std::vector<Extent>> Index::extents(uint64_t segment) {
  const std::lock_guard lock(questions_.mutex);
  Query& query = *CAIRN_TRY(questions_.query(
      "SELECT segment, offset, stored_bytes FROM records WHERE segment = ?1 UNION ALL "
      "SELECT segment, offset, stored_bytes FROM set_aside WHERE segment = ?1 ORDER BY 2"));
  std::vector<Extent> found;
  Cursor rows = query(segment);
  while (CAIRN_TRY(rows.next())) found.push_back(extent_of(rows, 0));
  return found;
}

namespace {

Result<Index::Totals> totals_of(Query& records, Query& aside) {
  Index::Totals totals;
  Cursor row = records();
  if (CAIRN_TRY(row.next()))
    totals = {.records = static_cast<uint64_t>(std::max<int64_t>(row.integer(0), 0)),
              .bytes = static_cast<uint64_t>(std::max<int64_t>(row.integer(1), 0))};
  Cursor sum = aside();
  if (CAIRN_TRY(sum.next())) {
    totals.set_aside = static_cast<uint64_t>(sum.integer(0));
    totals.set_aside_bytes = static_cast<uint64_t>(sum.integer(1));
  }
  return totals;
}

}  // namespace

Result<Index::Totals> Index::totals(Connection& connection) {
  Query& records = *CAIRN_TRY(connection.query("SELECT records, bytes FROM totals"));
  Query& aside = *CAIRN_TRY(
      connection.query("SELECT count(*), coalesce(sum(stored_bytes), 0) FROM set_aside"));
  return totals_of(records, aside);
}

Result<Index::Totals> Index::totals() {
  const std::lock_guard lock(questions_.mutex);
  return totals(questions_);
}

Result<uint64_t> Index::max_bytes() {
  const std::lock_guard lock(questions_.mutex);
  Cursor row = (*CAIRN_TRY(questions_.query("SELECT max_bytes FROM totals")))();
  if (!CAIRN_TRY(row.next()))
    return fail(Code::Corrupt, "{}: its totals are gone", questions_.database->path());
  return static_cast<uint64_t>(std::max<int64_t>(row.integer(0), 0));
}

Result<std::vector<std::string>> Index::integrity_errors() {
  const std::lock_guard lock(questions_.mutex);
  Query& check = *CAIRN_TRY(questions_.query("PRAGMA integrity_check"));
  std::vector<std::string> errors;
  Cursor lines = check();
  while (CAIRN_TRY(lines.next()))
    if (const std::string line = lines.text(0); line != "ok") errors.push_back(line);
  return errors;
}

Result<bool> Index::is_closed(uint64_t segment) {
  const std::lock_guard lock(questions_.mutex);
  Query& closed = *CAIRN_TRY(questions_.query("SELECT 1 FROM closed_segments WHERE segment = ?"));
  return closed(segment).next();
}

Result<std::vector<uint64_t>> Index::empty_segments() {
  const std::lock_guard lock(questions_.mutex);
  Query& empty = *CAIRN_TRY(
      questions_.query("SELECT segment FROM closed_segments c "
                       "WHERE NOT EXISTS (SELECT 1 FROM records r WHERE r.segment = c.segment) "
                       "AND NOT EXISTS (SELECT 1 FROM set_aside s WHERE s.segment = c.segment)"));
  std::vector<uint64_t> found;
  Cursor rows = empty();
  while (CAIRN_TRY(rows.next())) found.push_back(static_cast<uint64_t>(rows.integer(0)));
  return found;
}

Result<std::vector<Freed>> Index::freed(int64_t after) {
  const std::lock_guard lock(questions_.mutex);
  Query& query = *CAIRN_TRY(questions_.query(
      "SELECT row, segment, offset, stored_bytes,"
      " coalesce((SELECT r.offset + r.stored_bytes FROM records r WHERE r.segment = f.segment"
      "   AND r.offset < f.offset + f.stored_bytes ORDER BY r.offset DESC LIMIT 1) > f.offset, 0)"
      " OR EXISTS (SELECT 1 FROM set_aside s WHERE s.segment = f.segment"
      "   AND s.offset < f.offset + f.stored_bytes AND s.offset + s.stored_bytes > f.offset) "
      "FROM freed f WHERE row > ? ORDER BY row LIMIT ?"));
  std::vector<Freed> found;
  Cursor rows = query(after, kBatch);
  while (CAIRN_TRY(rows.next()))
    found.push_back(
        {.row = rows.integer(0), .extent = extent_of(rows, 1), .is_shared = rows.integer(4) != 0});
  return found;
}

// --- changes ---------------------------------------------------------------------------------

// Of a change. Later than any time before, whatever the wall clock says.
Result<int64_t> Index::tick() {
  Query& clock =
      *CAIRN_TRY(changes_.query("UPDATE totals SET clock = max(clock + 1, ?) RETURNING clock"));
  Cursor row = clock(wall_clock());
  if (!CAIRN_TRY(row.next()))
    return fail(Code::Corrupt, "{}: its totals are gone", changes_.database->path());
  const int64_t time = row.integer(0);
  CAIRN_TRY(row.finish());
  return time;
}

// A statement that returns no rows, as part of a change. Returns how many rows it changed.
template <class... Values>
Result<uint64_t> Index::change(const char* statement, const Values&... values) {
  Query& query = *CAIRN_TRY(changes_.query(statement));
  CAIRN_TRY(query(values...).finish());
  return changes_.database->changed_rows();
}

Result<void> Index::use(const Digest& name, int64_t time) {
  CAIRN_TRY(
      change("UPDATE records SET last_used = ?1 WHERE name = ?2 AND last_used < ?1", time, name));
  return {};
}

Result<Index::Inserted> Index::insert(std::span<const IndexedRecord> rows,
                                      std::span<const RecordKey> used) {
  const std::lock_guard lock(changes_.mutex);
  Transaction transaction = CAIRN_TRY(Transaction::begin(*changes_.database));
  Inserted inserted;
  inserted.time = CAIRN_TRY(tick());
  for (const auto& [record, place] : rows) {
    const RecordInfo& info = record.info;
    const bool is_new =
        CAIRN_TRY(change(
            "INSERT OR IGNORE INTO records (name, part, kind, parent, owner, tokens, length,"
            " payload_bytes, segment, offset, stored_bytes, last_used)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            info.key.name, info.key.part, static_cast<int>(info.kind), info.parent, info.owner,
            std::as_bytes(std::span(info.tokens)), info.length, info.payload_bytes, place.segment,
            place.offset, stored_bytes(info), inserted.time)) > 0;
    if (!is_new)  // another process was faster
      CAIRN_TRY(change("INSERT INTO freed (segment, offset, stored_bytes) VALUES (?, ?, ?)",
                       place.segment, place.offset, stored_bytes(info)));
  }
  for (const RecordKey& key : used) {
    CAIRN_TRY(use(key.name, inserted.time));
    Query& there = *CAIRN_TRY(changes_.query("SELECT 1 FROM records WHERE name = ? AND part = ?"));
    inserted.all_there = CAIRN_TRY(there(key.name, key.part).next()) && inserted.all_there;
  }
  CAIRN_TRY(transaction.commit());
  return inserted;
}

Result<void> Index::touch(std::span<const RecordKey> keys) {
  const std::lock_guard lock(changes_.mutex);
  Transaction transaction = CAIRN_TRY(Transaction::begin(*changes_.database));
  const int64_t time = CAIRN_TRY(tick());
  for (const RecordKey& key : keys) CAIRN_TRY(use(key.name, time));
  return transaction.commit();
}

Result<uint64_t> Index::evict(uint64_t max_bytes, int64_t time) {
  const std::lock_guard lock(changes_.mutex);
  Transaction transaction = CAIRN_TRY(Transaction::begin(*changes_.database, Commit::durable));
  uint64_t evicted = 0;
  for (uint64_t name = 0; name < kBatch; ++name) {
    const Totals now = CAIRN_TRY(totals(changes_));
    if (now.bytes + now.set_aside_bytes <= max_bytes) break;
    const uint64_t gone = CAIRN_TRY(evict_one(time));
    if (gone == 0) break;
    evicted += gone;
  }
  if (evicted > 0) CAIRN_TRY(transaction.commit());
  return evicted;
}

Result<uint64_t> Index::evict_one(int64_t time) {
  const uint64_t aside =
      CAIRN_TRY(change("DELETE FROM set_aside WHERE row = (SELECT min(row) FROM set_aside)"));
  if (aside > 0) return aside;
  return change(
      "DELETE FROM records WHERE name = (SELECT name FROM records"
      " WHERE is_leaf = 1 AND last_used < ? ORDER BY last_used LIMIT 1)",
      time);
}

// The names and all that hang below them, parents first.
Result<std::vector<Digest>> Index::below(std::span<const RecordKey> keys) {
  const std::lock_guard lock(questions_.mutex);
  Query& children =
      *CAIRN_TRY(questions_.query("SELECT DISTINCT name FROM records WHERE parent = ?"));
  std::vector<Digest> names;
  std::set<Digest> known;
  const auto add = [&](const Digest& name) {
    if (known.insert(name).second) names.push_back(name);
  };
  for (const RecordKey& key : keys) add(key.name);
  for (size_t at = 0; at < names.size(); ++at) {
    Cursor rows = children(names[at]);
    while (CAIRN_TRY(rows.next())) add(rows.digest(0));
  }
  return names;
}

Result<uint64_t> Index::remove(std::span<const RecordKey> keys) {
  std::vector<Digest> names = CAIRN_TRY(below(keys));
  uint64_t removed_bytes = 0;
  while (!names.empty()) {
    const std::lock_guard lock(changes_.mutex);
    Transaction transaction = CAIRN_TRY(Transaction::begin(*changes_.database, Commit::durable));
    uint64_t batch_bytes = 0;
    for (uint64_t i = 0; i < kBatch && !names.empty(); ++i, names.pop_back()) {
      Query& bytes = *CAIRN_TRY(
          changes_.query("SELECT coalesce(sum(stored_bytes), 0) FROM records WHERE name = ?"));
      Cursor sum = bytes(names.back());
      if (CAIRN_TRY(sum.next())) batch_bytes += static_cast<uint64_t>(sum.integer(0));
      CAIRN_TRY(change("DELETE FROM records WHERE name = ?", names.back()));
    }
    CAIRN_TRY(transaction.commit());
    removed_bytes += batch_bytes;
  }
  return removed_bytes;
}

Result<void> Index::set_aside(int64_t row, const std::string& reason) {
  const std::lock_guard lock(changes_.mutex);
  Transaction transaction = CAIRN_TRY(Transaction::begin(*changes_.database));
  CAIRN_TRY(
      change("INSERT OR REPLACE INTO set_aside"
             " SELECT row, name, part, segment, offset, stored_bytes, ? FROM records WHERE row = ?",
             std::string_view(reason), row));
  CAIRN_TRY(change("DELETE FROM records WHERE row = ?", row));
  return transaction.commit();
}

Result<void> Index::forget_set_aside() {
  const std::lock_guard lock(changes_.mutex);
  Transaction transaction = CAIRN_TRY(Transaction::begin(*changes_.database, Commit::durable));
  if (CAIRN_TRY(change("DELETE FROM set_aside WHERE true")) == 0) return {};
  return transaction.commit();
}

Result<void> Index::forget_freed(std::span<const Freed> freed) {
  const std::lock_guard lock(changes_.mutex);
  Transaction transaction = CAIRN_TRY(Transaction::begin(*changes_.database));
  for (const Freed& given_back : freed)
    CAIRN_TRY(change("DELETE FROM freed WHERE row = ?", given_back.row));
  return transaction.commit();
}

Result<void> Index::add_closed(std::span<const uint64_t> segments) {
  if (segments.empty()) return {};
  const std::lock_guard lock(changes_.mutex);
  Transaction transaction = CAIRN_TRY(Transaction::begin(*changes_.database));
  for (uint64_t segment : segments)
    CAIRN_TRY(change("INSERT OR IGNORE INTO closed_segments VALUES (?)", segment));
  return transaction.commit();
}

Result<void> Index::set_max_bytes(uint64_t bytes) {
  bytes = std::min<uint64_t>(bytes, INT64_MAX);
  if (CAIRN_TRY(max_bytes()) == bytes) return {};
  const std::lock_guard lock(changes_.mutex);
  Transaction transaction = CAIRN_TRY(Transaction::begin(*changes_.database));
  CAIRN_TRY(change("UPDATE totals SET max_bytes = ?", bytes));
  return transaction.commit();
}

Result<void> Index::forget_segment(uint64_t segment) {
  const std::lock_guard lock(changes_.mutex);
  Transaction transaction = CAIRN_TRY(Transaction::begin(*changes_.database));
  CAIRN_TRY(change("DELETE FROM closed_segments WHERE segment = ?", segment));
  CAIRN_TRY(change("DELETE FROM freed WHERE segment = ?", segment));
  return transaction.commit();
}

// A durable commit takes all commits before it along: the log is one file.
Result<void> Index::sync() {
  const std::lock_guard lock(changes_.mutex);
  Transaction transaction = CAIRN_TRY(Transaction::begin(*changes_.database, Commit::durable));
  CAIRN_TRY(change("UPDATE totals SET syncs = syncs + 1"));
  return transaction.commit();
}

Result<void> Index::shrink() {
  const std::lock_guard lock(changes_.mutex);
  return changes_.database->execute("PRAGMA wal_checkpoint(TRUNCATE)");
}

Result<std::vector<std::string>> Index::recount() {
  const std::lock_guard lock(changes_.mutex);
  Transaction transaction = CAIRN_TRY(Transaction::begin(*changes_.database));
  const uint64_t totals_changed =
      CAIRN_TRY(change("UPDATE totals SET (records, bytes) ="
                       " (SELECT count(*), coalesce(sum(stored_bytes), 0) FROM records)"
                       " WHERE (records, bytes) IS NOT"
                       " (SELECT count(*), coalesce(sum(stored_bytes), 0) FROM records)"));
  const uint64_t leaves_changed =
      CAIRN_TRY(change("UPDATE records SET is_leaf = NOT EXISTS"
                       " (SELECT 1 FROM records child WHERE child.parent = records.name)"
                       " WHERE is_leaf IS NOT NOT EXISTS"
                       " (SELECT 1 FROM records child WHERE child.parent = records.name)"));
  CAIRN_TRY(transaction.commit());
  std::vector<std::string> wrong;
  const std::string& path = changes_.database->path();
  if (totals_changed > 0) wrong.push_back(path + ": totals that are not those of its rows");
  if (leaves_changed > 0)
    wrong.push_back(fmt::format("{}: {} rows with a wrong mark of a leaf", path, leaves_changed));
  return wrong;
}

Result<void> Index::seal() {
  const std::lock_guard lock(changes_.mutex);
  questions_.queries.clear();
  questions_.database.reset();
  changes_.queries.clear();
  CAIRN_TRY(changes_.database->execute("PRAGMA synchronous = FULL"));
  return changes_.database->execute_patiently("PRAGMA journal_mode = DELETE");
}

}  // namespace cairn
