#include "cairn/runtime/generate.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>

#include "cairn/runtime/speculate.h"

namespace cairn {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// One call of generate().
class Generation {
 public:
  Generation(Model& model,
             Session& session,
             Conversation& conversation,
             Sampler& sampler,
             const GenerateOptions& options)
      : model_(model),
        session_(session),
        conversation_(conversation),
        sampler_(sampler),
        options_(options),
        context_(options.context == 0 ? model.context_length()
                                      : std::min(options.context, model.context_length())),
        drafter_(options.drafter),
        draft_length_(options.drafter == nullptr ? 0 : options.most_drafts) {}

  Result<Generated> run() {
    CAIRN_TRY(check());
    CAIRN_TRY(leave_one_to_compute());
    CAIRN_TRY(prefill());
    if (!is_prefilled()) {
      result_.finish = Finish::cancelled;
    } else {
      CAIRN_TRY(decode());
      CAIRN_TRY(
          compute(conversation_.tokens.size(), {}));  // the last token, which nobody has needed yet
    }
    result_.stats.state_bytes = session_.bytes_for(length());
    return std::move(result_);
  }

 private:
  Pos length() const { return session_.length(conversation_.seq); }
  bool is_cancelled() const {
    return options_.cancel != nullptr && options_.cancel->load(std::memory_order_relaxed);
  }
  bool is_prefilled() const {
    return !logits_.empty() ||
           (options_.max_tokens == 0 && length() == conversation_.tokens.size());
  }

  Result<void> check() const {
    const size_t count = conversation_.tokens.size();
    CAIRN_CHECK(length() <= count, "generate: {} tokens for a state of {} positions", count,
                length());
    CAIRN_CHECK(options_.chunk > 0, "generate: chunks of 0 tokens");
    if (count == 0) return fail(Code::BadInput, "prompt: empty, expected at least one token");
    const Pos room = options_.max_tokens == 0 ? context_ : context_ - 1;
    if (count > room)
      return fail(Code::BadInput,
                  "prompt: {} tokens, expected at most {}: the context holds {} positions; shorten "
                  "the text or start a new one",
                  count, room, context_);
    return {};
  }

  // The first logits are those of the last token, so its state alone is of no use. A recurrent
  // state has no way back: there everything is computed again, to the same bits.
  Result<void> leave_one_to_compute() {
    if (options_.max_tokens == 0 || length() < conversation_.tokens.size()) return {};
    Pos kept = length() - 1;
    while (!session_.can_truncate(conversation_.seq, kept)) --kept;  // 0 always can
    return session_.truncate(conversation_.seq, kept);
  }

  // Computes the tokens up to `end`; `logits`, if not empty, receives those of the last one.
  Result<void> compute(Pos end, std::span<float> logits) {
    const auto tokens =
        std::span<const int32_t>(conversation_.tokens).subspan(length(), end - length());
    if (tokens.empty()) return {};
    Step step = CAIRN_TRY(plan_needed(tokens.size()));
    const uint32_t last = static_cast<uint32_t>(tokens.size() - 1);
    const auto wanted = logits.empty() ? std::span<const uint32_t>() : std::span(&last, 1);
    CAIRN_TRY(model_.forward(step, tokens, wanted, logits.data(), hidden_for(tokens.size())));
    step.commit();
    if (options_.after_step) options_.after_step();
    return {};
  }

  // Where the hidden states of the next `count` positions go; null: nobody wants them.
  float* hidden_for(Pos count) {
    return drafter_ == nullptr ? nullptr : drafter_->hidden_for(conversation_, length(), count);
  }

  // A step that the answer cannot go on without. A guess may not cost it: where memory is short, a
  // drafter's state makes room.
  Result<Step> plan_needed(Pos count) {
    Result<Step> step = session_.plan({{.seq = conversation_.seq, .count = count}});
    if (step || step.error().code != Code::NoSpace || drafter_ == nullptr) return step;
    std::exchange(drafter_, nullptr)->give_way();
    return session_.plan({{.seq = conversation_.seq, .count = count}});
  }

  // Where the step of the prefill that begins at `first` ends.
  Pos step_end(Pos first, Pos end) const {
    end = std::min<Pos>(end, first + options_.chunk);
    const Pos most = session_.max_run(conversation_.seq);  // 0: plan says what is wrong
    if (most > 0 && end - first > most) end = first + most;
    const auto cut = std::ranges::upper_bound(options_.cuts, first);
    return cut != options_.cuts.end() ? std::min(end, *cut) : end;
  }

  Result<void> prefill() {
    const auto start = Clock::now();
    const Pos first = length(), end = conversation_.tokens.size();
    result_.stats.reused = first;
    report_progress(0, end - first);
    while (length() < end && !is_cancelled()) {
      const Pos next = step_end(length(), end);
      if (next == end && options_.max_tokens > 0) logits_.resize(model_.vocabulary());
      const Result<void> computed = compute(next, logits_);
      if (!computed) return computed;
      report_progress(length() - first, end - first);
    }
    result_.stats.computed = length() - first;
    result_.stats.prefill_seconds = seconds_since(start);
    return {};
  }

  void report_progress(Pos done, Pos total) const {
    if (options_.on_progress) options_.on_progress(done, total);
  }

  Result<void> decode() {
    if (options_.max_tokens == 0) return {};
    CAIRN_TRY(choose(logits_));
    while (!finish_) CAIRN_TRY(round());
    result_.finish = *finish_;
    return {};
  }

  // Chooses the token after the last one from that one's logits, and says it.
  Result<void> choose(std::span<const float> logits) {
    const int32_t token = CAIRN_TRY(sampler_.sample(logits, conversation_.tokens));
    conversation_.tokens.push_back(token);
    if (result_.stats.first_token_seconds == 0) {
      first_token_ = Clock::now();
      result_.stats.first_token_seconds = seconds_since(options_.start);
    } else {
      result_.stats.decode_seconds = seconds_since(first_token_);
      ++result_.stats.decoded;
    }
    finish_ = say(token);
    return {};
  }

  // Why the answer ends with this token; none: it goes on.
  std::optional<Finish> say(int32_t token) {
    if (options_.ends && options_.ends(token)) return Finish::end_token;
    result_.tokens.push_back(token);
    if (options_.on_token && options_.on_token(token) == Flow::stop) return Finish::stopped;
    if (is_cancelled()) return Finish::cancelled;
    if (result_.tokens.size() == options_.max_tokens) return Finish::length;
    if (conversation_.tokens.size() == context_) return Finish::context_full;
    return std::nullopt;
  }

  // Computes the last token and the drafts after it, chooses as long as the drafts are right, and
  // keeps the state of all tokens but the last chosen one, which no draft needs to be.
  Result<void> round() {
    std::vector<int32_t> tokens = draft();
    tokens.insert(tokens.begin(), conversation_.tokens.back());
    std::optional<Step> planned = plan_drafts(tokens.size());
    if (!planned) {  // there may be memory for a token, though not for drafts
      tokens.resize(1);
      planned = CAIRN_TRY(plan_needed(1));
    }
    Step& step = *planned;
    std::vector<uint32_t> rows(tokens.size());
    std::iota(rows.begin(), rows.end(), 0);
    logits_.resize(rows.size() * model_.vocabulary());
    CAIRN_TRY(model_.forward(step, tokens, rows, logits_.data(), hidden_for(tokens.size())));
    Pos chosen = 0;
    do {
      CAIRN_TRY(choose(std::span<const float>(logits_).subspan(chosen * model_.vocabulary(),
                                                               model_.vocabulary())));
      ++chosen;
    } while (!finish_ && chosen < tokens.size() && tokens[chosen] == conversation_.tokens.back());
    if (tokens.size() > 1)
      step.commit(std::span(&chosen, 1));
    else
      step.commit();
    learn(static_cast<uint32_t>(tokens.size() - 1), static_cast<uint32_t>(chosen - 1));
    if (options_.after_step) options_.after_step();
    return {};
  }

  // A round over a token and its drafts; none: there are no drafts, or there is no room for them.
  std::optional<Step> plan_drafts(Pos count) {
    if (count == 1) return std::nullopt;
    Result<Step> step = session_.plan({{.seq = conversation_.seq, .count = count}}, Round::yes);
    if (!step) return std::nullopt;
    return std::move(*step);
  }

  // What may follow the last token; as many as the answer, the context and the session have room
  // for.
  std::vector<int32_t> draft() {
    if (drafter_ == nullptr) return {};
    const Pos length = draft_length_.next();
    const Pos run = std::max<Pos>(1, session_.max_run(conversation_.seq));
    const Pos most = std::min({length, options_.max_tokens - result_.tokens.size() - 1,
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

  void learn(uint32_t drafted, uint32_t accepted) {
    if (drafted == 0) return;
    ++result_.stats.rounds;
    result_.stats.drafted += drafted;
    result_.stats.accepted += accepted;
    draft_length_.learn(drafted, accepted);
    drafter_->accepted(accepted);
  }

  Model& model_;
  Session& session_;
  Conversation& conversation_;
  Sampler& sampler_;
  const GenerateOptions& options_;
  const Pos context_;
  std::vector<float> logits_;     // of the last token, or a round's; empty: not computed
  std::optional<Finish> finish_;  // once the answer has ended
  Clock::time_point first_token_;
  Drafter* drafter_;  // null: none, or it gave way
  DraftLength draft_length_;
  Generated result_;
};

}  // namespace

Result<Generated> generate(Model& model,
                           Session& session,
                           Conversation& conversation,
                           Sampler& sampler,
                           const GenerateOptions& options) {
  return Generation(model, session, conversation, sampler, options).run();
}

}  // namespace cairn
