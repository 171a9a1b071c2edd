// Sequences that go from one session into another: of other forms, page sizes and memories, for
// every kind that the registry lists.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/conversation.h"
#include "tests/support/program.h"

namespace cairn::testing {
namespace {

using ::testing::HasSubstr;

constexpr const char* kSchemes[] = {"affine8", "turbo-k8v3", "bf16-keep64", "affine4-g32-after300",
                                    "turbo-k8v3-keep100-after200"};
constexpr Pos kLengths[] = {0, 1, 150, 199, 200, 300, 420};

// The runs end where the scheme `after` lets them end, so that two sessions get the same numbers.
SeqId start(Conversation& conversation, Pos length, Pos after) {
  const Pos first = after == 0 ? length : std::min(length, after);
  const SeqId seq = conversation.start(first, 7);
  conversation.append(seq, length - first, 8);
  return seq;
}

TEST(Adopt, IntoAnotherFormStoresWhatTheNumbersThemselvesWouldGive) {
  for (const KindModel& model : kind_models())
    for (const std::string scheme : kSchemes)
      for (const Pos length : kLengths) {
        SCOPED_TRACE(::testing::Message() << model.name << ", " << scheme << ", " << length);
        const Pos after = must(parse_scheme(scheme)).after;
        Conversation exact({.spec = model.spec, .scheme = "f32", .page_positions = 16});
        Conversation ours({.spec = model.spec, .scheme = scheme, .page_positions = 64});
        Conversation twin({.spec = model.spec, .scheme = scheme, .page_positions = 64});
        const Snapshot snapshot = exact.session().snapshot(start(exact, length, after));
        const SeqId adopted = must(ours.session().adopt(snapshot));
        const SeqId built = start(twin, length, after);
        EXPECT_EQ(ours.session().is_derived(adopted), length > 0);
        ASSERT_TRUE(ours.records(adopted) == twin.records(built));
        EXPECT_EQ(ours.memory().use().live_bytes, twin.memory().use().live_bytes);
        ours.append(adopted, 30, 9);
        twin.append(built, 30, 9);
        ASSERT_TRUE(ours.records(adopted) == twin.records(built));
        ours.session().drop(adopted);
        EXPECT_EQ(ours.memory().use().live_pages, 0u);
      }
}

TEST(Adopt, IntoAnotherPageSizeMovesTheRecords) {
  for (const KindModel& model : kind_models())
    for (const std::string scheme : kSchemes)
      for (const Pos length : kLengths) {
        SCOPED_TRACE(::testing::Message() << model.name << ", " << scheme << ", " << length);
        Conversation theirs({.spec = model.spec, .scheme = scheme, .page_positions = 64});
        Conversation ours({.spec = model.spec, .scheme = scheme, .page_positions = 4});
        const SeqId seq = theirs.start(length, 7);
        const SeqId adopted = must(ours.session().adopt(theirs.session().snapshot(seq)));
        EXPECT_FALSE(ours.session().is_derived(adopted));
        ASSERT_TRUE(ours.records(adopted) == theirs.records(seq));
      }
}

TEST(Adopt, IntoAMemoryThatIsTooSmallChangesNothing) {
  for (const KindModel& model : kind_models())
    for (const std::string scheme : kSchemes) {
      SCOPED_TRACE(model.name + ", " + scheme);
      Conversation theirs({.spec = model.spec, .scheme = "f32"});
      const SeqId seq = theirs.start(420, 7);
      const uint64_t needed =
          Conversation({.spec = model.spec, .scheme = scheme}).session().bytes_for(420);
      Conversation ours({.spec = model.spec, .scheme = scheme, .max_bytes = needed - 1});
      const auto refused = ours.session().adopt(theirs.session().snapshot(seq));
      ASSERT_FALSE(refused);
      EXPECT_EQ(refused.error().code, Code::NoSpace);
      EXPECT_EQ(ours.memory().use().live_pages, 0u);
      EXPECT_EQ(ours.session().use().sequences, 0u);
      EXPECT_EQ(theirs.session().length(seq), 420u);
    }
}

ModelSpec windows(Pos first_rewind, Pos second_rewind) {
  ModelSpec spec{.identity = sha256("windows")};
  for (Pos rewind : {first_rewind, second_rewind})
    spec.slots.push_back(
        window({.heads = 1, .head_dim = 64, .window = 40, .sinks = 5, .rewind = rewind}));
  return spec;
}

// Rewind says how much more than the window is kept: no part of what a sequence is.
TEST(Adopt, AnotherRewindIsNoObstacle) {
  for (const Pos length : {Pos{0}, Pos{30}, Pos{60}, Pos{300}})
    for (const uint32_t page_positions : {16u, 64u}) {
      Conversation theirs({.spec = windows(100, 16), .page_positions = 64});
      const SeqId seq = theirs.start(length, 7);
      for (const ModelSpec& spec : {windows(100, 16), windows(8, 8), windows(0, 200)}) {
        Conversation ours({.spec = spec, .page_positions = page_positions});
        Conversation twin({.spec = spec, .page_positions = page_positions});
        const SeqId adopted = must(ours.session().adopt(theirs.session().snapshot(seq)));
        EXPECT_FALSE(ours.session().is_derived(adopted));
        // Once the windows have slid, nothing tells where the sequence came from.
        const SeqId built = twin.start(length, 7);
        ours.append(adopted, 250, 8);
        twin.append(built, 250, 8);
        EXPECT_TRUE(ours.records(adopted) == twin.records(built));
      }
    }
}

TEST(Adopt, SharesPagesUnderAnotherRewindWhereTheSlotsAreGroupedAlike) {
  Memory memory;
  const auto open = [&](Pos rewind) {
    return must(open_session(windows(rewind, rewind), must(parse_scheme("f16")), memory));
  };
  Session theirs = open(100), ours = open(8);
  const SeqId seq = theirs.start();
  Step step = must(theirs.plan({{seq, 100}}));
  const std::vector<float> numbers(100 * 64);
  for (SlotId slot : theirs.slots())
    for (FamilyId family : {kKey, kValue}) step.write(slot, family, numbers.data());
  step.commit();
  const uint64_t live = memory.use().live_bytes;
  must(ours.adopt(theirs.snapshot(seq)));
  EXPECT_EQ(memory.use().live_bytes, live);
}

// Pages of one size, in which other slots lie.
TEST(Adopt, MovesTheRecordsWhereAnotherRewindGroupsTheSlotsOtherwise) {
  const auto spec = [](std::initializer_list<Pos> rewinds) {
    ModelSpec four{.identity = sha256("windows")};
    for (const Pos rewind : rewinds)
      four.slots.push_back(window({.heads = 1, .head_dim = 64, .window = 40, .rewind = rewind}));
    return four;
  };
  Conversation theirs({.spec = spec({100, 100, 200, 200})});
  Session ours =
      must(open_session(spec({100, 200, 100, 200}), theirs.session().scheme(), theirs.memory()));
  const Snapshot from = theirs.session().snapshot(theirs.start(60, 7));
  const Snapshot to = ours.snapshot(must(ours.adopt(from)));
  for (SlotId slot : ours.slots()) {
    std::vector<float> expected(60 * 64), got(60 * 64);
    decode(from.view(slot), 0, kKey, 0, 60, expected.data());
    decode(to.view(slot), 0, kKey, 0, 60, got.data());
    EXPECT_EQ(got, expected) << slot.value;
  }
}

TEST(Adopt, RefusesToPassALimitOfPositions) {
  const auto spec = [](Pos max_positions) {
    return ModelSpec{
        .identity = sha256("model"),
        .slots = {attention({.heads = 1, .head_dim = 8, .max_positions = max_positions})}};
  };
  Conversation theirs({.spec = spec(0)});
  Memory memory;
  Session near = must(open_session(spec(20), theirs.session().scheme(), theirs.memory()));
  Session far = must(open_session(spec(20), theirs.session().scheme(), memory));
  const SeqId seq = theirs.start(20, 7);
  EXPECT_TRUE(near.adopt(theirs.session().snapshot(seq)));
  EXPECT_TRUE(far.adopt(theirs.session().snapshot(seq)));
  theirs.append(seq, 1, 8);
  for (Session* ours : {&near, &far}) {
    const auto refused = ours->adopt(theirs.session().snapshot(seq));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::BadInput);
    EXPECT_THAT(refused.error().message, HasSubstr("slot 0: 21 positions, expected at most 20"));
  }
}

}  // namespace
}  // namespace cairn::testing
