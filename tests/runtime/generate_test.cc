// The tiny llama, greedy unless a test says otherwise.
#include "cairn/runtime/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/must.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using testing::must;
using ::testing::Pair;

class Generate : public ::testing::Test {
 protected:
  Conversation prompt(size_t length) {
    Conversation conversation{session_.start(), {}};
    for (size_t i = 0; i < length; ++i)
      conversation.tokens.push_back(static_cast<int32_t>((i * i * 7 + 3) % 320));
    return conversation;
  }
  Generated answer(Conversation& conversation, GenerateOptions options = {}) {
    Sampler sampler = must(make_sampler(sampling_));
    return must(generate(*model_, session_, conversation, sampler, options));
  }

  SamplingOptions sampling_;
  Memory memory_;
  std::unique_ptr<Model> model_ = must(load_model(
      "tests/oracles/llama.safetensors", {.threads = 1, .expand = Expand::no, .cache_folder = {}}));
  Session session_ = must(open_session(model_->spec(), must(parse_scheme("f16")), memory_));
};

TEST_F(Generate, LeavesAStateOfEveryTokenBehind) {
  Conversation conversation = prompt(70);
  const Generated result = answer(conversation, {.max_tokens = 9});
  EXPECT_EQ(result.finish, Finish::length);
  EXPECT_EQ(result.tokens.size(), 9u);
  EXPECT_EQ(conversation.tokens.size(), 79u);
  EXPECT_EQ(session_.length(conversation.seq), 79u);
  EXPECT_EQ(result.stats.reused, 0u);
  EXPECT_EQ(result.stats.computed, 70u);
  EXPECT_EQ(result.stats.decoded, 8u);
  EXPECT_EQ(result.stats.state_bytes, session_.bytes_for(79));
  EXPECT_GT(result.stats.first_token_seconds, 0);
}

TEST_F(Generate, ChunksChangeNoToken) {
  Conversation whole = prompt(70);
  const auto expected = answer(whole, {.max_tokens = 20}).tokens;
  for (const uint32_t chunk : {1u, 7u, 64u}) {
    Conversation conversation = prompt(70);
    EXPECT_EQ(answer(conversation, {.max_tokens = 20, .chunk = chunk}).tokens, expected)
        << "chunks of " << chunk;
  }
}

TEST_F(Generate, GoesOnWhereItStopped) {
  Conversation whole = prompt(30);
  const auto expected = answer(whole, {.max_tokens = 12}).tokens;
  Conversation halves = prompt(30);
  auto tokens = answer(halves, {.max_tokens = 5}).tokens;
  const Generated rest = answer(halves, {.max_tokens = 7});
  tokens.insert(tokens.end(), rest.tokens.begin(), rest.tokens.end());
  EXPECT_EQ(tokens, expected);
  EXPECT_EQ(rest.stats.reused, 34u);
  EXPECT_EQ(rest.stats.computed, 1u);
}

TEST_F(Generate, ComputesOnlyWhatASharedPrefixLacks) {
  Conversation first = prompt(60);
  const auto expected = answer(first, {.max_tokens = 10}).tokens;
  must(session_.truncate(first.seq, 45));
  first.tokens.resize(60);
  const Generated again = answer(first, {.max_tokens = 10});
  EXPECT_EQ(again.tokens, expected);
  EXPECT_EQ(again.stats.reused, 45u);
  EXPECT_EQ(again.stats.computed, 15u);
}

TEST_F(Generate, EndsAtATokenThatEndsTheAnswerAndKeepsItInTheConversation) {
  Conversation whole = prompt(30);
  const auto expected = answer(whole, {.max_tokens = 12}).tokens;
  const int32_t end = expected[6];
  const auto first = std::find(expected.begin(), expected.end(), end);
  Conversation conversation = prompt(30);
  const Generated result = answer(
      conversation, {.max_tokens = 12, .ends = [end](int32_t token) { return token == end; }});
  EXPECT_EQ(result.finish, Finish::end_token);
  EXPECT_EQ(result.tokens, std::vector<int32_t>(expected.begin(), first));
  EXPECT_EQ(conversation.tokens.back(), end);
  EXPECT_EQ(session_.length(conversation.seq), conversation.tokens.size());
}

TEST_F(Generate, TheListenerCanStopIt) {
  Conversation conversation = prompt(30);
  size_t heard = 0;
  const Generated result = answer(conversation, {.max_tokens = 12, .on_token = [&](int32_t) {
                                                   return ++heard == 3 ? Flow::stop : Flow::go_on;
                                                 }});
  EXPECT_EQ(result.finish, Finish::stopped);
  EXPECT_EQ(result.tokens.size(), 3u);
}

TEST_F(Generate, ACancelledAnswerFinishesItsToken) {
  Conversation conversation = prompt(30);
  std::atomic<bool> cancel = false;
  const Generated result =
      answer(conversation,
             {.on_token = [&](int32_t) { return cancel = true, Flow::go_on; }, .cancel = &cancel});
  EXPECT_EQ(result.finish, Finish::cancelled);
  EXPECT_EQ(result.tokens.size(), 1u);
  EXPECT_EQ(session_.length(conversation.seq), 31u);
}

TEST_F(Generate, ACancelledPrefillFinishesItsChunkAndCanBeGoneOnWith) {
  Conversation whole = prompt(50);
  const auto expected = answer(whole, {.max_tokens = 5}).tokens;
  Conversation conversation = prompt(50);
  std::atomic<bool> cancel = false;
  const Generated result = answer(
      conversation,
      {.chunk = 20, .on_progress = [&](Pos done, Pos) { cancel = done >= 20; }, .cancel = &cancel});
  EXPECT_EQ(result.finish, Finish::cancelled);
  EXPECT_THAT(result.tokens, ElementsAre());
  EXPECT_EQ(session_.length(conversation.seq), 20u);
  EXPECT_EQ(answer(conversation, {.max_tokens = 5}).tokens, expected);
}

TEST_F(Generate, TellsItsProgress) {
  Conversation conversation = prompt(50);
  std::vector<std::pair<Pos, Pos>> progress;
  answer(conversation, {.max_tokens = 1, .chunk = 20, .on_progress = [&](Pos done, Pos total) {
                          progress.emplace_back(done, total);
                        }});
  EXPECT_THAT(progress, ElementsAre(Pair(0, 50), Pair(20, 50), Pair(40, 50), Pair(50, 50)));
}

TEST_F(Generate, PrefillsOnly) {
  Conversation conversation = prompt(50);
  const Generated result = answer(conversation, {.max_tokens = 0});
  EXPECT_EQ(result.finish, Finish::length);
  EXPECT_THAT(result.tokens, ElementsAre());
  EXPECT_EQ(session_.length(conversation.seq), 50u);
}

TEST_F(Generate, StopsWhereTheContextEnds) {
  Conversation conversation = prompt(30);
  const Generated result = answer(conversation, {.context = 33});
  EXPECT_EQ(result.finish, Finish::context_full);
  EXPECT_EQ(result.tokens.size(), 3u);
  EXPECT_EQ(session_.length(conversation.seq), 33u);
}

TEST_F(Generate, APromptThatDoesNotFitIsRefusedWithALimit) {
  Conversation conversation = prompt(513);
  Sampler sampler = must(make_sampler({}));
  const auto refused = generate(*model_, session_, conversation, sampler, {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::BadInput);
  EXPECT_THAT(refused.error().message, ::testing::HasSubstr("513 tokens, expected at most 511"));
  EXPECT_EQ(session_.length(conversation.seq), 0u);
}

TEST_F(Generate, ASeedGivesTheSameAnswerAgain) {
  sampling_ = {.temperature = 1.0f, .seed = 7};
  Conversation first = prompt(30), second = prompt(30);
  EXPECT_EQ(answer(first, {.max_tokens = 20}).tokens, answer(second, {.max_tokens = 20}).tokens);
  sampling_.seed = 8;
  Conversation third = prompt(30);
  EXPECT_NE(answer(third, {.max_tokens = 20}).tokens,
            std::vector<int32_t>(first.tokens.begin() + 30, first.tokens.end()));
}

}  // namespace
}  // namespace cairn
