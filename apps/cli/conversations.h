// What a store holds, as a person sees it: conversations instead of records.
//
// Spans and marks hang below spans, and the first ones below the object that says what all of them
// stand for (engine/prefix.h): a tree. A conversation is a leaf of it with all that is above. An
// end whose tokens another child of the same parent goes on with is an older end of that
// conversation, and no leaf: the first turn's mark once there is a second turn.
#ifndef CAIRN_APPS_CLI_CONVERSATIONS_H_
#define CAIRN_APPS_CLI_CONVERSATIONS_H_

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cairn/store/store.h"

namespace cairn::cli {

// What the records below a root stand for. Of whoever wrote the store: to be shown, not trusted.
struct About {
  std::string model;  // as the user named it: a name or a path
  std::string name_space;
  std::string scheme;
  Digest tokenizer;
};

enum class EntryKind { conversation, unfinished_answer, object };

struct Entry {
  Digest name;  // of its last record
  EntryKind kind = EntryKind::conversation;
  std::optional<About> about;         // none: it is an object, or the record that said it is gone
  std::vector<int32_t> first_tokens;  // at most kFirstTokens
  bool has_beginning = true;          // false: records before the first tokens are gone
  uint64_t tokens = 0;
  int64_t last_used = 0;      // nanoseconds since 1970
  uint64_t bytes = 0;         // on disk
  uint64_t shared_bytes = 0;  // of them, with other conversations
};

class Conversations {
 public:
  static constexpr size_t kFirstTokens = 64;

  static Result<Conversations> read(Store& store);

  const std::vector<Entry>& entries() const { return entries_; }  // most recently used first

  // The records that these entries (indices of them) have and no other has.
  std::vector<RecordKey> only_of(const std::set<size_t>& chosen) const;

  struct Use {
    uint64_t records = 0;
    uint64_t bytes = 0;
  };
  const std::map<RecordKind, Use>& by_kind() const { return by_kind_; }

 private:
  static constexpr size_t kNone = SIZE_MAX;
  struct Node {       // a name
    RecordInfo info;  // of one of its parts
    std::vector<uint32_t> parts;
    uint64_t bytes = 0;
    int64_t last_used = 0;
    size_t parent = kNone;
    bool is_older_end = false;
    std::vector<size_t> children;  // but for older ends
    std::vector<size_t> older;     // ends with the same parent that this one goes on from
    std::optional<About> about;    // it is an object that says this
    uint64_t entries = 0;          // that it belongs to
  };

  void add(const StoredRecord& record);
  void connect();
  void set_older_ends_apart(std::vector<size_t>& siblings);
  Result<void> describe(Store& store);
  std::vector<size_t> top_down() const;
  bool is_entry(const Node& node) const;
  void count(const std::vector<size_t>& order);
  Entry entry_of(size_t leaf) const;
  // Calls visit(node) for all that an entry has, from its leaf up.
  template <class Visit>
  void walk(size_t leaf, const Visit& visit) const;

  std::vector<Node> nodes_;
  std::map<Digest, size_t> by_name_;
  std::vector<Entry> entries_;
  std::vector<size_t> leaves_;  // of the entries, in their order
  std::map<RecordKind, Use> by_kind_;
};

}  // namespace cairn::cli

#endif  // CAIRN_APPS_CLI_CONVERSATIONS_H_
