#include "cairn/runtime/draft_model.h"

#include <algorithm>

namespace cairn {
namespace {

// Without texts (a file that holds none) there are only numbers to compare.
Result<void> check_vocabulary(const Model& small, const Model& model) {
  const std::string &ours = small.weights().path(), &theirs = model.weights().path();
  const Tokenizer *a = small.tokenizer(), *b = model.tokenizer();
  if ((a == nullptr) != (b == nullptr))
    return fail(Code::BadInput, "{}: holds no vocabulary, and {} one, expected the same of both",
                a == nullptr ? ours : theirs, a == nullptr ? theirs : ours);
  const size_t count = a == nullptr ? small.vocabulary() : a->size();
  const size_t expected = b == nullptr ? model.vocabulary() : b->size();
  if (count != expected)
    return fail(Code::BadInput,
                "{}: {} tokens, expected the {} of {}: drafts need a model of the same vocabulary",
                ours, count, expected, theirs);
  for (size_t i = 0; a != nullptr && i < count; ++i) {
    const auto token = static_cast<int32_t>(i);
    if (a->piece(token) != b->piece(token) || a->is_control(token) != b->is_control(token))
      return fail(Code::BadInput,
                  "{}: token {} is not that of {}: drafts need a model of the same vocabulary",
                  ours, token, theirs);
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<DraftModel>> DraftModel::make(Model& small,
                                                     const Model& model,
                                                     Memory& memory,
                                                     const Scheme& scheme,
                                                     const Sampler& sampler) {
  CAIRN_TRY(check_vocabulary(small, model));
  Session session = CAIRN_TRY(open_session(small.spec(), scheme, memory));
  return std::unique_ptr<DraftModel>(new DraftModel(small, std::move(session), sampler));
}

DraftModel::DraftModel(Model& small, Session session, const Sampler& sampler)
    : small_(small),
      session_(std::move(session)),
      seq_(session_.start()),
      sampler_(sampler),
      guesser_(sampler),
      logits_(small_.vocabulary()) {}

Result<void> DraftModel::compute(SeqId seq, Tokens tokens) {
  Step step = CAIRN_TRY(session_.plan({{.seq = seq, .count = tokens.size()}}));
  const auto last = static_cast<uint32_t>(tokens.size() - 1);
  CAIRN_TRY(small_.forward(step, tokens, std::span(&last, 1), logits_.data()));
  step.commit();
  return {};
}

// To this length, or where no way leads there to the next shorter one.
Result<void> DraftModel::go_back(Pos length) {
  while (!session_.can_truncate(seq_, length)) --length;  // 0 always can
  CAIRN_TRY(session_.truncate(seq_, length));
  text_.resize(length);
  return {};
}

Result<void> DraftModel::catch_up(Tokens tokens) {
  const auto differs = std::ranges::mismatch(text_, tokens).in1;
  const Pos shared = static_cast<Pos>(differs - text_.begin());
  CAIRN_TRY(go_back(std::min<Pos>(shared, tokens.size() - 1)));  // the logits are the last token's
  const Pos run = std::max<Pos>(1, session_.max_run(seq_));
  const Tokens next =
      tokens.subspan(text_.size(), std::min({tokens.size() - text_.size(), kStep, run}));
  CAIRN_TRY(compute(seq_, next));
  text_.insert(text_.end(), next.begin(), next.end());
  return {};
}

Result<void> DraftModel::guess(SeqId branch, uint32_t most, std::vector<int32_t>& drafts) {
  while (true) {
    drafts.push_back(CAIRN_TRY(guesser_.sample(logits_, text_)));
    if (drafts.size() == most) return {};
    text_.push_back(drafts.back());
    CAIRN_TRY(compute(branch, Tokens(drafts).last(1)));
  }
}

void DraftModel::give_way() {
  session_.drop(seq_);
  seq_ = session_.start();
  text_.clear();
}

std::vector<int32_t> DraftModel::propose(const Conversation& conversation, uint32_t most) {
  std::vector<int32_t> drafts;
  const Tokens tokens = conversation.tokens;
  if (tokens.empty() || most == 0 || !catch_up(tokens)) return drafts;
  if (text_.size() < tokens.size()) return drafts;  // the rest in the next rounds
  guesser_.resume(sampler_.state());
  const SeqId branch = session_.fork(seq_);
  (void)guess(branch, most, drafts);  // past its context, or out of memory: what it has so far
  session_.drop(branch);
  text_.resize(tokens.size());
  return drafts;
}

}  // namespace cairn
