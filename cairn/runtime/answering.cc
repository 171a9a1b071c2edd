#include "cairn/runtime/answering.h"

#include <algorithm>
#include <utility>

namespace cairn {

Answering::Answering(const Model& model, Session& session, const Asked& asked)
    : model_(model),
      session_(session),
      asked_(asked),
      conversation_(*asked.conversation),
      context_(asked.options.context == 0
                   ? model.context_length()
                   : std::min(asked.options.context, model.context_length())),
      drafter_(asked.options.drafter),
      draft_length_(asked.options.drafter == nullptr ? 0 : asked.options.most_drafts) {}

Result<void> Answering::check() const {
  const size_t count = conversation_.tokens.size();
  CAIRN_CHECK(length() <= count, "generate: {} tokens for a state of {} positions", count,
              length());
  CAIRN_CHECK(asked_.options.chunk > 0, "generate: chunks of 0 tokens");
  if (count == 0) return fail(Code::BadInput, "prompt: empty, expected at least one token");
  const Pos room = asked_.options.max_tokens == 0 ? context_ : context_ - 1;
  if (count > room)
    return fail(Code::BadInput,
                "prompt: {} tokens, expected at most {}: the context holds {} positions; shorten "
                "the text or start a new one",
                count, room, context_);
  return {};
}

// The first logits are those of the last token, so its state alone is of no use. A recurrent state
// has no way back: there everything is computed again, to the same bits.
Result<void> Answering::leave_one_to_compute() {
  if (asked_.options.max_tokens == 0 || length() < conversation_.tokens.size()) return {};
  Pos kept = length() - 1;
  while (!session_.can_truncate(conversation_.seq, kept)) --kept;  // 0 always can
  return session_.truncate(conversation_.seq, kept);
}

void Answering::start() {
  start_ = Clock::now();
  end_ = conversation_.tokens.size();
  result_.stats.reused = length();
  report_progress();
  if (length() == end_) end(Finish::length);
}

void Answering::end(Finish finish) {
  finish_ = finish;
  phase_ = Phase::done;
  if (asked_.options.on_end) asked_.options.on_end(finish);
}

void Answering::report_progress() const {
  const Pos reused = result_.stats.reused;
  if (asked_.options.on_progress) asked_.options.on_progress(length() - reused, end_ - reused);
}

Pos Answering::next_part(Pos room) {
  if (is_cancelled()) {
    end(Finish::cancelled);
    return 0;
  }
  const Pos first = length();
  Pos end = std::min({end_, first + asked_.options.chunk, first + room});
  const Pos most = session_.max_run(conversation_.seq);  // 0: plan says what is wrong
  if (most > 0) end = std::min(end, first + most);
  const auto cut = std::ranges::upper_bound(asked_.options.cuts, first);
  if (cut != asked_.options.cuts.end()) end = std::min(end, *cut);
  return end - first;
}

bool Answering::ends_with(Pos count) const {
  return asked_.options.max_tokens > 0 && length() + count == end_;
}

Result<void> Answering::read(std::span<const float> logits) {
  report_progress();
  result_.stats.computed = length() - result_.stats.reused;
  result_.stats.prefill_seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  if (length() < end_) return {};
  if (asked_.options.max_tokens > 0) return choose(logits);
  end(Finish::length);
  return {};
}

void Answering::start_decoding() { decode_start_ = Clock::now(); }

// Chooses the token after the last one from that one's logits, and says it.
Result<void> Answering::choose(std::span<const float> logits) {
  const int32_t token = CAIRN_TRY(asked_.sampler->sample(logits, conversation_.tokens));
  conversation_.tokens.push_back(token);
  const auto now = Clock::now();
  const auto seconds_since = [&](Clock::time_point start) {
    return std::chrono::duration<double>(now - start).count();
  };
  if (result_.stats.first_token_seconds == 0) {
    decode_start_ = now;
    result_.stats.first_token_seconds = seconds_since(asked_.options.start);
  } else {
    result_.stats.decode_seconds = seconds_since(decode_start_);
    ++result_.stats.decoded;
  }
  finish_ = say(token);
  phase_ = finish_ ? Phase::finishing : Phase::choosing;
  return {};
}

// Why the answer ends with this token; none: it goes on.
std::optional<Finish> Answering::say(int32_t token) {
  const GenerateOptions& options = asked_.options;
  if (options.ends && options.ends(token)) return Finish::end_token;
  result_.tokens.push_back(token);
  if (options.on_token && options.on_token(token) == Flow::stop) return Finish::stopped;
  if (is_cancelled()) return Finish::cancelled;
  if (result_.tokens.size() == options.max_tokens) return Finish::length;
  if (conversation_.tokens.size() == context_) return Finish::context_full;
  return std::nullopt;
}

std::span<const int32_t> Answering::next_round() {
  round_ = {conversation_.tokens.back()};
  if (phase_ == Phase::choosing) {
    const std::vector<int32_t> drafts = draft();
    round_.insert(round_.end(), drafts.begin(), drafts.end());
  }
  return round_;
}

// What may follow the last token; as many as the answer, the context and the session have room for.
std::vector<int32_t> Answering::draft() {
  if (drafter_ == nullptr) return {};
  const Pos wanted = draft_length_.next();
  const Pos run = std::max<Pos>(1, session_.max_run(conversation_.seq));
  const Pos most = std::min({wanted, asked_.options.max_tokens - result_.tokens.size() - 1,
                             context_ - conversation_.tokens.size() - 1, run - 1});
  if (most == 0) return {};
  std::vector<int32_t> drafts = drafter_->propose(conversation_, static_cast<uint32_t>(most));
  const auto is_wrong = [&](int32_t token) {
    return token < 0 || static_cast<uint32_t>(token) >= model_.vocabulary();
  };
  drafts.erase(std::ranges::find_if(drafts, is_wrong), drafts.end());
  if (drafts.size() > most) drafts.resize(most);
  return drafts;
}

Result<Pos> Answering::choose_all(std::span<const float> logits) {
  const size_t vocabulary = model_.vocabulary();
  Pos chosen = 0;
  do {
    CAIRN_TRY(choose(logits.subspan(chosen * vocabulary, vocabulary)));
    ++chosen;
  } while (!finish_ && chosen < round_.size() && round_[chosen] == conversation_.tokens.back());
  return chosen;
}

void Answering::end_round(Pos kept) {
  learn(static_cast<uint32_t>(round_.size() - 1), static_cast<uint32_t>(kept - 1));
  after_step();
  if (length() == conversation_.tokens.size()) end(*finish_);  // it was the last token
}

void Answering::learn(uint32_t drafted, uint32_t accepted) {
  if (drafted == 0) return;
  ++result_.stats.rounds;
  result_.stats.drafted += drafted;
  result_.stats.accepted += accepted;
  draft_length_.learn(drafted, accepted);
  drafter_->accepted(accepted);
}

float* Answering::hidden_for(Pos count) {
  return drafter_ == nullptr ? nullptr : drafter_->hidden_for(conversation_, length(), count);
}

bool Answering::give_way() {
  if (drafter_ == nullptr) return false;
  std::exchange(drafter_, nullptr)->give_way();
  return true;
}

Generated Answering::take_result() {
  result_.finish = *finish_;
  result_.stats.state_bytes = session_.bytes_for(length());
  return std::move(result_);
}

}  // namespace cairn
