#include "apps/cli/store.h"

#include <CLI/Option.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/cli/conversations.h"
#include "apps/cli/exit_code.h"
#include "apps/cli/output.h"
#include "apps/cli/vocabularies.h"
#include "cairn/format/json_fields.h"

namespace cairn::cli {

// One of the commands: its line in the list, its examples, its own options, what it does.
struct StoreVerb {
  const char* name;
  const char* about;
  const char* examples;
  void (*add_options)(CLI::App& app, StoreCommand& command);
  Result<int> (*run)(const StoreCommand& command, const Config& config);
};

namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShortNameDigits = 8;  // at least
constexpr size_t kFewestDigits = 4;     // that rm takes
constexpr size_t kMostTextColumns = 40;

// --- the folder

// Reading commands never make a store.
Result<void> expect_store(const std::string& folder) {
  FileSystem& fs = posix_fs();
  if (fs.exists(folder + "/index.sqlite")) return {};
  if (fs.exists(folder + "/segments"))
    return fail(Code::NotFound,
                "{}: a store without index.sqlite; rebuilding makes a new one from its segments "
                "(cairn store rebuild {})",
                folder, folder);
  return fail(Code::NotFound, "{}: no store, expected a folder that `cairn run --store` made",
              folder);
}

Result<std::unique_ptr<Store>> open_store(const StoreCommand& command) {
  CAIRN_TRY(expect_store(command.folder));
  auto opened = Store::open(command.folder, {.max_bytes = command.store_bytes});
  if (!opened && opened.error().code == Code::Corrupt)
    return fail(Code::Corrupt, "{} (cairn store rebuild {})", opened.error().message,
                command.folder);
  return opened;
}

Result<int> show(const StoreCommand& command, const Json& json, const std::string& text) {
  CAIRN_TRY(command.wants_json ? write_json(json) : write_out(text));
  return kDone;
}

std::string counted(uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", with_commas(count), noun, count == 1 ? "" : "s");
}

// --- ls

std::string_view name_of(EntryKind kind) {
  switch (kind) {
    case EntryKind::conversation:
      return "conversation";
    case EntryKind::unfinished_answer:
      return "unfinished answer";
    case EntryKind::object:
      return "object";
  }
  return "";
}

// As few digits as tell all apart.
size_t short_name_digits(const std::vector<Entry>& entries) {
  std::vector<std::string> names;
  for (const Entry& entry : entries) names.push_back(hex(entry.name));
  std::ranges::sort(names);
  size_t digits = kShortNameDigits;
  for (size_t i = 0; i + 1 < names.size(); ++i) {
    const auto differs = std::ranges::mismatch(names[i], names[i + 1]).in1 - names[i].begin();
    digits = std::max(digits, static_cast<size_t>(differs) + 1);
  }
  return digits;
}

double seconds_since(int64_t last_used) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::max(0.0,
                  std::chrono::duration<double>(now - std::chrono::nanoseconds(last_used)).count());
}

std::string age_text(double seconds) {
  struct Unit {
    double seconds;
    const char* name;
  };
  for (const Unit& unit : {Unit{86400, "d"}, Unit{3600, "h"}, Unit{60, "min"}})
    if (seconds >= 2 * unit.seconds)
      return fmt::format("{:.0f} {}", seconds / unit.seconds, unit.name);
  return fmt::format("{:.0f} s", seconds);
}

// The first words, or the ids of the first tokens where no installed model knows them.
struct Words {
  bool is_text = false;
  std::string text;
};

Words words_of(const Entry& entry, Vocabularies& vocabularies) {
  if (entry.about)
    if (const Tokenizer* tokenizer =
            vocabularies.find(entry.about->tokenizer, entry.about->model)) {
      std::string text = pieces_of(*tokenizer, entry.first_tokens);
      while (!text.empty() && entry.tokens > entry.first_tokens.size() && !is_utf8(text) &&
             (static_cast<uint8_t>(text.back()) & 0x80) != 0)
        text.pop_back();  // a character that goes on in the next token
      return {true, std::move(text)};
    }
  std::string ids;
  for (const int32_t token : entry.first_tokens)
    ids += fmt::format("{}{}", ids.empty() ? "" : " ", token);
  return {false, std::move(ids)};
}

// In one line of a table.
std::string cut(const std::string& text, bool goes_on) {
  std::string line;
  for (const char c : printable(text)) {
    const bool is_space = c == ' ' || c == '\n' || c == '\t';
    if (!is_space) line += c;
    if (is_space && !line.empty() && line.back() != ' ') line += ' ';
  }
  size_t end = 0, columns = 0;
  while (end < line.size() && columns < kMostTextColumns) {
    do ++end;
    while (end < line.size() && (static_cast<uint8_t>(line[end]) & 0xC0) == 0x80);
    ++columns;
  }
  if (end == line.size() && !goes_on) return line;
  return line.substr(0, end) + "...";
}

std::string table_text(const Entry& entry, const Words& words) {
  if (entry.kind == EntryKind::object) return "";
  const std::string shown = cut(words.text, entry.tokens > entry.first_tokens.size());
  return fmt::format("{}{}{}", entry.has_beginning ? "" : "... ", words.is_text ? "" : "tokens ",
                     shown);
}

std::string model_text(const Entry& entry) {
  if (!entry.about) return "";
  return printable(std::filesystem::path(entry.about->model).stem().string());
}

Json json_of(const Entry& entry, const Words& words, size_t digits) {
  Json object = {{"name", hex(entry.name)},
                 {"short_name", hex(entry.name).substr(0, digits)},
                 {"kind", name_of(entry.kind)},
                 {"tokens", entry.tokens},
                 {"age_s", seconds_since(entry.last_used)},
                 {"bytes", entry.bytes},
                 {"shared_bytes", entry.shared_bytes}};
  if (entry.about)
    object.update({{"model", entry.about->model},
                   {"scheme", entry.about->scheme},
                   {"namespace", entry.about->name_space}});
  if (entry.kind == EntryKind::object) return object;
  object["has_beginning"] = entry.has_beginning;
  if (words.is_text)
    object["first_words"] = words.text;
  else
    object["first_tokens"] = entry.first_tokens;
  return object;
}

Result<int> list(const StoreCommand& command, const Config& config) {
  const auto store = CAIRN_TRY(open_store(command));
  const Conversations conversations = CAIRN_TRY(Conversations::read(*store));
  const std::vector<Entry>& entries = conversations.entries();
  const size_t digits = short_name_digits(entries);
  const size_t shown =
      command.limit == 0 ? entries.size() : std::min<size_t>(command.limit, entries.size());
  Vocabularies vocabularies(config);
  Json json = Json::array();
  Table table({Align::left, Align::left, Align::right, Align::right, Align::right, Align::right,
               Align::left, Align::left, Align::left});
  table.add({"name", "kind", "last used", "tokens", "bytes", "shared", "model", "namespace",
             "first words"});
  for (const Entry& entry : std::span(entries).first(shown)) {
    const Words words = words_of(entry, vocabularies);
    json.push_back(json_of(entry, words, digits));
    table.add({hex(entry.name).substr(0, digits), std::string(name_of(entry.kind)),
               age_text(seconds_since(entry.last_used)) + " ago", with_commas(entry.tokens),
               megabytes(entry.bytes), entry.shared_bytes > 0 ? megabytes(entry.shared_bytes) : "",
               model_text(entry), entry.about ? cut(entry.about->name_space, false) : "",
               table_text(entry, words)});
  }
  std::string text = entries.empty() ? command.folder + ": empty\n" : table.text();
  if (shown < entries.size())
    text += fmt::format("and {} older ones\n", with_commas(entries.size() - shown));
  return show(command, json, text);
}

// --- stat

Result<int> stat(const StoreCommand& command, const Config&) {
  const auto store = CAIRN_TRY(open_store(command));
  const Conversations conversations = CAIRN_TRY(Conversations::read(*store));
  const StoreUse use = CAIRN_TRY(store->use());
  const auto of_kind = [&](EntryKind kind) {
    return static_cast<uint64_t>(std::ranges::count(conversations.entries(), kind, &Entry::kind));
  };
  const uint64_t unfinished = of_kind(EntryKind::unfinished_answer);
  const uint64_t whole = of_kind(EntryKind::conversation) + unfinished;

  Json kinds = Json::object();
  Table table({Align::left, Align::right, Align::left});
  table.add(
      {"conversations", with_commas(whole),
       unfinished > 0 ? fmt::format("{} with an unfinished answer", with_commas(unfinished)) : ""});
  for (const auto& [kind, name] : {std::pair{RecordKind::Span, "spans"},
                                   {RecordKind::Mark, "marks"},
                                   {RecordKind::Generation, "generations"},
                                   {RecordKind::Object, "objects"}}) {
    const auto found = conversations.by_kind().find(kind);
    const auto of = found == conversations.by_kind().end() ? Conversations::Use() : found->second;
    kinds[name] = {{"records", of.records}, {"bytes", of.bytes}};
    table.add({name, with_commas(of.records), megabytes(of.bytes)});
  }
  table.add({"together", with_commas(use.records), megabytes(use.bytes)});
  table.add({"budget", "", megabytes(use.max_bytes)});
  table.add({"segments", with_commas(use.segments), megabytes(use.allocated_bytes) + " on disk"});
  table.add({"set aside", with_commas(use.set_aside), "damaged, never used again"});
  const Json json = {{"store", command.folder},
                     {"conversations", whole},
                     {"unfinished_answers", unfinished},
                     {"records", use.records},
                     {"bytes", use.bytes},
                     {"kinds", std::move(kinds)},
                     {"budget_bytes", use.max_bytes},
                     {"segments", use.segments},
                     {"allocated_bytes", use.allocated_bytes},
                     {"set_aside", use.set_aside}};
  return show(command, json, fmt::format("{}\n{}", command.folder, table.text("  ")));
}

// --- verify and rebuild

Json json_of(const StoreCommand& command, const StoreReport& report) {
  return {{"store", command.folder},
          {"is_sound", report.damage.empty()},
          {"records", report.records},
          {"payload_bytes", report.bytes},
          {"orphaned_bytes", report.orphaned_bytes},
          {"damage", report.damage}};
}

Result<int> show(const StoreCommand& command, const StoreReport& report, std::string text) {
  for (const std::string& damage : report.damage)
    text += fmt::format("{}: damaged: {}\n", command.folder, printable(damage));
  CAIRN_TRY(show(command, json_of(command, report), text));
  return report.damage.empty() ? kDone : kDamaged;
}

Result<int> verify(const StoreCommand& command, const Config&) {
  const auto store = CAIRN_TRY(open_store(command));
  Progress progress("checking", Unit::bytes);
  const StoreReport report =
      CAIRN_TRY(store->verify([&](uint64_t done, uint64_t total) { progress.show(done, total); }));
  progress.clear();
  std::string text;
  if (report.damage.empty())
    text = fmt::format("{}: sound, {}, {}\n", command.folder, counted(report.records, "record"),
                       megabytes(report.bytes));
  if (report.orphaned_bytes > 0)
    text += fmt::format("{}: {} belong to no record; `cairn store gc` gives them back\n",
                        command.folder, megabytes(report.orphaned_bytes));
  return show(command, report, std::move(text));
}

Result<int> rebuild(const StoreCommand& command, const Config&) {
  if (!posix_fs().exists(command.folder + "/segments")) CAIRN_TRY(expect_store(command.folder));
  Progress progress("reading", Unit::bytes);
  const StoreReport report = CAIRN_TRY(Store::rebuild(
      command.folder, {}, [&](uint64_t done, uint64_t total) { progress.show(done, total); }));
  progress.clear();
  return show(command, report,
              fmt::format("{}: a new index of {}, {}\n", command.folder,
                          counted(report.records, "record"), megabytes(report.bytes)));
}

// --- gc, rm, flush

Result<int> gc(const StoreCommand& command, const Config&) {
  const auto store = CAIRN_TRY(open_store(command));
  const uint64_t bytes = CAIRN_TRY(store->gc());
  const StoreUse use = CAIRN_TRY(store->use());
  return show(command,
              {{"store", command.folder},
               {"evicted_records", use.evicted},
               {"given_back_bytes", bytes},
               {"bytes", use.bytes},
               {"allocated_bytes", use.allocated_bytes}},
              fmt::format("{}: {} given back, {} evicted; {} are left\n", command.folder,
                          megabytes(bytes), counted(use.evicted, "record"), megabytes(use.bytes)));
}

Result<size_t> find_entry(const StoreCommand& command,
                          const std::vector<Entry>& entries,
                          const std::string& name) {
  const bool is_hex = name.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!is_hex || name.size() < kFewestDigits)
    return fail(Code::BadInput,
                "{}: no name, expected at least {} digits of one that `cairn store "
                "ls {}` shows",
                name, kFewestDigits, command.folder);
  std::vector<size_t> found;
  for (size_t i = 0; i < entries.size(); ++i)
    if (hex(entries[i].name).starts_with(name)) found.push_back(i);
  if (found.empty())
    return fail(Code::NotFound,
                "{}: nothing of that name, expected one that `cairn store ls {}` "
                "shows",
                name, command.folder);
  if (found.size() > 1)
    return fail(Code::BadInput, "{}: {} names begin so, expected more digits", name, found.size());
  return found.front();
}

Result<std::set<size_t>> choose_entries(const StoreCommand& command,
                                        const std::vector<Entry>& entries) {
  std::set<size_t> chosen;
  for (const std::string& name : command.names)
    chosen.insert(CAIRN_TRY(find_entry(command, entries, name)));
  for (size_t i = 0; i < entries.size(); ++i) {
    const auto& about = entries[i].about;
    const bool is_in_space =
        command.name_space && about && about->name_space == *command.name_space;
    if (command.takes_all || is_in_space) chosen.insert(i);
  }
  return chosen;
}

Result<int> remove(const StoreCommand& command, const Config&) {
  const int ways = !command.names.empty() + command.name_space.has_value() + command.takes_all;
  if (ways != 1)
    return fail(Code::BadInput, "rm: expected either names, --namespace NAME or --all");
  const auto store = CAIRN_TRY(open_store(command));
  const Conversations conversations = CAIRN_TRY(Conversations::read(*store));
  const auto chosen = CAIRN_TRY(choose_entries(command, conversations.entries()));
  std::vector<RecordKey> keys = conversations.only_of(chosen);
  if (command.takes_all)
    CAIRN_TRY(store->for_each([&](const StoredRecord& record) {
      keys.push_back(record.info.key);
      return true;
    }));
  const uint64_t bytes = CAIRN_TRY(store->remove(keys));
  return show(command,
              {{"store", command.folder}, {"removed", chosen.size()}, {"given_back_bytes", bytes}},
              fmt::format("{}: {} of {} removed, {} given back\n", command.folder,
                          with_commas(chosen.size()), with_commas(conversations.entries().size()),
                          megabytes(bytes)));
}

Result<int> flush(const StoreCommand& command, const Config&) {
  const auto store = CAIRN_TRY(open_store(command));
  CAIRN_TRY(store->sync());
  const StoreUse use = CAIRN_TRY(store->use());
  return show(command, {{"store", command.folder}, {"records", use.records}, {"bytes", use.bytes}},
              fmt::format("{}: {}, {}, survive a power cut\n", command.folder,
                          counted(use.records, "record"), megabytes(use.bytes)));
}

// --- options

void no_options(CLI::App&, StoreCommand&) {}

void list_options(CLI::App& app, StoreCommand& command) {
  app.add_option("--limit", command.limit, "Show the N most recently used")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
}

void gc_options(CLI::App& app, StoreCommand& command) {
  app.add_option("--store-bytes", command.store_bytes,
                 "What the store may take from now on, as in 500M or 20G (what it has)")
      ->type_name("SIZE")
      ->transform(CLI::AsSizeValue(false));
}

void remove_options(CLI::App& app, StoreCommand& command) {
  app.add_option("NAME", command.names,
                 "Names that `cairn store ls` shows, or as many digits of "
                 "them as tell them apart");
  app.add_option("--namespace", command.name_space, "All of a namespace; '' is the default one")
      ->type_name("NAME");
  app.add_flag("--all", command.takes_all, "Everything");
}

constexpr StoreVerb kVerbs[] = {
    {"stat", "How much of what it holds", R"(Examples:
  cairn store stat cache             records and bytes by kind, what they take on disk
  cairn store stat cache --json      one object
)",
     no_options, stat},
    {"ls", "List the conversations, most recently used first", R"(Examples:
  cairn store ls cache               names, sizes, age, first words
  cairn store ls cache --limit 5
  cairn store ls cache --json        an array: name, kind, tokens, bytes, shared_bytes, first_words

`shared` are the bytes that other conversations use too; rm leaves them. First words are read with
the vocabulary of an installed model; without one the ids of the tokens are shown.
)",
     list_options, list},
    {"verify", "Check every record", R"(Examples:
  cairn store verify cache           the index, and every byte of every record

What is damaged is named, set aside and never used again: it is computed anew when it is needed.
Exits 4 when something was damaged.
)",
     no_options, verify},
    {"gc", "Evict to the budget, give back what is not used", R"(Examples:
  cairn store gc cache                      the least recently used leave until its budget is kept
  cairn store gc cache --store-bytes 500M

Runs do the same as they write; gc is for a new budget, and for space that killed processes left.
)",
     gc_options, gc},
    {"rm", "Remove conversations", R"(Examples:
  cairn store rm cache 1f00a9c2             a name that `cairn store ls cache` shows
  cairn store rm cache --namespace alice
  cairn store rm cache --all

Nothing is asked. What other conversations share stays.
)",
     remove_options, remove},
    {"flush", "Make everything written so far survive a power cut", R"(Examples:
  cairn store flush cache

A run does this for its own when it ends.
)",
     no_options, flush},
    {"rebuild", "Make a new index from the segments", R"(Examples:
  cairn store rebuild cache          when index.sqlite is lost or damaged

No process may have the store open. Exits 4 when a record was damaged and left out.
)",
     no_options, rebuild},
};

}  // namespace

CLI::App* add_store(CLI::App& program, StoreCommand& command) {
  CLI::App* store = program.add_subcommand("store", "Look after the folder of --store");
  store->require_subcommand(1);
  store->footer("\nEach command explains itself: cairn store ls --help.\n");
  for (const StoreVerb& verb : kVerbs) {
    CLI::App* app = store->add_subcommand(verb.name, verb.about);
    app->footer(verb.examples);
    app->add_option("DIR", command.folder, "The folder that --store named")->required();
    verb.add_options(*app, command);
    app->add_flag("--json", command.wants_json, "JSON on stdout instead of text");
    app->callback([&command, &verb] { command.verb = &verb; });
  }
  return store;
}

Result<int> store(const StoreCommand& command, const Config& config) {
  return command.verb->run(command, config);
}

}  // namespace cairn::cli
