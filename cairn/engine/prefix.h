// Prefix reuse: sequences of a session <-> spans and marks of the tiers.
//
//   auto prefixes = CAIRN_TRY(Prefixes::make(session, tiers, {.name_space = "alice"}));
//   Found found = prefixes.find(session, prompt);  // the longest reusable prefix, a new sequence
//   ... compute prompt[found.length ..), and after each step:
//   prefixes.publish(session, found.seq, tokens, found.published);
//   ... at the end of a turn:
//   prefixes.mark(session, found.seq, tokens, found.published);
//
// What can be reused (design.md section 5) are positions [0, p) of a prompt, p the greatest
// position at which every slot can resume: whole spans for slots that keep everything, the spans of
// the last window and the sinks for windows, a mark for recurrent state. Where the whole spans end,
// the tail of a mark or the first positions of another conversation's span are used to the token,
// unless a slot is recurrent. At least one token is left to compute.
//
// Reuse never changes an answer: names stand for the fingerprint (model, tokenizer, adapter,
// geometry, scheme, arithmetic), the namespace and every token before; the tokens themselves are
// compared; every byte read is verified; and a derived sequence is never published. Nor does reuse
// fail one: what cannot be read counts as absent.
//
// Under `after N` a position's form belongs to the chain's root: below N sequences use the exact
// chain, from N on the encoded one.
//
// Under the name of each root lies an object that says in JSON what the names below it stand for:
// model (PrefixOptions::about), identity, tokenizer, scheme, namespace, page_positions, form.
//
// Used by one thread at a time, but for prefetch(); the tiers may serve any number of these.
#ifndef CAIRN_ENGINE_PREFIX_H_
#define CAIRN_ENGINE_PREFIX_H_

#include <future>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "cairn/engine/tiers.h"
#include "cairn/store/key.h"

namespace cairn {

struct PrefixOptions {
  std::string name_space;  // what must not be shared across: tenant, adapter, media, free text
  std::string secret;      // of a tenant: nobody without it can compute, guess or probe a name
  std::string about;       // for people: which model this is; part of no name
  // That read and verify; the caller's is one. More than cores: most of them wait for the disk.
  uint32_t threads = 6;
};

// What of one sequence has been published. Goes with the sequence.
class Published {
 public:
  Published();  // nothing yet, of a conversation of its own

 private:
  friend class Prefixes;
  std::vector<int32_t> tokens_;  // whose names the chain has
  std::optional<Chain> chain_;
  bool is_exact_ = false;  // of which root
  Pos spans_ = 0;          // published
  Digest owner_;
};

struct Found {
  SeqId seq;       // new; of `length` positions
  Pos length = 0;  // reused: from_ram + from_disk
  Pos from_ram = 0;
  Pos from_disk = 0;
  MarkNotes notes;  // of the mark that was used in full; else empty
  Published published;
};

// What a mark is for.
enum class MarkUse {
  Turn,      // the end of a turn: takes the place of the conversation's older ones
  Boundary,  // a place to resume at, for models with recurrent slots: stays until it is evicted
};

class Prefixes {
 public:
  // `session` lends its geometry: the calls below take any session of the same model, scheme, page
  // size and memory. The tiers and the memory outlive this.
  static Result<Prefixes> make(const Session& session, Tiers& tiers, PrefixOptions options = {});

  // The longest reusable prefix of `prompt`, at most all but its last token. Length 0, in an empty
  // sequence, where there is none.
  Found find(Session& session, std::span<const int32_t> prompt);
  // How long it would be, by what the tiers say they have.
  Pos longest(std::span<const int32_t> prompt) const;

  // Brings the longest prefix into RAM and keeps it there while the pin lives. May run on a thread
  // of its own.
  struct Pin {
    std::vector<PageRef> pages;
    Pos length = 0;
  };
  Pin prefetch(std::span<const int32_t> prompt) const;

  // Every whole span of the sequence that was not published before, as far as its slots still hold
  // it: to be called before a window slides past, that is at least once per `rewind` tokens.
  // `tokens` are those of all positions, and may go on. Nothing for a derived sequence.
  void publish(const Session& session,
               SeqId seq,
               std::span<const int32_t> tokens,
               Published& published);

  // Publishes, and adds what no span holds: the tail after the last whole span, recurrent state,
  // the notes. Adds nothing where there is none of these.
  void mark(const Session& session,
            SeqId seq,
            std::span<const int32_t> tokens,
            Published& published,
            MarkUse use = MarkUse::Turn,
            MarkNotes notes = {});

  // An unfinished answer, under a name of the caller's; find() does not see it. The newest of a
  // name replaces the older ones once it is written.
  void save_generation(const Session& session,
                       SeqId seq,
                       std::span<const int32_t> tokens,
                       Published& published,
                       const Digest& name,
                       MarkNotes notes);
  struct Generation {
    std::vector<int32_t> tokens;  // of all its positions
    MarkNotes notes;
    Found found;  // all of them, or as many as can be reused
  };
  std::optional<Generation> find_generation(Session& session, const Digest& name);
  // From now on it is not found, whatever of it is still on its way to the disk. The same name can
  // be saved again once the disk knows; a failure there keeps it closed until a later call
  // succeeds.
  void finish_generation(const Digest& name);

  // Exact tensors of the host's own, such as an encoder's output.
  void put_object(const std::string& name, std::vector<Attachment> tensors);
  std::optional<std::vector<Attachment>> find_object(const std::string& name) const;

 private:
  struct Search;
  struct Gathered;
  struct Group {
    bool is_recurrent = false;
    Retention retention;
    PagePool* encoded = nullptr;
    PagePool* exact = nullptr;  // null: there is no exact form
    uint32_t part = 0;          // of spans: positional groups, counted
  };
  using Excluded = std::set<RecordKey>;  // what turned out not to be there

  Prefixes(const Session& session, Tiers& tiers, PrefixOptions options, const Digest& fingerprint);

  uint32_t span_positions() const { return format_->page_positions(); }
  Pos exact_end(bool is_exact) const { return is_exact ? UINT64_MAX : keep_; }
  const Digest& root(bool is_exact) const { return is_exact ? exact_root_ : encoded_root_; }
  PagePool& pool(size_t group, Pos first, bool is_exact) const;
  uint64_t span_bytes(size_t group, Pos first, bool is_exact) const;

  // `own` is a record that is considered beside the marks.
  Search search(std::span<const int32_t> tokens,
                Pos limit,
                const Excluded& excluded,
                const RecordInfo* own = nullptr) const;
  Result<Gathered> gather(const Search& search,
                          std::span<const int32_t> tokens,
                          Excluded& excluded) const;
  std::optional<Gathered> gather_longest(std::span<const int32_t> tokens,
                                         Pos limit,
                                         const RecordInfo* own = nullptr) const;
  std::optional<Found> adopt(Session& session,
                             Gathered gathered,
                             std::span<const int32_t> tokens) const;
  Found resume(Session& session,
               std::span<const int32_t> tokens,
               Pos limit,
               const RecordInfo* own = nullptr) const;
  RamRecord make_mark(const Snapshot& snapshot,
                      std::span<const int32_t> tokens,
                      const Published& published,
                      MarkNotes notes) const;
  void describe_root(bool is_exact, std::vector<RamRecord>& records) const;
  RamRecord about_root(bool is_exact) const;
  void follow(Published& published, std::span<const int32_t> tokens, bool is_exact) const;
  bool is_closed(const Digest& generation);
  Digest generation_owner(const Digest& name) const;
  RecordKey object_key(const std::string& name) const;

  Tiers* tiers_;
  const PayloadFormat* format_;
  const PayloadFormat* objects_;
  PrefixOptions options_;
  std::vector<size_t> group_of_;  // per slot
  std::vector<Group> groups_;
  uint32_t parts_ = 0;  // positional groups
  Pos keep_ = 0;
  Pos after_ = 0;
  Digest encoded_root_;
  Digest exact_root_;
  std::string about_;                                        // both roots, in JSON but for the form
  std::map<Digest, std::vector<std::future<bool>>> closed_;  // by owner: barriers on their way
};

}  // namespace cairn

#endif  // CAIRN_ENGINE_PREFIX_H_
