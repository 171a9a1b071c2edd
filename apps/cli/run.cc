#include "apps/cli/run.h"

#include <CLI/Option.hpp>
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

--json prints: text, tokens (generated ids), prompt_tokens, resumed (tokens of an interrupted
answer), reused, computed (both together are prompt_tokens + resumed), reused_from_ram,
reused_from_disk (by way of --store), ttft_ms (from the start of the process; null without a token),
ttft_parts_ms, prefill_tokens_per_s, decode_tokens_per_s, speculation (rounds, drafted, accepted:
tokens that --speculate guessed, and those that were right), finish, positions, state_bytes,
save_ms.
)";

// The text of -p or -f; none: neither was given.
Result<std::optional<std::string>> text_of(const RunOptions& options) {
  if (options.prompt) return options.prompt;
  if (options.prompt_file.empty()) return std::nullopt;
  return std::optional(CAIRN_TRY(read_text(options.prompt_file)));
}

Result<void> check_options(const RunOptions& options) {
  const bool has_text = options.prompt || !options.prompt_file.empty();
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
double first_step(const Parts& parts) {
  return parts.first_token - parts.process - parts.model - parts.state;
}

Result<void> show_json(const Talk& talk, const Answer& answer) {
  const GenerateStats& stats = answer.generated.stats;
  const Parts& parts = talk.parts();
  nlohmann::ordered_json ttft, ttft_parts;  // null
  if (parts.first_token > 0) {
    ttft = 1000 * parts.first_token;
    ttft_parts = {{"process", 1000 * parts.process},
                  {"model", 1000 * parts.model},
                  {"state", 1000 * parts.state},
                  {"first_step", 1000 * first_step(parts)}};
  }
  const nlohmann::ordered_json speculation = {
      {"rounds", stats.rounds}, {"drafted", stats.drafted}, {"accepted", stats.accepted}};
  return write_json({{"text", answer.text},
                     {"tokens", answer.generated.tokens},
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
                     {"save_ms", 1000 * answer.save_seconds}});
}

}  // namespace

namespace {

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
    table.add({"  first step", ms(first_step(parts)), ""});
  }
  table.add({"reused", with_commas(stats.reused), reused_text(answer)});
  table.add({"computed", with_commas(stats.computed),
             fmt::format("tokens, {:.1f} tokens/s", prefill_rate(stats))});
  table.add({"generated", with_commas(answer.generated.tokens.size()),
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

// An empty one is a variable of a script that was not set, and no wish to go without.
std::string expect_path(const std::string& path) { return path.empty() ? "empty path" : ""; }

CLI::App* add_run(CLI::App& program, RunOptions& options) {
  CLI::App* run = program.add_subcommand("run", "Answer a text, and remember it with --state");
  run->footer(kExamples);
  run->add_option("MODEL", options.model, "A model file, or a name that `cairn models` lists")
      ->required();
  auto* prompt = run->add_option("-p,--prompt", options.prompt, "The text")->type_name("TEXT");
  auto* file = run->add_option("-f,--file", options.prompt_file, "A file with the text; - is stdin")
                   ->type_name("FILE");
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
  const auto text = CAIRN_TRY(text_of(options));
  catch_interrupts();
  const auto talk = CAIRN_TRY(Talk::open(options, config, start));
  if (options.is_chat) {
    CAIRN_TRY(talk->check_chat());
    if (!text) return chat(*talk, options);
  }
  const Answer answer =
      CAIRN_TRY(options.is_chat ? talk->reply(text) : talk->complete(text.value_or("")));
  if (options.wants_json) CAIRN_TRY(show_json(*talk, answer));
  if (options.wants_stats) show_stats(*talk, answer);
  return finish_answer(answer, *talk);
}

}  // namespace cairn::cli
