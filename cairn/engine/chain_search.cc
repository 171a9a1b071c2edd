#include "cairn/engine/chain_search.h"

#include <algorithm>

namespace cairn {

ChainSearch::ChainSearch(Tiers& tiers,
                         const Chain& chain,
                         uint32_t span_positions,
                         std::vector<Group> groups,
                         bool needs_mark,
                         const std::set<RecordKey>& excluded)
    : tiers_(tiers),
      chain_(chain),
      span_(span_positions),
      groups_(std::move(groups)),
      needs_mark_(needs_mark),
      excluded_(excluded) {}

bool ChainSearch::has(const RecordKey& key) {
  if (const auto known = known_.find(key); known != known_.end()) return known->second;
  const bool there = !excluded_.contains(key) && tiers_.contains(key);
  known_.emplace(key, there);
  return there;
}

Pos ChainSearch::whole_spans(Pos most) {
  for (const Group& group : groups_) {
    if (!group.retention.keeps_all()) continue;
    Pos low = 0;  // has low spans, as far as the last one tells
    while (low < most) {
      const Pos middle = low + (most - low + 1) / 2;
      if (has(key_of(middle - 1, group.part)))
        low = middle;
      else
        most = middle - 1;
    }
  }
  return most;
}

bool ChainSearch::has_windows(Pos length, Pos spans) {
  for (const Group& group : groups_) {
    if (group.retention.keeps_all()) continue;
    const Pos sink_spans = std::min(spans, (group.retention.sinks + span_ - 1) / span_);
    for (Pos span = 0; span < sink_spans; ++span)
      if (!has(key_of(span, group.part))) return false;
    for (Pos span = group.retention.first_needed(length) / span_; span < spans; ++span)
      if (!has(key_of(span, group.part))) return false;
  }
  return true;
}

std::vector<RecordInfo> ChainSearch::partials(Pos spans) {
  const Digest& parent = chain_.name(spans);
  std::vector<RecordInfo> found = children(parent, RecordKind::Mark);
  if (needs_mark_) return found;
  for (RecordInfo& span : children(parent, RecordKind::Span)) {
    const bool is_whole = std::ranges::all_of(groups_, [&](const Group& group) {
      return has({span.key.name, group.part});
    });
    if (is_whole) found.push_back(std::move(span));
  }
  return found;
}

std::vector<RecordInfo> ChainSearch::children(const Digest& parent, RecordKind kind) {
  std::vector<RecordInfo> all = tiers_.ram().children(parent, kind);
  if (tiers_.store() != nullptr) {
    const auto stored = tiers_.store()->children(parent, kind);
    if (!stored) tiers_.report(stored.error());
    if (stored)
      for (const StoredRecord& record : *stored) all.push_back(record.info);
  }
  std::erase_if(all, [&](const RecordInfo& info) { return excluded_.contains(info.key); });
  return all;
}

}  // namespace cairn
