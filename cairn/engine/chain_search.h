// What the tiers have along one chain of span names: how many whole spans, the windows at a
// length, and what may go on after them. Each record is asked for once.
#ifndef CAIRN_ENGINE_CHAIN_SEARCH_H_
#define CAIRN_ENGINE_CHAIN_SEARCH_H_

#include <map>
#include <set>
#include <vector>

#include "cairn/engine/tiers.h"
#include "cairn/state/retention.h"
#include "cairn/store/key.h"

namespace cairn {

class ChainSearch {
 public:
  struct Group {  // a positional one
    Retention retention;
    uint32_t part;  // of spans
  };

  // `excluded` is what turned out not to be there. All that is referred to outlives this.
  ChainSearch(Tiers& tiers,
              const Chain& chain,
              uint32_t span_positions,
              std::vector<Group> groups,
              bool needs_mark,
              const std::set<RecordKey>& excluded);

  // As many spans as every group that keeps everything has, up to `most`.
  Pos whole_spans(Pos most);
  // The windows of a sequence of `length` positions whose first `spans` are whole.
  bool has_windows(Pos length, Pos spans);
  // What may have the positions after `spans` whole ones.
  std::vector<RecordInfo> partials(Pos spans);

 private:
  bool has(const RecordKey& key);
  RecordKey key_of(Pos span, uint32_t part) const { return {chain_.name(span + 1), part}; }
  std::vector<RecordInfo> children(const Digest& parent, RecordKind kind);

  Tiers& tiers_;
  const Chain& chain_;
  const Pos span_;
  const std::vector<Group> groups_;
  const bool needs_mark_;
  const std::set<RecordKey>& excluded_;
  std::map<RecordKey, bool> known_;
};

}  // namespace cairn

#endif  // CAIRN_ENGINE_CHAIN_SEARCH_H_
