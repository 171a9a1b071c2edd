// One text, computed in every way that must not matter: the hash over all logits is the same.
#ifndef CAIRN_TESTS_MODELS_REUSE_H_
#define CAIRN_TESTS_MODELS_REUSE_H_

#include <gtest/gtest.h>

#include "tests/models/passes.h"

namespace cairn::testing {

struct ReuseTrial {
  std::string model_path;
  std::string scheme;
  std::vector<int32_t> text;
  std::vector<size_t> chunks;     // prefill in pieces of so many tokens
  std::vector<uint32_t> threads;  // the first does all variants, the others one run
};

// Logits of the rows of one piece of a batch.
inline std::span<const float> rows_of(std::span<const float> logits,
                                      size_t first,
                                      size_t count,
                                      size_t vocabulary) {
  return logits.subspan(first * vocabulary, count * vocabulary);
}

// In a batch between two other sequences, which are at other positions.
inline uint64_t hash_beside_others(Passes& passes, Tokens text) {
  const SeqId before = passes.start(), seq = passes.start(), after = passes.start();
  passes.run(before, text.subspan(text.size() / 3, 5));
  passes.run(after, text.first(33));
  const size_t half = text.size() / 2;
  std::vector<float> all;
  for (const Tokens part : {text.first(half), text.subspan(half)}) {
    const auto logits = passes.run({{before, text.first(3)}, {seq, part}, {after, text.first(11)}});
    const auto ours = rows_of(logits, 3, part.size(), passes.vocabulary());
    all.insert(all.end(), ours.begin(), ours.end());
  }
  return hash_of(all);
}

// The first 3/5, then the rest in a fork, while the original goes elsewhere first.
inline uint64_t hash_after_fork(Passes& passes, Tokens text) {
  const SeqId trunk = passes.start();
  const Tokens head = text.first(text.size() * 3 / 5);
  std::vector<float> all = passes.run(trunk, head);
  const SeqId branch = passes.session().fork(trunk);
  passes.run(trunk, text.first(9));
  const auto rest = passes.run(branch, text.subspan(head.size()));
  all.insert(all.end(), rest.begin(), rest.end());
  return hash_of(all);
}

// Every so often a draft of which nothing or a part is kept.
inline uint64_t hash_after_rejected_drafts(Passes& passes, Tokens text) {
  const SeqId seq = passes.start();
  std::vector<float> all;
  const size_t stride = text.size() / 4;
  for (size_t first = 0; first < text.size();) {
    const size_t right = std::min<size_t>(2, text.size() - first);
    std::vector<int32_t> guess(text.begin() + static_cast<ptrdiff_t>(first),
                               text.begin() + static_cast<ptrdiff_t>(first + right));
    guess.insert(guess.end(), {5, 4, 3});
    passes.draft(seq, guess, 0);
    const auto kept = passes.draft(seq, guess, right);
    const auto ours = rows_of(kept, 0, right, passes.vocabulary());
    all.insert(all.end(), ours.begin(), ours.end());
    first += right;
    const size_t next = std::min(stride, text.size() - first);
    const auto more =
        passes.run_in_chunks(seq, text.subspan(first, next), std::max<size_t>(next, 1));
    all.insert(all.end(), more.begin(), more.end());
    first += next;
  }
  return hash_of(all);
}

// Computed, cut back to a shared prefix, and the same text given again. Where a recurrent state
// cannot be cut, a fork was left behind there.
inline uint64_t hash_given_again(Passes& passes, Tokens text) {
  Session& session = passes.session();
  SeqId seq = passes.start();
  const size_t kept = text.size() / 2 + 1;
  std::vector<float> all = passes.run(seq, text.first(kept));
  const SeqId left = session.fork(seq);
  const auto rest = passes.run(seq, text.subspan(kept));
  all.insert(all.end(), rest.begin(), rest.end());
  if (session.can_truncate(seq, kept))
    must(session.truncate(seq, kept));
  else
    session.drop(std::exchange(seq, left));
  const auto again = passes.run(seq, text.subspan(kept));
  std::copy(again.begin(), again.end(),
            all.begin() + static_cast<ptrdiff_t>(kept * passes.vocabulary()));
  return hash_of(all);
}

inline void expect_no_bit_changes(const ReuseTrial& trial) {
  std::optional<uint64_t> cold;
  for (const uint32_t threads : trial.threads) {
    const auto model = must(load_model(
        trial.model_path, {.threads = threads, .expand = Expand::no, .cache_folder = {}}));
    Passes passes(*model, trial.scheme);
    const uint64_t hash = hash_of(passes.run(passes.start(), trial.text));
    if (!cold) cold = hash;
    EXPECT_EQ(hash, *cold) << threads << " threads";
    if (threads != trial.threads.front()) continue;
    for (const size_t chunk : trial.chunks)
      EXPECT_EQ(hash_of(passes.run_in_chunks(passes.start(), trial.text, chunk)), *cold)
          << "chunks of " << chunk;
    EXPECT_EQ(hash_beside_others(passes, trial.text), *cold) << "beside other sequences";
    EXPECT_EQ(hash_after_fork(passes, trial.text), *cold) << "after a fork";
    EXPECT_EQ(hash_after_rejected_drafts(passes, trial.text), *cold) << "after rejected drafts";
    EXPECT_EQ(hash_given_again(passes, trial.text), *cold) << "the same text given again";
  }
}

}  // namespace cairn::testing

#endif  // CAIRN_TESTS_MODELS_REUSE_H_
