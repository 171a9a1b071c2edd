#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <regex>

#include "tests/apps/program.h"
#include "tests/apps/tiny_chat_model.h"

namespace cairn::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// A text of letters and spaces, which the tiny model has about one token for each.
std::string letters(size_t count) {
  std::string text;
  for (uint64_t i = 0; i < count; ++i) text += "abcdefghijklmnopqrstuvwxyz "[scatter(i) % 27];
  return text;
}

class FidelityCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    write_tiny_chat_model(model(), 1);
    write_file(text(), letters(600));
  }
  std::string model() const { return folder_ / "tiny.gguf"; }
  std::string text() const { return folder_ / "text"; }
  Ran fidelity(const std::vector<std::string>& options) const {
    std::vector<std::string> words = {"fidelity", model(), "-f", text(), "--threads", "1"};
    words.insert(words.end(), options.begin(), options.end());
    return run_cairn(words);
  }
  void expect_wrong(const Ran& ran, const char* words) const {
    EXPECT_EQ(ran.code, 2) << words;
    EXPECT_EQ(ran.out, "");
    EXPECT_THAT(ran.err, HasSubstr(words));
  }

  ScratchFolder folder_;
};

TEST_F(FidelityCommand, JsonIsAnArrayOfTheSchemesAsTyped) {
  const Ran ran = fidelity({"--kv", "f32,affine8-g32,affine4-g32-keep64", "--json"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const auto list = ran.json();
  ASSERT_EQ(list.size(), 3u);
  std::vector<std::string> names;
  for (const auto& row : list) {
    names.push_back(row["scheme"]);
    for (const char* key :
         {"kl_mean", "kl_low", "kl_high", "kl_p999", "top1", "perplexity", "reference_perplexity",
          "bits_per_position", "attention_error", "drift_never", "seconds"})
      EXPECT_TRUE(row[key].is_number_float()) << key;
    EXPECT_EQ(row["tokens"], list[0]["tokens"]);
  }
  EXPECT_THAT(names, ElementsAre("f32", "affine8-g32", "affine4-g32-keep64"));
  EXPECT_EQ(list[0]["kl_mean"], 0);
  EXPECT_EQ(list[0]["kl_p999"], 0);
  EXPECT_EQ(list[0]["top1"], 1);
  EXPECT_EQ(list[0]["bits_per_position"], 32);
  EXPECT_EQ(list[0]["attention_error"], 0);
  EXPECT_TRUE(list[0]["drift_median"].is_null());
  EXPECT_EQ(list[0]["drift_never"], 1);
  EXPECT_EQ(list[0]["perplexity"], list[0]["reference_perplexity"]);
  EXPECT_GT(list[1]["kl_mean"], 0);
  EXPECT_GT(list[2]["kl_mean"], list[1]["kl_mean"]);
  EXPECT_GT(list[2]["attention_error"], list[1]["attention_error"]);
  EXPECT_GT(list[2]["bits_per_position"], 5) << "the exact beginning counts";
}

TEST_F(FidelityCommand, RecommendsTheSmallestSchemeBelowTheLimit) {
  const auto recommended = [&](const std::string& kl) {
    std::vector<std::string> names;
    for (const auto& row :
         fidelity({"--kv", "f32,affine8-g32,affine4-g32", "--kl", kl, "--json"}).json())
      if (row["is_recommended"]) names.push_back(row["scheme"]);
    return names;
  };
  const auto rows = fidelity({"--kv", "affine8-g32,affine4-g32", "--json"}).json();
  const double near = rows[0]["kl_high"], far = rows[1]["kl_high"];
  ASSERT_LT(near, far);
  EXPECT_THAT(recommended(nlohmann::json(2 * far).dump()), ElementsAre("affine4-g32"));
  EXPECT_THAT(recommended(nlohmann::json((near + far) / 2).dump()), ElementsAre("affine8-g32"));
  EXPECT_THAT(recommended(nlohmann::json(near / 2).dump()), ElementsAre("f32"));

  const Ran none = fidelity({"--kv", "affine4-g32", "--kl", "1e-12"});
  EXPECT_EQ(none.code, 0);
  EXPECT_THAT(none.out, HasSubstr("none of them stays below a KL of 1e-12"));
}

// Heads of 16 numbers: no group of affine's fits, nor does a vector of turbo's.
TEST_F(FidelityCommand, LeavesOutOfTheUsualSchemesWhatTheWidthsRefuse) {
  const Ran ran = fidelity({});
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("\n  f16 "));
  EXPECT_THAT(ran.out, HasSubstr("--kv "));
  for (const char* scheme :
       {"f16", "bf16", "affine8", "affine6", "affine5", "affine4", "affine3", "affine2",
        "turbo-k8v8", "turbo-k8v4", "turbo-k8v3", "turbo-k8v2", "turbo-k4v4"}) {
    const bool is_measured = ran.out.find(std::string("\n  ") + scheme + " ") != std::string::npos;
    const bool is_left_out =
        ran.err.find(std::string("left out: scheme ") + scheme) != std::string::npos;
    EXPECT_NE(is_measured, is_left_out) << scheme;
  }
}

TEST_F(FidelityCommand, DriftIsLeftOutWhereNobodyWantsIt) {
  const Ran with = fidelity({"--kv", "f32", "--drift", "12"});
  EXPECT_THAT(with.out, HasSubstr("differs at"));
  EXPECT_THAT(with.out, HasSubstr("> 12"));
  const Ran without = fidelity({"--kv", "f32", "--drift", "0"});
  EXPECT_EQ(without.code, 0);
  EXPECT_THAT(without.out, Not(HasSubstr("differs at")));
  EXPECT_TRUE(
      fidelity({"--kv", "f32", "--drift", "0", "--json"}).json()[0]["drift_never"].is_null());
}

TEST_F(FidelityCommand, TheThreadsAndAPipeChangeNoFigure) {
  const auto without_times = [](nlohmann::json list) {
    for (auto& row : list) row.erase("seconds");
    return list;
  };
  const auto one = fidelity({"--kv", "affine4-g32", "--json"}).json();
  const Ran piped =
      run_cairn({"fidelity", model(), "-f", "-", "--kv", "affine4-g32", "--threads", "2", "--json"},
                letters(600));
  EXPECT_EQ(without_times(one), without_times(piped.json()));
  const auto short_ones = fidelity({"--kv", "affine4-g32", "--context", "100", "--json"}).json();
  EXPECT_NE(short_ones[0]["perplexity"], one[0]["perplexity"]);
  EXPECT_LT(short_ones[0]["tokens"], one[0]["tokens"]) << "every sequence has a first token";
}

struct Name {
  double x = 0, y = 0;  // the middle of its base line
  std::string text;
};

std::vector<Name> names_of(const std::string& picture) {
  static const std::regex kName(
      R"x(<text x="([0-9.]+)" y="([0-9.]+)"[^>]*class="scheme"[^>]*>([^<]*)</text>)x");
  std::vector<Name> names;
  for (std::sregex_iterator at(picture.begin(), picture.end(), kName), end; at != end; ++at)
    names.push_back({std::stod((*at)[1]), std::stod((*at)[2]), (*at)[3]});
  return names;
}

TEST_F(FidelityCommand, ThePlotNamesEverySchemeAndNoNameCoversAnother) {
  const std::vector<std::string> schemes = {
      "f16",         "bf16",        "f16+value:bf16",     "bf16+value:f16",  "affine8-g32",
      "affine6-g32", "affine4-g32", "affine4-g32-keep64", "affine4-g32-f32", "affine4-g32-bf16"};
  std::string list;
  for (const std::string& scheme : schemes) list += (list.empty() ? "" : ",") + scheme;
  const Ran ran = fidelity({"--kv", list, "--plot", folder_ / "kl.svg"});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const std::string picture = read_file(folder_ / "kl.svg");
  EXPECT_THAT(picture, HasSubstr("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_THAT(picture, Not(HasSubstr("href"))) << "it needs nothing beside itself";
  EXPECT_THAT(picture, Not(HasSubstr("nan")));

  const std::vector<Name> names = names_of(picture);
  std::vector<std::string> texts;
  for (const Name& name : names) texts.push_back(name.text);
  EXPECT_EQ(texts, schemes);
  constexpr double kLetter = 7.83, kHeight = 13;  // of 13 pixels of a font of equal widths
  for (size_t i = 0; i < names.size(); ++i)
    for (size_t j = 0; j < i; ++j) {
      const double letters =
          static_cast<double>(names[i].text.size() + names[j].text.size()) * kLetter / 2;
      EXPECT_TRUE(std::fabs(names[i].x - names[j].x) >= letters ||
                  std::fabs(names[i].y - names[j].y) >= kHeight)
          << names[i].text << " and " << names[j].text;
    }
}

TEST_F(FidelityCommand, ReplacesAPictureAndNothingElse) {
  write_file(folder_ / "poem", "a rose is a rose is a rose");
  write_file(folder_ / "kl.svg", "older");
  expect_wrong(fidelity({"--kv", "f16", "--plot", folder_ / "poem"}), "poem: exists");
  EXPECT_EQ(read_file(folder_ / "poem"), "a rose is a rose is a rose");
  EXPECT_EQ(fidelity({"--kv", "f99", "--plot", folder_ / "kl.svg"}).code, 2);
  EXPECT_EQ(read_file(folder_ / "kl.svg"), "older");
  EXPECT_EQ(fidelity({"--kv", "f16", "--plot", folder_ / "kl.svg"}).code, 0);
  EXPECT_EQ(read_file(folder_ / "kl.svg").substr(0, 4), "<svg");
}

TEST_F(FidelityCommand, SaysWhatIsWrong) {
  expect_wrong(fidelity({"--kv", "f16,affine9"}), "affine9");
  expect_wrong(fidelity({"--kv", "turbo-k8v9"}), "turbo-k8v9");
  expect_wrong(fidelity({"--context", "1"}), "expected 2 to 4096");
  expect_wrong(fidelity({"--context", "5000"}), "expected 2 to 4096");
  expect_wrong(fidelity({"--kl", "0"}), "--kl");
  expect_wrong(run_cairn({"fidelity", model(), "-f", folder_ / "absent"}), "absent");
  expect_wrong(run_cairn({"fidelity", folder_ / "absent.gguf", "-f", text()}), "absent.gguf");
  expect_wrong(run_cairn({"fidelity", model()}), "--file");
  write_file(text(), letters(100));
  expect_wrong(fidelity({"--kv", "f16"}), "give a longer text");
  write_file(text(), "");
  expect_wrong(fidelity({"--kv", "f16"}), "text: 0 tokens");
}

TEST(FidelityHelp, TeachesWithExamples) {
  const Ran help = run_cairn({"fidelity", "--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out, HasSubstr("cairn fidelity smollm2 -f book.txt"));
}

}  // namespace
}  // namespace cairn::testing
