// The one algorithm under both kinds of tokenizer: join the best adjacent pair of symbols until
// none can be joined.
//
// Symbols form a linked list over the text. Every pair that the rule allows waits in a heap, best
// first, the leftmost first among equals. A pair is stale once either side has taken part in
// another join; stale pairs are noticed when they surface (the left symbol's right neighbour or the
// pair's length has changed) and dropped. So n symbols cost O(n log n) whatever the text, a
// megabyte of one letter included.
#ifndef CAIRN_MODELS_TOKENIZER_MERGE_H_
#define CAIRN_MODELS_TOKENIZER_MERGE_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace cairn {

inline constexpr int32_t kNoToken = -1;
inline constexpr uint32_t kNoSymbol = ~uint32_t{0};

struct Symbol {
  uint32_t first;  // byte offset in the text
  uint32_t bytes;  // 0: joined to its left neighbour
  int32_t token;   // kNoToken: the vocabulary lacks it
  uint32_t next = kNoSymbol;
  uint32_t previous = kNoSymbol;
};

// What joining two symbols gives.
struct Join {
  uint32_t order;  // smaller is better
  int32_t token;
};

// Memory that one call after the other uses.
class Merger {
 public:
  void clear() { symbols_.clear(); }

  void add(uint32_t first, uint32_t bytes, int32_t token) {
    const auto index = static_cast<uint32_t>(symbols_.size());
    if (index > 0) symbols_.back().next = index;
    symbols_.push_back({first, bytes, token, kNoSymbol, index > 0 ? index - 1 : kNoSymbol});
  }

  // `rule(left, right)` returns an optional Join; it must depend on nothing but the two symbols.
  template <class Rule>
  void merge(const Rule& rule) {
    pairs_.clear();
    for (uint32_t left = 0; left + 1 < symbols_.size(); ++left)
      if (const auto pair = pair_at(left, rule)) pairs_.push_back(*pair);
    std::make_heap(pairs_.begin(), pairs_.end(), std::greater<>());
    while (!pairs_.empty()) {
      std::pop_heap(pairs_.begin(), pairs_.end(), std::greater<>());
      const Pair pair = pairs_.back();
      pairs_.pop_back();
      if (is_fresh(pair)) join(pair, rule);
    }
  }

  // Calls `use(symbol)` for what is left, in order.
  template <class Use>
  void for_each(const Use& use) const {
    if (symbols_.empty()) return;
    for (uint32_t index = 0; index != kNoSymbol; index = symbols_[index].next) use(symbols_[index]);
  }

 private:
  struct Pair {
    uint64_t rank;  // order, then the index of the left symbol
    uint32_t right;
    uint32_t bytes;  // of both together
    int32_t token;
    uint32_t left() const { return static_cast<uint32_t>(rank); }
    bool operator>(const Pair& other) const { return rank > other.rank; }
  };

  template <class Rule>
  std::optional<Pair> pair_at(uint32_t left, const Rule& rule) const {
    const uint32_t right = symbols_[left].next;
    if (right == kNoSymbol) return std::nullopt;
    const std::optional<Join> join = rule(symbols_[left], symbols_[right]);
    if (!join) return std::nullopt;
    return Pair{uint64_t{join->order} << 32 | left, right,
                symbols_[left].bytes + symbols_[right].bytes, join->token};
  }

  bool is_fresh(const Pair& pair) const {
    const Symbol& left = symbols_[pair.left()];
    return left.bytes > 0 && left.next == pair.right &&
           left.bytes + symbols_[pair.right].bytes == pair.bytes;
  }

  template <class Rule>
  void join(const Pair& pair, const Rule& rule) {
    Symbol& left = symbols_[pair.left()];
    Symbol& right = symbols_[pair.right];
    left.bytes = pair.bytes;
    left.token = pair.token;
    left.next = right.next;
    right.bytes = 0;
    if (left.next != kNoSymbol) symbols_[left.next].previous = pair.left();
    push(pair.left(), rule);
    if (left.previous != kNoSymbol) push(left.previous, rule);
  }

  template <class Rule>
  void push(uint32_t left, const Rule& rule) {
    if (const auto pair = pair_at(left, rule)) {
      pairs_.push_back(*pair);
      std::push_heap(pairs_.begin(), pairs_.end(), std::greater<>());
    }
  }

  std::vector<Symbol> symbols_;
  std::vector<Pair> pairs_;  // a heap
};

}  // namespace cairn

#endif  // CAIRN_MODELS_TOKENIZER_MERGE_H_
