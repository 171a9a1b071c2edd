#include "apps/cli/fidelity.h"

#include <CLI/Option.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "apps/cli/exit_code.h"
#include "apps/cli/fidelity_plot.h"
#include "apps/cli/installed_models.h"
#include "apps/cli/output.h"
#include "apps/cli/text_file.h"
#include "cairn/io/file.h"
#include "cairn/io/replacement.h"
#include "cairn/runtime/fidelity.h"

namespace cairn::cli {
namespace {

constexpr const char* kExamples =
    R"(Examples:
  cairn fidelity smollm2 -f book.txt
      every usual scheme, and the smallest whose mean KL stays below 0.01
  cairn fidelity smollm2 -f book.txt --kv affine4,turbo-k8v3,affine4-keep64 --plot kl.svg
      these three, and a picture of them
  cairn fidelity smollm2 -f book.txt --expand
      what the schemes cost without the rounding of quantized products, which hides small costs
  head -c 20000 book.txt | cairn fidelity smollm2 -f - --kl 0.001 --json
      the beginning of a text, as JSON

Each token of the text is predicted from a state in f32 and from one under each scheme. KL is how far
the scheme's predictions are from those of f32, in nats a token: its mean with an interval that holds
it 95 times in 100, and the one that 1 of 1,000 tokens exceeds. "same first" counts the tokens whose
likeliest successor stays the same. Bits are those stored for a number of the state, scales and exact
positions included. "attention" is how far the attention's output is off for the same queries, keys
and values, relative to its length. Greedy answers to 16 pieces of the text tell the drift: "differs
at" is the token at which the middle one of them first differs from that of f32, "never" counts those
that do not. The time is the model's, over the whole text. A text of thousands of tokens of the sort
that you work with tells most; each scheme takes about as long as reading it.

Quantized weights are multiplied by activations rounded to 8 bits. A change in the last bit of a
state moves some of these by a whole step, so every scheme, f16 too, then costs at least a KL of
some thousandths. --expand shows what is the state's own.

--json prints an array, an object for each scheme: scheme, kl_mean, kl_low, kl_high, kl_p999, top1,
perplexity, reference_perplexity (of f32), bits_per_position (as above: the bits of a position over
the numbers that it stores), tokens, attention_error, drift_median (null: most answers never differ),
drift_never (a share), seconds, is_recommended.
)";

constexpr std::string_view kUsualSchemes[] = {
    "f16",     "bf16",       "affine8",    "affine6",    "affine5",    "affine4",   "affine3",
    "affine2", "turbo-k8v8", "turbo-k8v4", "turbo-k8v3", "turbo-k8v2", "turbo-k4v4"};

Result<std::string> fitting(std::string_view name, const ModelSpec& spec) {
  const Scheme scheme = CAIRN_TRY(parse_scheme(name));
  CAIRN_TRY(resolve(scheme, spec));
  return std::string(name);
}

// Those that the model's widths accept; the others are named.
std::vector<std::string> usual_schemes(const ModelSpec& spec) {
  std::vector<std::string> schemes;
  for (const std::string_view name : kUsualSchemes) {
    auto scheme = fitting(name, spec);
    if (scheme)
      schemes.push_back(std::move(*scheme));
    else
      warn(fmt::format("left out: {}", scheme.error().message));
  }
  return schemes;
}

// A few digits, whatever the size.
std::string short_number(double number) {
  return number == 0 || number >= 0.0001 ? fmt::format("{:.5f}", number)
                                         : fmt::format("{:.1e}", number);
}

std::string differs_at(const Drift& drift, uint32_t tokens) {
  return drift.median ? std::to_string(*drift.median) : fmt::format("> {}", tokens);
}

std::vector<std::string> row_of(const SchemeFidelity& scheme, uint32_t drift_tokens) {
  std::vector<std::string> row = {
      scheme.scheme,
      fmt::format("{:.2f}", scheme.bits_per_number),
      short_number(scheme.kl_mean),
      short_number(scheme.kl_low) + " - " + short_number(scheme.kl_high),
      short_number(scheme.kl_p999),
      fmt::format("{:.2f} %", 100 * scheme.top1),
      fmt::format("{:.4f}", scheme.perplexity),
      fmt::format("{:.3f} %", 100 * scheme.attention_error)};
  if (scheme.drift) {
    row.push_back(differs_at(*scheme.drift, drift_tokens));
    row.push_back(fmt::format("{:.0f} %", 100 * scheme.drift->never));
  }
  row.push_back(fmt::format("{:.1f} s", scheme.seconds));
  return row;
}

// The first row is that of f32.
std::string table_of(const Fidelity& measured, uint32_t drift_tokens) {
  std::vector<std::string> titles = {"scheme",    "bits",       "mean KL",    "95 % interval",
                                     "KL 99.9 %", "same first", "perplexity", "attention"};
  if (drift_tokens > 0) titles.insert(titles.end(), {"differs at", "never"});
  titles.push_back("time");
  std::vector<Align> columns(titles.size(), Align::right);
  columns[0] = columns[3] = Align::left;
  Table table(columns);
  table.add(titles);
  std::vector<std::string> reference(titles.size());
  reference[0] = "f32";
  reference[1] = "32.00";
  reference[6] = fmt::format("{:.4f}", measured.perplexity);
  reference.back() = fmt::format("{:.1f} s", measured.seconds);
  table.add(reference);
  for (const SchemeFidelity& scheme : measured.schemes) table.add(row_of(scheme, drift_tokens));
  return table.text("  ");
}

std::string advice(const Fidelity& measured, const std::optional<size_t>& best, double kl) {
  if (!best)
    return fmt::format(
        "none of them stays below a KL of {:g}: add more bits, or exact beginnings as in "
        "affine8-keep64\n",
        kl);
  const SchemeFidelity& scheme = measured.schemes[*best];
  return fmt::format(
      "--kv {}: the smallest whose KL stays below {:g}, with {:.2f} bits a number, {:.1f} times "
      "fewer than f16\n",
      scheme.scheme, kl, scheme.bits_per_number, 16 / scheme.bits_per_number);
}

using Json = nlohmann::ordered_json;

Json json_of(const Fidelity& measured, const std::optional<size_t>& best) {
  auto list = Json::array();
  for (size_t i = 0; i < measured.schemes.size(); ++i) {
    const SchemeFidelity& scheme = measured.schemes[i];
    const std::optional<Drift>& drift = scheme.drift;
    list.push_back({{"scheme", scheme.scheme},
                    {"kl_mean", scheme.kl_mean},
                    {"kl_low", scheme.kl_low},
                    {"kl_high", scheme.kl_high},
                    {"kl_p999", scheme.kl_p999},
                    {"top1", scheme.top1},
                    {"perplexity", scheme.perplexity},
                    {"reference_perplexity", measured.perplexity},
                    {"bits_per_position", scheme.bits_per_number},
                    {"tokens", scheme.tokens},
                    {"attention_error", scheme.attention_error},
                    {"drift_median", drift && drift->median ? Json(*drift->median) : Json()},
                    {"drift_never", drift ? Json(drift->never) : Json()},
                    {"seconds", scheme.seconds},
                    {"is_recommended", best == i}});
  }
  return list;
}

uint32_t threads_of(const FidelityCommand& options) {
  if (options.threads > 0) return options.threads;
  return std::clamp(std::thread::hardware_concurrency(), 1u, kMaxThreads);
}

std::string about_text(const FidelityCommand& options, uint64_t tokens, Pos context) {
  const std::string text = options.text_file == "-"
                               ? "stdin"
                               : std::filesystem::path(options.text_file).filename().string();
  return fmt::format("{} tokens of {} predicted in sequences of up to {}{}", with_commas(tokens),
                     text, with_commas(context), options.expands ? ", weights in f32" : "");
}

// Nothing but an older picture is replaced.
Result<std::optional<Replacement>> open_plot(const std::string& path) {
  if (path.empty()) return std::optional<Replacement>();
  if (posix_fs().exists(path) && !path.ends_with(".svg"))
    return fail(Code::BadInput, "{}: exists and is no .svg: it is left alone, name another file",
                path);
  return std::optional(CAIRN_TRY(Replacement::make(posix_fs(), path)));
}

Result<void> write_plot(Replacement plot, const std::string& picture) {
  CAIRN_TRY(plot.file().write_at(0, std::as_bytes(std::span(picture))));
  return plot.commit();
}

}  // namespace

CLI::App* add_fidelity(CLI::App& program, FidelityCommand& options) {
  CLI::App* fidelity =
      program.add_subcommand("fidelity", "Measure on a text what each scheme of the state costs");
  fidelity->footer(kExamples);
  fidelity->add_option("MODEL", options.model, "A model file, or a name that `cairn models` lists")
      ->required();
  fidelity
      ->add_option("-f,--file", options.text_file, "A file with the text to predict; - is stdin")
      ->type_name("FILE")
      ->required();
  fidelity->add_option("--kv", options.schemes, "Schemes to measure, by commas (the usual ones)")
      ->type_name("SCHEME,...")
      ->delimiter(',');
  fidelity
      ->add_option("--context", options.context,
                   "Tokens of a sequence; a longer text becomes several (1024)")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  fidelity
      ->add_option("--kl", options.kl,
                   "What the mean KL of a recommended scheme stays below (0.01)")
      ->type_name("MAX")
      ->check(CLI::PositiveNumber);
  fidelity
      ->add_option("--drift", options.drift,
                   "Tokens of the greedy answers that are compared; 0: none (64)")
      ->type_name("N");
  fidelity->add_option("--plot", options.plot_path, "Also draw KL over bits, as an SVG")
      ->type_name("FILE");
  fidelity
      ->add_option("--threads", options.threads,
                   "Threads; changes no figure but the time (all of the machine's)")
      ->type_name("N")
      ->check(CLI::Range(1, 512));
  fidelity->add_flag("--expand", options.expands,
                     "Decode the weights to f32 first: exact products, more memory");
  fidelity->add_flag("--json", options.wants_json, "A JSON array instead of a table");
  return fidelity;
}

Result<int> show_fidelity(const FidelityCommand& options, const Config& config) {
  const std::string path = CAIRN_TRY(find_model(config, options.model));
  const std::string text = CAIRN_TRY(read_text(options.text_file));
  for (const std::string& scheme : options.schemes) CAIRN_TRY(parse_scheme(scheme));
  std::optional<Replacement> plot = CAIRN_TRY(open_plot(options.plot_path));
  const auto model =
      CAIRN_TRY(load_model(path, {.threads = threads_of(options),
                                  .expand = options.expands ? Expand::f32 : Expand::no,
                                  .cache_folder = config.cache_folder}));
  const Tokenizer* tokenizer = model->tokenizer();
  if (tokenizer == nullptr)
    return fail(Code::Unsupported, "{}: holds no vocabulary, expected a model that reads text",
                path);

  const std::vector<int32_t> tokens = tokenizer->encode(text, Specials::AsText);
  const std::vector<std::string> schemes =
      options.schemes.empty() ? usual_schemes(model->spec()) : options.schemes;
  Progress progress("predicting");
  FidelityOptions how;
  how.context = options.context.value_or(std::min<Pos>(how.context, model->context_length()));
  if (tokenizer->adds_bos()) how.bos = tokenizer->bos();
  how.drift_tokens = options.drift;
  how.ends = [&](int32_t token) { return tokenizer->is_end_of_generation(token); };
  how.on_progress = [&](uint64_t done, uint64_t total) { progress.show(done, total); };
  const Fidelity measured = CAIRN_TRY(measure_fidelity(*model, tokens, schemes, how));
  progress.clear();

  const auto best = recommend(measured.schemes, options.kl);
  const std::string name = std::filesystem::path(path).stem().string();
  const std::string about = about_text(options, measured.schemes[0].tokens, how.context);
  if (plot) {
    const FidelityPlot picture{.title = "What a scheme costs on " + name,
                               .subtitle = about + ", 95 % intervals",
                               .kl = options.kl,
                               .recommended = best};
    CAIRN_TRY(write_plot(std::move(*plot), svg(measured.schemes, picture)));
  }
  if (options.wants_json)
    CAIRN_TRY(write_json(json_of(measured, best)));
  else
    CAIRN_TRY(
        write_out(fmt::format("{}: {}\n\n{}\n{}", name, about, table_of(measured, options.drift),
                              advice(measured, best, options.kl))));
  return kDone;
}

}  // namespace cairn::cli
