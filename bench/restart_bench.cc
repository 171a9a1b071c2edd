// The main job as a user waits for it: a long text read cold, saved, and answered again by a new
// process.
//
//   restart_bench [--json] [--program PATH] [--model NAME] [--bytes N] [--tokens N] [--restarts N]
//   [--kv NAME] [--threads N] [--store]
//
// Runs the program itself, twice over the same text: first without a state file (with --store:
// without a store), then with a copy of the one that was saved. Both times count from the start of
// the process to its first token, with everything between. Both must say the same tokens.
#include <fmt/core.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/rows.h"

namespace cairn::bench {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr const char* kTexts[] = {"GPL-3", "Apache-2.0", "MPL-2.0", "LGPL-2.1"};
constexpr const char* kTextFolder = "/usr/share/common-licenses/";

struct Options {
  bool is_json = false;
  std::string program = "build/cairn";
  std::string model = "smollm2";
  std::string kv = "f16";
  size_t text_bytes = 33500;  // about 7,400 tokens
  int tokens = 64;            // generated each time
  int restarts = 5;
  int threads = 2;
  bool uses_store = false;
};

[[noreturn]] void give_up(const std::string& why) {
  fmt::print(stderr, "restart_bench: {}\n", why);
  std::exit(1);
}

// A folder that goes away.
class Scratch {
 public:
  Scratch() {
    std::string name = (fs::temp_directory_path() / "cairn-restart-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) give_up(name + ": cannot be made");
    path_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

void write_text(const std::string& path, size_t bytes) {
  std::string text;
  for (const char* name : kTexts) {
    std::ifstream in(std::string(kTextFolder) + name, std::ios::binary);
    text.append(std::istreambuf_iterator<char>(in), {});
  }
  if (text.size() < bytes)
    give_up(fmt::format("{}: {} bytes of text, expected {}", kTextFolder, text.size(), bytes));
  std::ofstream(path, std::ios::binary) << text.substr(0, bytes);
}

std::string quoted(const std::string& word) {
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

// What one process prints.
Json run(const Options& options, const std::string& text, const std::string& state) {
  const std::string command = fmt::format(
      "{} run {} -f {} {} {} -n {} --kv {} --threads {} --temp 0 --json", quoted(options.program),
      quoted(options.model), quoted(text), options.uses_store ? "--store" : "--state",
      quoted(state), options.tokens, options.kv, options.threads);
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) give_up(command + ": cannot be started");
  std::string output;
  char buffer[4096];
  for (size_t bytes; (bytes = fread(buffer, 1, sizeof buffer, pipe)) > 0;)
    output.append(buffer, bytes);
  const int status = pclose(pipe);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) give_up(command + ": failed");
  Json answer = Json::parse(output, nullptr, false);
  if (!answer.is_object()) give_up(command + ": printed no JSON object");
  return answer;
}

double number(const Json& answer, const char* key) {
  const auto found = answer.find(key);
  if (found == answer.end() || !found->is_number())
    give_up(fmt::format("the program's JSON has no number {}", key));
  return found->get<double>();
}

double part(const Json& answer, const char* key) { return number(answer.at("ttft_parts_ms"), key); }

double median_part(const std::vector<Json>& answers, const char* key) {
  std::vector<double> values;
  for (const Json& answer : answers) values.push_back(part(answer, key));
  return median(values);
}

Row measure(const Options& options) {
  const Scratch scratch;
  const std::string text = scratch / "text", saved = scratch / "saved.cairn",
                    copy = scratch / "copy.cairn";
  write_text(text, options.text_bytes);
  const Json cold = run(options, text, saved);
  std::vector<Json> restarts;
  std::vector<double> ratios;
  for (int i = 0; i < options.restarts; ++i) {
    fs::remove_all(copy);
    fs::copy(saved, copy, fs::copy_options::recursive);  // a run saves again
    restarts.push_back(run(options, text, copy));
    if (restarts.back().at("tokens") != cold.at("tokens"))
      give_up("the restart said other tokens than the cold run");
    ratios.push_back(number(restarts.back(), "ttft_ms") / number(cold, "ttft_ms"));
  }
  Row row{
      .id = fmt::format("{}/{}/{}", options.uses_store ? "restart_store" : "restart", options.model,
                        options.kv),
      .name = "time to first token after a restart over that of the cold run (llama.cpp: 0.0155)",
      .ratio = median(ratios),
      .better = "lower",
      .goal = 0.01,
      .floor = 0.0155,
      .spread_low = least(ratios),
      .spread_high = most(ratios),
      .detail = {},
      .text = {}};
  row.detail = {{"prompt_tokens", number(cold, "prompt_tokens")},
                {"same_tokens", static_cast<double>(cold.at("tokens").size())},
                {"reused", number(restarts.front(), "reused")},
                {"computed", number(restarts.front(), "computed")},
                {"cold_ms", number(cold, "ttft_ms")},
                {"restart_ms", median(ratios) * number(cold, "ttft_ms")},
                {"process_ms", median_part(restarts, "process")},
                {"model_ms", median_part(restarts, "model")},
                {"state_ms", median_part(restarts, "state")},
                {"first_step_ms", median_part(restarts, "first_step")},
                {"state_bytes", number(restarts.front(), "state_bytes")}};
  return row;
}

Options parse(int count, char** words) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const auto value = [&] { return i + 1 < count ? std::string(words[++i]) : std::string(); };
    const auto whole = [&] { return std::max(1, std::atoi(value().c_str())); };
    if (word == "--json") {
      options.is_json = true;
    } else if (word == "--program") {
      options.program = value();
    } else if (word == "--model") {
      options.model = value();
    } else if (word == "--kv") {
      options.kv = value();
    } else if (word == "--bytes") {
      options.text_bytes = static_cast<size_t>(whole());
    } else if (word == "--tokens") {
      options.tokens = whole();
    } else if (word == "--restarts") {
      options.restarts = whole();
    } else if (word == "--store") {
      options.uses_store = true;
    } else if (word == "--threads") {
      options.threads = whole();
    } else {
      fmt::print(stderr, "restart_bench: {}: not an option\n", word);
      std::exit(2);
    }
  }
  return options;
}

}  // namespace
}  // namespace cairn::bench

int main(int count, char** words) {
  using namespace cairn::bench;
  const Options options = parse(count, words);
  const std::vector<Row> rows = {measure(options)};
  if (options.is_json) {
    print_json(rows);
  } else {
    print_row(rows.front());
  }
}
