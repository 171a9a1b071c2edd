#include "apps/cli/files.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "apps/cli/exit_code.h"
#include "apps/cli/installed_models.h"
#include "apps/cli/output.h"
#include "apps/cli/vocabularies.h"
#include "cairn/engine/snapshot.h"
#include "cairn/models/arithmetic.h"
#include "cairn/models/tokenizer.h"
#include "cairn/models/weights.h"

namespace cairn::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kInspectExamples = R"(Examples:
  cairn inspect chat.cairn           model, positions, and how each layer is stored
  cairn inspect chat.cairn --text    the text it remembers, read with the vocabulary of the
                                     installed model that made it (or of --model)
  cairn inspect chat.cairn --json    everything the file says about itself

Only the header is read and checked (and the tokens with --text); cairn verify reads everything.
)";

constexpr const char* kVerifyExamples = R"(Examples:
  cairn verify chat.cairn            every byte; damage is named by slot, plane and positions
  cairn verify *.cairn --json        one object: files [{file, is_sound, ...}]
  cairn verify --numbers             does this machine's matrix library keep one arithmetic?

Exits 4 when something is damaged.
)";

uint32_t reading_threads() { return std::clamp(std::thread::hardware_concurrency(), 1u, 8u); }

std::string short_name(const Digest& digest) {
  return digest.is_zero() ? "none" : hex(digest).substr(0, 16);
}

uint64_t bytes_of(const CheckpointSlot& slot, const CheckpointFamily& family) {
  uint64_t record_bytes = 0;
  for (const CheckpointPlane& plane : family.planes) record_bytes += plane.record_bytes;
  return stored_rows(slot, family) * family.heads * record_bytes;
}

uint64_t bytes_of(const CheckpointInfo& info) {
  uint64_t bytes = 0;
  for (const CheckpointSlot& slot : info.slots)
    for (const CheckpointFamily& family : slot.families) bytes += bytes_of(slot, family);
  return bytes;
}

// "0-2011", "0-3, 900-2011": inclusive, as people count.
std::string positions_text(const CheckpointSlot& slot, const CheckpointFamily& family) {
  const Pos rows = stored_rows(slot, family);
  if (slot.is_fixed) return rows > 0 ? "the last state" : "none";
  std::string text;
  for (const PositionRun& run : positions_of(slot, family, 0, rows)) {
    if (run.count == 0) continue;
    text += fmt::format("{}{}-{}", text.empty() ? "" : ", ", run.first, run.first + run.count - 1);
  }
  return text.empty() ? "none" : text;
}

std::string kind_text(const CheckpointSlot& slot) {
  if (slot.window == 0) return slot.kind;
  return fmt::format("{} {}{}", slot.kind, with_commas(slot.window),
                     slot.sinks > 0 ? fmt::format(" + {} sinks", slot.sinks) : "");
}

// "0, 88-200": inclusive.
std::string resume_text(const CheckpointInfo& info) {
  std::string text;
  for (const PositionRun& run : resume_positions(info)) {
    text += fmt::format("{}{}", text.empty() ? "" : ", ", run.first);
    if (run.count > 1) text += fmt::format("-{}", run.first + run.count - 1);
  }
  return text;
}

// Layers that are stored alike share a row. Of a family in two forms, one that covers nothing is
// left out.
Table slot_table(const CheckpointInfo& info) {
  Table table({Align::right, Align::left, Align::left, Align::left, Align::right, Align::right,
               Align::left, Align::right});
  table.add({"layers", "kind", "family", "encoding", "heads", "width", "positions", "bytes"});
  for (size_t first = 0, end = 0; first < info.slots.size(); first = end) {
    while (end < info.slots.size() && info.slots[end] == info.slots[first]) ++end;
    const CheckpointSlot& slot = info.slots[first];
    std::string layers =
        end - first == 1 ? std::to_string(first) : fmt::format("{}-{}", first, end - 1);
    std::string kind = kind_text(slot), last_positions;
    for (const CheckpointFamily& family : slot.families) {
      if (forms_of(slot) > 1 && stored_rows(slot, family) == 0 && info.length > 0) continue;
      std::string positions = positions_text(slot, family);
      const bool is_repeated = std::exchange(last_positions, positions) == positions;
      table.add({std::exchange(layers, ""), std::exchange(kind, ""), family.name, family.encoding,
                 std::to_string(family.heads), std::to_string(family.width),
                 is_repeated ? "" : positions, megabytes((end - first) * bytes_of(slot, family))});
    }
  }
  return table;
}

Result<uint64_t> file_bytes_of(const std::string& path) {
  const auto file = CAIRN_TRY(posix_fs().open_read(path));
  return file->size();
}

Result<std::string> text_of(const CheckpointInfo& info,
                            const InspectOptions& options,
                            const std::optional<InstalledModel>& maker,
                            const Config& config) {
  if (options.model.empty() && !maker)
    return fail(Code::NotFound,
                "{}: made by model {}, which is not installed; name the file with --model",
                options.path, short_name(info.identity));
  const std::string path =
      options.model.empty() ? maker->path : CAIRN_TRY(find_model(config, options.model));
  const Weights weights = CAIRN_TRY(open_weights(path));
  const Tokenizer tokenizer = CAIRN_TRY(make_tokenizer(weights.metadata().gguf()));
  if (tokenizer.hash() != info.tokenizer)
    return fail(Code::Mismatch, "{}: tokenizer {}, expected {}: that of {}", options.path,
                short_name(info.tokenizer), short_name(tokenizer.hash()), path);
  const std::vector<int32_t> tokens = CAIRN_TRY(read_tokens(options.path));
  return pieces_of(tokenizer, tokens);
}

Json json_of(const CheckpointInfo& info) {
  Json slots = Json::array(), resumes = Json::array();
  for (const PositionRun& run : resume_positions(info))
    resumes.push_back({{"begin", run.first}, {"end", run.first + run.count}});
  for (const CheckpointSlot& slot : info.slots) {
    Json families = Json::array();
    for (const CheckpointFamily& family : slot.families)
      families.push_back({{"family", family.name},
                          {"encoding", family.encoding},
                          {"heads", family.heads},
                          {"width", family.width},
                          {"begin", family.begin},
                          {"end", family.end},
                          {"bytes", bytes_of(slot, family)}});
    slots.push_back({{"kind", slot.kind},
                     {"window", slot.window},
                     {"sinks", slot.sinks},
                     {"first_kept", slot.first_kept},
                     {"stored_positions", stored_rows(slot, info.length)},
                     {"families", std::move(families)}});
  }
  return {{"format", info.format},
          {"registry", info.registry},
          {"identity", hex(info.identity)},
          {"tokenizer", hex(info.tokenizer)},
          {"adapter", info.adapter.is_zero() ? "" : hex(info.adapter)},
          {"arithmetic", info.arithmetic},
          {"namespace", info.name_space},
          {"is_derived", info.is_derived},
          {"scheme", info.scheme},
          {"fingerprint", hex(info.fingerprint)},
          {"positions", info.length},
          {"resumes_at", std::move(resumes)},
          {"tokens", info.tokens},
          {"state_bytes", bytes_of(info)},
          {"slots", std::move(slots)}};
}

std::string summary(const CheckpointInfo& info,
                    const std::string& path,
                    uint64_t file_bytes,
                    const std::optional<InstalledModel>& maker) {
  Table table({Align::left, Align::left});
  table.add({"model", maker ? fmt::format("{} ({})", maker->name, short_name(info.identity))
                            : short_name(info.identity)});
  if (!info.adapter.is_zero()) table.add({"adapter", short_name(info.adapter)});
  if (!info.name_space.empty()) table.add({"namespace", printable(info.name_space)});
  table.add({"scheme", info.scheme});
  table.add({"arithmetic", info.arithmetic + (info.is_derived ? " (derived: other bits than a run "
                                                                "of its own would have)"
                                                              : "")});
  const Pos pending = info.tokens - info.length;
  table.add({"positions", with_commas(info.length) +
                              (pending > 0 ? fmt::format(", and {} tokens not yet computed",
                                                         with_commas(pending))
                                           : "")});
  table.add({"resumes at", resume_text(info)});
  table.add(
      {"state", fmt::format("{}, {} bytes per position", megabytes(bytes_of(info)),
                            with_commas(info.length > 0 ? bytes_of(info) / info.length : 0))});
  return fmt::format("{}: {}\n\n{}\n{}", path, megabytes(file_bytes), table.text("  "),
                     slot_table(info).text("  "));
}

struct Verdict {
  std::string path;
  Result<VerifyReport> report;
  bool is_sound() const { return report && report->damage.empty(); }
};

Json json_of(const Verdict& verdict) {
  Json object = {{"file", verdict.path}, {"is_sound", verdict.is_sound()}};
  if (!verdict.report) {
    object["error"] = verdict.report.error().message;
  } else {
    object["file_bytes"] = verdict.report->file_bytes;
    object["chunks"] = verdict.report->chunks;
    object["damage"] = verdict.report->damage;
  }
  return object;
}

Result<void> show(const Verdict& verdict) {
  if (!verdict.report) return {};  // on stderr, with its exit code
  const VerifyReport& report = *verdict.report;
  if (verdict.is_sound())
    return write_out(fmt::format("{}: sound, {} positions, {} in {} checked stretches\n",
                                 verdict.path, with_commas(report.info.length),
                                 megabytes(report.file_bytes), with_commas(report.chunks)));
  std::string text;
  for (const std::string& damage : report.damage)
    text += fmt::format("{}: damaged: {}\n", verdict.path, damage);
  return write_out(text);
}

int code_of(const Verdict& verdict) {
  if (!verdict.report) return report(verdict.report.error());
  return verdict.is_sound() ? kDone : kDamaged;
}

Result<Json> check_numbers(const VerifyOptions& options) {
  const ArithmeticReport report = CAIRN_TRY(verify_arithmetic());
  const std::string name = arithmetic_name(Expand::no);
  if (!options.wants_json)
    CAIRN_TRY(write_out(fmt::format(
        "numbers: one arithmetic ({}): {} columns of {} weight types, equal to the last bit alone, "
        "beside others and on 1 to 3 threads\n",
        name, with_commas(report.products), report.types)));
  return Json{{"is_sound", true},
              {"arithmetic", name},
              {"columns", report.products},
              {"weight_types", report.types}};
}

}  // namespace

CLI::App* add_inspect(CLI::App& program, InspectOptions& options) {
  CLI::App* inspect = program.add_subcommand("inspect", "Show what a state file holds");
  inspect->footer(kInspectExamples);
  inspect->add_option("FILE", options.path, "A file that --state made")->required();
  inspect->add_flag("--text", options.wants_text, "The text that it remembers");
  inspect->add_option("--model", options.model, "Whose vocabulary to read the text with")
      ->type_name("MODEL");
  inspect->add_flag("--json", options.wants_json, "One JSON object instead of a table");
  return inspect;
}

Result<int> show_file(const InspectOptions& options, const Config& config) {
  const CheckpointInfo info = CAIRN_TRY(inspect(options.path));
  const uint64_t file_bytes = CAIRN_TRY(file_bytes_of(options.path));
  const auto maker = model_with_identity(config, info.identity);
  std::string text;
  if (options.wants_text) text = CAIRN_TRY(text_of(info, options, maker, config));
  if (options.wants_json) {
    Json object = {{"file", options.path}, {"file_bytes", file_bytes}};
    if (maker) object["model"] = maker->name;
    object.update(json_of(info));
    if (options.wants_text) object["text"] = text;
    CAIRN_TRY(write_json(object));
  } else if (options.wants_text) {
    CAIRN_TRY(write_out(printable(text) + "\n"));
  } else {
    CAIRN_TRY(write_out(summary(info, options.path, file_bytes, maker)));
  }
  return kDone;
}

CLI::App* add_verify(CLI::App& program, VerifyOptions& options) {
  CLI::App* verify = program.add_subcommand("verify", "Check every byte of state files");
  verify->footer(kVerifyExamples);
  verify->add_option("FILE", options.paths, "Files that --state made");
  verify->add_flag("--numbers", options.checks_numbers,
                   "Test that the matrix library gives the same bits in every situation");
  verify->add_flag("--json", options.wants_json, "One JSON object instead of lines");
  return verify;
}

Result<int> verify_files(const VerifyOptions& options) {
  if (options.paths.empty() && !options.checks_numbers)
    return fail(Code::BadInput, "verify: nothing to check, expected files or --numbers");
  Json files = Json::array(), numbers;
  int worst = kDone;
  for (const std::string& path : options.paths) {
    const Verdict verdict{path, verify(path, {.threads = reading_threads()})};
    if (!options.wants_json) CAIRN_TRY(show(verdict));
    files.push_back(json_of(verdict));
    worst = std::max(worst, code_of(verdict));
  }
  if (options.checks_numbers) numbers = CAIRN_TRY(check_numbers(options));
  if (options.wants_json) {
    Json object = {{"files", std::move(files)}};
    if (options.checks_numbers) object["numbers"] = std::move(numbers);
    CAIRN_TRY(write_json(object));
  }
  return worst;
}

}  // namespace cairn::cli
