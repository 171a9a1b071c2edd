// The main job as a user waits for it: a long text read cold, saved, and answered again by a new
// process.
//
//   restart_bench [--program PATH] [--model NAME] [--bytes N] [--tokens N] [--kv NAME]
//                 [--keeps state|store] ..
//
// Runs the program itself over the same text: first without a state file (or a store), then, for
// every pair, with a copy of what was saved. Both times count from the start of the process to its
// first token, with everything between. Both must say the same tokens.
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

#include "bench/program.h"

namespace cairn::bench {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr const char* kTexts[] = {"GPL-3", "Apache-2.0", "MPL-2.0", "LGPL-2.1"};
constexpr const char* kTextFolder = "/usr/share/common-licenses/";

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
Json run(const Program& program, const std::string& text, const std::string& state) {
  const std::string command =
      fmt::format("{} run {} -f {} --{} {} -n {} --kv {} --threads {} --temp 0 --json",
                  quoted(program.own("program")), quoted(program.own("model")), quoted(text),
                  program.own("keeps"), quoted(state), program.own("tokens"), program.own("kv"),
                  program.threads());
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

Row measure(const Program& program) {
  const Scratch scratch;
  const std::string text = scratch / "text", saved = scratch / "saved.cairn",
                    copy = scratch / "copy.cairn";
  write_text(text, std::stoul(program.own("bytes")));
  const Json cold = run(program, text, saved);
  std::vector<Json> restarts;
  std::vector<double> ratios;
  for (int i = 0; i < program.pairs(); ++i) {
    fs::remove_all(copy);
    fs::copy(saved, copy, fs::copy_options::recursive);  // a run saves again
    restarts.push_back(run(program, text, copy));
    if (restarts.back().at("tokens") != cold.at("tokens"))
      give_up("the restart said other tokens than the cold run");
    ratios.push_back(number(restarts.back(), "ttft_ms") / number(cold, "ttft_ms"));
  }
  return make_row(
      fmt::format("{}/{}/{}", program.own("keeps") == "store" ? "restart_store" : "restart",
                  program.own("model"), program.own("kv")),
      "time to first token after a restart over that of the cold run (llama.cpp: 0.0155)", ratios,
      at_most(0.01, 0.0155),
      {{"prompt_tokens", number(cold, "prompt_tokens")},
       {"same_tokens", static_cast<double>(cold.at("tokens").size())},
       {"reused", number(restarts.front(), "reused")},
       {"computed", number(restarts.front(), "computed")},
       {"cold_ms", number(cold, "ttft_ms")},
       {"ms", median(ratios) * number(cold, "ttft_ms")},
       {"process_ms", median_part(restarts, "process")},
       {"model_ms", median_part(restarts, "model")},
       {"state_ms", median_part(restarts, "state")},
       {"first_step_ms", median_part(restarts, "first_step")},
       {"state_bytes", number(restarts.front(), "state_bytes")}});
}

}  // namespace
}  // namespace cairn::bench

int main(int count, char** words) {
  using namespace cairn::bench;
  Program program(count, words,
                  {{"program", "build/cairn"},
                   {"model", "smollm2"},
                   {"bytes", "33500"},  // about 7,400 tokens
                   {"tokens", "64"},    // generated each time
                   {"kv", "f16"},
                   {"keeps", "state"}});
  program.add_row("restart", [&] { return measure(program); });
  return program.run();
}
