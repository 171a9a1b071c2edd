// Who is chosen, with what weight, and that the sum over experts is that of each row alone.
#include "cairn/models/experts.h"

#include <ggml-cpu.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "cairn/models/executor.h"
#include "tests/support/must.h"
#include "tests/support/random.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;
using testing::must;
using Floats = std::vector<float>;
using Scores = Routing::Scores;

std::vector<int32_t> chosen(const Routing& routing, const Floats& routed, const Floats& bias = {}) {
  std::vector<int32_t> out(routing.used);
  choose_experts(routing, routed.data(), bias.empty() ? nullptr : bias.data(), out.data());
  return out;
}

Floats weights(const Routing& routing, const Floats& routed, const std::vector<int32_t>& ids) {
  Floats out(routing.used);
  weigh_experts(routing, routed.data(), ids.data(), out.data());
  return out;
}

TEST(ChoosingExperts, TakesTheBestAscendingAndTheLowerOfEqualOnes) {
  const Routing routing{.experts = 5, .used = 2};
  EXPECT_THAT(chosen(routing, {0, 3, 1, 2, -1}), ElementsAre(1, 3));
  EXPECT_THAT(chosen(routing, {1, 2, 1, 1, 1}), ElementsAre(0, 1));
  EXPECT_THAT(chosen(routing, {NAN, NAN, NAN, NAN, NAN}), ElementsAre(0, 1));
}

TEST(ChoosingExperts, AScoreThatIsNoNumberCountsAsTheLowest) {
  const Routing routing{.scores = Scores::sigmoid, .experts = 4, .used = 2};
  EXPECT_THAT(chosen(routing, {NAN, -3, NAN, -5}), ElementsAre(1, 3));
}

TEST(ChoosingExperts, ABiasDecidesWhoIsChosenAndNotTheirWeights) {
  const Routing routing{.scores = Scores::sigmoid, .experts = 3, .used = 1};
  EXPECT_THAT(chosen(routing, {2, 1, 0}), ElementsAre(0));
  EXPECT_THAT(chosen(routing, {2, 1, 0}, {0, 0, 0.6f}), ElementsAre(2));
  EXPECT_THAT(weights(routing, {2, 1, 0}, {2}), ElementsAre(0.5f));
}

TEST(ChoosingExperts, AGroupCountsAsMuchAsItsTwoBest) {
  const Routing routing{
      .scores = Scores::sigmoid, .experts = 6, .used = 2, .groups = 2, .used_groups = 1};
  // The best one alone is in the first group, the best two are in the second.
  EXPECT_THAT(chosen(routing, {4, -4, -4, 2, 2, 2}), ElementsAre(3, 4));
  EXPECT_THAT(chosen(routing, {4, 3, -4, 2, 2, 2}), ElementsAre(0, 1));
}

TEST(WeighingExperts, GivesSigmoidsOrSharesOfThem) {
  const Floats routed = {1, -2, 40, -100};
  Routing routing{.scores = Scores::sigmoid, .experts = 4, .used = 4};
  const auto sigmoid = [](double x) { return static_cast<float>(1 / (1 + std::exp(-x))); };
  EXPECT_THAT(weights(routing, routed, {0, 1, 2, 3}),
              ElementsAre(FloatNear(sigmoid(1), 1e-6f), FloatNear(sigmoid(-2), 1e-6f), 1, 0));
  routing = {.scores = Scores::sigmoid, .experts = 4, .used = 2, .normalize = true, .scale = 2.5f};
  const float sum = sigmoid(1) + sigmoid(-2);
  EXPECT_THAT(weights(routing, routed, {0, 1}),
              ElementsAre(FloatNear(2.5f * sigmoid(1) / sum, 1e-6f),
                          FloatNear(2.5f * sigmoid(-2) / sum, 1e-6f)));
}

TEST(WeighingExperts, GivesASoftmaxOverAllExperts) {
  const Routing routing{.experts = 3, .used = 2};
  const double sum = 1 + std::exp(-1.0) + std::exp(-3.0);
  EXPECT_THAT(weights(routing, {5, 4, 2}, {0, 2}),
              ElementsAre(FloatNear(static_cast<float>(1 / sum), 1e-6f),
                          FloatNear(static_cast<float>(std::exp(-3.0) / sum), 1e-6f)));
}

// A layer with random weights, run on some of its columns.
class Layer {
 public:
  static constexpr int64_t kWidth = 32, kHidden = 24, kColumns = 20;

  Layer() {
    const auto tensor = [&](int64_t in, int64_t out, int64_t count) {
      ggml_tensor* made = ggml_new_tensor_3d(context_.get(), GGML_TYPE_F32, in, out, count);
      auto* numbers = static_cast<float*>(made->data);
      for (int64_t i = 0; i < ggml_nelements(made); ++i) numbers[i] = 0.3f * random_.normal();
      return made;
    };
    experts_.router = tensor(kWidth, kExperts, 1);
    experts_.bias = tensor(kExperts, 1, 1);
    experts_.gate_and_up = tensor(kWidth, 2 * kHidden, kExperts);
    experts_.down = tensor(kHidden, kWidth, kExperts);
    columns_ = tensor(kWidth, kColumns, 1);
  }

  // The same with the two halves of gate_and_up as tensors of their own.
  Experts apart() const {
    Experts two = experts_;
    ggml_tensor* both = std::exchange(two.gate_and_up, nullptr);
    const auto half = [&](size_t offset) {
      return ggml_view_3d(context_.get(), both, kWidth, kHidden, kExperts, both->nb[1], both->nb[2],
                          offset * both->nb[1]);
    };
    two.gate = half(0);
    two.up = half(kHidden);
    return two;
  }
  const Experts& experts() const { return experts_; }

  Floats run(const Experts& experts, int64_t first, int64_t count, uint32_t threads) {
    const auto executor = must(Executor::make(threads));
    const ContextPtr context(
        ggml_init({.mem_size = size_t{4} << 20, .mem_buffer = nullptr, .no_alloc = false}));
    ggml_tensor* x = ggml_view_2d(context.get(), columns_, kWidth, count, columns_->nb[1],
                                  static_cast<size_t>(first) * columns_->nb[1]);
    ggml_tensor* out = route(context.get(), experts, x);
    ggml_cgraph* graph = ggml_new_graph_custom(context.get(), 64, false);
    ggml_build_forward_expand(graph, out);
    must(executor->run(graph, executor->plan(graph)));
    const auto* numbers = static_cast<const float*>(out->data);
    return {numbers, numbers + ggml_nelements(out)};
  }

  // In double precision, from the definition.
  Floats expected(int64_t column) const {
    const auto product = [](const ggml_tensor* m, int64_t matrix, int64_t out, const auto& x) {
      const auto* row = static_cast<const float*>(m->data) + (matrix * m->ne[1] + out) * m->ne[0];
      double sum = 0;
      for (int64_t i = 0; i < m->ne[0]; ++i) sum += double{row[i]} * x[static_cast<size_t>(i)];
      return sum;
    };
    const auto* x = static_cast<const float*>(columns_->data) + column * kWidth;
    const std::vector<double> in(x, x + kWidth);
    Floats routed(kExperts);
    for (int64_t i = 0; i < kExperts; ++i)
      routed[static_cast<size_t>(i)] = static_cast<float>(product(experts_.router, 0, i, in));
    const auto* bias = static_cast<const float*>(experts_.bias->data);
    const auto ids = chosen(experts_.routing, routed, Floats(bias, bias + kExperts));
    const Floats shares = weights(experts_.routing, routed, ids);
    std::vector<double> sum(kWidth);
    for (size_t k = 0; k < ids.size(); ++k) {
      std::vector<double> inside;
      for (int64_t i = 0; i < kHidden; ++i) {
        const double gate = product(experts_.gate_and_up, ids[k], i, in);
        inside.push_back(gate / (1 + std::exp(-gate)) *
                         product(experts_.gate_and_up, ids[k], kHidden + i, in));
      }
      for (int64_t i = 0; i < kWidth; ++i)
        sum[static_cast<size_t>(i)] +=
            double{shares[k]} * product(experts_.down, ids[k], i, inside);
    }
    return {sum.begin(), sum.end()};
  }

 private:
  static constexpr int64_t kExperts = 6;
  ContextPtr context_{
      ggml_init({.mem_size = size_t{1} << 20, .mem_buffer = nullptr, .no_alloc = false})};
  testing::Random random_{3};
  Experts experts_{.routing = {.scores = Scores::sigmoid,
                               .experts = kExperts,
                               .used = 3,
                               .groups = 3,
                               .used_groups = 2,
                               .normalize = true,
                               .scale = 2}};
  ggml_tensor* columns_;
};

TEST(Routing, GivesTheSumOfTheChosenOnesAndItDoesNotDependOnOtherRows) {
  Layer layer;
  const Floats all = layer.run(layer.experts(), 0, Layer::kColumns, 2);
  EXPECT_EQ(layer.run(layer.apart(), 0, Layer::kColumns, 1), all);
  for (int64_t column = 0; column < Layer::kColumns; ++column) {
    const Floats alone = layer.run(layer.experts(), column, 1, 1);
    const Floats expected = layer.expected(column);
    for (size_t i = 0; i < alone.size(); ++i) {
      ASSERT_EQ(alone[i], all[static_cast<size_t>(column) * alone.size() + i]) << column;
      ASSERT_NEAR(alone[i], expected[i], 1e-5) << column;
    }
  }
}

class RoutingKeys : public ::testing::Test {
 protected:
  std::string error() const {
    const auto read = read_routing(metadata_, "a");
    return read ? "it was read" : read.error().message;
  }
  void set(const char* key, uint32_t value) { gguf_set_val_u32(metadata_.gguf(), key, value); }
  Metadata metadata_{gguf_init_empty(), "m"};
};

TEST_F(RoutingKeys, ThatDoNotFitTogetherAreRefused) {
  using ::testing::HasSubstr;
  EXPECT_THAT(error(), HasSubstr("m: a.expert_count is missing"));
  set("a.expert_count", 8);
  set("a.expert_used_count", 9);
  EXPECT_THAT(error(), HasSubstr("9 of 8 experts used"));
  set("a.expert_used_count", 4);
  EXPECT_EQ(error(), "it was read");
  set("a.expert_group_count", 3);
  EXPECT_THAT(error(), HasSubstr("8 experts in 3 groups"));
  set("a.expert_group_count", 0);
  EXPECT_THAT(error(), HasSubstr("8 experts in 0 groups"));
  set("a.expert_group_count", 4);
  set("a.expert_group_used_count", 1);
  EXPECT_THAT(error(), HasSubstr("4 experts used, expected no more than 1 groups of 2 have"));
  set("a.expert_group_used_count", 2);
  EXPECT_EQ(error(), "it was read");
  set("a.expert_gating_func", 3);
  EXPECT_THAT(error(), HasSubstr("expected 1 (softmax) or 2 (sigmoid)"));
}

}  // namespace
}  // namespace cairn
