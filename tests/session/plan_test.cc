// A plan takes pages one after the other; here each of them fails in turn, for every kind that the
// registry lists. Nothing may have changed then, and the reclaimer must have been asked.
#include <gtest/gtest.h>

#include "cairn/core/bytes.h"
#include "tests/support/conversation.h"
#include "tests/support/program.h"

namespace cairn::testing {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{64} << 20;

// What a page counts against the limit: large ones fill whole pages of the system.
uint64_t stride_of(uint64_t page_bytes) {
  return page_bytes < 32768 ? page_bytes : round_up(page_bytes, 4096);
}

// Holds on pages that leave exactly `room` bytes to be taken.
std::vector<PageRef> fill_but(Memory& memory, uint64_t room) {
  memory.trim();
  const MemoryUse use = memory.use();
  const uint64_t bytes = use.limit_bytes - use.committed_bytes - room;
  std::vector<PageRef> held;
  for (const uint64_t part : {bytes / 32768 * 32768, bytes % 32768})
    if (part > 0) held.push_back(must(memory.pool(part).take()));
  EXPECT_EQ(memory.use().limit_bytes - memory.use().committed_bytes, room);
  return held;
}

// Of two sequences, one with a shared last page, one just before the length at which it is encoded.
struct Story {
  Conversation conversation;
  SeqId shared, encoded;

  explicit Story(ConversationOptions options) : conversation(std::move(options)) {
    shared = conversation.start(130, 1);
    conversation.session().fork(shared);
    encoded = conversation.start(299, 2);
  }
  std::string records() const {
    return conversation.records(shared) + conversation.records(encoded);
  }
};

// Fails every page of the plan in turn; how many there were.
size_t fail_every_page(Story& story, Round round) {
  Session& session = story.conversation.session();
  Memory& memory = story.conversation.memory();
  const std::vector<Run> batch = {{story.shared, 20}, {story.encoded, 1}};
  const MemoryUse before = memory.use();
  uint64_t wanted = 0;
  memory.set_reclaimer([&](uint64_t bytes) {
    wanted = bytes;
    return uint64_t{0};
  });
  uint64_t room = 0;
  for (size_t pages = 0;; ++pages, room += stride_of(wanted)) {
    std::vector<PageRef> held = fill_but(memory, room);
    wanted = 0;
    {
      const auto step = session.plan(batch, round);
      if (step) {
        EXPECT_EQ(wanted, 0u);
        EXPECT_EQ(memory.use().committed_bytes, memory.use().limit_bytes) << "not a page more";
        return pages;
      }
      EXPECT_EQ(step.error().code, Code::NoSpace) << step.error().message;
    }
    EXPECT_GT(wanted, 0u) << "the reclaimer was not asked";
    held.clear();
    EXPECT_EQ(memory.use().live_pages, before.live_pages) << "page " << pages;
    EXPECT_EQ(memory.use().live_bytes, before.live_bytes) << "page " << pages;
    EXPECT_EQ(session.length(story.shared), 130u);
    EXPECT_EQ(session.length(story.encoded), 299u);
    if (::testing::Test::HasFailure()) return 0;
  }
}

TEST(Plan, ThatFailsAtAnyPageChangesNothing) {
  for (const KindModel& model : kind_models())
    for (const char* scheme : {"f32", "affine8-keep64", "turbo-k8v3-after300"})
      for (const uint32_t page_positions : {16u, 64u})
        for (const Round round : {Round::no, Round::yes}) {
          SCOPED_TRACE(::testing::Message()
                       << model.name << ", " << scheme << ", pages of " << page_positions);
          Story story({.spec = model.spec,
                       .scheme = scheme,
                       .page_positions = page_positions,
                       .max_bytes = kMaxBytes});
          const std::string records = story.records();
          EXPECT_GE(fail_every_page(story, round), 1u);
          EXPECT_TRUE(story.records() == records);
          story.conversation.memory().set_reclaimer({});
          story.conversation.append(story.shared, 20, 3);  // the session is usable
          story.conversation.append(story.encoded, 1, 4);
          if (HasFailure()) return;
        }
}

// The same for a sequence that comes from elsewhere.
TEST(Plan, AnAdoptionThatFailsAtAnyPageChangesNothing) {
  for (const KindModel& model : kind_models()) {
    SCOPED_TRACE(model.name);
    Conversation theirs({.spec = model.spec, .scheme = "f32"});
    const Snapshot snapshot = theirs.session().snapshot(theirs.start(300, 1));
    Conversation ours({.spec = model.spec,
                       .scheme = "affine8-keep64",
                       .page_positions = 16,
                       .max_bytes = kMaxBytes});
    uint64_t wanted = 0, room = 0;
    ours.memory().set_reclaimer([&](uint64_t bytes) {
      wanted = bytes;
      return uint64_t{0};
    });
    for (;; room += stride_of(wanted)) {
      std::vector<PageRef> held = fill_but(ours.memory(), room);
      if (ours.session().adopt(snapshot)) break;
      held.clear();
      ASSERT_EQ(ours.memory().use().live_pages, 0u);
      ASSERT_EQ(ours.session().use().sequences, 0u);
    }
    EXPECT_EQ(ours.session().use().live_bytes, ours.session().bytes_for(300));
  }
}

}  // namespace
}  // namespace cairn::testing
