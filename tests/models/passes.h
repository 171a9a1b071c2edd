// Passes of a model over a session, as the tests need them: every row's logits, or one hash over
// all of them.
#ifndef CAIRN_TESTS_MODELS_PASSES_H_
#define CAIRN_TESTS_MODELS_PASSES_H_

#include <algorithm>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "cairn/core/hash.h"
#include "cairn/models/model.h"
#include "tests/support/must.h"

namespace cairn::testing {

using Tokens = std::span<const int32_t>;

// The next tokens of a sequence.
struct Piece {
  SeqId seq;
  Tokens tokens;
};

// A model with a session of its own.
class Passes {
 public:
  Passes(Model& model, const std::string& scheme, SessionOptions options = {})
      : model_(model),
        session_(must(open_session(model.spec(), must(parse_scheme(scheme)), memory_, options))) {}

  Session& session() { return session_; }
  SeqId start() { return session_.start(); }
  size_t vocabulary() const { return model_.vocabulary(); }

  // Logits of all rows: [rows, vocabulary].
  std::vector<float> run(const std::vector<Piece>& pieces) {
    auto [step, logits] = forward(pieces, Round::no);
    step.commit();
    return std::move(logits);
  }
  std::vector<float> run(SeqId seq, Tokens tokens) { return run({Piece{seq, tokens}}); }

  // A round that keeps the first `keep` positions.
  std::vector<float> draft(SeqId seq, Tokens tokens, Pos keep) {
    auto [step, logits] = forward({Piece{seq, tokens}}, Round::yes);
    step.commit(std::span(&keep, 1));
    return std::move(logits);
  }

  // All tokens in pieces of `chunk`; logits of all rows.
  std::vector<float> run_in_chunks(SeqId seq, Tokens tokens, size_t chunk) {
    std::vector<float> all;
    for (size_t first = 0; first < tokens.size(); first += chunk) {
      const auto logits = run(seq, tokens.subspan(first, std::min(chunk, tokens.size() - first)));
      all.insert(all.end(), logits.begin(), logits.end());
    }
    return all;
  }

 private:
  std::pair<Step, std::vector<float>> forward(const std::vector<Piece>& pieces, Round round) {
    std::vector<Run> batch;
    std::vector<int32_t> tokens;
    for (const Piece& piece : pieces) {
      batch.push_back({piece.seq, piece.tokens.size()});
      tokens.insert(tokens.end(), piece.tokens.begin(), piece.tokens.end());
    }
    std::vector<uint32_t> wanted(tokens.size());
    std::iota(wanted.begin(), wanted.end(), 0u);
    std::vector<float> logits(tokens.size() * vocabulary());
    Step step = must(session_.plan(batch, round));
    must(model_.forward(step, tokens, wanted, logits.data()));
    return {std::move(step), std::move(logits)};
  }

  Memory memory_;
  Model& model_;
  Session session_;
};

inline uint64_t hash_of(std::span<const float> logits) { return xxh3(std::as_bytes(logits)); }

}  // namespace cairn::testing

#endif  // CAIRN_TESTS_MODELS_PASSES_H_
