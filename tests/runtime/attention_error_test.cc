// How far attention is off, against a slow twin that decodes everything first.
#include "cairn/runtime/attention_error.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/must.h"
#include "tests/support/token_state.h"

namespace cairn {
namespace {

using namespace cairn::testing;

std::string oracle(const std::string& name) { return "tests/oracles/" + name + ".safetensors"; }

// The logits are for nobody; without them the last layer would not be asked.
void pass(Model& model, Step& step, const Tokens& tokens) {
  std::vector<float> logits(model.vocabulary());
  const auto last = static_cast<uint32_t>(tokens.size() - 1);
  must(model.forward(step, tokens, std::span(&last, 1), logits.data()));
}

// A model, its state in f32, and the probe of its last rows.
class Probed {
 public:
  static constexpr Pos kBefore = 150, kRows = 20;

  explicit Probed(const std::string& model)
      : model_(must(load_model(oracle(model), {.threads = 2}))) {
    run(kBefore, false);
    before_.emplace(session_.snapshot(seq_));
    run(kRows, true);
  }
  Model& model() { return *model_; }
  Session open(const char* scheme) {
    return must(open_session(model_->spec(), must(parse_scheme(scheme)), memory_));
  }
  double error(const char* scheme) {
    Session session = open(scheme);
    AttentionError error;
    must(probe_.measure(session, *before_, error));
    EXPECT_EQ(session.use().sequences, 0u) << "it leaves no trace";
    return error.mean();
  }
  Snapshot after() { return session_.snapshot(seq_); }

 private:
  void run(Pos count, bool is_probed) {
    const Tokens tokens = random_tokens(random_, count, 300);
    Step step = must(session_.plan({{.seq = seq_, .count = count}}));
    if (is_probed) probe_.watch();
    pass(*model_, step, tokens);
    if (is_probed) probe_.finish(step);
    step.commit();
  }

  Memory memory_;
  Random random_{5};
  std::unique_ptr<Model> model_;
  Session session_ = open("f32");
  SeqId seq_ = session_.start();
  AttentionProbe probe_{*model_};
  std::optional<Snapshot> before_;
};

class AttentionErrors : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(
    Models,
    AttentionErrors,
    ::testing::Values("llama", "gemma3", "deepseek_v3", "glm_moe_dsa", "qwen3_next"),
    [](const auto& model) { return std::string(model.param); });

TEST_P(AttentionErrors, IsExactlyNothingUnderF32AndFallsWithTheBits) {
  Probed probed(GetParam());
  EXPECT_EQ(probed.error("f32"), 0);
  const double f16 = probed.error("f16"), eight = probed.error("affine8-g32"),
               four = probed.error("affine4-g32"), two = probed.error("affine2-g32");
  EXPECT_GT(f16, 0);
  EXPECT_LT(f16, 0.001);
  EXPECT_LT(f16, eight);
  EXPECT_LT(eight, four / 10);
  EXPECT_LT(four, two / 3);
  EXPECT_LT(two, 1.5);
  const double kept = probed.error("affine4-g32-keep64");
  EXPECT_GT(kept, 0);
  EXPECT_LT(kept, four) << "the exact beginning helps";
}

// All positions of one family of a slot, decoded: [position][head][width].
std::vector<float> decoded(const Snapshot& snapshot, SlotId slot, const FamilySpec& family) {
  std::vector<float> numbers(snapshot.length() * family.heads * family.width);
  decode(snapshot.view(slot), 0, family.family->id, 0, snapshot.length(), numbers.data());
  return numbers;
}

// Of one slot: keys, values and queries of the last rows.
struct Slow {
  const SlotSpec& spec;
  std::span<const float> queries;  // [rows, heads, width]
  uint32_t heads;
  Pos rows;

  // [heads, width] of one row at a position.
  std::vector<double> row(const std::vector<float>& keys,
                          const std::vector<float>& values,
                          Pos index,
                          Pos position) const {
    const FamilySpec& key = spec.families[0];
    const size_t width = key.width;
    std::vector<double> all;
    for (uint32_t head = 0; head < heads; ++head) {
      const size_t shared = head / (heads / key.heads);
      const float* query = queries.data() + (index * heads + head) * width;
      std::vector<double> answer(width);
      double total = 0;
      for (Pos i = 0; i <= position; ++i) {
        const size_t at = (i * key.heads + shared) * width;
        double score = 0;
        for (size_t j = 0; j < width; ++j)
          score += static_cast<double>(query[j]) * static_cast<double>(keys[at + j]);
        const double weight = std::exp(score / std::sqrt(static_cast<double>(width)));
        total += weight;
        for (size_t j = 0; j < width; ++j)
          answer[j] += weight * static_cast<double>(values[at + j]);
      }
      for (const double number : answer) all.push_back(number / total);
    }
    return all;
  }
};

double length_of(const std::vector<double>& numbers) {
  double sum = 0;
  for (const double number : numbers) sum += number * number;
  return std::sqrt(sum);
}

TEST(AttentionErrorOfLlama, IsThatOfASlowTwin) {
  Probed probed("llama");
  Session session = probed.open("affine4-g32");
  const Snapshot exact = probed.after();
  const Snapshot coarse = session.snapshot(must(session.adopt(exact)));
  std::vector<std::vector<float>> queries(probed.model().spec().slots.size());
  uint32_t heads = 0;
  Session reference = probed.open("f32");  // the same once more, for its queries
  Random random(5);
  const SeqId seq = reference.start();
  for (const Pos count : {Probed::kBefore, Probed::kRows}) {
    const Tokens tokens = random_tokens(random, count, 300);
    Step step = must(reference.plan({{.seq = seq, .count = count}}));
    probed.model().watch_queries([&](SlotId slot, const Queries& asked, Pos rows) {
      heads = asked.heads;
      const size_t width = probed.model().spec().slots[slot.value].families[0].width;
      queries[slot.value].assign(asked.data, asked.data + rows * asked.heads * width);
    });
    pass(probed.model(), step, tokens);
    probed.model().watch_queries({});
    step.commit();
  }
  double sum = 0;
  size_t count = 0;
  for (const SlotId slot : session.slots()) {
    const SlotSpec& spec = session.spec().slots[slot.value];
    const Slow slow{spec, queries[slot.value], heads, Probed::kRows};
    const auto keys = decoded(exact, slot, spec.families[0]);
    const auto values = decoded(exact, slot, spec.families[1]);
    const auto coarse_keys = decoded(coarse, slot, spec.families[0]);
    const auto coarse_values = decoded(coarse, slot, spec.families[1]);
    for (Pos row = 0; row < Probed::kRows; ++row) {
      const Pos position = Probed::kBefore + row;
      const auto expected = slow.row(keys, values, row, position);
      auto difference = slow.row(coarse_keys, coarse_values, row, position);
      for (size_t i = 0; i < expected.size(); ++i) difference[i] -= expected[i];
      sum += length_of(difference) / length_of(expected);
      ++count;
    }
  }
  EXPECT_NEAR(probed.error("affine4-g32") / (sum / static_cast<double>(count)), 1, 0.001);
}

}  // namespace
}  // namespace cairn
