#include "apps/cli/lists.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/cli/exit_code.h"
#include "apps/cli/installed_models.h"
#include "apps/cli/output.h"
#include "cairn/models/model.h"
#include "cairn/state/registry.h"

namespace cairn::cli {
namespace {

CLI::App* add_list(CLI::App& program,
                   const std::string& name,
                   const std::string& about,
                   ListOptions& options) {
  CLI::App* list = program.add_subcommand(name, about);
  list->add_flag("--json", options.wants_json, "A JSON array instead of a table");
  return list;
}

// What a model's file says about itself.
struct ModelRow {
  InstalledModel model;
  uint64_t file_bytes = 0;
  std::string architecture;
  uint64_t context = 0;  // positions
  bool can_run = false;  // its architecture is one of ours
  std::string problem;   // why the rest is empty
};

Result<void> read_row(ModelRow& row) {
  const Weights weights = CAIRN_TRY(open_weights(row.model.path));
  row.file_bytes = weights.file().bytes().size();
  row.architecture = CAIRN_TRY(weights.metadata().text("general.architecture"));
  row.context = CAIRN_TRY(weights.metadata().u32_or(row.architecture + ".context_length", 0));
  const auto known = architectures();
  row.can_run = std::any_of(known.begin(), known.end(), [&](const Architecture& architecture) {
    return architecture.name == row.architecture;
  });
  return {};
}

std::string joined(const std::vector<std::string>& parts, std::string_view between) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : std::string(between)) + part;
  return text;
}

struct EncodingRow {
  std::string text;
  uint64_t bytes = 0;  // of a record of kExampleWidth numbers
  double error_bound = 0;
};
constexpr uint32_t kExampleWidth = 128;

std::vector<EncodingRow> encoding_rows() {
  std::vector<EncodingRow> rows;
  for (const Encoding* encoding : builtin().encodings) {
    for (const std::string_view sample : encoding->samples) {
      const auto params = encoding->parse(sample);
      if (!params) continue;
      if (const auto geometry = encoding->geometry(*params, kExampleWidth))
        rows.push_back({encoding->print(*params), geometry->record_bytes(), geometry->error_bound});
    }
  }
  return rows;
}

}  // namespace

CLI::App* add_models(CLI::App& program, ListOptions& options) {
  return add_list(program, "models", "List the models that are installed", options);
}

CLI::App* add_kinds(CLI::App& program, ListOptions& options) {
  return add_list(program, "kinds", "List the kinds of state a layer can have", options);
}

CLI::App* add_encodings(CLI::App& program, ListOptions& options) {
  return add_list(program, "encodings", "List the encodings that --kv can name", options);
}

Result<int> list_models(const ListOptions& options, const Config& config) {
  std::vector<ModelRow> rows;
  for (InstalledModel& model : installed_models(config)) {
    ModelRow row{.model = std::move(model)};
    if (const auto read = read_row(row); !read) row.problem = read.error().message;
    rows.push_back(std::move(row));
  }
  if (options.wants_json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const ModelRow& row : rows) {
      nlohmann::ordered_json object = {{"name", row.model.name}, {"path", row.model.path}};
      if (row.problem.empty())
        object.update({{"file_bytes", row.file_bytes},
                       {"architecture", row.architecture},
                       {"context", row.context},
                       {"can_run", row.can_run}});
      else
        object["problem"] = row.problem;
      list.push_back(std::move(object));
    }
    CAIRN_TRY(write_json(list));
    return kDone;
  }
  if (rows.empty()) {
    CAIRN_TRY(
        write_out("no models: tools/setup.sh fetches some into models/, or set CAIRN_MODELS "
                  "to a folder with GGUF files\n"));
    return kDone;
  }
  Table table({Align::left, Align::right, Align::left, Align::right, Align::left});
  table.add({"name", "size", "architecture", "context", "file"});
  for (const ModelRow& row : rows) {
    if (!row.problem.empty())
      table.add({row.model.name, "", "", "", row.problem});
    else
      table.add({row.model.name, megabytes(row.file_bytes),
                 row.architecture + (row.can_run ? "" : " (not yet)"), with_commas(row.context),
                 row.model.path});
  }
  CAIRN_TRY(write_out(table.text()));
  return kDone;
}

Result<int> list_kinds(const ListOptions& options) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  Table table({Align::left, Align::right, Align::left});
  table.add({"kind", "id", "families"});
  for (const StateKind* kind : builtin().kinds) {
    std::vector<std::string> families;
    for (const Family* family : kind->families) families.emplace_back(family->name);
    table.add({std::string(kind->name), std::to_string(kind->id.value), joined(families, ", ")});
    list.push_back({{"kind", kind->name}, {"id", kind->id.value}, {"families", families}});
  }
  CAIRN_TRY(options.wants_json ? write_json(list) : write_out(table.text()));
  return kDone;
}

Result<int> list_encodings(const ListOptions& options) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  Table table({Align::left, Align::right, Align::right, Align::right});
  table.add({"encoding", fmt::format("bytes for {} numbers", kExampleWidth), "bits per number",
             "largest error"});
  for (const EncodingRow& row : encoding_rows()) {
    const double bits = 8.0 * static_cast<double>(row.bytes) / kExampleWidth;
    table.add({row.text, std::to_string(row.bytes), fmt::format("{:g}", bits),
               row.error_bound > 0 ? fmt::format("{:.3g} of the largest number", row.error_bound)
                                   : "exact"});
    list.push_back({{"encoding", row.text},
                    {"width", kExampleWidth},
                    {"record_bytes", row.bytes},
                    {"error_bound", row.error_bound}});
  }
  CAIRN_TRY(options.wants_json ? write_json(list) : write_out(table.text()));
  return kDone;
}

}  // namespace cairn::cli
