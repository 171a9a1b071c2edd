#include "apps/cli/talk.h"

#include <algorithm>
#include <deque>
#include <thread>

#include "apps/cli/exit_code.h"
#include "apps/cli/installed_models.h"
#include "apps/cli/output.h"
#include "cairn/runtime/draft_model.h"
#include "cairn/runtime/head_drafter.h"

namespace cairn::cli {
namespace {

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

bool has_recurrent_state(const Session& session) {
  for (size_t group = 0; group < session.groups(); ++group)
    if (session.is_recurrent(group)) return true;
  return false;
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
    tiered_ = CAIRN_TRY(Tiered::open(options_, memory_, *session_, options_.model));
  if (tiered_) recall_ = tiered_->recall(conversation_);
  parts_.state += lap.take();
  return {};
}

Result<void> Talk::prepare_drafts(const Config& config) {
  if (!options_.draft.empty()) {
    const std::string path = CAIRN_TRY(find_model(config, options_.draft));
    small_ =
        CAIRN_TRY(load_model(path, {.beside = model_.get(), .cache_folder = config.cache_folder}));
  }
  drafter_ = CAIRN_TRY(make_drafter(*sampler_));
  return {};
}

// Who guesses best: a model that was given for it, the model's own head, and look-up else, which
// starts anew with every answer: null.
Result<std::unique_ptr<Drafter>> Talk::make_drafter(const Sampler& sampler) {
  if (small_) {
    const Scheme scheme = CAIRN_TRY(parse_scheme("f16"));
    return DraftModel::make(*small_, *model_, memory_, scheme, sampler);
  }
  if (options_.most_drafts() > 0 && model_->draft_head() != nullptr) {
    const Scheme exact = CAIRN_TRY(parse_scheme("f32"));  // one layer: small as it is
    return HeadDrafter::make(*model_, memory_, exact);
  }
  return nullptr;
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

// A message of the user. `ending`: of the answer before it; without one it begins a conversation.
Result<std::vector<int32_t>> Talk::message_tokens(const std::string& message,
                                                  std::optional<std::string> ending) {
  std::optional<std::string_view> previous;
  if (ending) previous = "assistant";
  std::string text = ending.value_or("");
  text += CAIRN_TRY(chat_->turn({.role = "user", .content = message, .previous_role = previous}));
  text += chat_->reply_start();
  return model_->tokenizer()->encode(text, Specials::Parse,
                                     ending ? Ends::None : Ends::AsVocabularySays);
}

Result<Answer> Talk::reply(const std::optional<std::string>& message) {
  const size_t before = conversation_.tokens.size();
  if (message) {
    std::optional<std::string> ending;
    if (before > 0) {
      const bool is_ended = model_->tokenizer()->is_end_of_generation(conversation_.tokens.back());
      ending = is_ended ? chat_->after_stop() : chat_->turn_end();
    }
    const auto tokens = CAIRN_TRY(message_tokens(*message, std::move(ending)));
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
  // A text that is only read may be answered later, for which its last token is computed. Where no
  // way leads back before it, it waits until then.
  auto& tokens = conversation_.tokens;
  const Pos held = session_->length(conversation_.seq);
  std::optional<int32_t> waiting;
  if (max_tokens == 0 && has_recurrent_state(*session_) && tokens.size() > std::max<Pos>(held, 1)) {
    waiting = tokens.back();
    tokens.pop_back();
  }
  Result<Answer> answer = generate_shown(max_tokens);
  if (waiting) tokens.push_back(*waiting);
  if (!answer) {
    take_back(tokens_before);
    return answer;
  }
  answer->length = session_->length(conversation_.seq);
  answer->prompt_tokens = std::max<Pos>(answer->prompt_tokens, waiting ? tokens.size() : 0);
  if (parts_.first_token == 0) parts_.first_token = answer->generated.stats.first_token_seconds;
  save_state(*answer);
  return answer;
}

// Each token's text goes to stdout as soon as its characters are whole; with --json it waits.
Result<Answer> Talk::generate_shown(uint64_t max_tokens) {
  Progress progress("reading");
  Line line(options_, *model_->tokenizer(), conversation_, *sampler_, tiered_.get(), recall_.get(),
            [&](const std::string& text) {
              if (options_.wants_json) return true;
              progress.clear();
              return bool(write_out(text));
            });
  PromptLookup lookup;
  Drafter* drafter = drafter_ ? drafter_.get() : &lookup;
  Lap lap;
  GenerateOptions how =
      line.begin(max_tokens, options_.most_drafts() > 0 ? drafter : nullptr, start_);
  how.on_progress = [&](Pos done, Pos total) { progress.show(done, total); };
  parts_.state += lap.take();
  Result<Generated> generated = generate(*model_, *session_, conversation_, *sampler_, how);
  if (generated) {
    line.answer.generated = std::move(*generated);
    if (tiered_) tiered_->finish();
  }
  Answer& answer = line.answer;
  const bool needs_line = !answer.text.empty() && answer.text.back() != '\n';
  if (needs_line && !options_.wants_json && !answer.is_output_lost)
    answer.is_output_lost = !write_out("\n");
  if (!generated) return tl::unexpected<Error>(std::move(generated.error()));
  return std::move(answer);
}

namespace {

// One of several conversations.
struct One {
  One(std::vector<int32_t> tokens, SeqId seq, const Sampler& options)
      : conversation{seq, std::move(tokens)}, sampler(options) {}

  Conversation conversation;
  Sampler sampler;
  std::unique_ptr<Drafter> drafter;
  std::unique_ptr<Recall> recall;
  std::unique_ptr<Line> line;
  Pos done = 0, total = 0;  // of its prompt
};

}  // namespace

Result<std::vector<Answer>> Talk::answer_all(const std::vector<std::string>& texts,
                                             const Audience& audience) {
  Progress progress("reading");
  std::deque<One> all;
  std::vector<Asked> asked;
  const auto show_progress = [&] {
    Pos done = 0, total = 0;
    for (const One& one : all) done += one.done, total += one.total;
    progress.show(done, total);
  };
  Lap lap;
  for (size_t i = 0; i < texts.size(); ++i) {
    std::vector<int32_t> tokens = options_.is_chat
                                      ? CAIRN_TRY(message_tokens(texts[i], std::nullopt))
                                      : encode(texts[i], Specials::AsText);
    One& one = all.emplace_back(std::move(tokens), session_->start(), *sampler_);
    if (options_.most_drafts() > 0) one.drafter = CAIRN_TRY(make_drafter(one.sampler));
    if (options_.most_drafts() > 0 && !one.drafter) one.drafter = std::make_unique<PromptLookup>();
    if (tiered_) one.recall = tiered_->recall(one.conversation);
    one.line =
        std::make_unique<Line>(options_, *model_->tokenizer(), one.conversation, one.sampler,
                               tiered_.get(), one.recall.get(), [&, i](const std::string& text) {
                                 progress.clear();
                                 return audience.hear(i, text);
                               });
  }
  const uint64_t usual = options_.is_chat ? UINT64_MAX : kDefaultTokens;
  for (size_t i = 0; i < all.size(); ++i) {
    One& one = all[i];
    GenerateOptions how =
        one.line->begin(options_.max_tokens.value_or(usual), one.drafter.get(), start_);
    how.on_end = [&, i, end_line = how.on_end](Finish finish) {
      end_line(finish);
      audience.end(i);
    };
    how.on_progress = [&show_progress, &one](Pos done, Pos total) {
      one.done = done, one.total = total;
      show_progress();
    };
    asked.push_back({.conversation = &one.conversation, .sampler = &one.sampler, .options = how});
  }
  parts_.state += lap.take();
  std::vector<Generated> generated = CAIRN_TRY(generate_together(*model_, *session_, asked));
  std::vector<Answer> answers;
  for (size_t i = 0; i < all.size(); ++i) {
    One& one = all[i];
    Answer& answer = answers.emplace_back(std::move(one.line->answer));
    answer.generated = std::move(generated[i]);
    answer.length = session_->length(one.conversation.seq);
    const double first = answer.generated.stats.first_token_seconds;
    if (first > 0 && (parts_.first_token == 0 || first < parts_.first_token))
      parts_.first_token = first;
  }
  if (tiered_) tiered_->finish();
  return answers;
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
