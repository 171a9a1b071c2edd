#include "cairn/engine/prefix.h"

#include <openssl/rand.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "cairn/engine/chain_search.h"
#include "cairn/engine/description.h"
#include "cairn/engine/prefault.h"
#include "cairn/engine/workers.h"

namespace cairn {
namespace {

constexpr int kMostTries = 16;  // each finds less than the one before

constexpr std::string_view kTokens = "cairn.tokens";  // an attachment of our own

Digest random_digest() {
  Digest digest;
  CAIRN_CHECK(RAND_bytes(digest.bytes.data(), static_cast<int>(digest.bytes.size())) == 1,
              "prefix: the system has no random bytes");
  return digest;
}

std::string_view as_text(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size()};
}

std::string_view as_text(std::span<const int32_t> tokens) {
  return {reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes()};
}

Digest named(std::string_view secret, std::initializer_list<std::string_view> parts) {
  return keyed_name(secret, std::span(parts.begin(), parts.size()));
}

Pos common_length(std::span<const int32_t> a, std::span<const int32_t> b) {
  return static_cast<Pos>(std::ranges::mismatch(a, b).in1 - a.begin());
}

std::span<const int32_t> slice(std::span<const int32_t> tokens, Pos first, Pos count) {
  first = std::min<Pos>(first, tokens.size());
  return tokens.subspan(first, std::min<Pos>(count, tokens.size() - first));
}

}  // namespace

Published::Published() : owner_(random_digest()) {}

Result<Prefixes> Prefixes::make(const Session& session, Tiers& tiers, PrefixOptions options) {
  const CheckpointInfo info = CAIRN_TRY(describe_session(
      session.spec(), session.scheme(), session.registry(), options.name_space, 0));
  return Prefixes(session, tiers, std::move(options), fingerprint_of(info));
}

Prefixes::Prefixes(const Session& session,
                   Tiers& tiers,
                   PrefixOptions options,
                   const Digest& fingerprint)
    : tiers_(&tiers),
      format_(&tiers.keep(PayloadFormat(session))),
      objects_(&tiers.keep(PayloadFormat())),
      options_(std::move(options)) {
  for (const SlotId slot : session.slots()) group_of_.push_back(session.group_of(slot));
  for (size_t i = 0; i < session.groups(); ++i) {
    const Forms& forms = session.group(i).forms();
    Group group{.is_recurrent = session.is_recurrent(i),
                .retention = session.group(i).retention(),
                .encoded = forms.encoded.pool,
                .exact = forms.exact ? forms.exact->pool : nullptr};
    if (!group.is_recurrent) {
      group.part = parts_++;
      keep_ = forms.keep;
      after_ = forms.after;
    }
    groups_.push_back(group);
  }
  const std::string positions = std::to_string(session.page_positions());
  about_ = nlohmann::ordered_json({{"model", options_.about},
                                   {"identity", hex(session.spec().identity)},
                                   {"tokenizer", hex(session.spec().tokenizer)},
                                   {"scheme", print(session.scheme())},
                                   {"namespace", options_.name_space},
                                   {"page_positions", session.page_positions()}})
               .dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  about_.pop_back();  // the form follows
  const Digest layouts = format_->layouts();
  for (const bool is_exact : {false, true})
    (is_exact ? exact_root_ : encoded_root_) =
        named(options_.secret, {"span", as_text(layouts), as_text(fingerprint), options_.name_space,
                                positions, is_exact ? "exact" : "encoded"});
}

PagePool& Prefixes::pool(size_t group, Pos first, bool is_exact) const {
  const Group& of = groups_[group];
  return !of.is_recurrent && first < exact_end(is_exact) ? *of.exact : *of.encoded;
}

uint64_t Prefixes::span_bytes(size_t group, Pos first, bool is_exact) const {
  return format_->layout(group, first, exact_end(is_exact)).page_bytes;
}

// --- searching

// Where a sequence can resume, and by which records.
struct Prefixes::Search {
  Pos length = 0;  // 0: nowhere
  bool is_exact = false;
  Pos spans = 0;                      // whole ones
  std::optional<RecordInfo> partial;  // has the positions after them: a mark or a span
  std::optional<Chain> chain;
};

Prefixes::Search Prefixes::search(std::span<const int32_t> tokens,
                                  Pos limit,
                                  const Excluded& excluded,
                                  const RecordInfo* own) const {
  const uint32_t span = span_positions();
  limit = std::min<Pos>(limit, tokens.size());
  const bool needs_mark = format_->has_recurrent();
  std::vector<ChainSearch::Group> groups;
  for (const Group& group : groups_)
    if (!group.is_recurrent) groups.push_back({group.retention, group.part});

  Search best;
  for (const bool is_exact : {false, true}) {
    if (is_exact && after_ == 0) continue;
    const auto may_resume = [&](Pos length) {
      return length > best.length && (after_ == 0 || (length < after_) == is_exact);
    };
    const Pos most = is_exact ? std::min(limit, after_ - 1) : limit;
    Chain chain(root(is_exact), tokens.first(most), span);
    ChainSearch along(*tiers_, chain, span, groups, needs_mark, excluded);
    for (Pos spans = along.whole_spans(chain.spans()) + 1; spans-- > 0;) {
      if (!may_resume(std::min(most, (spans + 1) * span))) break;
      Search here{.is_exact = is_exact, .spans = spans};
      const auto consider = [&](Pos length, std::optional<RecordInfo> partial) {
        if (length <= here.length || length > most || !may_resume(length)) return;
        if (!along.has_windows(length, spans)) return;
        here.length = length;
        here.partial = std::move(partial);
      };
      if (!needs_mark) consider(spans * span, std::nullopt);
      std::vector<RecordInfo> partials = along.partials(spans);
      if (own != nullptr && own->parent == chain.name(spans) && !excluded.contains(own->key))
        partials.push_back(*own);
      for (RecordInfo& partial : partials) {
        const Pos common =
            common_length(slice(tokens, spans * span, most - spans * span), partial.tokens);
        if (needs_mark && common < partial.tokens.size()) continue;
        const Pos length = spans * span + common;
        consider(length, std::move(partial));
      }
      if (here.length == 0) continue;
      best = std::move(here);
      best.chain = chain;
      break;
    }
  }
  return best;
}

Pos Prefixes::longest(std::span<const int32_t> prompt) const {
  return prompt.empty() ? 0 : search(prompt, prompt.size() - 1, {}).length;
}

// --- gathering pages

// The pages of a sequence that resumes; nothing of them is anybody's yet.
struct Prefixes::Gathered {
  Search search;
  std::map<std::pair<size_t, Pos>, PageRef> pages;  // by group and index
  std::vector<Pos> first_kept;                      // per group
  std::vector<RecordKey> keys;                      // of the chain, from its root on
  Pos from_disk = 0;                                // positions
  MarkNotes notes;
};

namespace {

// One record to be read from the disk, and the pages it fills.
struct DiskRead {
  RecordKey key;
  Pos first = 0;                           // position of its first token
  std::span<const int32_t> tokens;         // it must have them, or begin with them
  std::vector<std::pair<size_t, Pos>> at;  // of a mark: per group
  std::vector<PageRef> pages;
  RecordInfo info;
  MarkNotes notes;
};

}  // namespace

Result<Prefixes::Gathered> Prefixes::gather(const Search& search,
                                            std::span<const int32_t> tokens,
                                            Excluded& excluded) const {
  const Pos span = span_positions(), length = search.length;
  const Pos tail_first = search.spans * span;
  const auto fail_on = [&](const RecordKey& key) {
    excluded.insert(key);
    return fail(Code::NotFound, "prefix: a record is no longer there");
  };
  Gathered gathered{.search = search};
  std::vector<DiskRead> reads;
  const bool has_mark = search.partial && search.partial->kind != RecordKind::Span;

  // Whole spans, and the span that is used in part.
  const auto want = [&](size_t group, Pos index) -> Result<void> {
    const bool is_partial = index == search.spans;
    const RecordKey key{is_partial ? search.partial->key.name : search.chain->name(index + 1),
                        groups_[group].part};
    const auto expected = slice(tokens, index * span, std::min(span, length - index * span));
    if (groups_[group].part == 0 || groups_[group].retention.keeps_all())
      gathered.keys.push_back(key);
    if (auto record = tiers_->ram().find(key)) {
      if (common_length(record->info.tokens, expected) < expected.size()) return fail_on(key);
      gathered.pages.emplace(std::pair(group, index), std::move(record->pages[0]));
      return {};
    }
    PageRef page = CAIRN_TRY(pool(group, index * span, search.is_exact).take());
    DiskRead read{.key = key, .first = index * span, .tokens = expected, .at = {{group, index}}};
    read.pages.push_back(std::move(page));
    reads.push_back(std::move(read));
    return {};
  };

  for (size_t group = 0; group < groups_.size(); ++group) {
    const Retention& retention = groups_[group].retention;
    gathered.first_kept.push_back(0);
    if (groups_[group].is_recurrent) continue;
    Pos first = 0;  // page index
    if (!retention.keeps_all()) {
      first = retention.first_needed(length) / span;
      // As much of what a sequence of this length would hold as there is.
      const Pos wanted = retention.first_kept(length) / span;
      while (first > wanted &&
             !excluded.contains({search.chain->name(first), groups_[group].part}) &&
             tiers_->contains({search.chain->name(first), groups_[group].part}))
        --first;
      const Pos sink_pages = (retention.sinks + span - 1) / span;
      if (first <= sink_pages) first = 0;
      gathered.first_kept[group] =
          first == 0 ? 0 : std::max(first * span, retention.first_kept(length));
      for (Pos index = 0; first > 0 && index < sink_pages; ++index) CAIRN_TRY(want(group, index));
    }
    const Pos end = has_mark ? search.spans : (length + span - 1) / span;
    for (Pos index = first; index < end; ++index) CAIRN_TRY(want(group, index));
  }

  // The mark.
  if (has_mark) {
    const RecordInfo& info = *search.partial;
    const Pos used = length - tail_first;
    gathered.keys.push_back(info.key);
    if (auto record = tiers_->ram().find(info.key)) {
      for (size_t group = 0; group < groups_.size(); ++group)
        if (record->pages[group])
          gathered.pages.emplace(std::pair(group, groups_[group].is_recurrent ? 0 : search.spans),
                                 std::move(record->pages[group]));
      if (used == record->info.tokens.size()) gathered.notes = std::move(record->notes);
    } else {
      DiskRead read{.key = info.key, .first = tail_first, .tokens = info.tokens};
      for (size_t group = 0; group < groups_.size(); ++group) {
        if (!groups_[group].is_recurrent && info.length == tail_first) continue;
        PageRef page = CAIRN_TRY(pool(group, tail_first, search.is_exact).take());
        read.at.emplace_back(group, groups_[group].is_recurrent ? 0 : search.spans);
        read.pages.push_back(std::move(page));
      }
      reads.push_back(std::move(read));
    }
  }

  // What RAM lacks.
  std::vector<AlignedBuffer> buffers(std::max(options_.threads, 1u));
  std::mutex mutex;
  const auto read_one = [&](size_t job, uint32_t worker) -> Result<void> {
    DiskRead& read = reads[job];
    const auto absent = [&]() -> Result<void> {
      const std::lock_guard lock(mutex);
      return fail_on(read.key);
    };
    const auto found = tiers_->store()->find(read.key);
    if (!found || !*found) return absent();
    const StoredRecord& stored = **found;
    const bool is_mark = stored.info.kind != RecordKind::Span;
    if (common_length(stored.info.tokens, read.tokens) < read.tokens.size()) return absent();
    const auto failed = [&](const Error& error) {
      if (error.code != Code::NotFound) tiers_->report(error);
      return absent();
    };
    if (!is_mark &&
        stored.info.payload_bytes != span_bytes(read.at[0].first, read.first, search.is_exact))
      return absent();
    // By way of a buffer: reads into memory that the caches hold take two thirds of the time of
    // those into a page.
    CAIRN_TRY(buffers[worker].reserve(kLargeBuffer));
    const auto payload = tiers_->store()->read(stored, buffers[worker]);
    if (!payload) return failed(payload.error());
    if (!is_mark) {
      fill(read.pages[0].data(), *payload);
    } else {
      auto notes = format_->read_notes(stored.info.length, exact_end(search.is_exact), *payload);
      if (!notes) return absent();
      read.notes = std::move(*notes);
      for (size_t i = 0; i < read.at.size(); ++i)
        format_->place_mark(stored.info.length, exact_end(search.is_exact), *payload,
                            read.at[i].first, static_cast<uint32_t>(stored.info.tokens.size()),
                            read.pages[i].data());
    }
    read.info = stored.info;
    return {};
  };
  if (!reads.empty() && tiers_->store() == nullptr) return fail_on(reads[0].key);
  std::vector<std::span<std::byte>> wanted;
  for (const DiskRead& read : reads)
    for (const PageRef& page : read.pages) wanted.emplace_back(page.data(), page.bytes());
  prefault_pages(std::move(wanted), options_.threads);
  CAIRN_TRY(run_jobs(reads.size(), options_.threads, read_one));

  // For the next hit, and for this one.
  std::set<Pos> from_disk;
  for (DiskRead& read : reads) {
    RamRecord record{.info = read.info, .exact_end = exact_end(search.is_exact), .format = format_};
    record.pages.resize(read.info.kind == RecordKind::Span ? 1 : groups_.size());
    for (size_t i = 0; i < read.at.size(); ++i) {
      const size_t place = read.info.kind == RecordKind::Span ? 0 : read.at[i].first;
      record.pages[place] = read.pages[i].share();
      gathered.pages.emplace(read.at[i], std::move(read.pages[i]));
    }
    if (read.info.kind != RecordKind::Span && read.info.length == length)
      gathered.notes = read.notes;
    record.notes = std::move(read.notes);
    from_disk.insert(read.first);
    if (read.info.kind != RecordKind::Generation) tiers_->promote(std::move(record));
  }
  for (const Pos first : from_disk)
    gathered.from_disk += std::min(span, length - std::min(first, length));
  if (parts_ == 0 && !from_disk.empty()) gathered.from_disk = length;  // there is but the mark
  tiers_->touch(gathered.keys);
  return gathered;
}

std::optional<Prefixes::Gathered> Prefixes::gather_longest(std::span<const int32_t> tokens,
                                                           Pos limit,
                                                           const RecordInfo* own) const {
  Excluded excluded;
  for (int i = 0; i < kMostTries; ++i) {
    const Search found = search(tokens, limit, excluded, own);
    if (found.length == 0) break;
    auto gathered = gather(found, tokens, excluded);
    if (gathered) return std::move(*gathered);
    if (gathered.error().code == Code::NoSpace) break;  // a plan might still succeed without us
  }
  return std::nullopt;
}

std::optional<Found> Prefixes::adopt(Session& session,
                                     Gathered gathered,
                                     std::span<const int32_t> tokens) const {
  const Search& search = gathered.search;
  std::vector<Pos> first_kept;
  for (const size_t group : group_of_)
    first_kept.push_back(std::max(gathered.first_kept[group],
                                  std::min(search.length, groups_[group].retention.sinks)));
  auto arrival = session.arrive(search.length, first_kept, [&](size_t group, Pos index) {
    const auto page = gathered.pages.find({group, index});
    CAIRN_CHECK(page != gathered.pages.end(), "prefix: page {} of group {} was not gathered", index,
                group);
    return page->second.share();
  });
  if (!arrival) return std::nullopt;
  Found found{.length = search.length,
              .from_ram = search.length - gathered.from_disk,
              .from_disk = gathered.from_disk,
              .notes = std::move(gathered.notes)};
  found.seq = arrival->commit();
  found.published.chain_ = search.chain;
  found.published.is_exact_ = search.is_exact;
  found.published.spans_ = search.spans;
  const auto hashed = tokens.first(search.chain->spans() * span_positions());
  found.published.tokens_.assign(hashed.begin(), hashed.end());
  return found;
}

Found Prefixes::resume(Session& session,
                       std::span<const int32_t> tokens,
                       Pos limit,
                       const RecordInfo* own) const {
  if (limit > 0)
    if (auto gathered = gather_longest(tokens, limit, own))
      if (auto found = adopt(session, std::move(*gathered), tokens)) return std::move(*found);
  Found none;
  none.seq = session.start();
  return none;
}

Found Prefixes::find(Session& session, std::span<const int32_t> prompt) {
  return resume(session, prompt, prompt.empty() ? 0 : prompt.size() - 1);
}

Prefixes::Pin Prefixes::prefetch(std::span<const int32_t> prompt) const {
  Pin pin;
  auto gathered = prompt.empty() ? std::nullopt : gather_longest(prompt, prompt.size() - 1);
  if (!gathered) return pin;
  pin.length = gathered->search.length;
  for (auto& [place, page] : gathered->pages) pin.pages.push_back(std::move(page));
  return pin;
}

// --- publishing

// Makes the chain that of `tokens`, in the given form. Tokens that turned out differently (a turn
// that was redone) are published anew.
void Prefixes::follow(Published& published, std::span<const int32_t> tokens, bool is_exact) const {
  const Pos hashed = published.chain_ ? published.chain_->spans() * span_positions() : 0;
  const Pos common = common_length(slice(published.tokens_, 0, hashed), tokens);
  const bool goes_on = published.chain_ && published.is_exact_ == is_exact && common == hashed;
  if (!goes_on) {
    const bool same_form = published.chain_ && published.is_exact_ == is_exact;
    published.chain_.emplace(root(is_exact), tokens, span_positions());
    published.spans_ = same_form ? std::min(published.spans_, common / span_positions()) : 0;
    published.is_exact_ = is_exact;
  } else {
    published.chain_->extend(tokens);
  }
  const auto now = tokens.first(published.chain_->spans() * span_positions());
  if (goes_on)
    published.tokens_.insert(published.tokens_.end(),
                             now.begin() + static_cast<ptrdiff_t>(published.tokens_.size()),
                             now.end());
  else
    published.tokens_.assign(now.begin(), now.end());
}

void Prefixes::publish(const Session& session,
                       SeqId seq,
                       std::span<const int32_t> tokens,
                       Published& published) {
  const Pos length = session.length(seq), span = span_positions();
  CAIRN_CHECK(tokens.size() >= length, "prefix: {} tokens, expected one for each of {} positions",
              tokens.size(), length);
  if (session.is_derived(seq)) return;
  const bool is_exact = length < after_;
  follow(published, tokens.first(length), is_exact);
  if (published.spans_ >= published.chain_->spans()) return;

  const Snapshot snapshot = session.snapshot(seq);
  std::vector<Pos> first_kept(groups_.size());
  for (size_t slot = 0; slot < group_of_.size(); ++slot)
    first_kept[group_of_[slot]] = snapshot.first_kept(SlotId{static_cast<uint32_t>(slot)});
  std::vector<RamRecord> records;
  describe_root(is_exact, records);
  std::vector<RecordKey> chain;
  for (Pos index = 0; index < published.chain_->spans(); ++index)
    chain.push_back({published.chain_->name(index + 1), 0});
  for (Pos index = published.spans_; index < published.chain_->spans(); ++index) {
    for (size_t group = 0; group < groups_.size(); ++group) {
      const Retention& retention = groups_[group].retention;
      if (groups_[group].is_recurrent) continue;
      const Pos first = index * span;
      const bool is_held = first >= first_kept[group] || first_kept[group] <= retention.sinks ||
                           first + span <= retention.sinks;
      PageRef page = is_held ? snapshot.page(group, index) : PageRef();
      if (!page) continue;
      const auto own = slice(tokens, first, span);
      RamRecord record{.info = {.key = {published.chain_->name(index + 1), groups_[group].part},
                                .kind = RecordKind::Span,
                                .parent = published.chain_->name(index),
                                .owner = {},
                                .tokens = {own.begin(), own.end()},
                                .length = first + span,
                                .payload_bytes = span_bytes(group, first, is_exact)},
                       .exact_end = exact_end(is_exact),
                       .format = format_};
      record.pages.push_back(std::move(page));
      records.push_back(std::move(record));
    }
  }
  published.spans_ = published.chain_->spans();
  tiers_->publish(std::move(records));
  tiers_->ram().touch(chain);
}

// What a root stands for comes before the first record below it.
void Prefixes::describe_root(bool is_exact, std::vector<RamRecord>& records) const {
  if (!tiers_->contains({root(is_exact), 0})) records.push_back(about_root(is_exact));
}

RamRecord Prefixes::about_root(bool is_exact) const {
  const std::string text =
      fmt::format("{},\"form\":\"{}\"}}", about_, is_exact ? "exact" : "encoded");
  const auto bytes = std::as_bytes(std::span(text));
  RamRecord object{
      .info = {.key = {root(is_exact), 0}, .kind = RecordKind::Object},
      .notes = {.pending = {}, .attachments = {{"about", {bytes.begin(), bytes.end()}}}},
      .format = objects_};
  object.info.payload_bytes = objects_->mark_bytes(0, 0, object.notes);
  return object;
}

RamRecord Prefixes::make_mark(const Snapshot& snapshot,
                              std::span<const int32_t> tokens,
                              const Published& published,
                              MarkNotes notes) const {
  const Pos length = snapshot.length(), span = span_positions();
  const Pos spans = length / span;
  const auto tail = slice(tokens, spans * span, length % span);
  const Digest& parent = published.chain_->name(spans);
  RamRecord mark{.info = {.key = {named({}, {"mark", as_text(parent), as_text(tail)}), 0},
                          .kind = RecordKind::Mark,
                          .parent = parent,
                          .owner = {},
                          .tokens = {tail.begin(), tail.end()},
                          .length = length},
                 .exact_end = exact_end(published.is_exact_),
                 .notes = std::move(notes),
                 .format = format_};
  for (size_t group = 0; group < groups_.size(); ++group) {
    const bool is_recurrent = groups_[group].is_recurrent;
    const bool has_page = is_recurrent ? length > 0 : !tail.empty();
    mark.pages.push_back(has_page ? snapshot.page(group, is_recurrent ? 0 : spans) : PageRef());
  }
  mark.info.payload_bytes = format_->mark_bytes(length, mark.exact_end, mark.notes);
  return mark;
}

void Prefixes::mark(const Session& session,
                    SeqId seq,
                    std::span<const int32_t> tokens,
                    Published& published,
                    MarkUse use,
                    MarkNotes notes) {
  publish(session, seq, tokens, published);
  const Pos length = session.length(seq);
  const bool is_worth_it =
      length % span_positions() != 0 || format_->has_recurrent() || notes != MarkNotes();
  if (session.is_derived(seq) || length == 0 || !is_worth_it) return;
  RamRecord mark = make_mark(session.snapshot(seq), tokens, published, std::move(notes));
  if (use == MarkUse::Turn) mark.info.owner = published.owner_;
  std::vector<RamRecord> records;
  describe_root(published.is_exact_, records);
  records.push_back(std::move(mark));
  tiers_->publish(std::move(records));
}

// --- unfinished answers

Digest Prefixes::generation_owner(const Digest& name) const {
  return named(options_.secret, {"generation", as_text(encoded_root_), as_text(name)});
}

bool Prefixes::is_closed(const Digest& owner) {
  const auto found = closed_.find(owner);
  if (found == closed_.end()) return false;
  bool is_removed = false;
  for (std::future<bool>& barrier : found->second) {
    if (barrier.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return true;
  }
  for (std::future<bool>& barrier : found->second) is_removed = barrier.get();
  found->second.clear();
  if (is_removed) {
    closed_.erase(found);
    return false;
  }
  std::promise<bool> failure;  // stays closed until a later one succeeds
  failure.set_value(false);
  found->second.push_back(failure.get_future());
  return true;
}

void Prefixes::save_generation(const Session& session,
                               SeqId seq,
                               std::span<const int32_t> tokens,
                               Published& published,
                               const Digest& name,
                               MarkNotes notes) {
  const Digest owner = generation_owner(name);
  const Pos length = session.length(seq);
  if (session.is_derived(seq) || length == 0 || is_closed(owner)) return;
  publish(session, seq, tokens, published);
  const auto computed = std::as_bytes(tokens.first(length));
  notes.attachments.push_back(
      {.name = std::string(kTokens), .bytes = {computed.begin(), computed.end()}});
  RamRecord mark = make_mark(session.snapshot(seq), tokens, published, std::move(notes));
  mark.info.kind = RecordKind::Generation;
  mark.info.key.name = named({}, {"generation", as_text(owner), as_text(mark.info.key.name)});
  mark.info.owner = owner;
  std::vector<RamRecord> records;
  describe_root(published.is_exact_, records);
  records.push_back(std::move(mark));
  tiers_->publish(std::move(records));
}

std::optional<Prefixes::Generation> Prefixes::find_generation(Session& session,
                                                              const Digest& name) {
  const Digest owner = generation_owner(name);
  if (is_closed(owner)) return std::nullopt;
  std::vector<RecordInfo> all = tiers_->owned_by(owner, RecordKind::Generation);
  std::ranges::sort(all, std::ranges::greater(), &RecordInfo::length);
  for (const RecordInfo& info : all) {
    const auto notes = tiers_->notes_of(info, *format_, exact_end(info.length < after_));
    if (!notes) continue;
    Generation generation{.notes = *notes};
    const auto own = std::ranges::find(generation.notes.attachments, kTokens, &Attachment::name);
    if (own == generation.notes.attachments.end() ||
        own->bytes.size() != info.length * sizeof(int32_t))
      continue;
    generation.tokens.resize(info.length);
    std::memcpy(generation.tokens.data(), own->bytes.data(), own->bytes.size());
    generation.notes.attachments.erase(own);
    generation.found = resume(session, generation.tokens, info.length, &info);
    return generation;
  }
  return std::nullopt;
}

void Prefixes::finish_generation(const Digest& name) {
  const Digest owner = generation_owner(name);
  closed_[owner].push_back(tiers_->remove_owned(owner, RecordKind::Generation));
}

// --- objects

RecordKey Prefixes::object_key(const std::string& name) const {
  return {named(options_.secret, {"object", options_.name_space, name}), 0};
}

void Prefixes::put_object(const std::string& name, std::vector<Attachment> tensors) {
  RamRecord object{.info = {.key = object_key(name), .kind = RecordKind::Object},
                   .notes = {.pending = {}, .attachments = std::move(tensors)},
                   .format = objects_};
  object.info.payload_bytes = objects_->mark_bytes(0, 0, object.notes);
  std::vector<RamRecord> records;
  records.push_back(std::move(object));
  tiers_->publish(std::move(records));
}

std::optional<std::vector<Attachment>> Prefixes::find_object(const std::string& name) const {
  auto notes =
      tiers_->notes_of({.key = object_key(name), .kind = RecordKind::Object}, *objects_, 0);
  if (!notes) return std::nullopt;
  return std::move(notes->attachments);
}

}  // namespace cairn
