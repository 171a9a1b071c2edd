#include "apps/cli/lists.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "apps/cli/exit_code.h"
#include "apps/cli/installed_models.h"
#include "apps/cli/output.h"
#include "cairn/models/model.h"
#include "cairn/session/scheme.h"
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

struct EncodingRow {
  std::string name;
  uint64_t bytes = 0;  // of a vector of kExampleWidth numbers
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

constexpr const char* kKindsHelp = R"(
The bytes are those of an example slot of each kind, whose shape is shown: what each position takes
in each family; of fixed tensors, what a sequence takes, however long it is.

Examples:
  cairn kinds                        in f16
  cairn kinds --kv affine4           the same slots in four bits a number
  cairn kinds --json                 an array: name, id, bytes_per_position, bytes_per_sequence,
                                     families [{name, encoding, heads, width, ...}]
)";

constexpr const char* kEncodingsHelp = R"(
The bytes are those that a vector of 128 numbers takes at each position: one head of keys, say. A
layer with 8 heads of keys and values takes 16 times as many. The largest error is relative to the
vector's largest number. Of affine these are samples: it takes 2, 3, 4, 5, 6 or 8 bits, groups of
32, 64 or 128 and scales in f16, f32 or bf16, in any combination.

Examples:
  cairn encodings                    names that --kv takes, alone or combined (cairn run --help)
  cairn encodings --json             an array: name, width, bytes_per_position, error_bound
)";

// What a family has its bytes for: every position, or the sequence as a whole.
enum class Extent { position, sequence };

// What a kind's slots take: an example with all its families, under one scheme.
struct KindRow {
  const StateKind* kind = nullptr;
  SlotSpec example;
  std::vector<Codec> codecs;  // of the example's families

  uint64_t bytes(size_t family) const {  // of a position, or of a fixed tensor
    return example.families[family].heads * codecs[family].geometry.record_bytes();
  }
  uint64_t bytes(Extent extent) const {
    uint64_t sum = 0;
    for (size_t family = 0; family < codecs.size(); ++family)
      if (extent_of(family) == extent) sum += bytes(family);
    return sum;
  }
  Extent extent_of(size_t family) const {
    return example.families[family].family->is_fixed ? Extent::sequence : Extent::position;
  }
};

Result<std::vector<KindRow>> kind_rows(const Scheme& scheme) {
  ModelSpec spec;
  std::vector<KindRow> rows;
  for (const StateKind* kind : builtin().kinds) {
    const std::vector<SlotSpec> samples = kind->samples();
    const auto fullest = std::max_element(
        samples.begin(), samples.end(),
        [](const SlotSpec& a, const SlotSpec& b) { return a.families.size() < b.families.size(); });
    spec.slots.push_back(*fullest);
    rows.push_back({.kind = kind, .example = *fullest});
  }
  auto codecs = CAIRN_TRY(resolve(scheme, spec));
  for (size_t i = 0; i < rows.size(); ++i) rows[i].codecs = std::move(codecs[i]);
  return rows;
}

}  // namespace

CLI::App* add_models(CLI::App& program, ListOptions& options) {
  return add_list(program, "models", "List the models that are installed", options);
}

CLI::App* add_kinds(CLI::App& program, ListOptions& options) {
  CLI::App* list = add_list(program, "kinds", "List the kinds of state a layer can have", options);
  list->add_option("--kv", options.scheme, "How the examples are stored (f16)")
      ->type_name("SCHEME");
  list->footer(kKindsHelp);
  return list;
}

CLI::App* add_encodings(CLI::App& program, ListOptions& options) {
  CLI::App* list = add_list(program, "encodings", "List the encodings that --kv can name", options);
  list->footer(kEncodingsHelp);
  return list;
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
  const Scheme scheme = CAIRN_TRY(parse_scheme(options.scheme));
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  Table table({Align::left, Align::right, Align::left, Align::left, Align::right, Align::right,
               Align::right, Align::left});
  table.add({"name", "id", "family", "encoding", "heads", "width", "bytes", "per"});
  for (const KindRow& row : CAIRN_TRY(kind_rows(scheme))) {
    std::string name(row.kind->name), id = std::to_string(row.kind->id.value);
    auto families = nlohmann::ordered_json::array();
    for (size_t i = 0; i < row.codecs.size(); ++i) {
      const FamilySpec& family = row.example.families[i];
      const std::string encoding = row.codecs[i].encoding->print(row.codecs[i].params);
      const std::string per = row.extent_of(i) == Extent::position ? "position" : "sequence";
      table.add({std::exchange(name, ""), std::exchange(id, ""), std::string(family.family->name),
                 encoding, std::to_string(family.heads), std::to_string(family.width),
                 with_commas(row.bytes(i)), per});
      families.push_back({{"name", family.family->name},
                          {"encoding", encoding},
                          {"heads", family.heads},
                          {"width", family.width},
                          {"bytes_per_" + per, row.bytes(i)}});
    }
    list.push_back({{"name", row.kind->name},
                    {"id", row.kind->id.value},
                    {"bytes_per_position", row.bytes(Extent::position)},
                    {"bytes_per_sequence", row.bytes(Extent::sequence)},
                    {"families", std::move(families)}});
  }
  CAIRN_TRY(options.wants_json ? write_json(list) : write_out(table.text()));
  return kDone;
}

Result<int> list_encodings(const ListOptions& options) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  Table table({Align::left, Align::right, Align::right, Align::right});
  table.add({"name", fmt::format("bytes for {} numbers", kExampleWidth), "bits per number",
             "largest error"});
  for (const EncodingRow& row : encoding_rows()) {
    const double bits = 8.0 * static_cast<double>(row.bytes) / kExampleWidth;
    table.add({row.name, std::to_string(row.bytes), fmt::format("{:g}", bits),
               row.error_bound > 0 ? fmt::format("{:.3g} of the largest number", row.error_bound)
                                   : "exact"});
    list.push_back({{"name", row.name},
                    {"width", kExampleWidth},
                    {"bytes_per_position", row.bytes},
                    {"error_bound", row.error_bound}});
  }
  CAIRN_TRY(options.wants_json ? write_json(list) : write_out(table.text()));
  return kDone;
}

}  // namespace cairn::cli
