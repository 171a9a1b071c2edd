// What an independent float32 implementation says about a real model's texts, and how far our
// logits are from it.
#ifndef CAIRN_TESTS_MODELS_REAL_ORACLE_H_
#define CAIRN_TESTS_MODELS_REAL_ORACLE_H_

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/models/oracle_file.h"
#include "tests/models/passes.h"

namespace cairn::testing {

inline constexpr const char* kRealTexts[] = {"short", "code", "chat", "mixed", "gpl3_4000"};

inline size_t best_of(std::span<const float> row) {
  return static_cast<size_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

// -log p(token) under a row of logits.
inline double surprise(std::span<const float> row, int32_t token) {
  const double best = row[best_of(row)];
  double total = 0;
  for (const float logit : row) total += std::exp(logit - best);
  return best + std::log(total) - row[static_cast<size_t>(token)];
}

struct Comparison {
  size_t compared = 0;
  size_t wrong_tops = 0;  // where the margin decides
  double worst = 0;       // of the listed logits
  double sum = 0;         // of |difference| over the listed logits
  double nll = 0;         // mean over positions of -log p(next token)
  std::vector<float> last_row;
  double mean() const { return sum / static_cast<double>(compared); }
};

class RealOracle {
 public:
  static constexpr size_t kListed = 32;    // tokens per position whose logits it lists, best first
  static constexpr float kMargin = 0.02f;  // between its first and second: below it either may win

  RealOracle(const std::string& path, const std::string& text) {
    OracleFile file(path);
    ids_ = file.ids(text + ".ids");
    top_ids_ = file.ids(text + ".top_ids");
    top_logits_ = file.floats(text + ".top_logits");
    greedy_ = file.ids(text + ".greedy");
    nll_ = file.floats(text + ".mean_nll").at(0);
  }

  const std::vector<int32_t>& greedy() const { return greedy_; }  // the tokens that follow
  double nll() const { return nll_; }

  // Runs the text through `seq`, a few rows at a time: all rows' logits may be a gigabyte.
  Comparison compare(Passes& passes, SeqId seq) const {
    constexpr size_t kChunk = 128;
    Comparison result;
    for (size_t first = 0; first < ids_.size(); first += kChunk) {
      const size_t count = std::min(kChunk, ids_.size() - first);
      const std::vector<float> logits = passes.run(seq, Tokens(ids_).subspan(first, count));
      for (size_t i = 0; i < count; ++i)
        add(result, first + i,
            std::span(logits).subspan(i * passes.vocabulary(), passes.vocabulary()));
      result.last_row.assign(logits.end() - static_cast<ptrdiff_t>(passes.vocabulary()),
                             logits.end());
    }
    result.nll /= static_cast<double>(ids_.size() - 1);
    return result;
  }

  // The most likely tokens after a text, one by one, as many as it lists.
  std::vector<int32_t> continuation(Passes& passes,
                                    SeqId seq,
                                    std::span<const float> last_row) const {
    std::vector<int32_t> tokens{static_cast<int32_t>(best_of(last_row))};
    while (tokens.size() < greedy_.size()) {
      const auto logits = passes.run(seq, Tokens(tokens).last(1));
      tokens.push_back(static_cast<int32_t>(best_of(logits)));
    }
    return tokens;
  }

 private:
  void add(Comparison& result, size_t position, std::span<const float> row) const {
    const size_t first = position * kListed;
    if (top_logits_[first] - top_logits_[first + 1] > kMargin &&
        best_of(row) != static_cast<size_t>(top_ids_[first]))
      ++result.wrong_tops;
    for (size_t i = first; i < first + kListed; ++i, ++result.compared) {
      const double difference =
          std::fabs(double{row[static_cast<size_t>(top_ids_[i])]} - double{top_logits_[i]});
      // A NaN is the worst that can happen.
      if (!(difference <= result.worst)) result.worst = difference;
      result.sum += difference;
    }
    if (position + 1 < ids_.size()) result.nll += surprise(row, ids_[position + 1]);
  }

  std::vector<int32_t> ids_, top_ids_, greedy_;
  std::vector<float> top_logits_;
  double nll_ = 0;
};

}  // namespace cairn::testing

#endif  // CAIRN_TESTS_MODELS_REAL_ORACLE_H_
