#include "cairn/runtime/head_drafter.h"

#include <algorithm>

namespace cairn {
namespace {

int32_t likeliest(std::span<const float> logits) {
  return static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
}

}  // namespace

Result<std::unique_ptr<HeadDrafter>> HeadDrafter::make(Model& model,
                                                       Memory& memory,
                                                       const Scheme& scheme) {
  if (model.draft_head() == nullptr)
    return fail(Code::Unsupported, "{}: no draft head, expected a layer for multi-token prediction",
                model.weights().path());
  Session session = CAIRN_TRY(open_session(model.draft_head()->spec(), scheme, memory));
  return std::unique_ptr<HeadDrafter>(new HeadDrafter(model, std::move(session)));
}

HeadDrafter::HeadDrafter(Model& model, Session session)
    : model_(model),
      head_(*model.draft_head()),
      session_(std::move(session)),
      seq_(session_.start()),
      logits_(model.vocabulary()) {}

void HeadDrafter::restart(Pos first) {
  session_.drop(seq_);
  seq_ = session_.start();
  first_ = known_ = first;
  given_.clear();
}

// What was computed from this position on does not count any more.
void HeadDrafter::forget_from(Pos position) {
  if (position < first_ || position > known_) return restart(position);
  if (position < done() && !session_.truncate(seq_, position - first_)) return restart(position);
  known_ = position;
  given_.resize((known_ - done()) * model_.hidden_width());
}

// Brings the head's state up to the conversation's position `end`, which is known, and whose token
// is, too.
Result<void> HeadDrafter::catch_up(Tokens tokens, Pos end, Logits wanted) {
  while (done() < end) {
    const Pos most = std::max<Pos>(1, session_.max_run(seq_));
    const Pos first = done(), count = std::min(end - first, most);
    Step step = CAIRN_TRY(session_.plan({{.seq = seq_, .count = count}}));
    const auto last = static_cast<uint32_t>(count - 1);
    const bool needs_logits = wanted == Logits::of_last && first + count == end;
    const auto rows = needs_logits ? std::span(&last, 1) : std::span<const uint32_t>();
    hidden_.resize(count * model_.hidden_width());
    CAIRN_TRY(head_.forward(step, tokens.subspan(first + 1, count), given_.data(), rows,
                            logits_.data(), hidden_.data()));
    step.commit();
    given_.erase(given_.begin(),
                 given_.begin() + static_cast<ptrdiff_t>(count * model_.hidden_width()));
  }
  return {};
}

// The likeliest token of the last logits, and then what follows each guess.
Result<void> HeadDrafter::guess(uint32_t most, std::vector<int32_t>& drafts) {
  const uint32_t row = 0;
  drafts.push_back(likeliest(logits_));
  hidden_.erase(hidden_.begin(), hidden_.end() - static_cast<ptrdiff_t>(model_.hidden_width()));
  const SeqId branch = session_.fork(seq_);
  Result<void> result;
  while (drafts.size() < most && result) {
    auto step = session_.plan({{.seq = branch, .count = 1}});
    if (!step) break;
    result = head_.forward(*step, std::span(&drafts.back(), 1), hidden_.data(), std::span(&row, 1),
                           logits_.data(), hidden_.data());
    if (!result) break;
    step->commit();
    drafts.push_back(likeliest(logits_));
  }
  session_.drop(branch);
  return result;
}

float* HeadDrafter::hidden_for(const Conversation& conversation, Pos first, Pos count) {
  forget_from(first);
  if (!catch_up(conversation.tokens, first, Logits::none)) restart(first);  // no memory for it
  known_ = first + count;
  given_.resize(count * model_.hidden_width());
  return given_.data();
}

std::vector<int32_t> HeadDrafter::propose(const Conversation& conversation, uint32_t most) {
  std::vector<int32_t> drafts;
  const Pos end = conversation.tokens.size() - 1;  // its state lacks the last token
  if (most == 0 || end > known_) return drafts;
  forget_from(end);
  if (done() == end || !catch_up(conversation.tokens, end, Logits::of_last)) return drafts;
  (void)guess(most, drafts);  // without memory for more, what was guessed so far
  return drafts;
}

}  // namespace cairn
