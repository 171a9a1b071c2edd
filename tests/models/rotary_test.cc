// Rotary positions against their formula in double precision, with and without YaRN, and what of a
// file's parameters is refused. That whole models agree with another implementation:
// tests/conformance/yarn.py.
#include "cairn/models/rotary.h"

#include <ggml-cpu.h>
#include <gguf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "tests/support/must.h"
#include "tests/support/random.h"

namespace cairn::testing {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kHead = 40, kHeads = 3;

std::vector<float> rotated(const std::vector<float>& numbers,
                           const std::vector<int32_t>& positions,
                           const Rotary& rotary,
                           uint32_t width,
                           int pairs) {
  const ContextPtr context(
      ggml_init({.mem_size = size_t{4} << 20, .mem_buffer = nullptr, .no_alloc = false}));
  const auto rows = static_cast<int64_t>(positions.size());
  ggml_tensor* x = ggml_new_tensor_3d(context.get(), GGML_TYPE_F32, kHead, kHeads, rows);
  ggml_tensor* at = ggml_new_tensor_1d(context.get(), GGML_TYPE_I32, rows);
  std::ranges::copy(numbers, static_cast<float*>(x->data));
  std::ranges::copy(positions, static_cast<int32_t*>(at->data));
  StateOps state({}, 1);
  ggml_cgraph* graph = ggml_new_graph(context.get());
  GraphBuilder builder{.context = context.get(),
                       .graph = graph,
                       .state = state,
                       .tokens = nullptr,
                       .positions = at,
                       .wanted = nullptr};
  ggml_tensor* result = rotate(builder, x, rotary, width, pairs);
  ggml_build_forward_expand(graph, result);
  ggml_graph_compute_with_ctx(context.get(), graph, 1);
  const auto* data = static_cast<const float*>(result->data);
  return {data, data + ggml_nelements(result)};
}

// By how much pair i turns from one position to the next.
double speed(const Rotary& rotary, double width, double i) {
  const double plain = std::pow(double{rotary.base}, -2 * i / width);
  if (!rotary.yarn) return plain;
  const Yarn& yarn = *rotary.yarn;
  // The pair that turns so many times within the original context.
  const auto pair_of = [&](double turns) {
    return width * std::log(yarn.original_context / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(double{rotary.base}));
  };
  const double first = std::max(std::floor(pair_of(yarn.fast)), 0.0);
  const double last = std::min(std::ceil(pair_of(yarn.slow)), width - 1);
  const double slowed = std::clamp((i - first) / std::max(last - first, 0.001), 0.0, 1.0);
  return plain / yarn.factor * slowed + plain * (1 - slowed);
}

struct Case {
  const char* name;
  Rotary rotary;
  uint32_t width;
  int pairs;
};

const Case kCases[] = {
    {"plain_halves", {.base = 10000, .yarn = {}}, 40, GGML_ROPE_TYPE_NEOX},
    {"plain_adjacent", {.base = 500, .yarn = {}}, 24, GGML_ROPE_TYPE_NORMAL},
    {"yarn_halves",
     {.base = 10000, .yarn = Yarn{.factor = 8, .original_context = 256, .rotated_factor = 1.2F}},
     40,
     GGML_ROPE_TYPE_NEOX},
    {"yarn_adjacent",
     {.base = 10000, .yarn = Yarn{.factor = 40, .original_context = 4096}},
     32,
     GGML_ROPE_TYPE_NORMAL},
    {"yarn_betas",
     {.base = 1000, .yarn = Yarn{.factor = 3, .original_context = 64, .fast = 6, .slow = 0.5F}},
     16,
     GGML_ROPE_TYPE_NORMAL},
    {"yarn_all_fast",
     {.base = 100, .yarn = Yarn{.factor = 2, .original_context = 1 << 20, .fast = 4, .slow = 4}},
     8,
     GGML_ROPE_TYPE_NEOX},
    {"yarn_by_one",
     {.base = 10000, .yarn = Yarn{.factor = 1, .original_context = 512}},
     40,
     GGML_ROPE_TYPE_NEOX},
};

class Rotation : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Cases, Rotation, ::testing::ValuesIn(kCases), [](const auto& c) {
  return std::string(c.param.name);
});

TEST_P(Rotation, IsThatOfTheFormula) {
  const auto& [name, rotary, width, pairs] = GetParam();
  const std::vector<int32_t> positions = {0, 1, 17, 300, 2047};
  const std::vector<float> numbers = random_floats(3, positions.size() * kHeads * kHead);
  const std::vector<float> found = rotated(numbers, positions, rotary, width, pairs);
  const bool is_adjacent = pairs == GGML_ROPE_TYPE_NORMAL;
  const double factor = rotary.yarn.value_or(Yarn()).rotated_factor;
  for (size_t head = 0; head < positions.size() * kHeads; ++head) {
    const float *from = &numbers[head * kHead], *to = &found[head * kHead];
    for (uint32_t i = 0; i < width / 2; ++i) {
      const double angle = positions[head / kHeads] * speed(rotary, width, i);
      const uint32_t a = is_adjacent ? 2 * i : i, b = is_adjacent ? a + 1 : i + width / 2;
      // ggml multiplies angles up in f32.
      const double tolerance = 1e-5 + 2e-6 * angle;
      ASSERT_NEAR(to[a], factor * (from[a] * std::cos(angle) - from[b] * std::sin(angle)),
                  4 * tolerance)
          << "position " << positions[head / kHeads] << ", pair " << i;
      ASSERT_NEAR(to[b], factor * (from[a] * std::sin(angle) + from[b] * std::cos(angle)),
                  4 * tolerance);
    }
    for (uint32_t i = width; i < kHead; ++i) ASSERT_EQ(to[i], from[i]) << "is not rotated";
  }
}

class RotaryKeys : public ::testing::Test {
 protected:
  RotaryKeys() {
    gguf_set_val_str(file_.gguf(), "a.rope.scaling.type", "yarn");
    set("factor", 8);
    gguf_set_val_u32(file_.gguf(), "a.rope.scaling.original_context_length", 4096);
  }
  void set(const std::string& key, float value) {
    gguf_set_val_f32(file_.gguf(), ("a.rope.scaling." + key).c_str(), value);
  }
  Yarn read(FlatterBy by) const { return *must(read_rotary(file_, "a", by)).yarn; }
  std::string error() const {
    const auto read = read_rotary(file_, "a", FlatterBy::rotated);
    return read ? "" : read.error().message;
  }
  void expect_refused(const std::string& key, float value, const std::string& part) {
    const int64_t found = gguf_find_key(file_.gguf(), ("a.rope.scaling." + key).c_str());
    const float before = found < 0 ? 1 : gguf_get_val_f32(file_.gguf(), found);
    set(key, value);
    EXPECT_THAT(error(), HasSubstr(part));
    set(key, before);
  }
  Metadata file_{gguf_init_empty(), "file"};
};

// As programs that read these files do.
TEST_F(RotaryKeys, FlatterScoresComeFromWhatIsRotatedOrOfLatentsFromTheSum) {
  const float usual = 1 + 0.1F * std::log(8.0F);
  EXPECT_FLOAT_EQ(read(FlatterBy::rotated).rotated_factor, usual);
  EXPECT_EQ(read(FlatterBy::rotated).score_factor, 1);
  EXPECT_EQ(read(FlatterBy::scores).rotated_factor, 1);
  EXPECT_EQ(read(FlatterBy::scores).score_factor, 1);
  set("yarn_log_multiplier", 0.1F);
  EXPECT_EQ(read(FlatterBy::rotated).score_factor, 1);
  EXPECT_FLOAT_EQ(read(FlatterBy::scores).score_factor, usual * usual);
}

TEST_F(RotaryKeys, UsualBetasAreThoseOfThePaper) {
  EXPECT_EQ(read(FlatterBy::scores).fast, 32);
  EXPECT_EQ(read(FlatterBy::scores).slow, 1);
  set("yarn_beta_fast", 16);
  set("yarn_beta_slow", 2);
  EXPECT_EQ(read(FlatterBy::scores).fast, 16);
  EXPECT_EQ(read(FlatterBy::scores).slow, 2);
}

TEST_F(RotaryKeys, WhatMakesNoSenseIsRefused) {
  expect_refused("factor", 0.5F, "a.rope.scaling.factor is 0.5, expected a number of at least 1");
  expect_refused("factor", NAN, "a.rope.scaling.factor is nan");
  expect_refused("factor", INFINITY, "a.rope.scaling.factor is inf");
  expect_refused("yarn_beta_fast", 0.5F, "yarn_beta_fast is 0.5");
  expect_refused("yarn_beta_slow", 0, "yarn_beta_slow is 0");
  expect_refused("yarn_rotated_factor", -1, "factors -1 and 1 of YaRN");
  expect_refused("yarn_attn_factor", 1.5F, "yarn_attn_factor is 1.5, expected 1");
  expect_refused("yarn_ext_factor", 0, "yarn_ext_factor is 0, expected 1");
  gguf_set_val_u32(file_.gguf(), "a.rope.scaling.original_context_length", 0);
  EXPECT_THAT(error(), HasSubstr("original_context_length is 0, expected 1 to"));
  gguf_remove_key(file_.gguf(), "a.rope.scaling.original_context_length");
  EXPECT_THAT(error(), HasSubstr("a.rope.scaling.original_context_length is missing"));
  gguf_remove_key(file_.gguf(), "a.rope.scaling.factor");
  EXPECT_THAT(error(), HasSubstr("a.rope.scaling.factor is missing"));
  gguf_set_val_str(file_.gguf(), "a.rope.scaling.type", "longrope");
  EXPECT_THAT(error(), HasSubstr("a.rope.scaling.type is longrope, expected none or yarn"));
}

}  // namespace
}  // namespace cairn::testing
