// Where greedy answers under a scheme leave those of a state in f32: the first token that differs.
//
//   const auto answers = CAIRN_TRY(greedy_answers(model, reference, prompts, {.tokens = 64}));
//   const auto where = CAIRN_TRY(first_differences(model, session, prompts, answers));
//   const Drift drift = drift_of(where);
//
// Up to that token both texts are the same, so nothing has to be generated under the scheme: it
// predicts the tokens of the reference's answers, many in one step, to the bits that decoding one
// by one would give.
#ifndef CAIRN_RUNTIME_DRIFT_H_
#define CAIRN_RUNTIME_DRIFT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "cairn/models/model.h"

namespace cairn {

using TokenLists = std::vector<std::vector<int32_t>>;

struct AnswerOptions {
  uint32_t tokens = 64;                     // of an answer, at most
  std::function<bool(int32_t token)> ends;  // tokens that end it, which it then has; empty: none
};

// All prompts are answered at once, as one batch. BadInput, NoSpace; after an error the session is
// to be given up. REQUIRES: no prompt is empty.
Result<TokenLists> greedy_answers(Model& model,
                                  Session& session,
                                  const TokenLists& prompts,
                                  const AnswerOptions& options);

// Per prompt, the token of the answer, counted from 1, that `session` would not have said; none:
// it would have said all of them.
using FirstDifference = std::optional<uint32_t>;
Result<std::vector<FirstDifference>> first_differences(Model& model,
                                                       Session& session,
                                                       const TokenLists& prompts,
                                                       const TokenLists& answers);

struct Drift {
  FirstDifference median;  // of an even number the lower one; none: most answers never differ
  double never = 0;        // share of answers that do not differ
};
Drift drift_of(std::vector<FirstDifference> differences);  // REQUIRES: there is one

}  // namespace cairn

#endif  // CAIRN_RUNTIME_DRIFT_H_
