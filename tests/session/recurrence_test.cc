// Real recurrences in f32: their state never passes through an encoding, and no way of getting to a
// position changes a bit of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cairn/session/session.h"
#include "cairn/state/attend.h"
#include "tests/support/must.h"
#include "tests/support/random.h"

namespace cairn::testing {
namespace {

constexpr uint32_t kWidth = 64;
constexpr Pos kSteps = 2000;

// A gated memory: what decays, and what comes in.
void decay(const float* previous, const float* input, float* next) {
  for (uint32_t i = 0; i < kWidth; ++i) next[i] = 0.9f * previous[i] + 0.3f * input[i];
}

void replay_decay(const void*,
                  const float* const* previous,
                  const std::byte* inputs,
                  Pos count,
                  float* const* next) {
  std::vector<float> state(previous[0], previous[0] + kWidth);
  for (Pos i = 0; i < count; ++i)
    decay(state.data(), reinterpret_cast<const float*>(inputs) + i * kWidth, state.data());
  std::ranges::copy(state, next[0]);
}

SlotSpec decaying(bool is_replayed) {
  Advance advance;
  if (is_replayed) advance = {.function = replay_decay, .input_bytes = kWidth * sizeof(float)};
  return recurrent({{&kRecurrentFamily, 1, kWidth}}, advance);
}

// Feeds inputs [done, done + count) in one run.
Step feed(Session& session, SeqId seq, const float* inputs, Pos count, Round round) {
  Step step = must(session.plan({{seq, count}}, round));
  const SlotId slot{0};
  std::vector<float> state(kWidth);
  std::copy_n(step.previous(slot, kRecurrentTensor, 0), kWidth, state.data());
  for (Pos i = 0; i < count; ++i) {
    decay(state.data(), inputs + i * kWidth, state.data());
    if (step.holds_states(slot) || i + 1 == count)
      std::ranges::copy(state, step.next(slot, kRecurrentTensor, 0, i));
  }
  if (std::byte* recorded = step.round_inputs(slot, 0))
    std::memcpy(recorded, inputs, count * kWidth * sizeof(float));
  step.mark_written(slot, 0);
  return step;
}

TEST(Recurrence, GivesTheSameBitsInRunsAndInRoundsThatKeepAPart) {
  const std::vector<float> inputs = random_floats(1, (kSteps + 8) * kWidth);
  std::vector<float> expected(kWidth);
  for (Pos t = 0; t < kSteps; ++t) decay(expected.data(), &inputs[t * kWidth], expected.data());
  for (const bool is_replayed : {false, true})
    for (const Round round : {Round::no, Round::yes}) {
      Memory memory;
      Session session =
          must(open_session({.identity = sha256("decay"), .slots = {decaying(is_replayed)}},
                            must(parse_scheme("affine2-keep64-after100")), memory));
      const SeqId seq = session.start();
      Random random(2);
      while (session.length(seq) < kSteps) {
        const Pos left = kSteps - session.length(seq), count = 1 + random.below(7);
        Step step = feed(session, seq, &inputs[session.length(seq) * kWidth],
                         round == Round::yes ? count : std::min(count, left), round);
        const Pos keep[] = {std::min(left, random.below(count + 1))};
        if (round == Round::yes)
          step.commit(keep);
        else
          step.commit();
      }
      EXPECT_EQ(std::memcmp(session.snapshot(seq).tensor(SlotId{0}, kRecurrentTensor),
                            expected.data(), kWidth * sizeof(float)),
                0)
          << is_replayed;
    }
}

float norm(const std::vector<float>& x) {
  double sum = 0;
  for (float number : x) sum += double{number} * number;
  return static_cast<float>(std::sqrt(sum));
}

// A hybrid of 40 layers, every fourth of which attends over keys and values in the scheme; each
// adds what it remembers to the hidden vector, which is brought back to length 8. Returns the last
// hidden vector of every step.
std::vector<std::vector<float>> run_hybrid(std::string_view scheme) {
  ModelSpec spec{.identity = sha256("hybrid")};
  for (int layer = 0; layer < 40; ++layer)
    spec.slots.push_back(layer % 4 == 3 ? attention({.heads = 1, .head_dim = kWidth})
                                        : decaying(false));
  Memory memory;
  Session session = must(open_session(spec, must(parse_scheme(scheme)), memory));
  const SeqId seq = session.start();
  const std::vector<float> inputs = random_floats(3, kSteps * kWidth);
  std::vector<std::vector<float>> hiddens;
  for (Pos t = 0; t < kSteps; ++t) {
    std::vector<float> hidden(&inputs[t * kWidth], &inputs[t * kWidth] + kWidth), out(kWidth);
    Step step = must(session.plan({{seq, 1}}));
    for (SlotId slot : session.slots()) {
      if (spec.slots[slot.value].kind == &kRecurrentKind) {
        decay(step.previous(slot, kRecurrentTensor, 0), hidden.data(),
              step.next(slot, kRecurrentTensor, 0, 0));
        step.mark_written(slot, 0);
        std::copy_n(step.next(slot, kRecurrentTensor, 0, 0), kWidth, out.data());
      } else {
        step.write(slot, kKey, hidden.data());
        step.write(slot, kValue, hidden.data());
        attend(step.view(slot), {.data = hidden.data(), .heads = 1}, {.data = out.data()});
      }
      for (uint32_t i = 0; i < kWidth; ++i) hidden[i] += out[i];
      const float scale = 8 / norm(hidden);
      for (float& number : hidden) number *= scale;
    }
    step.commit();
    hiddens.push_back(std::move(hidden));
  }
  return hiddens;
}

// C53: what encodings lose is fed back through recurrent layers for 2,000 steps: it stays finite,
// and as small as the bits of the scheme allow.
TEST(Recurrence, C53_WhatEncodingsLoseDoesNotGrowThroughRecurrentLayers) {
  struct Case {
    const char* scheme;
    float bound;  // of |hidden - hidden in f32| / |hidden in f32|, at any step
  };
  constexpr Case kCases[] = {{"f16", 0.01f},        {"bf16", 0.01f},    {"affine8", 0.01f},
                             {"affine4-g32", 0.1f}, {"affine2-g32", 1}, {"turbo-k8v3", 0.4f},
                             {"turbo-k2v2", 1}};
  const auto exact = run_hybrid("f32");
  for (const Case& c : kCases) {
    const auto lossy = run_hybrid(c.scheme);
    float drift = 0, late = 0;
    for (Pos t = 0; t < kSteps; ++t) {
      std::vector<float> difference(kWidth);
      for (uint32_t i = 0; i < kWidth; ++i) {
        ASSERT_TRUE(std::isfinite(lossy[t][i])) << c.scheme << " at " << t;
        difference[i] = lossy[t][i] - exact[t][i];
      }
      const float now = norm(difference) / norm(exact[t]);
      drift = std::max(drift, now);
      if (t >= kSteps - 200) late = std::max(late, now);
    }
    EXPECT_LE(drift, c.bound) << c.scheme << ", late " << late;
    RecordProperty(c.scheme, std::to_string(drift));
  }
}

}  // namespace
}  // namespace cairn::testing
