// The main job as a user waits for it: a long text read cold, saved, and answered again by a new
// process.
//
//   restart_bench [--program PATH] [--model NAME] [--bytes N] [--tokens N] [--kv NAME]
//                 [--keeps state|store|both] ..
//
// Runs the program itself over the same text: first without a state file or a store, then, for
// every pair, with a copy of what was saved. Both times count from the start of the process to its
// first token, with everything between. Both must say the same tokens.
//
// The model named hybrid is made for the purpose (tests/support/hybrid_file.h). Recurrent state has
// no way back to the text that an answer followed, so there the text is read and saved, and both
// are asked a question after it.
#include <fmt/core.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/program.h"
#include "tests/support/hybrid_file.h"

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

std::string text_of(size_t bytes) {
  std::string text;
  for (const char* name : kTexts) {
    std::ifstream in(std::string(kTextFolder) + name, std::ios::binary);
    text.append(std::istreambuf_iterator<char>(in), {});
  }
  if (text.size() < bytes)
    give_up(fmt::format("{}: {} bytes of text, expected {}", kTextFolder, text.size(), bytes));
  return text.substr(0, bytes);
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string quoted(const std::string& word) {
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

// Whose restart is measured.
struct Subject {
  std::string model;
  size_t bytes = 0;                // of the text
  std::vector<std::string> keeps;  // options that take a place: "state", "store"
  std::string question;            // after the text; empty: the text alone, once more
  Goal goal = at_most(0.02, 0.02);
};

constexpr const char* kHybrid = "hybrid";
constexpr const char* kQuestion = "\nWhy so?\n";  // of hybrid's tokens, which are bytes

// The program, on one model.
class Runs {
 public:
  Runs(const Program& program, std::string model) : program_(program), model_(std::move(model)) {}

  // What a process prints. `places`: what options keep the state in.
  Json run(const std::string& text,
           const std::string& tokens,
           const std::vector<std::pair<std::string, std::string>>& places) const {
    std::string command = fmt::format("{} run {} -f {} -n {} --kv {} --threads {} --temp 0 --json",
                                      quoted(program_.own("program")), quoted(model_), quoted(text),
                                      tokens, program_.own("kv"), program_.threads());
    for (const auto& [option, path] : places)
      command += fmt::format(" --{} {}", option, quoted(path));
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

 private:
  const Program& program_;
  const std::string model_;
};

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

// The restarts from copies of `saved`, which `keep` names.
Row restart_row(const Program& program,
                const Subject& subject,
                const Runs& runs,
                const std::string& text,
                const std::string& keep,
                const std::string& saved,
                const Json& cold) {
  const std::string copy = saved + ".copy";
  std::vector<Json> restarts;
  std::vector<double> ratios;
  for (int i = 0; i < program.pairs(); ++i) {
    fs::remove_all(copy);
    fs::copy(saved, copy, fs::copy_options::recursive);  // a run saves again
    restarts.push_back(runs.run(text, program.own("tokens"), {{keep, copy}}));
    if (restarts.back().at("tokens") != cold.at("tokens"))
      give_up("the restart said other tokens than the cold run");
    ratios.push_back(number(restarts.back(), "ttft_ms") / number(cold, "ttft_ms"));
  }
  fs::remove_all(copy);
  return make_row(
      fmt::format("{}/{}/{}", keep == "store" ? "restart_store" : "restart", subject.model,
                  program.own("kv")),
      fmt::format("{}, {} tokens, {}: time to first token after a restart / of the cold run",
                  subject.model, number(cold, "prompt_tokens"), keep),
      ratios, subject.goal,
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

std::vector<Row> measure(const Program& program, const Subject& subject) {
  const Scratch scratch;
  std::string model = subject.model;
  if (model == kHybrid) {
    model = scratch / "hybrid.gguf";
    testing::write_hybrid_model(model, testing::real_hybrid_shape(), 1);
  }
  const Runs runs(program, model);
  const std::string file = scratch / "text", text = text_of(subject.bytes);
  write_text(file, text.substr(0, 64));
  runs.run(file, "0", {});  // the model's identity is known from here on, and its file in memory

  std::vector<std::pair<std::string, std::string>> places;
  for (const std::string& keep : subject.keeps) places.emplace_back(keep, scratch / keep);
  write_text(file, text);
  Json cold = runs.run(file, subject.question.empty() ? program.own("tokens") : "0", places);
  if (!subject.question.empty()) {
    write_text(file, text + subject.question);
    cold = runs.run(file, program.own("tokens"), {});
  }
  std::vector<Row> rows;
  for (const auto& [keep, saved] : places)
    rows.push_back(restart_row(program, subject, runs, file, keep, saved, cold));
  return rows;
}

// What the words ask for; none of them: the rows of `make bench`.
std::vector<Subject> subjects(const Program& program) {
  const std::string &model = program.own("model"), &bytes = program.own("bytes"),
                    &keeps = program.own("keeps");
  std::vector<Subject> all = {
      {"smollm2", 33500, {"state"}, "", at_most(0.01, 0.0155)},  // about 7,400; llama.cpp: 0.0155
      {"gemma3", 19500, {"state", "store"}, ""},                 // about 4,100
      {kHybrid, 4250, {"state", "store"}, kQuestion}};           // as many as bytes
  if (model.empty() && bytes.empty() && keeps.empty()) return all;
  const auto found = std::ranges::find(all, model.empty() ? "smollm2" : model, &Subject::model);
  Subject one = found != all.end() ? *found : Subject{.model = model, .bytes = 18500};
  if (!bytes.empty()) one.bytes = std::stoul(bytes);
  one.keeps = keeps == "both" ? std::vector<std::string>{"state", "store"}
                              : std::vector{keeps.empty() ? "state" : keeps};
  return {one};
}

}  // namespace
}  // namespace cairn::bench

int main(int count, char** words) {
  using namespace cairn::bench;
  Program program(count, words,
                  {{"program", "build/cairn"},
                   {"model", ""},
                   {"bytes", ""},
                   {"tokens", "64"},  // generated each time
                   {"kv", "f16"},
                   {"keeps", ""}});
  for (const Subject& subject : subjects(program))
    program.add("restart/" + subject.model,
                [&program, subject] { return measure(program, subject); });
  return program.run();
}
