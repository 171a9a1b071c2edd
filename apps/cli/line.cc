#include "apps/cli/line.h"

#include <algorithm>

#include "apps/cli/interrupt.h"

namespace cairn::cli {
namespace {

constexpr uint32_t kChunk = 256;  // tokens of a step of the prefill: how long Ctrl-C may wait

}  // namespace

std::vector<int32_t> Answer::tokens() const {
  std::vector<int32_t> all = recalled.answered;
  all.insert(all.end(), generated.tokens.begin(), generated.tokens.end());
  return all;
}

Line::Line(const RunOptions& options,
           const Tokenizer& tokenizer,
           Conversation& conversation,
           Sampler& sampler,
           Tiered* tiered,
           Recall* recall,
           Show show)
    : answer{.prompt_tokens = conversation.tokens.size()},
      options_(options),
      tokenizer_(tokenizer),
      conversation_(conversation),
      sampler_(sampler),
      tiered_(tiered),
      recall_(recall),
      show_(std::move(show)),
      stream_(tokenizer) {}

void Line::say(const std::string& text) {
  answer.text += text;
  if (!text.empty() && !answer.is_output_lost) answer.is_output_lost = !show_(text);
}

// Draws are numbered by position, so that a continued conversation draws what an uninterrupted one
// would.
GenerateOptions Line::begin(uint64_t max_tokens, Drafter* drafter, Clock::time_point start) {
  sampler_.resume({.seed = options_.sampling.seed, .draws = conversation_.tokens.size()});
  GenerateOptions how{
      .max_tokens = max_tokens,
      .context = options_.context,
      .chunk = kChunk,
      .ends = [this](int32_t token) { return tokenizer_.is_end_of_generation(token); },
      .on_token =
          [this](int32_t token) {
            say(stream_.add(token));
            return answer.is_output_lost ? Flow::stop : Flow::go_on;
          },
      .on_end = [this](Finish finish) { end(finish); },
      .drafter = drafter,
      .most_drafts = options_.most_drafts(),
      .cancel = &is_interrupted,
      .start = start};
  if (recall_ != nullptr) recall_answer(max_tokens, how);
  for (const int32_t token : answer.recalled.answered) say(stream_.add(token));
  return how;
}

// The conversation takes what the store has of it, and gives what it computes.
void Line::recall_answer(uint64_t max_tokens, GenerateOptions& how) {
  answer.recalled = recall_->begin(
      {.max_tokens = max_tokens, .sampling = options_.sampling, .has_seed = true, .stops = {}});
  if (answer.recalled.sampler) sampler_.resume(*answer.recalled.sampler);
  how.max_tokens -= std::min<uint64_t>(how.max_tokens, answer.recalled.answered.size());
  how.cuts = recall_->cuts();
  how.after_step = [this] {
    recall_->after_step(sampler_);
    tiered_->warn_of_problems();
  };
}

void Line::end(Finish finish) {
  say(stream_.rest());
  if (recall_ != nullptr) recall_->end(answer.is_output_lost ? Finish::cancelled : finish);
}

}  // namespace cairn::cli
