#include "cairn/state/attend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <thread>

#include "tests/support/pages.h"
#include "tests/support/random.h"
#include "tests/support/targets.h"

namespace cairn {
namespace {

using testing::Pages;
using testing::PagesOptions;
using testing::random_floats;
using testing::same_bytes;

// One sequence of `length` positions and one query of every head at each of them.
struct Story {
  PagesOptions options;
  Pos length = 0;
  uint32_t group = 3;  // query heads per key head
  float query_scale = 1;
  uint64_t seed = 1;

  uint32_t heads() const { return options.shape.heads; }
  uint32_t query_heads() const { return heads() * group; }
  uint32_t key_dim() const { return options.shape.head_dim; }
  uint32_t value_dim() const {
    return options.shape.value_dim != 0 ? options.shape.value_dim : key_dim();
  }
  std::vector<float> keys() const { return random_floats(seed, length * heads() * key_dim()); }
  std::vector<float> values() const {
    return random_floats(seed + 1000, length * heads() * value_dim());
  }
  std::vector<float> queries() const {
    return random_floats(seed + 2000, length * query_heads() * key_dim(), query_scale);
  }
};

// How the story is told: runs of these lengths, one after the other, each attended in so many
// parts.
struct Telling {
  std::vector<Pos> runs;  // the last one takes what is left
  uint32_t parts = 1;
  bool is_backwards = false;  // parts in descending order
  bool has_threads = false;
  Pos silent = 0;  // positions that are appended and not attended from
};

struct Told {
  std::vector<float> out;  // [length, query heads, value dim]
  std::vector<float> log_sum_exp;
  bool operator==(const Told& other) const {
    return same_bytes(out, other.out) && same_bytes(log_sum_exp, other.log_sum_exp);
  }
};

void attend_in_parts(const View& view,
                     const Queries& queries,
                     const Attended& out,
                     const Telling& telling) {
  const auto part = [&](uint32_t i) { attend(view, queries, out, {i, telling.parts}); };
  if (telling.has_threads) {
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < telling.parts; ++i) threads.emplace_back(part, i);
    for (std::thread& thread : threads) thread.join();
    return;
  }
  for (uint32_t i = 0; i < telling.parts; ++i)
    part(telling.is_backwards ? telling.parts - 1 - i : i);
}

Told tell(const Story& story, const Telling& telling) {
  Pages pages(story.options);
  const size_t sequence = pages.start();
  const std::vector<float> keys = story.keys(), values = story.values(), queries = story.queries();
  const uint64_t key_floats = story.heads() * story.key_dim();
  const uint64_t value_floats = story.heads() * story.value_dim();
  const uint64_t query_floats = story.query_heads() * story.key_dim();
  const uint64_t out_floats = story.query_heads() * story.value_dim();
  Told told{std::vector<float>(story.length * out_floats, 1e30f),
            std::vector<float>(story.length * story.query_heads(), 1e30f)};
  size_t run_index = 0;
  pages.append(sequence, telling.silent, keys.data(), values.data());
  for (Pos first = telling.silent; first < story.length;) {
    Pos count = story.length - first;
    if (run_index < telling.runs.size()) count = std::min(count, telling.runs[run_index++]);
    pages.append(sequence, count, keys.data() + first * key_floats,
                 values.data() + first * value_floats);
    const RunView runs[] = {pages.run(sequence, first, count)};
    attend_in_parts(pages.view(runs),
                    {.data = queries.data() + first * query_floats, .heads = story.query_heads()},
                    {.data = told.out.data() + first * out_floats,
                     .log_sum_exp = told.log_sum_exp.data() + first * story.query_heads()},
                    telling);
    first += count;
  }
  return told;
}

std::vector<Pos> ones(Pos count) { return std::vector<Pos>(count, 1); }

// Every row in double precision over the stored numbers.
void expect_near_double(const Story& story, const Told& told, double bound) {
  Pages pages(story.options);
  const size_t sequence = pages.start();
  pages.append(sequence, story.length, story.keys().data(), story.values().data());
  const RunView runs[] = {pages.run(sequence, 0, story.length)};
  const View view = pages.view(runs);
  std::vector<float> keys(story.length * story.heads() * story.key_dim());
  std::vector<float> values(story.length * story.heads() * story.value_dim());
  decode(view, 0, kKey, 0, story.length, keys.data());
  decode(view, 0, kValue, 0, story.length, values.data());
  const std::vector<float> queries = story.queries();
  const double scale = 1 / std::sqrt(static_cast<double>(story.key_dim()));
  for (Pos p = 0; p < story.length; p += 1 + p / 7)
    for (uint32_t h = 0; h < story.query_heads(); ++h) {
      const uint32_t head = h / story.group;
      const Retention::Visible seen = view.retention.visible(p);
      std::vector<double> scores(p + 1, -1e300);
      for (const Range& range : {seen.sinks, seen.recent})
        for (Pos t = range.begin; t < range.end; ++t) {
          scores[t] = 0;
          for (uint32_t i = 0; i < story.key_dim(); ++i)
            scores[t] += double{keys[(t * story.heads() + head) * story.key_dim() + i]} *
                         queries[(p * story.query_heads() + h) * story.key_dim() + i];
          scores[t] *= scale;
        }
      const double max = *std::max_element(scores.begin(), scores.end());
      double sum = 0;
      for (double& score : scores) sum += score = std::exp(score - max);
      for (uint32_t i = 0; i < story.value_dim(); ++i) {
        double exact = 0;
        for (Pos t = 0; t <= p; ++t)
          if (scores[t] != 0)
            exact += scores[t] / sum * values[(t * story.heads() + head) * story.value_dim() + i];
        ASSERT_NEAR(told.out[(p * story.query_heads() + h) * story.value_dim() + i], exact, bound)
            << "position " << p << ", head " << h << ", element " << i;
      }
      ASSERT_NEAR(told.log_sum_exp[p * story.query_heads() + h], max + std::log(sum), bound)
          << "position " << p << ", head " << h;
    }
}

Story dense_story(Pos length, uint32_t heads, uint32_t head_dim, std::string_view encoding) {
  return {.options = {.shape = {.heads = heads, .head_dim = head_dim},
                      .key = encoding,
                      .value = encoding},
          .length = length};
}

TEST(Attend, AgreesWithDoublePrecision) {
  for (const std::string_view encoding : {"f32", "f16", "bf16"})
    for (const uint32_t head_dim : {64u, 80u, 96u, 128u, 192u, 256u}) {
      SCOPED_TRACE(::testing::Message() << encoding << ", head dim " << head_dim);
      const Story story = dense_story(300, 2, head_dim, encoding);
      expect_near_double(story, tell(story, {}), 2e-6);
    }
  Story sharp = dense_story(2100, 1, 64, "f16");
  sharp.query_scale = 6;
  expect_near_double(sharp, tell(sharp, {}), 2e-5);
}

TEST(Attend, GivesValuesTheirOwnWidth) {
  Story story = dense_story(130, 2, 64, "bf16");
  story.options.shape.value_dim = 96;
  expect_near_double(story, tell(story, {}), 2e-6);
}

TEST(Attend, SeesWindowsAndSinks) {
  for (const Pos window : {1, 4, 100, 256, 300})
    for (const Pos sinks : {0, 1, 4, 70, 300}) {
      SCOPED_TRACE(::testing::Message() << "window " << window << ", sinks " << sinks);
      Story story = dense_story(700, 1, 64, "f16");
      story.options.shape.window = window;
      story.options.shape.sinks = sinks;
      const Told whole = tell(story, {});
      expect_near_double(story, whole, 2e-6);
      EXPECT_TRUE(tell(story, {.runs = ones(700)}) == whole) << "token by token";
      EXPECT_TRUE(tell(story, {.runs = {1, 7, 64, 300}, .parts = 3}) == whole) << "in runs";
    }
}

// The scalar definition gives the bits; every way to compute must give the same ones.
class EveryTarget : public ::testing::TestWithParam<std::string> {
 protected:
  testing::TargetScope scope_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Targets,
                         EveryTarget,
                         ::testing::ValuesIn(kernel_targets()),
                         [](const auto& target) { return target.param; });

Told told_by_scalar(const Story& story) {
  const std::string target = kernel_target();
  const testing::TargetScope scope("scalar");
  Told told = tell(story, {.runs = ones(story.length)});
  EXPECT_TRUE(use_kernel_target(target).has_value());
  return told;
}

TEST_P(EveryTarget, GivesTheScalarBitsForAnyShape) {
  for (const std::string_view encoding : {"f32", "f16", "bf16"})
    for (const uint32_t head_dim : {64u, 80u, 96u, 128u, 192u, 256u})
      for (const uint32_t group : {1u, 3u, 8u}) {
        SCOPED_TRACE(::testing::Message() << encoding << ", " << head_dim << " x " << group);
        Story story = dense_story(40, 2, head_dim, encoding);
        story.group = group;
        const Told expected = told_by_scalar(story);
        ASSERT_TRUE(use_kernel_target(GetParam()).has_value());
        EXPECT_TRUE(tell(story, {}) == expected);
        EXPECT_TRUE(tell(story, {.runs = {1, 7, 9}}) == expected);
      }
}

TEST_P(EveryTarget, GivesTheScalarBitsForAnyPagesRunsAndParts) {
  for (const Pos window : {0, 150}) {
    Story story = dense_story(1100, 1, 64, "f16");
    story.group = 1;
    story.options.shape.window = window;
    story.options.shape.sinks = window == 0 ? 0 : 5;
    const Told expected = told_by_scalar(story);
    ASSERT_TRUE(use_kernel_target(GetParam()).has_value());
    for (const uint32_t page_positions : {1u, 2u, 16u, 64u}) {
      if (GetParam() == "scalar" && page_positions != 16) continue;
      SCOPED_TRACE(::testing::Message() << "pages of " << page_positions << ", window " << window);
      story.options.page_positions = page_positions;
      EXPECT_TRUE(tell(story, {}) == expected) << "in one run";
      EXPECT_TRUE(tell(story, {.runs = {1, 7, 64}, .parts = 2}) == expected) << "1, 7, 64, rest";
      if (GetParam() == "scalar") continue;
      EXPECT_TRUE(tell(story, {.runs = ones(1100)}) == expected) << "token by token";
      EXPECT_TRUE(tell(story, {.runs = {550}, .parts = 5, .is_backwards = true}) == expected);
    }
  }
}

TEST_P(EveryTarget, PartsMayComeInAnyOrderAndAtOnce) {
  for (const uint32_t heads : {1u, 3u, 40u}) {  // 40: too many rows to share an item
    Story story = dense_story(heads == 40 ? 300 : 2300, heads, 16, "f16");
    const Pos silent = story.length - 12;
    const Told expected = tell(story, {.runs = {1}, .silent = silent});
    for (uint32_t parts = 2; parts <= 5; ++parts)
      for (const bool is_backwards : {false, true})
        EXPECT_TRUE(
            tell(story,
                 {.runs = {1}, .parts = parts, .is_backwards = is_backwards, .silent = silent}) ==
            expected)
            << heads << " heads, " << parts << " parts, backwards " << is_backwards;
    for (int round = 0; round < 12; ++round) {
      const uint32_t parts = 2 + round % 4;
      EXPECT_TRUE(
          tell(story, {.runs = {1}, .parts = parts, .has_threads = true, .silent = silent}) ==
          expected)
          << heads << " heads, " << parts << " threads";
    }
  }
}

TEST_P(EveryTarget, ABatchGivesEachSequenceItsOwnBits) {
  Pages pages({.shape = {.heads = 2, .head_dim = 64}});
  const Pos lengths[] = {1, 300, 65, 1200}, counts[] = {1, 3, 65, 1};
  constexpr uint32_t kHeads = 6;
  std::vector<RunView> runs;
  Pos rows = 0;
  for (size_t i = 0; i < std::size(lengths); ++i) {
    const size_t sequence = pages.start();
    const std::vector<float> x = random_floats(i, lengths[i] * 2 * 64);
    pages.append(sequence, lengths[i], x.data(), x.data());
    runs.push_back(pages.run(sequence, lengths[i] - counts[i], counts[i], rows));
    rows += counts[i];
  }
  const std::vector<float> queries = random_floats(9, rows * kHeads * 64);
  std::vector<float> together(queries.size()), alone(queries.size());
  for (uint32_t part = 0; part < 3; ++part)
    attend(pages.view(runs), {.data = queries.data(), .heads = kHeads}, {.data = together.data()},
           {part, 3});
  for (RunView run : runs) {
    const uint64_t offset = run.row * kHeads * 64;
    run.row = 0;
    attend(pages.view({&run, 1}), {.data = queries.data() + offset, .heads = kHeads},
           {.data = alone.data() + offset});
  }
  EXPECT_TRUE(same_bytes(together, alone));
}

// Forks that decode at once are attended together where their pages are the same.
TEST_P(EveryTarget, ForksGiveTheBitsOfEachAlone) {
  constexpr uint32_t kKeyHeads = 3, kHeads = 9, kWidth = 64;
  constexpr Pos kShared = 333;
  constexpr Pos kOwn[] = {1, 300, 3, 40, 1, 700, 12, 1, 5};
  for (const std::string_view encoding : {"f16", "affine8-g32", "turbo-key8", "turbo-value3"}) {
    SCOPED_TRACE(encoding);
    Pages pages({.shape = {.heads = kKeyHeads, .head_dim = kWidth},
                 .key = encoding,
                 .value = encoding,
                 .page_positions = 16});
    const auto append = [&](size_t sequence, Pos count) {
      const std::vector<float> x =
          random_floats(sequence * 1000 + count, count * kKeyHeads * kWidth);
      pages.append(sequence, count, x.data(), x.data());
    };
    const size_t first = pages.start();
    append(first, kShared);
    std::vector<RunView> runs;
    for (const Pos own : kOwn) {
      // In their midst one that shares nothing, and one that shares half of it.
      size_t sequence = runs.size() == 3 ? pages.start() : pages.fork(first);
      append(sequence, own);
      if (runs.size() == 5) {
        const size_t half = pages.start();
        append(half, kShared / 2);
        sequence = pages.fork(half);
        append(sequence, own);
      }
      runs.push_back(pages.run(sequence, pages.length(sequence) - 1, 1, runs.size()));
    }
    const std::vector<float> queries = random_floats(9, runs.size() * kHeads * kWidth);
    for (const uint32_t parts : {1u, 3u}) {
      std::vector<float> together(queries.size()), alone(queries.size());
      for (uint32_t part = 0; part < parts; ++part)
        attend(pages.view(runs), {.data = queries.data(), .heads = kHeads},
               {.data = together.data()}, {part, parts});
      for (RunView run : runs) {
        const uint64_t offset = run.row * kHeads * kWidth;
        run.row = 0;
        attend(pages.view({&run, 1}), {.data = queries.data() + offset, .heads = kHeads},
               {.data = alone.data() + offset});
      }
      EXPECT_TRUE(same_bytes(together, alone)) << parts << " parts";
    }
  }
}

// What the rows of q = 0 say: the mean of the visible values, and the log of how many there are.
// Keys at position t are t, values 1000 + t.
struct Means {
  std::vector<float> out;          // [queries], of head 0
  std::vector<float> log_sum_exp;  // [queries, heads]
};

Means means(const PagesOptions& options, Pos length, const Telling& telling, uint32_t heads = 1) {
  Pages pages(options);
  const size_t sequence = pages.start();
  const uint32_t dim = options.shape.head_dim, key_heads = options.shape.heads;
  Means result{std::vector<float>(length), std::vector<float>(length * heads)};
  size_t run_index = 0;
  for (Pos first = 0; first < length;) {
    Pos count = length - first;
    if (run_index < telling.runs.size()) count = std::min(count, telling.runs[run_index++]);
    std::vector<float> keys, values;
    for (Pos t = first; t < first + count; ++t) {
      keys.insert(keys.end(), uint64_t{key_heads} * dim, static_cast<float>(t));
      values.insert(values.end(), uint64_t{key_heads} * dim, static_cast<float>(1000 + t));
    }
    pages.append(sequence, count, keys.data(), values.data());
    const RunView runs[] = {pages.run(sequence, first, count)};
    const std::vector<float> queries(count * heads * dim);
    std::vector<float> out(queries.size());
    attend_in_parts(pages.view(runs), {.data = queries.data(), .heads = heads},
                    {.data = out.data(), .log_sum_exp = result.log_sum_exp.data() + first * heads},
                    telling);
    for (Pos i = 0; i < count; ++i) result.out[first + i] = out[i * heads * dim];
    first += count;
  }
  return result;
}

PagesOptions ramp(Pos window, uint32_t page_positions = 64) {
  return {.shape = {.heads = 1, .head_dim = 64, .window = window},
          .key = "f32",
          .value = "f32",
          .page_positions = page_positions};
}

TEST_P(EveryTarget, C03_AWindowHoldsTheSameHoweverItWasAppended) {
  std::vector<Pos> single = ones(200), cut = {100}, uneven = {99, 1};
  for (const std::vector<Pos>& runs : {single, std::vector<Pos>{}, cut, uneven}) {
    const Means result = means(ramp(100), 200, {.runs = runs});
    EXPECT_FLOAT_EQ(result.out[199], 1149.5f);
    EXPECT_FLOAT_EQ(result.log_sum_exp[199], std::log(100.f));
  }
}

TEST_P(EveryTarget, C07_AWindowIsAsWideInPrefillAsInDecode) {
  for (const std::vector<Pos>& runs : {ones(10), std::vector<Pos>{}}) {
    const Means result = means(ramp(4), 10, {.runs = runs});
    EXPECT_EQ(result.out[9], 1007.5f);
    EXPECT_FLOAT_EQ(result.log_sum_exp[9], std::log(4.f));
  }
}

TEST_P(EveryTarget, C30_TheUnusedTailOfAPageIsNeverRead) {
  for (const uint32_t page_positions : {1u, 2u, 4u, 8u, 16u, 64u})  // unused bytes are 0xff: NaN
    for (const std::string_view encoding : {"f32", "f16", "bf16"}) {
      PagesOptions options = ramp(0, page_positions);
      options.key = encoding;
      options.value = "f32";
      EXPECT_FLOAT_EQ(means(options, 13, {}).out[12], 1006.f) << page_positions << " " << encoding;
      EXPECT_FLOAT_EQ(means(options, 13, {.runs = ones(13)}).out[12], 1006.f) << page_positions;
    }
}

TEST_P(EveryTarget, C31_ARecycledPageShowsNothingOfItsLastOwner) {
  EXPECT_EQ(means(ramp(0), 1, {}).out[0], 1000.f);  // pages start as 0xff everywhere
}

TEST_P(EveryTarget, C34_LogSumExpIsByQueryThenHead) {
  for (const uint32_t heads : {5u, 3u}) {
    const Pos length = heads == 5 ? 5 : 7;
    PagesOptions options = ramp(0);
    const Means result = means(options, length, {}, heads);
    for (Pos t = 0; t < length; ++t)
      for (uint32_t h = 0; h < heads; ++h)
        EXPECT_FLOAT_EQ(result.log_sum_exp[t * heads + h], std::log(static_cast<float>(t + 1)));
  }
}

TEST_P(EveryTarget, NanStaysWithTheRowsThatSeeIt) {
  Pages pages({.shape = {.heads = 1, .head_dim = 64}, .key = "f32", .value = "f32"});
  const size_t sequence = pages.start();
  std::vector<float> keys = random_floats(1, 100 * 64), values = random_floats(2, 100 * 64);
  keys[60 * 64 + 5] = std::numeric_limits<float>::quiet_NaN();
  values[80 * 64 + 9] = std::numeric_limits<float>::quiet_NaN();
  pages.append(sequence, 100, keys.data(), values.data());
  const RunView runs[] = {pages.run(sequence, 0, 100)};
  const std::vector<float> queries = random_floats(3, 100 * 64);
  std::vector<float> out(queries.size());
  attend(pages.view(runs), {.data = queries.data(), .heads = 1}, {.data = out.data()});
  for (Pos p = 0; p < 100; ++p) EXPECT_EQ(std::isnan(out[p * 64 + 9]), p >= 60) << p;
}

TEST(Attend, TakesStridesAndAScale) {
  Pages pages({.shape = {.heads = 1, .head_dim = 64}});
  const size_t sequence = pages.start();
  const std::vector<float> x = random_floats(1, 10 * 64);
  pages.append(sequence, 10, x.data(), x.data());
  const RunView runs[] = {pages.run(sequence, 0, 10)};
  const std::vector<float> queries = random_floats(3, 10 * 2 * 64);
  std::vector<float> dense(10 * 2 * 64), strided(2 * 10 * 70, 7.f), by_head(2 * 10 * 64);
  attend(pages.view(runs), {.data = queries.data(), .heads = 2}, {.data = dense.data()});
  for (uint32_t h = 0; h < 2; ++h)
    for (Pos p = 0; p < 10; ++p)
      std::copy_n(queries.data() + (p * 2 + h) * 64, 64, by_head.data() + (h * 10 + p) * 64);
  attend(
      pages.view(runs),
      {.data = by_head.data(), .heads = 2, .row_stride = 64, .head_stride = 640, .scale = 0.125f},
      {.data = strided.data(), .row_stride = 70, .head_stride = 700});
  for (uint32_t h = 0; h < 2; ++h)
    for (Pos p = 0; p < 10; ++p) {
      EXPECT_TRUE(same_bytes<float>({strided.data() + h * 700 + p * 70, 64},
                                    {dense.data() + (p * 2 + h) * 64, 64}));
      EXPECT_EQ(strided[h * 700 + p * 70 + 64], 7.f);
    }
}

TEST(Attend, RefusesWhatTheCallerMayNotAsk) {
  Pages pages({.shape = {.heads = 2, .head_dim = 64}});
  const size_t sequence = pages.start();
  const std::vector<float> x(2 * 64);
  pages.append(sequence, 1, x.data(), x.data());
  const RunView runs[] = {pages.run(sequence, 0, 1)};
  std::vector<float> out(3 * 64);
  EXPECT_THROW(attend(pages.view(runs), {.data = x.data(), .heads = 3}, {.data = out.data()}),
               ContractError);
  EXPECT_THROW(
      attend(pages.view(runs), {.data = x.data(), .heads = 2}, {.data = out.data()}, {1, 1}),
      ContractError);
}

TEST(Attend, ReadsAnEmptyBatchAsNothing) {
  Pages pages({.shape = {.heads = 2, .head_dim = 64}});
  attend(pages.view({}), {.heads = 2}, {});
}

TEST(Decode, GivesWhatWasAppended) {
  Pages pages(
      {.shape = {.heads = 3, .head_dim = 64}, .key = "f32", .value = "f32", .page_positions = 16});
  const size_t sequence = pages.start();
  const std::vector<float> keys = random_floats(1, 50 * 3 * 64),
                           values = random_floats(2, keys.size());
  pages.append(sequence, 50, keys.data(), values.data());
  const RunView runs[] = {pages.run(sequence, 0, 50)};
  std::vector<float> read(20 * 3 * 64);
  decode(pages.view(runs), 0, kKey, 13, 20, read.data());
  EXPECT_TRUE(same_bytes<float>(read, {keys.data() + 13 * 3 * 64, read.size()}));
  decode(pages.view(runs), 0, kValue, 13, 20, read.data());
  EXPECT_TRUE(same_bytes<float>(read, {values.data() + 13 * 3 * 64, read.size()}));
}

}  // namespace
}  // namespace cairn
