#include "apps/cli/run.h"

#include <CLI/Option.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/cli/chat.h"
#include "apps/cli/exit_code.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/output.h"
#include "apps/cli/talk.h"
#include "apps/cli/text_file.h"

namespace cairn::cli {
namespace {

constexpr const char* kExamples =
    R"(Examples:
  cairn run smollm2 -p "The capital of France is" -n 16
      completes a text; greedy unless --temp says otherwise, so the same words every time
  cairn run smollm2 -f book.txt -n 0 --state book.cairn
      reads a long text once and keeps what was computed
  cairn run smollm2 -f book-and-question.txt --state book.cairn
      a text that begins like the saved one: only the rest is computed
  cairn run smollm2 --state book.cairn --continue -p " And then"
      goes on where the file ends; without -p it just goes on generating
  cairn run smollm2 --chat --state chat.cairn
      a conversation, line by line, saved after every answer; the same command resumes it
  cairn run smollm2 --chat -p "Why is the sky blue?" --json
      one message and its answer, as JSON
  cairn run smollm2 -f one.txt -f another.txt --json
      several texts at once, which takes less time than one after the other; a JSON array
  cairn run big-model -f book.txt --draft small-model --stats
      the small model guesses tokens that the big one checks together: the same words, sooner
  cairn run smollm2 -f book-and-question.txt --store cache
      reuses whatever any earlier run with this store computed; run again after an interruption it
      goes on with the same words

-p and -f give the text to the model as it is; --chat writes it as the model's chat template wants.
With --state and neither --continue nor --chat the text is the whole conversation from its first
word on: what it shares with the file is reused. A text that would drop more than half of what is
saved is refused. With --store nothing is refused or named: whatever prefix of the text is there is
reused, and a store that is full, slow or damaged costs time and never changes a word. Both can be
given; whichever has more of the text is used.

Several -p or several -f are conversations of their own (with --chat: the first message of each),
computed together. Each is answered as it would be alone, whatever the others say, and what all of
them begin with is computed once. The answers come in order, under their names. --store takes them
all; --state holds one conversation and is for one text.

--json prints, of several texts as an array: text, tokens (generated ids), prompt_tokens, resumed (tokens of an interrupted
answer), reused, computed (both together are prompt_tokens + resumed), reused_from_ram,
reused_from_disk (by way of --store), ttft_ms (from the start of the process; null without a token),
ttft_parts_ms, prefill_tokens_per_s, decode_tokens_per_s, speculation (rounds, drafted, accepted:
tokens that --speculate guessed, and those that were right), finish, positions, state_bytes,
save_ms.
)";

// The texts of -p and -f.
Result<std::vector<std::string>> texts_of(const RunOptions& options) {
  std::vector<std::string> texts = options.prompts;
  for (const std::string& path : options.prompt_files) texts.push_back(CAIRN_TRY(read_text(path)));
  return texts;
}

// What a person calls text `index`.
std::string name_of(const RunOptions& options, size_t index) {
  return options.prompt_files.empty() ? fmt::format("text {}", index + 1)
                                      : options.prompt_files[index];
}

Result<void> check_options(const RunOptions& options) {
  const bool has_text = options.texts() > 0;
  if (!has_text && !options.is_chat && !options.goes_on)
    return fail(Code::BadInput, "run: no text, expected -p TEXT, -f FILE or --chat");
  if (options.state_path.empty() && (options.goes_on || options.overwrites))
    return fail(Code::BadInput, "run: {} without a file, expected --state FILE with it",
                options.goes_on ? "--continue" : "--overwrite");
  if (!options.draft.empty() && options.most_drafts() == 0)
    return fail(Code::BadInput,
                "run: --draft with --speculate 0, expected from 1 to 64, or neither of them");
  if (options.is_chat && !has_text && options.wants_json)
    return fail(Code::BadInput, "run: --json prints one answer, expected --chat with -p or -f");
  if (options.texts() > 1 && !options.state_path.empty())
    return fail(Code::BadInput,
                "run: --state with {} texts, expected one: it holds one conversation; --store DIR "
                "keeps any number",
                options.texts());
  if (std::ranges::count(options.prompt_files, "-") > 1)
    return fail(Code::BadInput, "run: -f - more than once, expected stdin to be read once");
  return {};
}

std::string_view name_of(Finish finish) {
  switch (finish) {
    case Finish::length:
      return "length";
    case Finish::end_token:
      return "end";
    case Finish::stopped:
      return "stopped";
    case Finish::cancelled:
      return "interrupted";
    case Finish::context_full:
      return "context_full";
  }
  return "";
}

double prefill_rate(const GenerateStats& stats) {
  return stats.prefill_seconds > 0 ? static_cast<double>(stats.computed) / stats.prefill_seconds
                                   : 0;
}

// What is left of the time to the first token once the other parts are taken away: reading the
// text, splitting it into tokens, computing what is new, choosing.
double first_step(const Parts& parts, double first_token) {
  return first_token - parts.process - parts.model - parts.state;
}

nlohmann::ordered_json json_of(const Parts& parts, const Answer& answer) {
  const GenerateStats& stats = answer.generated.stats;
  nlohmann::ordered_json ttft, ttft_parts;  // null
  if (const double first_token = stats.first_token_seconds; first_token > 0) {
    ttft = 1000 * first_token;
    ttft_parts = {{"process", 1000 * parts.process},
                  {"model", 1000 * parts.model},
                  {"state", 1000 * parts.state},
                  {"first_step", 1000 * first_step(parts, first_token)}};
  }
  const nlohmann::ordered_json speculation = {
      {"rounds", stats.rounds}, {"drafted", stats.drafted}, {"accepted", stats.accepted}};
  return {{"text", answer.text},
          {"tokens", answer.tokens()},
          {"prompt_tokens", answer.prompt_tokens},
          {"reused", stats.reused},
          {"reused_from_ram", answer.recalled.from_ram},
          {"reused_from_disk", answer.recalled.from_disk},
          {"resumed", answer.recalled.answered.size()},
          {"computed", stats.computed},
          {"ttft_ms", ttft},
          {"ttft_parts_ms", ttft_parts},
          {"prefill_tokens_per_s", prefill_rate(stats)},
          {"decode_tokens_per_s", stats.decode_tokens_per_second()},
          {"speculation", speculation},
          {"finish", name_of(answer.generated.finish)},
          {"positions", answer.length},
          {"state_bytes", stats.state_bytes},
          {"save_ms", 1000 * answer.save_seconds}};
}

// Where the reused tokens came from.
std::string reused_text(const Answer& answer) {
  const Recalled& recalled = answer.recalled;
  const Pos from_tiers = recalled.from_ram + recalled.from_disk;
  const Pos held =
      answer.generated.stats.reused - std::min(answer.generated.stats.reused, from_tiers);
  std::string text = "tokens";
  if (held > 0) text += fmt::format(", {} held already", with_commas(held));
  if (recalled.from_ram > 0) text += fmt::format(", {} from RAM", with_commas(recalled.from_ram));
  if (recalled.from_disk > 0)
    text += fmt::format(", {} from disk", with_commas(recalled.from_disk));
  if (!recalled.answered.empty())
    text += fmt::format(", {} of an interrupted answer", with_commas(recalled.answered.size()));
  return text;
}

}  // namespace

void show_stats(const Talk& talk, const Answer& answer) {
  const GenerateStats& stats = answer.generated.stats;
  const Parts& parts = talk.parts();
  const auto ms = [](double seconds) { return fmt::format("{:.1f} ms", 1000 * seconds); };
  Table table({Align::left, Align::right, Align::left});
  if (parts.first_token > 0) {
    table.add({"first token", ms(parts.first_token), "from the start of the process"});
    table.add({"  process start", ms(parts.process), ""});
    table.add({"  model", ms(parts.model), "map, identity, vocabulary"});
    table.add({"  state", ms(parts.state), "read, verify, place"});
    table.add({"  first step", ms(first_step(parts, parts.first_token)), ""});
  }
  table.add({"reused", with_commas(stats.reused), reused_text(answer)});
  table.add({"computed", with_commas(stats.computed),
             fmt::format("tokens, {:.1f} tokens/s", prefill_rate(stats))});
  table.add({"generated", with_commas(answer.tokens().size()),
             fmt::format("tokens, {:.1f} tokens/s", stats.decode_tokens_per_second())});
  if (stats.rounds > 0)
    table.add({"accepted", with_commas(stats.accepted),
               fmt::format("of {} drafts, {:.1f} in each of {} rounds", with_commas(stats.drafted),
                           static_cast<double>(stats.accepted) / static_cast<double>(stats.rounds),
                           with_commas(stats.rounds))});
  table.add({"state", megabytes(stats.state_bytes),
             fmt::format("{} positions", with_commas(answer.length))});
  if (answer.save_seconds > 0) table.add({"saved in", ms(answer.save_seconds), ""});
  fmt::print(stderr, "\n{}", table.text("  "));
}

int finish_answer(const Answer& answer, const Talk& talk) {
  if (answer.save_error) {
    Error error = *answer.save_error;
    error.message += "; the state was not saved, and an older file is as it was";
    return report(error);
  }
  if (answer.is_output_lost)
    return report({Code::Io, "stdout: closed or full; the answer ends there"});
  if (answer.generated.finish == Finish::cancelled) return kBySignal + interrupt_signal();
  if (answer.generated.finish == Finish::context_full)
    warn(fmt::format("the context of {} positions is full: the answer ends there",
                     with_commas(talk.context())));
  return kDone;
}

namespace {

// Answers that come at the same time, one below the other: what the first unfinished one says is
// seen at once, and what the others say when their turn comes.
class InOrder {
 public:
  explicit InOrder(const RunOptions& options) : options_(options), answers_(options.texts()) {}

  bool add(size_t index, const std::string& text) {  // false: nobody reads any more
    answers_[index].text += text;
    if (index == turn_) show();
    return !is_lost_;
  }
  void end(size_t index) {
    answers_[index].has_ended = true;
    for (; turn_ < answers_.size() && answers_[turn_].has_ended; ++turn_) {
      std::string& text = answers_[turn_].text;
      if (text.empty() || text.back() != '\n') text += '\n';
      show();
    }
    if (turn_ < answers_.size()) show();
  }

 private:
  struct One {
    std::string text;
    size_t shown = 0;  // bytes of it
    bool is_named = false;
    bool has_ended = false;
  };
  void show() {
    One& one = answers_[turn_];
    std::string text = one.text.substr(one.shown);
    one.shown = one.text.size();
    if (text.empty()) return;
    if (!std::exchange(one.is_named, true))
      text =
          fmt::format("{}==> {} <==\n{}", turn_ == 0 ? "" : "\n", name_of(options_, turn_), text);
    if (!options_.wants_json && !is_lost_) is_lost_ = !write_out(text);
  }

  const RunOptions& options_;
  std::vector<One> answers_;
  size_t turn_ = 0;  // whose it is
  bool is_lost_ = false;
};

void show_stats_of_all(const Talk& talk,
                       const RunOptions& options,
                       const std::vector<Answer>& answers) {
  Table table({Align::left, Align::right, Align::right, Align::right, Align::right, Align::left,
               Align::right});
  table.add({"", "reused", "computed", "generated", "accepted", "", "tokens/s"});
  GenerateStats sum;
  size_t generated = 0;
  const auto add = [&](const std::string& name, const GenerateStats& stats, size_t tokens) {
    table.add({name, with_commas(stats.reused), with_commas(stats.computed), with_commas(tokens),
               with_commas(stats.accepted), fmt::format("of {}", with_commas(stats.drafted)),
               fmt::format("{:.1f}", stats.decode_tokens_per_second())});
  };
  for (size_t i = 0; i < answers.size(); ++i) {
    const GenerateStats& stats = answers[i].generated.stats;
    add(name_of(options, i), stats, answers[i].tokens().size());
    sum.reused += stats.reused;
    sum.computed += stats.computed;
    sum.drafted += stats.drafted;
    sum.accepted += stats.accepted;
    sum.decoded += stats.decoded;
    sum.decode_seconds = std::max(sum.decode_seconds, stats.decode_seconds);
    generated += answers[i].tokens().size();
  }
  add("all", sum, generated);
  fmt::print(stderr, "\n{}", table.text("  "));
  if (talk.parts().first_token > 0)
    fmt::print(stderr, "  first token after {:.1f} ms\n", 1000 * talk.parts().first_token);
}

Result<int> run_together(Talk& talk,
                         const RunOptions& options,
                         const std::vector<std::string>& texts) {
  InOrder output(options);
  const std::vector<Answer> answers = CAIRN_TRY(talk.answer_all(
      texts, {.hear = [&](size_t i, const std::string& text) { return output.add(i, text); },
              .end = [&](size_t i) { output.end(i); }}));
  if (options.wants_json) {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const Answer& answer : answers) all.push_back(json_of(talk.parts(), answer));
    CAIRN_TRY(write_json(all));
  }
  if (options.wants_stats) show_stats_of_all(talk, options, answers);
  int code = kDone;
  for (const Answer& answer : answers) code = std::max(code, finish_answer(answer, talk));
  return code;
}

}  // namespace

// An empty one is a variable of a script that was not set, and no wish to go without.
std::string expect_path(const std::string& path) { return path.empty() ? "empty path" : ""; }

CLI::App* add_run(CLI::App& program, RunOptions& options) {
  CLI::App* run = program.add_subcommand("run", "Answer a text, and remember it with --state");
  run->footer(kExamples);
  run->add_option("MODEL", options.model, "A model file, or a name that `cairn models` lists")
      ->required();
  auto* prompt =
      run->add_option("-p,--prompt", options.prompts, "The text; several times: several at once")
          ->type_name("TEXT")
          ->expected(1)
          ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  auto* file =
      run->add_option("-f,--file", options.prompt_files, "A file with the text; - is stdin")
          ->type_name("FILE")
          ->expected(1)
          ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  prompt->excludes(file);
  run->add_flag("--chat", options.is_chat,
                "Write messages by the model's chat template; without -p and -f line by line");
  run->add_option("--state", options.state_path,
                  "What was computed is kept here and reused next time")
      ->type_name("FILE")
      ->check(expect_path);
  auto* goes_on =
      run->add_flag("--continue", options.goes_on,
                    "The text is the next part of what --state holds (--chat implies it)");
  auto* store = run->add_option("--store", options.store_path,
                                "A folder that remembers every conversation: what any earlier run "
                                "computed of this text is reused")
                    ->type_name("DIR")
                    ->check(expect_path);
  run->add_option("--namespace", options.name_space,
                  "Shares what is stored with the same namespace only")
      ->type_name("NAME")
      ->needs(store);
  run->add_option("--tenant-key", options.tenant_key_path,
                  "A file with a secret: without it nothing of this is found or guessed")
      ->type_name("FILE")
      ->check(expect_path)
      ->needs(store);
  run->add_option("--store-bytes", options.store_bytes,
                  "What the store may take from now on, as in 500M or 20G; the least recently used "
                  "leaves (what it has; 20G at first)")
      ->type_name("SIZE")
      ->transform(CLI::AsSizeValue(false))
      ->needs(store);
  run->add_option("--checkpoint-every", options.checkpoint_every,
                  "Tokens after which an answer can go on should it be interrupted; 0: never (32)")
      ->type_name("TOKENS")
      ->check(CLI::NonNegativeNumber)
      ->needs(store);
  auto* overwrites = run->add_flag("--overwrite", options.overwrites,
                                   "Start anew, and replace what --state holds");
  goes_on->excludes(overwrites);
  run->add_option("-n,--tokens", options.max_tokens,
                  "Tokens to generate at most; 0: only read and save (256; with --chat until the "
                  "answer ends)")
      ->type_name("TOKENS")
      ->check(CLI::NonNegativeNumber);
  run->add_option("--kv", options.kv,
                  "Scheme of the state: f16, bf16, f32, or refined as in bf16+slots0-3:f32 (what "
                  "the file has; f16 for a new one)")
      ->type_name("SCHEME");
  run->add_option("--threads", options.threads, "Threads; changes no word (all of the machine's)")
      ->type_name("N")
      ->check(CLI::Range(1, 512));
  run->add_option("--ctx", options.context, "Positions to use at most (what the model has)")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  run->add_option("--temp", options.sampling.temperature,
                  "Temperature; 0: always the likeliest (0)")
      ->type_name("T");
  run->add_option("--top-k", options.sampling.top_k, "Only the K likeliest tokens; 0: all (0)")
      ->type_name("K")
      ->check(CLI::NonNegativeNumber);
  run->add_option("--top-p", options.sampling.top_p,
                  "Only the likeliest tokens that sum to this probability (1)")
      ->type_name("P");
  run->add_option("--min-p", options.sampling.min_p,
                  "Only tokens this probable relative to the likeliest (0)")
      ->type_name("P");
  run->add_option("--repeat-penalty", options.sampling.repetition_penalty,
                  "Makes tokens of the newest 64 less likely (1: off)")
      ->type_name("X");
  run->add_option("--seed", options.sampling.seed, "The same seed, the same words (0)")
      ->type_name("N")
      ->check(CLI::NonNegativeNumber);
  run->add_option("--speculate", options.speculate,
                  "Guesses up to N tokens at once, which changes no word: with the model of "
                  "--draft, or the model's draft head, or else where the text repeats itself; 0: "
                  "off (0; 4 with --draft)")
      ->type_name("N")
      ->check(CLI::Range(0, 64));
  run->add_option("--draft", options.draft,
                  "A smaller model with the same vocabulary, to guess what this one will say")
      ->type_name("MODEL")
      ->check(expect_path);
  run->add_flag("--stats", options.wants_stats, "Times and sizes, on stderr");
  run->add_flag("--json", options.wants_json, "One JSON object on stdout instead of the text");
  return run;
}

Result<int> run(const RunOptions& options, const Config& config, Clock::time_point start) {
  CAIRN_TRY(check_options(options));
  const std::vector<std::string> texts = CAIRN_TRY(texts_of(options));
  catch_interrupts();
  const auto talk = CAIRN_TRY(Talk::open(options, config, start));
  if (options.is_chat) CAIRN_TRY(talk->check_chat());
  if (options.is_chat && texts.empty()) return chat(*talk, options);
  if (texts.size() > 1) return run_together(*talk, options, texts);
  const std::string text = texts.empty() ? "" : texts.front();
  const Answer answer = CAIRN_TRY(options.is_chat ? talk->reply(text) : talk->complete(text));
  if (options.wants_json) CAIRN_TRY(write_json(json_of(talk->parts(), answer)));
  if (options.wants_stats) show_stats(*talk, answer);
  return finish_answer(answer, *talk);
}

}  // namespace cairn::cli
