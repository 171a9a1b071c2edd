#include "cairn/runtime/generate.h"

#include <algorithm>
#include <span>

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
                                      : std::min(options.context, model.context_length())) {}

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

  // The first logits are those of the last token, so its state alone is of no use.
  Result<void> leave_one_to_compute() {
    if (options_.max_tokens > 0 && length() == conversation_.tokens.size())
      CAIRN_TRY(session_.truncate(conversation_.seq, length() - 1));
    return {};
  }

  // Computes the tokens up to `end`; `logits`, if not empty, receives those of the last one.
  Result<void> compute(Pos end, std::span<float> logits) {
    const auto tokens =
        std::span<const int32_t>(conversation_.tokens).subspan(length(), end - length());
    if (tokens.empty()) return {};
    Step step = CAIRN_TRY(session_.plan({{.seq = conversation_.seq, .count = tokens.size()}}));
    const uint32_t last = static_cast<uint32_t>(tokens.size() - 1);
    const auto wanted = logits.empty() ? std::span<const uint32_t>() : std::span(&last, 1);
    CAIRN_TRY(model_.forward(step, tokens, wanted, logits.data()));
    step.commit();
    if (options_.after_step) options_.after_step();
    return {};
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

  // Each round: choose a token from the logits at hand, say it, and compute the next logits.
  Result<void> decode() {
    for (Clock::time_point first_token; result_.tokens.size() < options_.max_tokens;) {
      if (conversation_.tokens.size() == context_) return finish(Finish::context_full);
      const int32_t token = CAIRN_TRY(sampler_.sample(logits_, conversation_.tokens));
      conversation_.tokens.push_back(token);
      if (result_.stats.first_token_seconds == 0) {
        first_token = Clock::now();
        result_.stats.first_token_seconds = seconds_since(options_.start);
      } else {
        result_.stats.decode_seconds = seconds_since(first_token);
        ++result_.stats.decoded;
      }
      if (options_.ends && options_.ends(token)) return finish(Finish::end_token);
      result_.tokens.push_back(token);
      if (options_.on_token && options_.on_token(token) == Flow::stop)
        return finish(Finish::stopped);
      if (is_cancelled()) return finish(Finish::cancelled);
      if (result_.tokens.size() < options_.max_tokens)
        CAIRN_TRY(compute(conversation_.tokens.size(), logits_));
    }
    return finish(Finish::length);
  }

  Result<void> finish(Finish why) {
    result_.finish = why;
    return {};
  }

  Model& model_;
  Session& session_;
  Conversation& conversation_;
  Sampler& sampler_;
  const GenerateOptions& options_;
  const Pos context_;
  std::vector<float> logits_;  // of the last token; empty: not computed
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
