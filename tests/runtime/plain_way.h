// Plain decoding, remembered: the state at every length on its way, and what it says next. A
// speculated answer must hold and say the same after each of its rounds.
#ifndef CAIRN_TESTS_RUNTIME_PLAIN_WAY_H_
#define CAIRN_TESTS_RUNTIME_PLAIN_WAY_H_

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "cairn/models/model.h"
#include "tests/support/must.h"
#include "tests/support/token_state.h"

namespace cairn::testing {

// Logits of one more token, which leaves no trace.
inline std::vector<float> next_logits(Model& model, Session& session, SeqId seq) {
  const SeqId branch = session.fork(seq);
  Step step = must(session.plan({{.seq = branch, .count = 1}}));
  std::vector<float> logits(model.vocabulary());
  const int32_t token = 9;
  const uint32_t row = 0;
  must(model.forward(step, std::span(&token, 1), std::span(&row, 1), logits.data()));
  step.commit();
  session.drop(branch);
  return logits;
}

class PlainWay {
 public:
  PlainWay(Model& model, Session& session) : model_(model), session_(session) {}
  ~PlainWay() {
    for (const auto& [length, place] : places_) session_.drop(place.seq);
  }
  PlainWay(const PlainWay&) = delete;
  PlainWay& operator=(const PlainWay&) = delete;

  void remember(SeqId seq) {
    places_.try_emplace(session_.length(seq),
                        Place{session_.fork(seq), next_logits(model_, session_, seq)});
  }
  void expect_same(SeqId seq) const {
    const auto place = places_.find(session_.length(seq));
    ASSERT_NE(place, places_.end())
        << "plain decoding was never " << session_.length(seq) << " long";
    EXPECT_EQ(difference(session_, seq, session_, place->second.seq), std::nullopt);
    EXPECT_EQ(next_logits(model_, session_, seq), place->second.logits);
  }

 private:
  struct Place {
    SeqId seq;
    std::vector<float> logits;
  };
  Model& model_;
  Session& session_;
  std::map<Pos, Place> places_;  // by length
};

// 32 of several lengths, some of which repeat themselves.
inline std::vector<Tokens> assorted_prompts() {
  std::vector<Tokens> all;
  Random random(4);
  for (size_t i = 0; i < 32; ++i) {
    const Tokens part = random_tokens(random, i % 4 == 0 ? 7 : 100, 320);
    Tokens prompt;
    while (prompt.size() < 1 + 3 * i) prompt.push_back(part[prompt.size() % part.size()]);
    all.push_back(std::move(prompt));
  }
  return all;
}

}  // namespace cairn::testing

#endif  // CAIRN_TESTS_RUNTIME_PLAIN_WAY_H_
