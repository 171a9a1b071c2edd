#include "cairn/runtime/speculate.h"

#include <algorithm>

namespace cairn {
namespace {

// Of the tokens before `place`. Exact for vocabularies below 2^21 tokens; beyond them a wrong place
// may turn up, which comparing finds out.
uint64_t key_before(std::span<const int32_t> tokens, size_t place) {
  uint64_t key = 0;
  for (const int32_t token :
       tokens.subspan(place - PromptLookup::kShortest, PromptLookup::kShortest))
    key = (key << 21) ^ static_cast<uint32_t>(token);
  return key;
}

// How many tokens before `place` are those at the end, in the same order.
size_t agreement(std::span<const int32_t> tokens, size_t place) {
  const size_t most = std::min(place, PromptLookup::kLongest);
  size_t count = 0;
  while (count < most && tokens[place - 1 - count] == tokens[tokens.size() - 1 - count]) ++count;
  return count;
}

}  // namespace

// Every place that a token follows.
void PromptLookup::index(Tokens tokens) {
  size_t place = std::max(older_.size(), kShortest);
  older_.resize(std::max(older_.size(), tokens.size()));
  for (; place < tokens.size(); ++place) {
    uint32_t& newest = newest_[key_before(tokens, place)];
    older_[place] = std::exchange(newest, static_cast<uint32_t>(place));
  }
}

size_t PromptLookup::best_place(Tokens tokens) const {
  const auto newest = newest_.find(key_before(tokens, tokens.size()));
  if (newest == newest_.end()) return 0;
  size_t best = 0, longest = kShortest - 1;
  uint32_t place = newest->second;
  for (size_t i = 0; i < kPlaces && place != 0 && longest < kLongest; ++i, place = older_[place]) {
    const size_t count = agreement(tokens, place);
    if (count > longest) longest = count, best = place;
  }
  return best;
}

std::vector<int32_t> PromptLookup::propose(const Conversation& conversation, uint32_t most) {
  const Tokens tokens = conversation.tokens;
  CAIRN_CHECK(tokens.size() >= older_.size(), "prompt look-up: {} tokens, {} before", tokens.size(),
              older_.size());
  index(tokens);
  std::vector<int32_t> drafts;
  const size_t place = tokens.size() < kShortest ? 0 : best_place(tokens);
  if (place == 0) return drafts;
  // Past the end the text goes on with the drafts themselves: it repeats with a short period.
  for (size_t i = place; drafts.size() < most; ++i)
    drafts.push_back(i < tokens.size() ? tokens[i] : drafts[i - tokens.size()]);
  return drafts;
}

uint32_t DraftLength::next() {
  if (pause_left_ == 0) return length_;
  --pause_left_;
  return 0;
}

void DraftLength::learn(uint32_t drafted, uint32_t accepted) {
  if (drafted == 0) return;
  length_ = std::min(most_, accepted == drafted ? std::max(length_, 2 * drafted) : accepted + 1);
  pause_ = accepted > 0 ? 0 : std::min(2 * pause_ + 1, kLongestPause);
  pause_left_ = pause_;
}

}  // namespace cairn
