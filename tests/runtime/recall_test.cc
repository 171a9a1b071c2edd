// Tiny models remember through the tiers: one that keeps every position, one with windows, and one
// with recurrent layers, which resumes at marks only.
#include "cairn/runtime/recall.h"

#include <gtest/gtest.h>

#include "tests/support/must.h"
#include "tests/support/scratch_folder.h"

namespace cairn {
namespace {

using testing::must;
using testing::ScratchFolder;

std::vector<int32_t> text(size_t length, size_t salt = 3) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < length; ++i)
    tokens.push_back(static_cast<int32_t>((i * i * 7 + salt) % 320));
  return tokens;
}

constexpr const char* kLlama = "tests/oracles/llama.safetensors";
constexpr const char* kGemma = "tests/oracles/gemma3.safetensors";
constexpr const char* kHybrid = "tests/oracles/qwen3_next.safetensors";

// One process.
class Process {
 public:
  explicit Process(const std::string& folder,
                   const std::string& scheme = "f16",
                   const std::string& model = kLlama)
      : store_(must(Store::open(folder))),
        model_(must(load_model(model, {.threads = 1}))),
        session_(must(open_session(model_->spec(), must(parse_scheme(scheme)), memory_))),
        tiers_(memory_, store_.get()),
        prefixes_(must(Prefixes::make(session_, tiers_))),
        conversation_{session_.start(), {}},
        recall_(prefixes_, session_, conversation_, {.checkpoint_every = 8}) {}
  ~Process() { tiers_.flush(); }

  struct Answer {
    Recalled recalled;
    std::vector<int32_t> tokens;  // those of an interrupted answer included
  };

  // Appends `prompt` and answers; is killed after `most` tokens of the answer, if that comes first.
  Answer answer(const std::vector<int32_t>& prompt,
                const Request& request,
                size_t most = SIZE_MAX) {
    conversation_.tokens.insert(conversation_.tokens.end(), prompt.begin(), prompt.end());
    Sampler sampler = must(make_sampler(request.sampling));
    Answer answer{.recalled = recall_.begin(request), .tokens = {}};
    if (answer.recalled.sampler) sampler.resume(*answer.recalled.sampler);
    answer.tokens = answer.recalled.answered;
    const auto result =
        must(generate(*model_, session_, conversation_, sampler,
                      {.max_tokens = request.max_tokens - answer.tokens.size(),
                       .cuts = recall_.cuts(),
                       .on_token =
                           [&](int32_t token) {
                             answer.tokens.push_back(token);
                             return answer.tokens.size() >= most ? Flow::stop : Flow::go_on;
                           },
                       .after_step = [&] { recall_.after_step(sampler); }}));
    if (answer.tokens.size() < most) recall_.end(result.finish);
    return answer;
  }

 private:
  std::unique_ptr<Store> store_;
  Memory memory_;
  std::unique_ptr<Model> model_;
  Session session_;
  Tiers tiers_;
  Prefixes prefixes_;
  Conversation conversation_;
  Recall recall_;
};

class RecallOfAModel : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Tiny,
                         RecallOfAModel,
                         ::testing::Values(kLlama, kGemma, kHybrid),
                         [](const auto& model) {
                           const std::string path = model.param;
                           const size_t name = path.rfind('/') + 1;
                           return path.substr(name, path.find('.') - name);
                         });

TEST_P(RecallOfAModel, TheSecondTurnOfANewProcessComputesItsOwnTokensOnly) {
  const ScratchFolder folder;
  std::vector<int32_t> tokens = text(300);  // more than the window and its rewind keep
  {
    Process process(folder / "store", "f16", GetParam());
    const auto first = process.answer(tokens, {.max_tokens = 20});
    EXPECT_EQ(first.recalled.reused, 0u);
    tokens.insert(tokens.end(), first.tokens.begin(), first.tokens.end());
  }
  tokens.insert(tokens.end(), {5, 6, 7});
  std::vector<int32_t> warm;
  {
    Process process(folder / "store", "f16", GetParam());
    const auto second = process.answer(tokens, {.max_tokens = 20});
    EXPECT_EQ(second.recalled.from_disk, 320u);
    EXPECT_EQ(second.recalled.reused, 320u);
    warm = second.tokens;
  }
  Process cold(folder / "another", "f16", GetParam());
  EXPECT_EQ(cold.answer(tokens, {.max_tokens = 20}).tokens, warm);
}

TEST_P(RecallOfAModel, AnInterruptedAnswerGoesOnWithTheSameTokens) {
  const Request greedy{.max_tokens = 40};
  const Request sampled{.max_tokens = 40, .sampling = {.temperature = 1.5F, .seed = 11}};
  for (const Request& request : {greedy, sampled}) {
    const ScratchFolder folder;
    Process whole(folder / "whole", "f16", GetParam());
    const std::vector<int32_t> expected = whole.answer(text(100), request).tokens;
    for (const size_t killed_after : {8, 13, 31}) {
      const std::string store = folder / std::to_string(killed_after);
      { Process(store, "f16", GetParam()).answer(text(100), request, killed_after); }
      Process process(store, "f16", GetParam());
      const auto resumed = process.answer(text(100), request);
      EXPECT_EQ(resumed.recalled.answered.size(), killed_after / 8 * 8);
      EXPECT_EQ(resumed.recalled.reused, 100 + killed_after / 8 * 8 - 1);
      EXPECT_EQ(resumed.tokens, expected);
    }
  }
}

TEST(Recall, AnotherRequestOrAFinishedOneIsNoInterruptedAnswer) {
  const ScratchFolder folder;
  const Request request{.max_tokens = 40};
  { Process(folder / "store").answer(text(100), request, 20); }
  {
    Process process(folder / "store");
    EXPECT_TRUE(process.answer(text(100), {.max_tokens = 41}, 1).recalled.answered.empty());
  }
  {
    Process process(folder / "store");
    EXPECT_EQ(process.answer(text(100), request).recalled.answered.size(), 16u);
  }
  Process process(folder / "store");
  EXPECT_TRUE(process.answer(text(100), request).recalled.answered.empty());
}

// Oracle 152: an explicit seed is part of the request, a server's own is not.
TEST(Recall, ASeedIsPartOfTheRequestIfTheCallerChoseIt) {
  const ScratchFolder folder;
  Request request{.max_tokens = 40, .sampling = {.temperature = 1, .seed = 1}};
  { Process(folder / "store").answer(text(100), request, 20); }
  request.sampling.seed = 2;
  {
    Process process(folder / "store");
    const auto resumed = process.answer(text(100), request, 20);
    EXPECT_EQ(resumed.recalled.answered.size(), 16u);
    EXPECT_EQ(resumed.recalled.sampler->seed, 1u) << "it goes on with the seed it began with";
  }
  request.has_seed = true;
  Process process(folder / "store");
  EXPECT_TRUE(process.answer(text(100), request, 1).recalled.answered.empty());
}

TEST(Recall, ASchemeThatEncodesLaterTakesNoStepAcross) {
  const ScratchFolder folder;
  Process process(folder / "store", "affine8-g32-after128");
  const auto answer = process.answer(text(300), {.max_tokens = 5});
  EXPECT_EQ(answer.tokens.size(), 5u);
}

}  // namespace
}  // namespace cairn
