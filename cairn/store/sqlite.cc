#include "cairn/store/sqlite.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

namespace cairn {
namespace {

constexpr int kBusyMilliseconds =
    60'000;  // a writer waits this long for writers of other processes

Code code_of(sqlite3* connection) {
  const int system_error = sqlite3_system_errno(connection);
  switch (sqlite3_errcode(connection)) {
    case SQLITE_FULL:
      return Code::NoSpace;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_CONSTRAINT:
    case SQLITE_MISMATCH:
    case SQLITE_ERROR:  // a table that is not there
    case SQLITE_FORMAT:
      return Code::Corrupt;
    case SQLITE_IOERR:
    case SQLITE_CANTOPEN:
      return system_error == ENOSPC || system_error == EDQUOT ? Code::NoSpace : Code::Io;
    default:
      return Code::Io;
  }
}

tl::unexpected<Error> failure_of(sqlite3* connection) {
  const char* path = sqlite3_db_filename(connection, "main");
  return fail(code_of(connection), "{}: {}", path == nullptr ? "index" : path,
              sqlite3_errmsg(connection));
}

// SQLite would make it readable for everybody.
Result<void> make_private_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd >= 0) ::close(fd);
  return {};  // what is wrong with the path, opening it says
}

}  // namespace

Cursor::~Cursor() {
  if (statement_ == nullptr) return;
  sqlite3_reset(statement_);
  sqlite3_clear_bindings(statement_);
}

Result<bool> Cursor::next() {
  const int status = sqlite3_step(statement_);
  if (status == SQLITE_ROW) return true;
  if (status == SQLITE_DONE) return false;
  return failure_of(sqlite3_db_handle(statement_));
}

Result<void> Cursor::finish() {
  while (CAIRN_TRY(next())) continue;
  return {};
}

int64_t Cursor::integer(int column) const { return sqlite3_column_int64(statement_, column); }

std::span<const std::byte> Cursor::blob(int column) const {
  const auto* bytes = static_cast<const std::byte*>(sqlite3_column_blob(statement_, column));
  return {bytes, static_cast<size_t>(sqlite3_column_bytes(statement_, column))};
}

std::string Cursor::text(int column) const {
  const auto bytes = blob(column);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Digest Cursor::digest(int column) const {
  Digest digest;
  const auto bytes = blob(column);
  if (bytes.size() == digest.bytes.size())
    std::ranges::copy(bytes, std::as_writable_bytes(std::span(digest.bytes)).begin());
  return digest;
}

// Binding fails only for a parameter that the statement does not have.
void Cursor::bind(int parameter, int64_t value) {
  CAIRN_CHECK(sqlite3_bind_int64(statement_, parameter, value) == SQLITE_OK, "bind {}", parameter);
}
void Cursor::bind(int parameter, std::span<const std::byte> value) {
  const void* data = value.empty() ? static_cast<const void*>("") : value.data();
  CAIRN_CHECK(
      sqlite3_bind_blob64(statement_, parameter, data, value.size(), SQLITE_TRANSIENT) == SQLITE_OK,
      "bind {}", parameter);
}
void Cursor::bind(int parameter, std::string_view value) {
  CAIRN_CHECK(sqlite3_bind_text64(statement_, parameter, value.data(), value.size(),
                                  SQLITE_TRANSIENT, SQLITE_UTF8) == SQLITE_OK,
              "bind {}", parameter);
}
void Cursor::bind(int parameter, const Digest& value) {
  if (!value.is_zero()) bind(parameter, std::as_bytes(std::span(value.bytes)));
}

void Query::Finalize::operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
void Database::Close::operator()(sqlite3* connection) const { sqlite3_close_v2(connection); }

Result<Database> Database::open(const std::string& path) {
  CAIRN_TRY(make_private_file(path));
  Database database;
  database.path_ = path;
  sqlite3* connection = nullptr;
  const int status =
      sqlite3_open_v2(path.c_str(), &connection,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  database.connection_.reset(connection);
  if (connection == nullptr) return fail(Code::NoSpace, "{}: no memory for a connection", path);
  if (status != SQLITE_OK)
    return fail(code_of(connection), "{}: {}", path, sqlite3_errmsg(connection));
  sqlite3_busy_timeout(connection, kBusyMilliseconds);
  return database;
}

Result<void> Database::execute(const std::string& statements) {
  if (sqlite3_exec(connection_.get(), statements.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK)
    return failure_of(connection_.get());
  return {};
}

Result<void> Database::execute_patiently(const std::string& statements) {
  constexpr int kTries = 1000;
  constexpr std::chrono::milliseconds kPause(10);
  for (int tries = 1;; ++tries) {
    auto done = execute(statements);
    if (done || (sqlite3_errcode(connection_.get()) & 0xff) != SQLITE_BUSY || tries == kTries)
      return done;
    std::this_thread::sleep_for(kPause);
  }
}

Result<Query> Database::prepare(std::string_view statement) {
  sqlite3_stmt* prepared = nullptr;
  if (sqlite3_prepare_v3(connection_.get(), statement.data(), static_cast<int>(statement.size()),
                         SQLITE_PREPARE_PERSISTENT, &prepared, nullptr) != SQLITE_OK)
    return failure_of(connection_.get());
  Query query;
  query.statement_.reset(prepared);
  return query;
}

uint64_t Database::changed_rows() const {
  return static_cast<uint64_t>(sqlite3_changes64(connection_.get()));
}

Result<int64_t> Database::integer(std::string_view statement) {
  Query query = CAIRN_TRY(prepare(statement));
  Cursor row = query();
  const bool is_there = CAIRN_TRY(row.next());
  return is_there ? row.integer(0) : 0;
}

Result<Transaction> Transaction::begin(Database& database, Commit commit) {
  CAIRN_TRY(database.execute(commit == Commit::durable ? "PRAGMA synchronous = FULL"
                                                       : "PRAGMA synchronous = NORMAL"));
  CAIRN_TRY(database.execute("BEGIN IMMEDIATE"));
  return Transaction(database);
}

Transaction::~Transaction() {
  if (database_ != nullptr) (void)database_->execute("ROLLBACK");
}

Result<void> Transaction::commit() {
  CAIRN_TRY(database_->execute("COMMIT"));
  database_ = nullptr;
  return {};
}

}  // namespace cairn
