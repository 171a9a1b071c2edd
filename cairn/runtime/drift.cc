#include "cairn/runtime/drift.h"

#include <algorithm>
#include <numeric>

namespace cairn {
namespace {

constexpr size_t kRows = 16;  // predicted at once: what follows a difference is for nothing

// Among equals the lower id, as a greedy sampler has it.
int32_t likeliest(std::span<const float> logits) {
  return static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
}

// Computes the next tokens of a sequence, and says what it would say after row `from` and each
// later one.
Result<std::vector<int32_t>> predict(
    Model& model, Session& session, SeqId seq, std::span<const int32_t> tokens, size_t from) {
  std::vector<uint32_t> wanted(tokens.size() - from);
  std::iota(wanted.begin(), wanted.end(), static_cast<uint32_t>(from));
  std::vector<float> logits(wanted.size() * model.vocabulary());
  Step step = CAIRN_TRY(session.plan({{.seq = seq, .count = tokens.size()}}));
  CAIRN_TRY(model.forward(step, tokens, wanted, logits.data()));
  step.commit();
  std::vector<int32_t> said;
  for (size_t i = 0; i < wanted.size(); ++i)
    said.push_back(
        likeliest(std::span(logits).subspan(i * model.vocabulary(), model.vocabulary())));
  return said;
}

// Computes tokens[length(seq) .. end), in as many steps as the session's scheme wants.
Result<void> compute(
    Model& model, Session& session, SeqId seq, std::span<const int32_t> tokens, size_t end) {
  while (session.length(seq) < end) {
    const Pos first = session.length(seq);
    const Pos count = std::clamp<Pos>(session.max_run(seq), 1, end - first);
    CAIRN_TRY(predict(model, session, seq, tokens.subspan(first, count), count));
  }
  return {};
}

// One batch of answers.
struct Answering {
  std::vector<SeqId> seqs;  // of those that go on
  std::vector<size_t> who;  // by seq: index of its answer
};

Result<void> say_one_more(Model& model, Session& session, Answering& answering, TokenLists& all) {
  const size_t count = answering.seqs.size();
  std::vector<Run> batch;
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < count; ++i) {
    batch.push_back({.seq = answering.seqs[i], .count = 1});
    tokens.push_back(all[answering.who[i]].back());
  }
  std::vector<uint32_t> wanted(count);
  std::iota(wanted.begin(), wanted.end(), 0);
  std::vector<float> logits(count * model.vocabulary());
  Step step = CAIRN_TRY(session.plan(batch));
  CAIRN_TRY(model.forward(step, tokens, wanted, logits.data()));
  step.commit();
  for (size_t i = 0; i < count; ++i)
    all[answering.who[i]].push_back(
        likeliest(std::span(logits).subspan(i * model.vocabulary(), model.vocabulary())));
  return {};
}

Result<FirstDifference> first_difference(Model& model,
                                         Session& session,
                                         SeqId seq,
                                         std::span<const int32_t> prompt,
                                         std::span<const int32_t> answer) {
  std::vector<int32_t> tokens(prompt.begin(), prompt.end());
  tokens.insert(tokens.end(), answer.begin(), answer.end());
  CAIRN_TRY(compute(model, session, seq, tokens, prompt.size() - 1));
  for (size_t same = 0; same < answer.size();) {
    const size_t first = prompt.size() - 1 + same;
    const size_t count =
        std::clamp<Pos>(session.max_run(seq), 1, std::min<size_t>(kRows, answer.size() - same));
    const std::vector<int32_t> said =
        CAIRN_TRY(predict(model, session, seq, std::span(tokens).subspan(first, count), 0));
    for (const int32_t token : said)
      if (token != answer[same++]) return FirstDifference(static_cast<uint32_t>(same));
  }
  return FirstDifference();
}

}  // namespace

Result<TokenLists> greedy_answers(Model& model,
                                  Session& session,
                                  const TokenLists& prompts,
                                  const AnswerOptions& options) {
  TokenLists all = prompts;
  Answering answering;
  for (size_t i = 0; i < prompts.size(); ++i) {
    answering.seqs.push_back(session.start());
    answering.who.push_back(i);
    CAIRN_TRY(compute(model, session, answering.seqs[i], prompts[i], prompts[i].size() - 1));
  }
  for (uint32_t said = 0; said < options.tokens && !answering.seqs.empty(); ++said) {
    CAIRN_TRY(say_one_more(model, session, answering, all));
    for (size_t i = answering.seqs.size(); i-- > 0;) {
      if (!options.ends || !options.ends(all[answering.who[i]].back())) continue;
      session.drop(answering.seqs[i]);
      answering.seqs.erase(answering.seqs.begin() + static_cast<std::ptrdiff_t>(i));
      answering.who.erase(answering.who.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  for (const SeqId seq : answering.seqs) session.drop(seq);
  for (size_t i = 0; i < all.size(); ++i)
    all[i].erase(all[i].begin(), all[i].begin() + static_cast<std::ptrdiff_t>(prompts[i].size()));
  return all;
}

Result<std::vector<FirstDifference>> first_differences(Model& model,
                                                       Session& session,
                                                       const TokenLists& prompts,
                                                       const TokenLists& answers) {
  std::vector<FirstDifference> differences;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const SeqId seq = session.start();
    Result<FirstDifference> difference =
        first_difference(model, session, seq, prompts[i], answers[i]);
    session.drop(seq);
    differences.push_back(CAIRN_TRY(std::move(difference)));
  }
  return differences;
}

Drift drift_of(std::vector<FirstDifference> differences) {
  const auto never = std::ranges::count(differences, FirstDifference());
  std::ranges::sort(differences, {}, [](const FirstDifference& difference) {
    return difference.value_or(UINT32_MAX);
  });
  return {.median = differences[(differences.size() - 1) / 2],
          .never = static_cast<double>(never) / static_cast<double>(differences.size())};
}

}  // namespace cairn
