// The gated delta net against plain loops in double, and against itself: no kernel target, no cut
// into runs and no replay changes a bit.
#include "cairn/models/delta_net.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "cairn/kernels/dispatch.h"
#include "tests/support/must.h"
#include "tests/support/random.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;
using testing::must;
using testing::random_floats;

constexpr Pos kPositions = 41;  // two blocks and a part of a third

struct State {
  std::vector<float> conv, matrices;
  bool operator==(const State& other) const {
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    };
    return same(conv, other.conv) && same(matrices, other.matrices);
  }
};

// A net with random weights, and inputs for it.
class Trial {
 public:
  explicit Trial(const DeltaShape& shape)
      : shape_(shape),
        taps_(random_floats(1, size_t{shape.channels()} * shape.taps)),
        biases_(random_floats(2, shape.value_heads)),
        mixed_(random_floats(3, shape.channels() * kPositions)),
        gates_(random_floats(4, shape.gates() * kPositions)) {
    for (const float x : random_floats(5, shape.value_heads)) decays_.push_back(-std::exp(x));
    for (float& gate : gates_) gate *= 4;
    net_ = std::make_unique<DeltaNet>(shape, taps_, decays_, biases_);
  }

  const DeltaNet& net() const { return *net_; }
  State start() const {
    return {std::vector<float>(size_t{shape_.taps - 1} * shape_.channels()),
            std::vector<float>(size_t{shape_.values()} * shape_.key_dim)};
  }

  // Positions [first, first + count); appends what they answer.
  State advance(const State& before, Pos first, Pos count, std::vector<float>& answers) const {
    State after = start();
    answers.resize((first + count) * shape_.values());
    for (uint32_t head = 0; head < shape_.value_heads; ++head)
      net_->advance(head, {before.conv.data(), before.matrices.data()},
                    {.mixed = mixed_.data() + first * shape_.channels(),
                     .mixed_stride = shape_.channels(),
                     .gates = gates_.data() + first * shape_.gates(),
                     .gates_stride = shape_.gates(),
                     .count = count},
                    {after.conv.data(), after.matrices.data()},
                    answers.data() + first * shape_.values() + size_t{head} * shape_.value_dim,
                    shape_.values());
    return after;
  }
  State run(Pos chunk, std::vector<float>& answers) const {
    State state = start();
    for (Pos first = 0; first < kPositions; first += chunk)
      state = advance(state, first, std::min(chunk, kPositions - first), answers);
    return state;
  }
  // Through the slot's advance function, from recorded inputs.
  State replay(const State& before, Pos count) const {
    std::vector<float> inputs;
    for (Pos i = 0; i < count; ++i) {
      const float* mixed = mixed_.data() + i * shape_.channels();
      const float* gates = gates_.data() + i * shape_.gates();
      inputs.insert(inputs.end(), mixed, mixed + shape_.channels());
      inputs.insert(inputs.end(), gates, gates + shape_.gates());
    }
    State after = start();
    const SlotSpec slot = net_->slot(0);
    EXPECT_EQ(slot.advance.input_bytes * count, inputs.size() * sizeof(float));
    const float* previous[] = {before.conv.data(), before.matrices.data()};
    float* next[] = {after.conv.data(), after.matrices.data()};
    slot.advance.function(slot.advance.model, previous,
                          reinterpret_cast<const std::byte*>(inputs.data()), count, next);
    return after;
  }

  // The same in double, a number at a time.
  std::vector<double> expected(std::vector<double>& matrices) const {
    matrices.assign(size_t{shape_.values()} * shape_.key_dim, 0);
    std::vector<double> answers;
    for (Pos position = 0; position < kPositions; ++position)
      for (uint32_t head = 0; head < shape_.value_heads; ++head) {
        const uint32_t sharers = shape_.sharers(), key_head = head / sharers;
        const uint32_t width = shape_.key_dim;
        const std::vector<double> q =
            unit(position, key_head * width, 1 / std::sqrt(static_cast<double>(width)));
        const std::vector<double> k = unit(position, shape_.keys() + key_head * width, 1);
        const float* gates = &gates_[position * shape_.gates() + key_head * 2 * sharers];
        const double b = 1 / (1 + std::exp(-double{gates[head % sharers]}));
        const double a = double{gates[sharers + head % sharers]} + biases_[head];
        const double g = std::exp(decays_[head] * std::log1p(std::exp(a)));
        for (uint32_t row = 0; row < shape_.value_dim; ++row) {
          double* s = &matrices[(size_t{head} * shape_.value_dim + row) * width];
          double recalled = 0, answer = 0;
          for (uint32_t i = 0; i < width; ++i) recalled += (s[i] *= g) * k[i];
          const double value =
              convolved(position, 2 * shape_.keys() + head * shape_.value_dim + row);
          for (uint32_t i = 0; i < width; ++i)
            answer += (s[i] += k[i] * (value - recalled) * b) * q[i];
          answers.push_back(answer);
        }
      }
    return answers;
  }

 private:
  double convolved(Pos position, uint32_t channel) const {
    double sum = 0;
    for (Pos tap = 0; tap < shape_.taps; ++tap)
      if (position + tap + 1 >= shape_.taps)
        sum += double{taps_[size_t{channel} * shape_.taps + tap]} *
               mixed_[(position + tap + 1 - shape_.taps) * shape_.channels() + channel];
    return sum / (1 + std::exp(-sum));
  }
  std::vector<double> unit(Pos position, uint32_t channel, double scale) const {
    std::vector<double> out;
    double square = 0;
    for (uint32_t i = 0; i < shape_.key_dim; ++i) {
      out.push_back(convolved(position, channel + i));
      square += out.back() * out.back();
    }
    for (double& x : out) x *= scale / std::sqrt(square + 1e-6);
    return out;
  }

  DeltaShape shape_;
  std::vector<float> taps_, decays_, biases_, mixed_, gates_;
  std::unique_ptr<DeltaNet> net_;
};

constexpr DeltaShape kShapes[] = {
    {.key_heads = 2, .value_heads = 4, .key_dim = 16, .value_dim = 16, .taps = 4},
    {.key_heads = 1, .value_heads = 3, .key_dim = 48, .value_dim = 32, .taps = 2},
    {.key_heads = 2, .value_heads = 2, .key_dim = 128, .value_dim = 16, .taps = 8},
};

double worst_difference(const std::vector<float>& ours, const std::vector<double>& theirs) {
  if (ours.size() != theirs.size()) return INFINITY;
  double worst = 0;
  for (size_t i = 0; i < ours.size(); ++i)
    worst = std::fmax(worst, std::fabs(double{ours[i]} - theirs[i]));
  return worst;
}

TEST(DeltaNet, IsNearPlainLoopsInDouble) {
  for (const DeltaShape& shape : kShapes) {
    const Trial trial(shape);
    std::vector<float> answers;
    std::vector<double> matrices;
    const State state = trial.run(kPositions, answers);
    EXPECT_LT(worst_difference(answers, trial.expected(matrices)), 1e-5) << shape.key_dim;
    EXPECT_LT(worst_difference(state.matrices, matrices), 1e-5) << shape.key_dim;
  }
}

TEST(DeltaNet, GivesTheSameBitsInAnyRunsAndOnEveryTarget) {
  for (const DeltaShape& shape : kShapes) {
    const Trial trial(shape);
    std::vector<float> answers;
    const State state = trial.run(kPositions, answers);
    for (const std::string& target : kernel_targets()) {
      must(use_kernel_target(target));
      for (const Pos chunk : {1, 2, 3, 16, 17, 41}) {
        std::vector<float> others;
        EXPECT_EQ(trial.run(chunk, others), state) << target << ", runs of " << chunk;
        EXPECT_EQ(std::memcmp(others.data(), answers.data(), answers.size() * sizeof(float)), 0)
            << target << ", runs of " << chunk;
      }
    }
    must(use_kernel_target(""));
  }
}

TEST(DeltaNet, AReplayOfAPartGivesTheBitsOfARunOfThatPart) {
  for (const DeltaShape& shape : kShapes) {
    const Trial trial(shape);
    std::vector<float> answers;
    for (const Pos count : {1, 2, 16, 20})
      EXPECT_EQ(trial.replay(trial.start(), count), trial.advance(trial.start(), 0, count, answers))
          << count;
  }
}

TEST(DeltaNet, AShapeThatTheLoopsCannotTakeIsRefused) {
  const auto message = [](const DeltaShape& shape) {
    const auto valid = validate(shape, "model.gguf");
    return valid ? "it is valid" : valid.error().message;
  };
  for (const DeltaShape& shape : kShapes) EXPECT_EQ(message(shape), "it is valid");
  DeltaShape shape = kShapes[0];
  shape.value_heads = 3;
  EXPECT_EQ(message(shape),
            "model.gguf: linear attention of 3 value heads over 2 key heads, expected a multiple");
  shape.key_heads = 0;
  EXPECT_THAT(message(shape), HasSubstr("over 0 key heads"));
  shape = kShapes[0];
  shape.key_dim = 24;
  EXPECT_THAT(message(shape),
              HasSubstr("heads of 24 numbers, expected a multiple of 16 up to 256"));
  shape.key_dim = 16;
  shape.value_dim = 512;
  EXPECT_THAT(message(shape), HasSubstr("heads of 512 numbers"));
  shape.value_dim = 16;
  shape.taps = 9;
  EXPECT_THAT(message(shape), HasSubstr("over 9 positions, expected 2 to 8"));
}

}  // namespace
}  // namespace cairn
