// What looking up drafts in the text itself gains where a text repeats itself: tokens per second
// with speculation over those without, on top of a long state.
//
//   speculate_bench [--model PATH] [--most N] ..
//
// The text is the beginning of a licence, over and over; the model goes on with it. Plain and
// speculated answers take turns on forks of one state, and must say the same tokens.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>

#include "bench/program.h"
#include "cairn/runtime/speculate.h"

namespace cairn::bench {
namespace {

constexpr const char* kText = "/usr/share/common-licenses/GPL-3";  // of every Debian
constexpr Pos kPositions = 4000;
constexpr size_t kPeriod = 300;  // tokens until the text repeats itself
constexpr uint64_t kTokens = 96;

[[noreturn]] void give_up(const std::string& why) {
  fmt::print(stderr, "speculate_bench: {}\n", why);
  std::exit(1);
}

std::vector<int32_t> repetitive_text(const Tokenizer& tokenizer) {
  std::ifstream in(kText, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const std::vector<int32_t> tokens = tokenizer.encode(text, Specials::AsText);
  if (tokens.size() < kPeriod) give_up(fmt::format("{}: not the licence", kText));
  std::vector<int32_t> repeated;
  while (repeated.size() < kPositions) repeated.push_back(tokens[repeated.size() % kPeriod]);
  return repeated;
}

class Speaker {
 public:
  Speaker(const Program& program, std::string_view scheme)
      : model_(must(
            load_model(program.own("model"), {.threads = program.threads(), .cache_folder = {}}))),
        session_(must(open_session(model_->spec(), must(parse_scheme(scheme)), memory_))) {
    text_.tokens = repetitive_text(*model_->tokenizer());
    text_.seq = session_.start();
    Sampler sampler = must(make_sampler({}));
    must(generate(*model_, session_, text_, sampler, {.max_tokens = 0}));
  }

  // drafter: null: plain decoding.
  Generated answer(Drafter* drafter, uint32_t most) {
    Conversation branch{session_.fork(text_.seq), text_.tokens};
    Sampler sampler = must(make_sampler({}));
    Generated said =
        must(generate(*model_, session_, branch, sampler,
                      {.max_tokens = kTokens, .drafter = drafter, .most_drafts = most}));
    session_.drop(branch.seq);
    return said;
  }

 private:
  Memory memory_;
  std::unique_ptr<Model> model_;
  Session session_;
  Conversation text_;
};

Row lookup_row(std::string_view scheme, const Program& program) {
  const auto most = static_cast<uint32_t>(std::stoul(program.own("most")));
  Speaker speaker(program, scheme);
  std::vector<double> ratios, plain_rates, rates;
  GenerateStats stats;
  for (int i = 0; i < program.pairs(); ++i) {
    PromptLookup lookup;
    const Generated plain = speaker.answer(nullptr, 0), drafted = speaker.answer(&lookup, most);
    if (plain.tokens != drafted.tokens) give_up("the speculated answer is another one");
    stats = drafted.stats;
    plain_rates.push_back(plain.stats.decode_tokens_per_second());
    rates.push_back(stats.decode_tokens_per_second());
    ratios.push_back(rates.back() / plain_rates.back());
  }
  const auto count = [](uint64_t number) { return static_cast<double>(number); };
  return make_row(
      fmt::format("speculate/lookup/{}", scheme),
      fmt::format("{}: tokens per second with drafts looked up over those without, at 4,000 "
                  "positions of a text that repeats itself",
                  scheme),
      ratios, at_least(1.3, 1),
      {{"ms", 1e3 / median(rates)},
       {"tokens_per_s", median(rates)},
       {"tokens_per_s_plain", median(plain_rates)},
       {"accepted", count(stats.accepted) / count(std::max<uint64_t>(stats.drafted, 1))},
       {"tokens_per_round", count(kTokens) / count(kTokens - stats.accepted)},
       {"most_drafts", most},
       {"threads", program.threads()}});
}

}  // namespace
}  // namespace cairn::bench

int main(int count, char** words) {
  using namespace cairn::bench;
  Program program(count, words, {{"model", "models/smollm2.gguf"}, {"most", "8"}});
  for (const std::string_view scheme : {"f16", "affine8"})
    program.add_row(fmt::format("speculate/lookup/{}", scheme),
                    [&, scheme] { return lookup_row(scheme, program); });
  return program.run();
}
