// SQLite as the index uses it: a connection, prepared queries, cursors that end themselves,
// transactions that roll back unless they are committed. Only sqlite.cc knows <sqlite3.h>.
//
//   Cursor rows = find(key.name, key.part);           // binds in order
//   while (CAIRN_TRY(rows.next())) use(rows.integer(0));
//
// A connection belongs to one thread at a time, and so do its queries and cursors.
#ifndef CAIRN_STORE_SQLITE_H_
#define CAIRN_STORE_SQLITE_H_

#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "cairn/core/error.h"
#include "cairn/core/hash.h"

struct sqlite3;
struct sqlite3_stmt;

namespace cairn {

// The rows of one run of a query. The query is free again when it goes.
class Cursor {
 public:
  explicit Cursor(sqlite3_stmt* statement) : statement_(statement) {}
  ~Cursor();
  Cursor(Cursor&& other) noexcept : statement_(std::exchange(other.statement_, nullptr)) {}
  Cursor& operator=(Cursor&&) = delete;

  Result<bool> next();    // false: there are no more
  Result<void> finish();  // runs to the end

  // Of the row that next() found. What a column does not hold reads as 0 or empty.
  int64_t integer(int column) const;
  std::span<const std::byte> blob(int column) const;  // until the next next()
  std::string text(int column) const;
  Digest digest(int column) const;  // zero unless it has 32 bytes

  void bind(int parameter, int64_t value);
  void bind(int parameter, std::span<const std::byte> value);
  void bind(int parameter, std::string_view value);
  void bind(int parameter, const Digest& value);  // zero: null

 private:
  sqlite3_stmt* statement_;  // null: moved from
};

class Query {
 public:
  template <class... Values>
  Cursor operator()(const Values&... values) {
    Cursor cursor(statement_.get());
    int parameter = 0;
    (bind(cursor, ++parameter, values), ...);
    return cursor;
  }

 private:
  friend class Database;
  template <class Value>
  static void bind(Cursor& cursor, int parameter, const Value& value) {
    if constexpr (std::integral<Value>)
      cursor.bind(parameter, static_cast<int64_t>(value));
    else
      cursor.bind(parameter, value);
  }
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const;
  };
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
};

// What a commit promises.
enum class Commit {
  soon,     // to other processes at once, to a power cut after the next `durable` one
  durable,  // all commits up to this one survive a power cut
};

class Database {
 public:
  // A file that is missing is made (0600).
  static Result<Database> open(const std::string& path);

  Result<void> execute(const std::string& statements);
  // Tries for a while where others are in the way without SQLite waiting for them by itself.
  Result<void> execute_patiently(const std::string& statements);
  Result<Query> prepare(std::string_view statement);
  uint64_t changed_rows() const;  // by the last statement, its triggers left out
  Result<int64_t> integer(std::string_view statement);  // its first value; 0: none
  const std::string& path() const { return path_; }

 private:
  friend class Transaction;
  struct Close {
    void operator()(sqlite3* connection) const;
  };
  std::string path_;
  std::unique_ptr<sqlite3, Close> connection_;
};

// Other writers, of other processes too, wait from begin to commit or destruction.
class Transaction {
 public:
  static Result<Transaction> begin(Database& database, Commit commit = Commit::soon);
  Transaction(Transaction&& other) noexcept : database_(std::exchange(other.database_, nullptr)) {}
  Transaction& operator=(Transaction&&) = delete;
  ~Transaction();
  Result<void> commit();

 private:
  explicit Transaction(Database& database) : database_(&database) {}
  Database* database_;  // null: over, or moved from
};

}  // namespace cairn

#endif  // CAIRN_STORE_SQLITE_H_
