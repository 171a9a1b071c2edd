// What a session promises, case by case. Numbers are ramps: the key of position t is t, its value
// 1000 + t, so that every misplaced, stale or missing record shows in a mean. The numbers C01, C02,
// ... are faults that users of comparable systems met.
#include "cairn/session/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "cairn/state/attend.h"
#include "cairn/state/sparse.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kWidth = 8;

// A session of slots with one key-value head, and the verbs a test tells its story with.
class Fixture {
 public:
  explicit Fixture(std::vector<SlotSpec> slots,
                   uint32_t page_positions = 16,
                   MemoryOptions options = {})
      : memory(options),
        session(open_session({.identity = sha256("model"), .slots = std::move(slots)},
                             parse_scheme("f32").value(),
                             memory,
                             {.page_positions = page_positions})
                    .value()) {}

  // Plans a step of `count` positions per sequence and writes the ramp.
  Step write(std::vector<Run> batch, Round round = Round::no) {
    Step step = session.plan(batch, round).value();
    std::vector<float> keys, values;
    for (const Run& run : batch)
      for (Pos i = 0; i < run.count; ++i) {
        const Pos t = session.length(run.seq) + i;
        keys.insert(keys.end(), kWidth, static_cast<float>(t));
        values.insert(values.end(), kWidth, static_cast<float>(1000 + t));
      }
    for (SlotId slot : session.slots()) {
      step.write(slot, kKey, keys.data());
      step.write(slot, kValue, values.data());
    }
    return step;
  }
  void append(SeqId seq, Pos count) { write({{seq, count}}).commit(); }

  // With a query of zeros every visible position weighs the same: the mean of the values says which
  // were seen, the log-sum-exp how many. For the last row of each run of a step.
  struct Seen {
    double mean;
    double count;
  };
  Seen seen_by_last_row(const Step& step, SlotId slot, size_t run = 0) {
    const View view = step.view(slot);
    const std::vector<float> queries(view.rows * kWidth, 0);
    std::vector<float> out(view.rows * kWidth), log_sum_exp(view.rows);
    attend(view, {.data = queries.data(), .heads = 1},
           {.data = out.data(), .log_sum_exp = log_sum_exp.data()});
    const size_t row = view.runs[run].row + view.runs[run].count - 1;
    return {out[row * kWidth], std::exp(log_sum_exp[row])};
  }
  // What the next position will see of the past and itself.
  Seen next(SeqId seq, SlotId slot) { return seen_by_last_row(write({{seq, 1}}), slot); }

  std::vector<int> keys(SeqId seq, SlotId slot, Pos first, Pos count) {
    std::vector<float> numbers(count * kWidth);
    const Snapshot snapshot = session.snapshot(seq);
    decode(snapshot.view(slot), 0, kKey, first, count, numbers.data());
    std::vector<int> keys;
    for (Pos i = 0; i < count; ++i) keys.push_back(static_cast<int>(numbers[i * kWidth]));
    return keys;
  }

  Memory memory;
  Session session;
};

SlotSpec plain(Pos max_positions = 0) {
  return attention({.heads = 1, .head_dim = kWidth, .max_positions = max_positions});
}
SlotSpec ring(Pos window_positions, Pos sinks = 0, Pos rewind = 0) {
  return window({.heads = 1,
                 .head_dim = kWidth,
                 .window = window_positions,
                 .sinks = sinks,
                 .rewind = rewind});
}
double mean_of_values(Pos first, Pos last) { return 1000 + static_cast<double>(first + last) / 2; }

constexpr SlotId kSlot{0};

TEST(Session, ADroppedStepLeavesNoTrace) {
  Fixture f({plain(), ring(8)});
  const SeqId chat = f.session.start();
  f.append(chat, 20);
  const uint64_t live = f.memory.use().live_bytes;
  { const Step step = f.write({{chat, 50}}); }
  EXPECT_EQ(f.session.length(chat), 20u);
  EXPECT_EQ(f.memory.use().live_bytes, live);
  f.append(chat, 1);
  EXPECT_THAT(f.keys(chat, kSlot, 18, 3), ElementsAre(18, 19, 20));
}

TEST(Session, CommitRefusesAnUnwrittenSlotAndChangesNothing) {
  Fixture f({plain(), plain()});
  const SeqId chat = f.session.start();
  Step step = f.session.plan({{chat, 2}}).value();
  const std::vector<float> numbers(2 * kWidth);
  step.write(SlotId{0}, kKey, numbers.data());
  step.write(SlotId{0}, kValue, numbers.data());
  step.write(SlotId{1}, kKey, numbers.data());
  EXPECT_THROW(step.commit(), ContractError);
  EXPECT_EQ(f.session.length(chat), 0u);
  step.write(SlotId{1}, kValue, numbers.data(), {0, 2});  // half of it
  EXPECT_THROW(step.commit(), ContractError);
  step.write(SlotId{1}, kValue, numbers.data(), {1, 2});
  step.commit();
  EXPECT_EQ(f.session.length(chat), 2u);
}

TEST(Session, OneStepIsOpenAtATime) {
  Fixture f({plain()});
  const SeqId chat = f.session.start(), other = f.session.start();
  f.append(chat, 4);
  {
    const Step step = f.write({{chat, 1}});
    EXPECT_THROW((void)f.session.plan({{other, 1}}), ContractError);
    EXPECT_THROW((void)f.session.truncate(chat, 2), ContractError);
    EXPECT_THROW((void)f.session.fork(chat), ContractError);
    EXPECT_THROW(f.session.drop(chat), ContractError);
    f.session.drop(f.session.fork(other));  // not part of the step
  }
  EXPECT_THROW((void)f.session.plan({{chat, 1}, {chat, 1}}), ContractError);
  EXPECT_TRUE(f.session.truncate(chat, 2));
}

TEST(Session, OnlyARoundKeepsAPart) {
  Fixture f({plain()});
  const SeqId chat = f.session.start();
  const Pos keep[] = {1};
  Step step = f.write({{chat, 3}});
  EXPECT_THROW(step.commit(keep), ContractError);
  step = Step(std::move(step));
  step.commit();
  EXPECT_EQ(f.session.length(chat), 3u);
}

TEST(Session, ARoundKeepsNoMoreThanWasAppended) {
  Fixture f({plain()});
  const SeqId a = f.session.start(), b = f.session.start();
  Step round = f.write({{a, 3}, {b, 2}}, Round::yes);
  const Pos too_many[] = {3, 3}, too_few[] = {3};
  EXPECT_THROW(round.commit(too_many), ContractError);
  EXPECT_THROW(round.commit(too_few), ContractError);
  EXPECT_EQ(f.session.length(a), 0u);
  const Pos keep[] = {3, 2};
  round.commit(keep);
  EXPECT_EQ(f.session.length(a), 3u);
}

TEST(Session, RefusesFamiliesThatASlotDoesNotHave) {
  Memory memory;
  Session session =
      open_session({.identity = sha256("model"),
                    .slots = {latent({.latent_dim = 8, .rope_dim = 8}),
                              latent({.latent_dim = 8, .rope_dim = 8, .index_dim = 8}),
                              recurrent({{&kConvFamily, 2, 4}})}},
                   parse_scheme("f32").value(), memory)
          .value();
  const SeqId seq = session.start();
  Step step = session.plan({{seq, 2}}).value();
  const std::vector<float> numbers(16);
  const SlotId plain_latent{0}, indexed{1}, fixed{2};
  EXPECT_THROW(step.write(plain_latent, kIndex, numbers.data()), ContractError);
  EXPECT_THROW(step.write(plain_latent, kKey, numbers.data()), ContractError);
  EXPECT_THROW(step.write(SlotId{3}, kLatent, numbers.data()), ContractError);
  EXPECT_THROW(step.write(fixed, kConv, numbers.data()), ContractError);
  EXPECT_THROW((void)step.next(fixed, kRecurrentTensor, 0, 1), ContractError);
  EXPECT_THROW((void)step.previous(indexed, kConv, 0), ContractError);
  for (const SlotId slot : {plain_latent, indexed})
    for (const FamilyId family : {kLatent, kRope}) step.write(slot, family, numbers.data());
  // C57: a layer without index keys is not asked for them.
  std::vector<float> scores(2);
  const float weights[] = {1, 1};
  const IndexQueries queries{.data = numbers.data(), .weights = weights, .heads = 1};
  EXPECT_THROW(index_scores(step.view(plain_latent), queries, 0, scores.data()), ContractError);
  std::ranges::copy(std::vector<float>(8), step.next(fixed, kConv, 0, 1));
  step.mark_written(fixed, 0);
  EXPECT_THROW(step.commit(), ContractError) << "the index keys of slot 1 are not written";
  step.write(indexed, kIndex, numbers.data());
  index_scores(step.view(indexed), queries, 1, scores.data());
  step.commit();
  EXPECT_EQ(session.length(seq), 2u);
}

// Any order and any gaps; 0 stands for dense.
TEST(Session, WritesNumbersWithStridesOfAnySign) {
  Memory memory;
  Session session =
      open_session({.identity = sha256("model"), .slots = {attention({.heads = 2, .head_dim = 8})}},
                   parse_scheme("f32").value(), memory)
          .value();
  std::vector<float> dense(5 * 2 * 8);  // [position, head, width]
  std::iota(dense.begin(), dense.end(), 0.f);
  std::vector<float> by_head(dense.size()), backwards(dense.size()), wide(5 * 100);
  for (int t = 0; t < 5; ++t)
    for (int head = 0; head < 2; ++head)
      for (int i = 0; i < 8; ++i) {
        const float number = dense[(t * 2 + head) * 8 + i];
        by_head[(head * 5 + t) * 8 + i] = number;
        backwards[((4 - t) * 2 + (1 - head)) * 8 + i] = number;
        wide[t * 100 + head * 30 + i] = number;
      }
  const Numbers forms[] = {{dense.data(), DType::F32},
                           {dense.data(), DType::F32, 16, 8},
                           {by_head.data(), DType::F32, 8, 40},
                           {backwards.data() + 9 * 8, DType::F32, -16, -8},
                           {wide.data(), DType::F32, 100, 30}};
  for (const Numbers& numbers : forms) {
    const SeqId seq = session.start();
    Step step = session.plan({{seq, 5}}).value();
    step.write(kSlot, kKey, numbers);
    step.write(kSlot, kValue, numbers);
    step.commit();
    std::vector<float> back(dense.size());
    decode(session.snapshot(seq).view(kSlot), 0, kKey, 0, 5, back.data());
    EXPECT_EQ(back, dense);
  }
  Step step = session.plan({{session.start(), 5}}).value();
  EXPECT_THROW(step.write(kSlot, kKey, {dense.data(), DType::I32}), ContractError);
}

TEST(Session, ForksShareEveryPageAndCopyTheOneTheyWrite) {
  Fixture f({plain(), plain(), ring(8, 0, 1000)}, 64);
  const SeqId chat = f.session.start();
  f.append(chat, 1000);
  const MemoryUse before = f.memory.use();
  const SeqId branch = f.session.fork(chat);
  EXPECT_EQ(f.memory.use().live_bytes, before.live_bytes);
  EXPECT_EQ(f.session.use().shared_bytes, before.live_bytes);
  f.append(branch, 1);
  EXPECT_EQ(f.memory.use().live_pages, before.live_pages + 2) << "one page per group";
  f.append(chat, 1);
  EXPECT_EQ(f.memory.use().live_pages, before.live_pages + 2) << "nobody shares the tail any more";
}

TEST(Session, AFullTailPageIsNeverCopied) {
  Fixture f({plain()}, 16);
  const SeqId chat = f.session.start();
  f.append(chat, 32);
  const SeqId branch = f.session.fork(chat);
  const uint64_t pages = f.memory.use().live_pages;
  f.append(branch, 16);
  EXPECT_EQ(f.memory.use().live_pages, pages + 1);
}

TEST(Session, ASnapshotOutlivesItsSessionAndItsSequence) {
  Memory memory;
  std::optional<Snapshot> snapshot;
  {
    Fixture f({plain()});
    const SeqId chat = f.session.start();
    f.append(chat, 20);
    Session other = open_session(f.session.spec(), f.session.scheme(), memory).value();
    const SeqId copy = other.adopt(f.session.snapshot(chat)).value();
    snapshot = other.snapshot(copy);
  }
  std::vector<float> numbers(20 * kWidth);
  decode(snapshot->view(kSlot), 0, kValue, 0, 20, numbers.data());
  EXPECT_EQ(numbers[19 * kWidth], 1019);
}

TEST(Session, PlanRefusesToPassALimitOfPositions) {
  Fixture f({plain(), plain(10)});
  const SeqId chat = f.session.start();
  f.append(chat, 8);
  const auto refused = f.session.plan({{chat, 3}});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::BadInput);
  EXPECT_THAT(refused.error().message,
              HasSubstr("slot 1: 8 positions and 3 more, expected at most 10"));
  EXPECT_FALSE(f.session.plan({{chat, UINT64_MAX}}));
  f.append(chat, 2);
}

TEST(Session, NoSpaceLeavesEverySequenceAsItWas) {
  Fixture probe({plain(), ring(20)}, 16);
  const uint64_t two = 2 * probe.session.bytes_for(64);
  Fixture f({plain(), ring(20)}, 16, {.max_bytes = two});
  const SeqId a = f.session.start(), b = f.session.start();
  f.append(a, 60);
  f.append(b, 20);
  const uint64_t live = f.memory.use().live_bytes;
  const auto refused = f.session.plan({{a, 4}, {b, 200}});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::NoSpace);
  EXPECT_EQ(f.memory.use().live_bytes, live);
  EXPECT_EQ(f.session.length(a), 60u);
  f.append(a, 4);
}

TEST(Session, AdoptReencodesUnderAnotherSchemeAndMarksTheResult) {
  Fixture f({plain(), ring(8, 2, 3)});
  const SeqId chat = f.session.start();
  f.append(chat, 50);
  Memory memory;
  Session half =
      open_session(f.session.spec(), parse_scheme("f16").value(), memory, {.page_positions = 4})
          .value();
  const SeqId copy = half.adopt(f.session.snapshot(chat)).value();
  EXPECT_TRUE(half.is_derived(copy));
  EXPECT_FALSE(f.session.is_derived(chat));
  std::vector<float> values(50 * kWidth);
  decode(half.snapshot(copy).view(kSlot), 0, kValue, 0, 50, values.data());
  for (Pos t = 0; t < 50; ++t) EXPECT_EQ(values[t * kWidth], 1000 + static_cast<float>(t));
  EXPECT_EQ(half.snapshot(copy).first_kept(SlotId{1}),
            f.session.snapshot(chat).first_kept(SlotId{1}));
  EXPECT_TRUE(half.is_derived(half.fork(copy)));
  EXPECT_FALSE(half.is_derived(half.adopt(f.session.snapshot(f.session.start())).value()))
      << "nothing to lose";
}

TEST(Session, AdoptRefusesAnotherModel) {
  Fixture f({plain()});
  const SeqId chat = f.session.start();
  for (auto change : std::vector<std::function<void(ModelSpec&)>>{
           [](ModelSpec& spec) { spec.identity = sha256("other"); },
           [](ModelSpec& spec) { spec.tokenizer = sha256("other"); },
           [](ModelSpec& spec) { spec.adapter = sha256("other"); },
           [](ModelSpec& spec) { spec.slots.push_back(plain()); },
           [](ModelSpec& spec) { spec.slots[0] = ring(4); }}) {
    ModelSpec spec = f.session.spec();
    change(spec);
    Session other = open_session(spec, f.session.scheme(), f.memory).value();
    const auto refused = other.adopt(f.session.snapshot(chat));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::Mismatch);
  }
}

TEST(Session, OpeningRefusesWhatItCannotHold) {
  Memory memory;
  const ModelSpec good{.identity = sha256("model"), .slots = {plain()}};
  const auto message = [&](ModelSpec spec, std::string_view scheme = "f32",
                           uint32_t page_positions = 64) {
    const auto opened = open_session(std::move(spec), parse_scheme(scheme).value(), memory,
                                     {.page_positions = page_positions});
    return opened ? "opened" : opened.error().message;
  };
  EXPECT_EQ(message(good), "opened");
  ModelSpec spec = good;
  spec.identity = {};
  EXPECT_THAT(message(spec), HasSubstr("identity is zero"));
  spec = good;
  spec.slots.clear();
  EXPECT_THAT(message(spec), HasSubstr("no slots"));
  spec = good;
  spec.slots[0].families[1].width = 12;
  EXPECT_THAT(message(spec), HasSubstr("slot 0: attention: value is [1, 12]"));
  spec = good;
  spec.slots[0].retention.window = 5;
  EXPECT_THAT(message(spec), HasSubstr("window 5"));
  spec = good;
  spec.slots[0].families[0].width = 8200;
  EXPECT_THAT(message(spec), HasSubstr("8200"));
  for (uint32_t page_positions : {0u, 3u, 128u})
    EXPECT_THAT(message(good, "f32", page_positions), HasSubstr("power of two"));
  EXPECT_THAT(message(good, "f32+slots3-7:f16"), HasSubstr("\"slots3-7\" names nothing"));
  EXPECT_THAT(message(good, "f32+latent:f16"), HasSubstr("\"latent\" names nothing"));
}

// --- bytes ---

TEST(SessionBytes, AreThoseOfTheLengthHoweverItWasReached) {
  for (uint32_t page_positions : {1u, 16u, 64u})
    for (Pos run : {1, 7, 64, 300}) {
      Fixture f({plain(), ring(20, 3, 10), ring(100)}, page_positions);
      const SeqId chat = f.session.start();
      for (Pos length = 0; length < 500;) {
        const Pos count = std::min<Pos>(run, 500 - length);
        {
          const Step step = f.write({{chat, count}});
          EXPECT_LE(f.memory.use().live_bytes, f.session.peak_bytes_for(500, run));
        }
        f.append(chat, count);
        length += count;
        ASSERT_EQ(f.memory.use().live_bytes, f.session.bytes_for(length))
            << length << " by " << run;
        ASSERT_EQ(f.session.use().live_bytes, f.session.bytes_for(length));
      }
    }
}

TEST(SessionBytes, StayWithinThreePercentOfTheRecordsAtEightThousandPositions) {
  Memory memory;
  const ModelSpec spec{.identity = sha256("135M"),
                       .slots = std::vector(30, attention({.heads = 3, .head_dim = 64}))};
  for (const char* scheme : {"f32", "f16", "bf16"}) {
    const Session session = open_session(spec, parse_scheme(scheme).value(), memory).value();
    const uint64_t record = 30 * 3 * 64 * 2 * (std::string_view(scheme) == "f32" ? 4 : 2);
    EXPECT_LE(static_cast<double>(session.bytes_for(8000)) / static_cast<double>(8000 * record),
              1.03);
  }
}

// C36: sizes of ten million positions are computed, not wrapped, and cost nothing to ask.
TEST(SessionBytes, OfTenMillionPositionsAreExact) {
  Memory memory;
  const ModelSpec spec{.identity = sha256("large"),
                       .slots = std::vector(48, attention({.heads = 8, .head_dim = 128}))};
  const Session session = open_session(spec, parse_scheme("f16").value(), memory).value();
  EXPECT_EQ(session.bytes_for(10'485'760), uint64_t{2} * 48 * 10'485'760 * 8 * 128 * 2);
  EXPECT_EQ(memory.use().committed_bytes, 0u);
}

// C91: the limit is met before anything is allocated, and dropping returns everything.
TEST(SessionBytes, NeverPassTheLimit) {
  Fixture probe({plain()});
  Fixture f({plain()}, 16, {.max_bytes = probe.session.bytes_for(160)});
  const SeqId chat = f.session.start();
  f.append(chat, 100);
  EXPECT_FALSE(f.session.plan({{chat, 300}}));
  EXPECT_LE(f.memory.use().committed_bytes, f.memory.use().limit_bytes);
  f.session.drop(chat);
  f.memory.trim();
  EXPECT_EQ(f.memory.use().committed_bytes, 0u);
}

// C96: fifty thousand steps on two windows hold as much as the first few hundred.
TEST(SessionBytes, OfWindowsDoNotGrow) {
  Fixture f({ring(32, 4, 16)});
  const SeqId a = f.session.start(), b = f.session.start();
  f.append(b, 11);
  for (int i = 0; i < 200; ++i) f.write({{a, 1}, {b, 1}}).commit();
  const uint64_t bound = f.session.peak_bytes_for(1'000'000, 1);
  for (int i = 0; i < 50'000; ++i) f.write({{a, 1}, {b, 1}}).commit();
  EXPECT_LE(f.memory.use().live_bytes, 2 * bound);
  EXPECT_LE(f.memory.use().committed_bytes, 2 * bound);
}

// --- windows ---

TEST(Windows, C01_CannotBeCutToWhatSlidOut) {
  Fixture f({ring(8)});
  const SeqId chat = f.session.start();
  for (int i = 0; i < 12; ++i) f.append(chat, 1);
  EXPECT_FALSE(f.session.can_truncate(chat, 10));
  EXPECT_FALSE(f.session.truncate(chat, 10));
  EXPECT_TRUE(f.session.truncate(chat, 12));
  EXPECT_EQ(f.next(chat, kSlot).mean, mean_of_values(5, 12));
}

TEST(Windows, C02_AreTheSameHoweverTheyWereFilled) {
  Fixture f({ring(8)}, 4);
  const SeqId blocks = f.session.start(), singles = f.session.start();
  Pos length = 0;
  for (Pos count : {6, 1, 1, 1, 1, 5, 1}) {
    f.append(blocks, count);
    for (Pos i = 0; i < count; ++i) f.append(singles, 1);
    length += count;
    const Pos first = length < 8 ? 0 : length - 8;
    EXPECT_EQ(f.keys(blocks, kSlot, first, length - first),
              f.keys(singles, kSlot, first, length - first));
    EXPECT_EQ(f.keys(blocks, kSlot, first, length - first).front(), static_cast<int>(first));
  }
}

TEST(Windows, C03_SeeAsManyOnEveryPath) {
  for (const std::vector<Pos>& path : {std::vector<Pos>(200, 1), {200}, {100, 100}, {99, 1, 100}}) {
    Fixture f({ring(100)});
    const SeqId chat = f.session.start();
    for (size_t i = 0; i + 1 < path.size(); ++i) f.append(chat, path[i]);
    const Fixture::Seen seen = f.seen_by_last_row(f.write({{chat, path.back()}}), kSlot);
    EXPECT_FLOAT_EQ(static_cast<float>(seen.mean), 1149.5f);
    EXPECT_NEAR(seen.count, 100, 1e-3);
  }
}

TEST(Windows, C05_OfDifferentLengthsShareAStep) {
  const Pos lengths[] = {0, 3, 8, 9, 16, 17};
  for (Pos a : lengths)
    for (Pos b : lengths) {
      Fixture f({ring(8)}, 4);
      const SeqId rows[] = {f.session.start(), f.session.start()};
      f.write({{rows[0], a}, {rows[1], b}}).commit();
      const Step step = f.write({{rows[0], 1}, {rows[1], 1}});
      for (size_t run = 0; run < 2; ++run) {
        const Pos length = run == 0 ? a : b;
        EXPECT_EQ(f.seen_by_last_row(step, kSlot, run).mean,
                  mean_of_values(length < 8 ? 0 : length - 7, length));
      }
    }
}

TEST(Windows, C06_RefuseACutThatAPlainSlotWouldAllow) {
  Fixture f({plain(), ring(8)});
  const SeqId chat = f.session.start();
  f.append(chat, 12);
  EXPECT_FALSE(f.session.truncate(chat, 9));
  EXPECT_EQ(f.session.length(chat), 12u);
  EXPECT_THAT(f.keys(chat, SlotId{0}, 9, 3), ElementsAre(9, 10, 11));
}

TEST(Windows, RewindKeepsWhatATurnNeedsToBeRedone) {
  Fixture f({plain(), ring(8, 0, 5)});
  const SeqId chat = f.session.start();
  f.append(chat, 40);
  EXPECT_FALSE(f.session.can_truncate(chat, 33));
  ASSERT_TRUE(f.session.truncate(chat, 34));
  EXPECT_EQ(f.next(chat, SlotId{1}).mean, mean_of_values(27, 34));
  f.append(chat, 1);
  EXPECT_EQ(f.next(chat, SlotId{1}).mean, mean_of_values(28, 35));
}

TEST(Windows, C07_CountTheQueryItself) {
  for (bool at_once : {true, false}) {
    Fixture f({ring(4)});
    const SeqId chat = f.session.start();
    for (int i = 0; i < 9 && !at_once; ++i) f.append(chat, 1);
    const Fixture::Seen seen =
        f.seen_by_last_row(f.write({{chat, at_once ? Pos{10} : Pos{1}}}), kSlot);
    EXPECT_EQ(seen.mean, 1007.5);
    EXPECT_NEAR(seen.count, 4, 1e-4);
  }
}

TEST(Windows, C08_AreRightWhereTheLengthMeetsTheWindow) {
  Fixture f({ring(8)}, 4);
  const SeqId chat = f.session.start();
  f.append(chat, 6);
  for (Pos length = 7; length <= 11; ++length) {
    f.append(chat, 1);
    const Pos first = length <= 8 ? 0 : length - 8;
    std::vector<int> expected(length - first);
    std::iota(expected.begin(), expected.end(), static_cast<int>(first));
    EXPECT_EQ(f.keys(chat, kSlot, first, length - first), expected);
  }
}

TEST(Windows, C10_AreCutOnlyWhereTheyStillHoldWhatIsSeen) {
  Fixture f({plain(), ring(4)});
  const SeqId chat = f.session.start();
  f.append(chat, 20);
  for (Pos length = 1; length < 19; ++length)
    EXPECT_FALSE(f.session.can_truncate(chat, length)) << length;
  EXPECT_TRUE(f.session.can_truncate(chat, 19)) << "its query sees 16 to 19";
  EXPECT_TRUE(f.session.can_truncate(chat, 0)) << "nothing is seen by the first position";
  EXPECT_TRUE(f.session.can_truncate(chat, 20));
}

TEST(Windows, C11_KeepTheirSinks) {
  for (uint32_t page_positions : {1u, 4u, 16u}) {
    Fixture f({ring(6, 2)}, page_positions);
    const SeqId chat = f.session.start();
    for (int i = 0; i < 20; ++i) f.append(chat, 1);
    const Step step = f.write({{chat, 1}});
    const Fixture::Seen seen = f.seen_by_last_row(step, kSlot);
    EXPECT_NEAR(seen.count, 8, 1e-4);
    EXPECT_NEAR(seen.mean, 1000 + (0 + 1 + 15 + 16 + 17 + 18 + 19 + 20) / 8.0, 1e-3);
  }
}

TEST(Windows, CanBeCutIntoTheirSinksAndGrowAgain) {
  Fixture f({ring(4, 20)}, 8);
  const SeqId chat = f.session.start();
  f.append(chat, 100);
  EXPECT_FALSE(f.session.can_truncate(chat, 50));
  ASSERT_TRUE(f.session.truncate(chat, 13));
  f.append(chat, 30);
  EXPECT_EQ(f.keys(chat, kSlot, 0, 20).back(), 19);
  EXPECT_NEAR(f.next(chat, kSlot).count, 24, 1e-3);
  f.session.drop(chat);
  EXPECT_EQ(f.memory.use().live_pages, 0u);
}

// --- cutting and rounds ---

TEST(Rounds, C19_KeepAPrefixPerSequence) {
  Fixture f({plain(), ring(8, 0, 8)});
  const SeqId a = f.session.start(), b = f.session.start();
  f.write({{a, 16}, {b, 16}}).commit();
  Step round = f.write({{a, 4}, {b, 4}}, Round::yes);
  const Pos keep[] = {1, 3};
  round.commit(keep);
  EXPECT_EQ(f.session.length(a), 17u);
  EXPECT_EQ(f.session.length(b), 19u);
  f.write({{a, 1}, {b, 1}}).commit();
  EXPECT_THAT(f.keys(a, kSlot, 15, 3), ElementsAre(15, 16, 17));
  EXPECT_THAT(f.keys(b, kSlot, 18, 2), ElementsAre(18, 19));
}

TEST(Rounds, ThatKeepNothingChangeNothing) {
  Fixture f({plain()}, 16);
  const SeqId chat = f.session.start();
  f.append(chat, 10);
  const SeqId fork = f.session.fork(chat);
  const uint64_t live = f.memory.use().live_bytes;
  Step round = f.write({{chat, 40}}, Round::yes);
  const Pos keep[] = {0};
  round.commit(keep);
  EXPECT_EQ(f.memory.use().live_bytes, live);
  EXPECT_EQ(f.session.length(chat), 10u);
  f.session.drop(fork);
}

TEST(Cutting, C16_ReachesEverySlot) {
  Fixture f({plain(), ring(8, 0, 300), plain()}, 16);
  const SeqId chat = f.session.start();
  f.append(chat, 253);
  ASSERT_TRUE(f.session.truncate(chat, 17));
  EXPECT_EQ(f.memory.use().live_bytes, f.session.bytes_for(17));
}

TEST(Cutting, C18_ABatchRowThatLeavesTakesNothingAlong) {
  Fixture f({plain()});
  const SeqId longer = f.session.start(), shorter = f.session.start();
  f.write({{longer, 10}, {shorter, 4}}).commit();
  f.session.drop(longer);
  f.append(shorter, 3);
  EXPECT_THAT(f.keys(shorter, kSlot, 0, 7), ElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_NEAR(f.next(shorter, kSlot).count, 8, 1e-3);
}

TEST(Cutting, C93_ARowKeepsItsOwnPositionInABatch) {
  Fixture f({plain()});
  const SeqId a = f.session.start(), b = f.session.start();
  f.append(a, 30);
  f.append(b, 25);
  const Step step = f.write({{a, 1}, {b, 1}});
  EXPECT_EQ(step.view(kSlot).runs[0].first, 30u);
  EXPECT_EQ(step.view(kSlot).runs[1].first, 25u);
}

// C31: a page that another owner filled with 0xff bytes (NaN) reads as if it were fresh.
TEST(Pages, C30_C31_OldContentsNeverReachAResult) {
  Fixture probe({plain()}, 16);
  Fixture f({plain()}, 16, {.max_bytes = probe.session.bytes_for(32)});
  const SeqId first = f.session.start();
  {
    Step step = f.session.plan({{first, 32}}).value();
    const std::vector<float> nans(32 * kWidth, NAN);
    step.write(kSlot, kKey, nans.data());
    step.write(kSlot, kValue, nans.data());
    step.commit();
  }
  f.session.drop(first);
  const SeqId second = f.session.start();
  EXPECT_EQ(f.next(second, kSlot).mean, 1000);
  f.append(second, 12);
  EXPECT_NEAR(f.next(second, kSlot).mean, mean_of_values(0, 12), 1e-3);
}

TEST(Sequences, AnEmptyOneIsLikeAnyOther) {
  Fixture f({plain(), ring(4, 2)});
  const SeqId empty = f.session.start();
  const SeqId copy = f.session.fork(empty);
  EXPECT_TRUE(f.session.truncate(copy, 0));
  EXPECT_EQ(f.session.snapshot(copy).length(), 0u);
  f.write({{copy, 0}}).commit();
  EXPECT_EQ(f.session.length(copy), 0u);
  EXPECT_THROW((void)f.session.length(SeqId{99}), ContractError);
}

}  // namespace
}  // namespace cairn
