#include "apps/cli/convert.h"

#include <CLI/Option.hpp>
#include <CLI/Validators.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/cli/exit_code.h"
#include "apps/cli/installed_models.h"
#include "apps/cli/output.h"
#include "cairn/engine/convert.h"
#include "cairn/engine/snapshot.h"
#include "cairn/models/model.h"

namespace cairn::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kMlxLm = "mlx-lm";

constexpr const char* kExamples = R"(Examples:
  cairn convert chat.cairn small.cairn --kv affine8
      the same conversation in another encoding; `cairn encodings` lists them
  cairn convert cache.safetensors chat.cairn --model smollm2
      a prompt cache of mlx-lm becomes a state that cairn run --state goes on from
  cairn convert chat.cairn cache.safetensors --to mlx-lm
      a prompt cache that mlx-lm's load_prompt_cache reads

IN is recognized by its content. Without --kv every layer keeps its encoding: the affine records of
MLX are those of Cairn, bit for bit. What is re-encoded or imported is marked derived: it loads with
a warning, because a run of its own would have other bits.

An import without --model belongs to no model: only convert, inspect and verify accept it. With
--model its layers are compared with the model's, one by one, and its keys are brought into the
order in which the model has them; that the same weights made it is the user's word. Token ids are
those that the metadata "tokens" lists, and unknown without it.

With --to mlx-lm, f32, f16 and bf16 stay, and so does affine in layers of full attention if keys and
values share bits and group (32, 64 or 128). Everything else (turbo, keep and after, affine windows
and latents) becomes f32, and a warning says so. Recurrent states become square matrices. The state
of a model needs --model, if the model is not installed. mlx-lm wants a name that ends in
.safetensors.
)";

Result<StateOwner> open_owner(const std::string& path, const Config& config) {
  const auto model =
      CAIRN_TRY(load_model(path, {.threads = 1, .cache_folder = config.cache_folder}));
  return StateOwner{.spec = model->spec(), .adjacent_pairs = model->adjacent_pairs()};
}

// The model that --model names; else, where mlx-lm must understand the keys, the one that made IN.
Result<std::optional<StateOwner>> owner_of(const ConvertCommand& options, const Config& config) {
  std::string path;
  if (!options.model.empty()) {
    path = CAIRN_TRY(find_model(config, options.model));
  } else if (options.to == kMlxLm) {
    const auto info = inspect(options.in);
    if (info && !info->identity.is_zero()) {
      const auto maker = model_with_identity(config, info->identity);
      if (!maker)
        return fail(Code::NotFound,
                    "{}: made by model {}, which is not installed; name it with --model, which "
                    "tells the order of its keys",
                    options.in, hex(info->identity).substr(0, 16));
      path = maker->path;
    }
  }
  if (path.empty()) return std::nullopt;
  return std::optional(CAIRN_TRY(open_owner(path, config)));
}

// Nothing is replaced unawares, and never the file that is read, nor one that is no state.
Result<void> check_out(const ConvertCommand& options) {
  std::error_code unknown;
  if (!std::filesystem::exists(options.out, unknown)) return {};
  if (std::filesystem::equivalent(options.in, options.out, unknown))
    return fail(Code::BadInput, "{}: IN and OUT are one file, expected two", options.out);
  if (!options.overwrites)
    return fail(Code::BadInput, "{}: exists; name another OUT, or replace it with --overwrite",
                options.out);
  if (!is_sequence_file(posix_fs(), options.out))
    return fail(Code::BadInput,
                "{}: neither a checkpoint nor a prompt cache: it is left alone, name another OUT",
                options.out);
  return {};
}

std::string_view name_of(FileKind kind) {
  return kind == FileKind::prompt_cache ? "mlx-lm prompt cache" : "checkpoint";
}

// "f16", "affine8-g64-f16, f32": each once, in order.
std::string encodings_of(const CheckpointInfo& info) {
  std::vector<std::string> names;
  for (const CheckpointSlot& slot : info.slots)
    for (const CheckpointFamily& family : slot.families)
      if (stored_rows(slot, family) > 0 &&
          std::find(names.begin(), names.end(), family.encoding) == names.end())
        names.push_back(family.encoding);
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "none" : text;
}

Json json_of(const Conversion& made, const ConvertCommand& options, FileKind to) {
  return {{"in", options.in},
          {"out", options.out},
          {"from", name_of(made.from_kind)},
          {"to", name_of(to)},
          {"positions", made.to.length},
          {"encodings_before", encodings_of(made.from)},
          {"encodings", encodings_of(made.to)},
          {"scheme", to == FileKind::checkpoint ? Json(made.to.scheme) : Json()},
          {"identity", hex(made.to.identity)},
          {"is_derived", made.to.is_derived},
          {"file_bytes", made.file_bytes},
          {"warnings", made.warnings}};
}

}  // namespace

CLI::App* add_convert(CLI::App& program, ConvertCommand& options) {
  CLI::App* convert =
      program.add_subcommand("convert", "Re-encode a state, or bring it to mlx-lm and from there");
  convert->footer(kExamples);
  convert->add_option("IN", options.in, "A file that --state made, or a prompt cache of mlx-lm")
      ->required();
  convert->add_option("OUT", options.out, "The file to write")->required();
  convert->add_option("--kv", options.kv, "Scheme of the new state (the encodings stay)")
      ->type_name("SCHEME");
  convert->add_option("--to", options.to, "cairn or mlx-lm: what OUT will be (cairn)")
      ->type_name("FORMAT")
      ->check(CLI::IsMember({"cairn", kMlxLm}));
  convert->add_option("--model", options.model, "Whose state it is: a file, or a name of the list")
      ->type_name("MODEL");
  convert->add_flag("--overwrite", options.overwrites, "Replace the state that OUT is");
  convert->add_flag("--json", options.wants_json, "One JSON object instead of a line");
  return convert;
}

Result<int> convert_file(const ConvertCommand& options, const Config& config) {
  CAIRN_TRY(check_out(options));
  ConvertOptions how{.to = options.to == kMlxLm ? FileKind::prompt_cache : FileKind::checkpoint};
  if (!options.kv.empty()) how.scheme = CAIRN_TRY(parse_scheme(options.kv));
  const auto owner = CAIRN_TRY(owner_of(options, config));
  if (owner) how.owner = &*owner;
  Progress progress("converting", Unit::bytes);
  how.progress = [&](uint64_t done, uint64_t total) { progress.show(done, total); };
  const Conversion made = CAIRN_TRY(convert(options.in, options.out, how));
  progress.clear();
  for (const std::string& warning : made.warnings) warn(fmt::format("{}: {}", options.in, warning));
  if (options.wants_json)
    CAIRN_TRY(write_json(json_of(made, options, how.to)));
  else
    CAIRN_TRY(write_out(
        fmt::format("{}: {} of {} positions, {} ({} before), {}{}\n", options.out, name_of(how.to),
                    with_commas(made.to.length), encodings_of(made.to), encodings_of(made.from),
                    megabytes(made.file_bytes), made.to.is_derived ? ", derived" : "")));
  return kDone;
}

}  // namespace cairn::cli
