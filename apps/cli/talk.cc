#include "apps/cli/talk.h"

#include <algorithm>
#include <thread>

#include "apps/cli/exit_code.h"
#include "apps/cli/installed_models.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/output.h"
#include "cairn/runtime/draft_model.h"
#include "cairn/runtime/head_drafter.h"

namespace cairn::cli {
namespace {

constexpr uint32_t kChunk = 256;  // tokens of a step of the prefill: how long Ctrl-C may wait
constexpr uint64_t kDefaultTokens = 256;  // of an answer to -p or -f

uint32_t threads_of(const RunOptions& options) {
  if (options.threads > 0) return options.threads;
  return std::clamp(std::thread::hardware_concurrency(), 1u, kMaxThreads);
}

Meaning meaning_of(const RunOptions& options) {
  if (options.overwrites) return Meaning::replace;
  return options.goes_on || options.is_chat ? Meaning::go_on : Meaning::match;
}

// Seconds from the last call, or from the making.
class Lap {
 public:
  double take() {
    const auto now = Clock::now();
    return seconds_between(std::exchange(last_, now), now);
  }

 private:
  Clock::time_point last_ = Clock::now();
};

Result<void> check_context(const RunOptions& options, const Model& model) {
  if (options.context > model.context_length())
    return fail(Code::BadInput, "--ctx {}: {} holds at most {} positions", options.context,
                model.weights().path(), model.context_length());
  return {};
}

}  // namespace

Talk::Talk(const RunOptions& options, Clock::time_point start)
    : options_(options),
      start_(start),
      file_{.path = options.state_path, .meaning = meaning_of(options)} {}

Result<std::unique_ptr<Talk>> Talk::open(const RunOptions& options,
                                         const Config& config,
                                         Clock::time_point start) {
  std::unique_ptr<Talk> talk(new Talk(options, start));
  CAIRN_TRY(talk->prepare(config));
  return talk;
}

Result<void> Talk::prepare(const Config& config) {
  Lap lap;
  parts_.process = seconds_between(start_, Clock::now());
  sampler_ = CAIRN_TRY(make_sampler(options_.sampling));
  const std::string path = CAIRN_TRY(find_model(config, options_.model));
  if (!file_.path.empty()) CAIRN_TRY(check_writable(file_.path));
  const auto info = CAIRN_TRY(look_into(file_));
  Scheme scheme = CAIRN_TRY(choose_scheme(options_.kv, file_, info));
  parts_.state = lap.take();

  model_ = CAIRN_TRY(
      load_model(path, {.threads = threads_of(options_), .cache_folder = config.cache_folder}));
  if (model_->tokenizer() == nullptr)
    return fail(Code::Unsupported, "{}: holds no vocabulary, expected a model that reads text",
                path);
  CAIRN_TRY(check_context(options_, *model_));
  CAIRN_TRY(prepare_drafts(config));
  parts_.model = lap.take();

  session_ = CAIRN_TRY(open_session(model_->spec(), std::move(scheme), memory_));
  Held held = CAIRN_TRY(load_state(*session_, file_, info, threads_of(options_)));
  conversation_ = std::move(held.conversation);
  if (info)
    saved_ =
        SavedMark{.length = session_->length(conversation_.seq), .tokens = conversation_.tokens};
  if (!held.warning.empty()) warn(held.warning);
  if (!options_.store_path.empty())
    tiered_ = CAIRN_TRY(Tiered::open(options_, memory_, *session_, conversation_, options_.model));
  parts_.state += lap.take();
  return {};
}

// Who guesses best: a model that was given for it, the model's own head, and look-up else.
Result<void> Talk::prepare_drafts(const Config& config) {
  if (!options_.draft.empty()) {
    const std::string path = CAIRN_TRY(find_model(config, options_.draft));
    auto small =
        CAIRN_TRY(load_model(path, {.beside = model_.get(), .cache_folder = config.cache_folder}));
    const Scheme scheme = CAIRN_TRY(parse_scheme("f16"));
    drafter_ = CAIRN_TRY(DraftModel::make(std::move(small), *model_, memory_, scheme, *sampler_));
  } else if (options_.most_drafts() > 0 && model_->draft_head() != nullptr) {
    const Scheme exact = CAIRN_TRY(parse_scheme("f32"));  // one layer: small as it is
    drafter_ = CAIRN_TRY(HeadDrafter::make(*model_, memory_, exact));
  }
  return {};
}

Pos Talk::context() const {
  return options_.context == 0 ? model_->context_length() : options_.context;
}

std::vector<int32_t> Talk::encode(const std::string& text, Specials specials) const {
  const bool is_beginning = conversation_.tokens.empty() || file_.meaning != Meaning::go_on;
  return model_->tokenizer()->encode(text, specials,
                                     is_beginning ? Ends::AsVocabularySays : Ends::None);
}

Result<Answer> Talk::complete(const std::string& text) {
  const size_t before = conversation_.tokens.size();
  std::vector<int32_t> tokens = encode(text, Specials::AsText);
  if (file_.meaning == Meaning::go_on)
    conversation_.tokens.insert(conversation_.tokens.end(), tokens.begin(), tokens.end());
  else
    CAIRN_TRY(match_tokens(*session_, conversation_, std::move(tokens), file_));
  return answer(options_.max_tokens.value_or(kDefaultTokens), before);
}

Result<void> Talk::check_chat() {
  const Metadata& metadata = model_->weights().metadata();
  const std::string text = CAIRN_TRY(metadata.text_or("tokenizer.chat_template", ""));
  chat_ = CAIRN_TRY(choose_chat_template(text, model_->architecture()));
  return {};
}

bool Talk::is_reply_due() const {
  const std::vector<int32_t> start =
      model_->tokenizer()->encode(chat_->reply_start(), Specials::Parse);
  const std::vector<int32_t>& tokens = conversation_.tokens;
  return tokens.size() >= start.size() && std::equal(start.rbegin(), start.rend(), tokens.rbegin());
}

Result<Answer> Talk::reply(const std::optional<std::string>& message) {
  const size_t before = conversation_.tokens.size();
  if (message) {
    std::string text;
    std::optional<std::string_view> previous;
    if (before > 0) {
      const bool is_ended = model_->tokenizer()->is_end_of_generation(conversation_.tokens.back());
      text = is_ended ? chat_->after_stop() : chat_->turn_end();
      previous = "assistant";
    }
    text +=
        CAIRN_TRY(chat_->turn({.role = "user", .content = *message, .previous_role = previous}));
    text += chat_->reply_start();
    const Ends ends = before == 0 ? Ends::AsVocabularySays : Ends::None;
    const auto tokens = model_->tokenizer()->encode(text, Specials::Parse, ends);
    conversation_.tokens.insert(conversation_.tokens.end(), tokens.begin(), tokens.end());
  }
  return answer(options_.max_tokens.value_or(UINT64_MAX), before);
}

// A text that could not be answered is not part of the conversation.
void Talk::take_back(size_t tokens_before) {
  auto& tokens = conversation_.tokens;
  if (tokens.size() <= tokens_before) return;
  const Pos length = session_->length(conversation_.seq);
  if (length > tokens_before && session_->can_truncate(conversation_.seq, tokens_before))
    (void)session_->truncate(conversation_.seq, tokens_before);
  tokens.resize(std::max<size_t>(tokens_before, session_->length(conversation_.seq)));
}

Result<Answer> Talk::answer(uint64_t max_tokens, size_t tokens_before) {
  Answer answer{.prompt_tokens = conversation_.tokens.size()};
  Result<Generated> generated = generate_shown(max_tokens, answer);
  if (!generated) {
    take_back(tokens_before);
    return tl::unexpected<Error>(std::move(generated.error()));
  }
  answer.generated = std::move(*generated);
  answer.length = session_->length(conversation_.seq);
  if (parts_.first_token == 0) parts_.first_token = answer.generated.stats.first_token_seconds;
  save_state(answer);
  return answer;
}

// The conversation takes what the store has of it, and gives what it computes.
void Talk::recall(uint64_t max_tokens, GenerateOptions& how, Answer& answer) {
  Lap lap;
  answer.recalled = tiered_->begin(
      {.max_tokens = max_tokens, .sampling = options_.sampling, .has_seed = true, .stops = {}});
  if (answer.recalled.sampler) sampler_->resume(*answer.recalled.sampler);
  parts_.state += lap.take();
  how.max_tokens -= std::min<uint64_t>(how.max_tokens, answer.recalled.answered.size());
  how.cuts = tiered_->recall().cuts();
  how.after_step = [this] {
    tiered_->recall().after_step(*sampler_);
    tiered_->warn_of_problems();
  };
}

// Each token's text goes to stdout as soon as its characters are whole; with --json it waits.
Result<Generated> Talk::generate_shown(uint64_t max_tokens, Answer& answer) {
  TextStream stream(*model_->tokenizer());
  Progress progress("reading");
  const auto show = [&](const std::string& text) {
    answer.text += text;
    if (options_.wants_json || text.empty() || answer.is_output_lost) return;
    progress.clear();
    answer.is_output_lost = !write_out(text);
  };

  // Draws are numbered by position, so that a continued conversation draws what an uninterrupted
  // one would.
  sampler_->resume({.seed = options_.sampling.seed, .draws = conversation_.tokens.size()});
  const Tokenizer& tokenizer = *model_->tokenizer();
  GenerateOptions how{.max_tokens = max_tokens,
                      .context = options_.context,
                      .chunk = kChunk,
                      .ends = [&](int32_t token) { return tokenizer.is_end_of_generation(token); },
                      .on_progress = [&](Pos done, Pos total) { progress.show(done, total); },
                      .on_token =
                          [&](int32_t token) {
                            show(stream.add(token));
                            return answer.is_output_lost ? Flow::stop : Flow::go_on;
                          },
                      .cancel = &is_interrupted,
                      .start = start_};
  PromptLookup lookup;
  how.most_drafts = options_.most_drafts();
  if (how.most_drafts > 0) how.drafter = drafter_ ? drafter_.get() : &lookup;
  if (tiered_) recall(max_tokens, how, answer);
  for (const int32_t token : answer.recalled.answered) show(stream.add(token));
  Result<Generated> generated = generate(*model_, *session_, conversation_, *sampler_, how);
  show(stream.rest());
  if (tiered_ && generated) {
    generated->tokens.insert(generated->tokens.begin(), answer.recalled.answered.begin(),
                             answer.recalled.answered.end());
    tiered_->recall().end(answer.is_output_lost ? Finish::cancelled : generated->finish);
    tiered_->finish();
  }
  const bool needs_line = !answer.text.empty() && answer.text.back() != '\n';
  if (needs_line && !options_.wants_json && !answer.is_output_lost)
    answer.is_output_lost = !write_out("\n");
  return generated;
}

// Nothing is written when the file already holds just this.
void Talk::save_state(Answer& answer) {
  const SavedMark now{.length = session_->length(conversation_.seq),
                      .tokens = conversation_.tokens};
  if (file_.path.empty() || saved_ == now) return;
  // Ctrl-C before anything was computed: what was saved is worth more than the new text alone.
  const Generated& generated = answer.generated;
  if (saved_ && generated.finish == Finish::cancelled && generated.stats.computed == 0) return;
  Lap lap;
  const Result<void> saved = save(*session_, conversation_.seq, conversation_.tokens, file_.path);
  answer.save_seconds = lap.take();
  if (saved)
    saved_ = now;
  else
    answer.save_error = saved.error();
}

}  // namespace cairn::cli
