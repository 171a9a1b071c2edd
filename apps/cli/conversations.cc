#include "apps/cli/conversations.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "cairn/engine/payload.h"

namespace cairn::cli {
namespace {

constexpr uint64_t kMostAboutBytes = uint64_t{64} << 10;

std::optional<About> parse_about(const Attachment& attachment) {
  using nlohmann::json;
  const std::string_view text(reinterpret_cast<const char*>(attachment.bytes.data()),
                              attachment.bytes.size());
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return std::nullopt;
  const auto field = [&](const char* name) {
    const auto found = object.find(name);
    return found != object.end() && found->is_string() ? found->get<std::string>() : "";
  };
  const std::optional<Digest> tokenizer = parse_digest(field("tokenizer"));
  if (!tokenizer) return std::nullopt;
  return About{.model = field("model"),
               .name_space = field("namespace"),
               .scheme = field("scheme"),
               .tokenizer = *tokenizer};
}

// None: the object is the host's own, or no longer there.
Result<std::optional<About>> read_about(Store& store, const RecordKey& key) {
  const auto found = CAIRN_TRY(store.find(key));
  if (!found) return std::nullopt;
  AlignedBuffer buffer;
  const auto payload = store.read(*found, buffer);
  if (!payload) {
    if (payload.error().code == Code::NotFound || payload.error().code == Code::Corrupt)
      return std::nullopt;  // evicted, or set aside just now
    return tl::unexpected<Error>(payload.error());
  }
  const auto notes = PayloadFormat().read_notes(0, 0, *payload);
  if (!notes) return std::nullopt;
  const auto about = std::ranges::find(notes->attachments, "about", &Attachment::name);
  return about == notes->attachments.end() ? std::nullopt : parse_about(*about);
}

bool begins_with(const std::vector<int32_t>& tokens, const std::vector<int32_t>& prefix) {
  return tokens.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), tokens.begin());
}

}  // namespace

Result<Conversations> Conversations::read(Store& store) {
  Conversations all;
  CAIRN_TRY(store.for_each([&](const StoredRecord& record) {
    all.add(record);
    return true;
  }));
  all.connect();
  CAIRN_TRY(all.describe(store));
  const std::vector<size_t> order = all.top_down();
  all.count(order);
  std::vector<std::pair<Entry, size_t>> found;
  for (const size_t node : order)
    if (all.is_entry(all.nodes_[node])) found.emplace_back(all.entry_of(node), node);
  std::ranges::stable_sort(
      found, [](const auto& a, const auto& b) { return a.first.last_used > b.first.last_used; });
  for (auto& [entry, leaf] : found) {
    all.entries_.push_back(std::move(entry));
    all.leaves_.push_back(leaf);
  }
  return all;
}

void Conversations::add(const StoredRecord& record) {
  Use& use = by_kind_[record.info.kind];
  ++use.records;
  use.bytes += record.stored_bytes;
  const auto [known, is_new] = by_name_.emplace(record.info.key.name, nodes_.size());
  if (is_new) nodes_.push_back({.info = record.info});
  Node& node = nodes_[known->second];
  node.parts.push_back(record.info.key.part);
  node.bytes += record.stored_bytes;
  node.last_used = std::max(node.last_used, record.last_used);
}

void Conversations::connect() {
  std::map<Digest, std::vector<size_t>> families;  // by parent, there or not
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Digest& parent = nodes_[i].info.parent;
    if (parent.is_zero()) continue;
    families[parent].push_back(i);
    if (const auto found = by_name_.find(parent); found != by_name_.end())
      nodes_[i].parent = found->second;
  }
  for (auto& [parent, children] : families) {
    set_older_ends_apart(children);
    if (const auto found = by_name_.find(parent); found != by_name_.end())
      nodes_[found->second].children = std::move(children);
  }
}

// In the order of their tokens, an end is followed by what goes on from it. Of ends with the same
// tokens the unfinished answer is the older.
void Conversations::set_older_ends_apart(std::vector<size_t>& siblings) {
  const auto rank = [&](size_t node) {
    const RecordInfo& info = nodes_[node].info;
    const bool is_finished = info.kind != RecordKind::Generation;
    return std::tuple<const std::vector<int32_t>&, bool, size_t>(info.tokens, is_finished, node);
  };
  std::ranges::sort(siblings, [&](size_t a, size_t b) { return rank(a) < rank(b); });
  const auto goes_on = [&](size_t from, size_t to) {
    const RecordKind kind = nodes_[from].info.kind;
    return (kind == RecordKind::Mark || kind == RecordKind::Generation) &&
           begins_with(nodes_[to].info.tokens, nodes_[from].info.tokens);
  };
  for (size_t i = 0; i + 1 < siblings.size(); ++i)
    nodes_[siblings[i]].is_older_end = goes_on(siblings[i], siblings[i + 1]);
  for (size_t i = 0; i < siblings.size(); ++i) {
    if (!nodes_[siblings[i]].is_older_end) continue;
    for (size_t j = i + 1; j < siblings.size() && goes_on(siblings[i], siblings[j]); ++j)
      if (!nodes_[siblings[j]].is_older_end) nodes_[siblings[j]].older.push_back(siblings[i]);
  }
  std::erase_if(siblings, [&](size_t node) { return nodes_[node].is_older_end; });
}

Result<void> Conversations::describe(Store& store) {
  for (Node& node : nodes_)
    if (node.info.kind == RecordKind::Object && node.info.payload_bytes <= kMostAboutBytes)
      node.about = CAIRN_TRY(read_about(store, node.info.key));
  return {};
}

// Whatever has no end of this order above it (damage alone makes circles) is left out.
std::vector<size_t> Conversations::top_down() const {
  std::vector<size_t> order;
  for (size_t i = 0; i < nodes_.size(); ++i)
    if (nodes_[i].parent == kNone && !nodes_[i].is_older_end) order.push_back(i);
  for (size_t at = 0; at < order.size(); ++at) {
    const std::vector<size_t>& children = nodes_[order[at]].children;
    order.insert(order.end(), children.begin(), children.end());
  }
  return order;
}

bool Conversations::is_entry(const Node& node) const {
  return node.children.empty() && !node.about;
}

void Conversations::count(const std::vector<size_t>& order) {
  for (auto at = order.rbegin(); at != order.rend(); ++at) {
    Node& node = nodes_[*at];
    node.entries = is_entry(node) ? 1 : 0;
    for (const size_t child : node.children) node.entries += nodes_[child].entries;
    for (const size_t end : node.older) nodes_[end].entries += node.entries;
  }
}

template <class Visit>
void Conversations::walk(size_t leaf, const Visit& visit) const {
  for (size_t node = leaf; node != kNone; node = nodes_[node].parent) {
    visit(node);
    for (const size_t end : nodes_[node].older) visit(end);
  }
}

Entry Conversations::entry_of(size_t leaf) const {
  const RecordInfo& last = nodes_[leaf].info;
  Entry entry{.name = last.key.name, .about = {}, .first_tokens = {}, .tokens = last.length};
  if (last.kind == RecordKind::Object) entry.kind = EntryKind::object;
  std::vector<size_t> path;  // of tokens, from the end up
  walk(leaf, [&](size_t i) {
    const Node& node = nodes_[i];
    if (node.about) {
      entry.about = node.about;
      return;
    }
    entry.bytes += node.bytes;
    if (node.entries > 1) {
      entry.shared_bytes += node.bytes;
    } else {
      entry.last_used = std::max(entry.last_used, node.last_used);
      if (node.info.kind == RecordKind::Generation) entry.kind = EntryKind::unfinished_answer;
    }
    if (!node.is_older_end) path.push_back(i);
  });
  const RecordInfo& first = nodes_[path.back()].info;
  entry.has_beginning = first.length == first.tokens.size();
  for (; !path.empty() && entry.first_tokens.size() < kFirstTokens; path.pop_back()) {
    const std::vector<int32_t>& tokens = nodes_[path.back()].info.tokens;
    const size_t count = std::min(tokens.size(), kFirstTokens - entry.first_tokens.size());
    entry.first_tokens.insert(entry.first_tokens.end(), tokens.begin(),
                              tokens.begin() + static_cast<ptrdiff_t>(count));
  }
  return entry;
}

std::vector<RecordKey> Conversations::only_of(const std::set<size_t>& chosen) const {
  std::map<size_t, uint64_t> of_chosen;  // entries, by node
  for (const size_t entry : chosen) walk(leaves_[entry], [&](size_t node) { ++of_chosen[node]; });
  std::vector<RecordKey> keys;
  for (const auto& [node, entries] : of_chosen) {
    if (entries < nodes_[node].entries) continue;
    for (const uint32_t part : nodes_[node].parts)
      keys.push_back({nodes_[node].info.key.name, part});
  }
  return keys;
}

}  // namespace cairn::cli
