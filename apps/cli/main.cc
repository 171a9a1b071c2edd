// The program cairn. Each command is a file: its options, and what it does with them.
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "apps/cli/convert.h"
#include "apps/cli/exit_code.h"
#include "apps/cli/fidelity.h"
#include "apps/cli/files.h"
#include "apps/cli/lists.h"
#include "apps/cli/run.h"
#include "apps/cli/store.h"

namespace cairn::cli {
namespace {

constexpr const char* kAbout =
    "Cairn holds what a language model remembers between tokens, and keeps it across restarts.";

constexpr const char* kFooter = R"(
Begin with:
  cairn models                                     what can be run
  cairn run smollm2 -p "Once upon a time"          text in, text out
  cairn run smollm2 --chat --state chat.cairn      a conversation that survives a restart
  cairn inspect chat.cairn                         what the file holds
  cairn run smollm2 -f book.txt --store cache      what any earlier run computed of it is reused
  cairn store ls cache                             the conversations that the folder remembers
  cairn fidelity smollm2 -f book.txt               which scheme of the state may be used

Each command explains itself: cairn run --help.
Models are looked for in $CAIRN_MODELS (folders, separated by colons), ./models and the folder
models beside the program's folder.

)";

// Shown in one line, whatever CLI11 says in several.
int report_usage(const CLI::App& program, const CLI::ParseError& error) {
  std::string command = "cairn";
  for (const CLI::App* app = &program; !app->get_subcommands().empty();) {
    app = app->get_subcommands().front();
    command += " " + app->get_name();
  }
  return report({Code::BadInput, fmt::format("{}; {} --help explains", error.what(), command)});
}

int main_of(int argc, char** argv, Clock::time_point start) {
  CLI::App program(kAbout, "cairn");
  program.footer(std::string(kFooter) + kExitCodesHelp);
  program.require_subcommand(1);
  program.set_version_flag("--version", std::string("cairn ") + CAIRN_VERSION);
  program.get_formatter()->column_width(36);

  RunOptions run_options;
  InspectOptions inspect_options;
  VerifyOptions verify_options;
  ConvertCommand convert_options;
  StoreCommand store_options;
  FidelityCommand fidelity_options;
  ListOptions list_options;
  const CLI::App* run_command = add_run(program, run_options);
  const CLI::App* inspect_command = add_inspect(program, inspect_options);
  const CLI::App* verify_command = add_verify(program, verify_options);
  const CLI::App* convert_command = add_convert(program, convert_options);
  const CLI::App* store_command = add_store(program, store_options);
  const CLI::App* fidelity_command = add_fidelity(program, fidelity_options);
  const CLI::App* models_command = add_models(program, list_options);
  const CLI::App* kinds_command = add_kinds(program, list_options);
  const CLI::App* encodings_command = add_encodings(program, list_options);

  try {
    program.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return program.exit(help);
  } catch (const CLI::ParseError& error) {
    return report_usage(program, error);
  }

  const Config config = read_config();
  Result<int> result = kDone;
  if (run_command->parsed()) result = run(run_options, config, start);
  if (inspect_command->parsed()) result = show_file(inspect_options, config);
  if (verify_command->parsed()) result = verify_files(verify_options);
  if (convert_command->parsed()) result = convert_file(convert_options, config);
  if (store_command->parsed()) result = store(store_options, config);
  if (fidelity_command->parsed()) result = show_fidelity(fidelity_options, config);
  if (models_command->parsed()) result = list_models(list_options, config);
  if (kinds_command->parsed()) result = list_kinds(list_options);
  if (encodings_command->parsed()) result = list_encodings(list_options);
  return result ? *result : report(result.error());
}

}  // namespace
}  // namespace cairn::cli

int main(int argc, char** argv) {
  const auto start = cairn::cli::process_start();
  try {
    return cairn::cli::main_of(argc, argv, start);
  } catch (const std::exception& error) {  // a bug, or no memory: still one line and a code
    return cairn::cli::report({cairn::Code::NoSpace, fmt::format("unexpected: {}", error.what())});
  }
}
