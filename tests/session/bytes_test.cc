// What a sequence costs, as said beforehand and as it is: every kind that the registry lists, in
// records of one form and of two, in rounds and without.
#include <gtest/gtest.h>

#include "tests/support/conversation.h"
#include "tests/support/program.h"

namespace cairn::testing {
namespace {

constexpr const char* kSchemes[] = {"f32",
                                    "affine8",
                                    "turbo-k8v3",
                                    "affine4-g32-keep64",
                                    "turbo-k8v3-after300",
                                    "f16-keep100-after200"};
constexpr Pos kLength = 420;

// Calls visit(conversation, run) after every step that builds a sequence of kLength positions.
template <class Visit>
void each_step(Conversation& conversation, Pos run, Visit visit) {
  const SeqId seq = conversation.session().start();
  for (Pos length = 0; length < kLength;) {
    const Pos count = std::min({run, kLength - length, conversation.session().max_run(seq)});
    visit(seq, count);
    conversation.append(seq, count, length);
    length += count;
  }
  visit(seq, 0);
}

TEST(Bytes, AreThoseOfTheLengthForEveryKindAndForm) {
  for (const KindModel& model : kind_models())
    for (const char* scheme : kSchemes)
      for (const uint32_t page_positions : {1u, 64u})
        for (const Pos run : {Pos{13}, Pos{300}}) {
          SCOPED_TRACE(::testing::Message() << model.name << ", " << scheme << ", pages of "
                                            << page_positions << ", runs of " << run);
          Conversation c({.spec = model.spec, .scheme = scheme, .page_positions = page_positions});
          Session& session = c.session();
          const uint64_t peak = session.peak_bytes_for(kLength, run);
          each_step(c, run, [&](SeqId seq, Pos count) {
            ASSERT_EQ(c.memory().use().live_bytes, session.bytes_for(session.length(seq)));
            ASSERT_EQ(session.use().live_bytes, session.bytes_for(session.length(seq)));
            for (const Round round : {Round::no, Round::yes}) {
              const Step step = must(session.plan({{seq, count}}, round));
              ASSERT_LE(c.memory().use().live_bytes, peak);
            }
          });
          if (HasFatalFailure()) return;
        }
}

TEST(Bytes, AMemoryOfThePeakIsEnough) {
  for (const KindModel& model : kind_models())
    for (const char* scheme : kSchemes)
      for (const Pos run : {Pos{13}, Pos{300}}) {
        SCOPED_TRACE(::testing::Message() << model.name << ", " << scheme << ", runs of " << run);
        const uint64_t peak = Conversation({.spec = model.spec, .scheme = scheme})
                                  .session()
                                  .peak_bytes_for(kLength, run);
        Conversation c({.spec = model.spec, .scheme = scheme, .max_bytes = peak});
        each_step(c, run, [&](SeqId seq, Pos count) {
          ASSERT_TRUE(c.session().plan({{seq, count}}, Round::yes));
        });
      }
}

TEST(Bytes, AMemoryOfOneByteLessThanASequenceTakesCannotHoldIt) {
  for (const KindModel& model : kind_models())
    for (const char* scheme : kSchemes) {
      SCOPED_TRACE(model.name + ", " + scheme);
      const uint64_t bytes =
          Conversation({.spec = model.spec, .scheme = scheme}).session().bytes_for(kLength);
      Conversation c({.spec = model.spec, .scheme = scheme, .max_bytes = bytes - 1});
      const SeqId seq = c.session().start();
      for (Pos length = 0; length < kLength; ++length) {
        const bool is_taken = c.session().plan({{seq, 1}}).has_value();  // and given back
        if (!is_taken) break;
        ASSERT_LT(length + 1, kLength);
        c.append(seq, 1, length);
      }
      EXPECT_LE(c.memory().use().committed_bytes, bytes - 1);
    }
}

}  // namespace
}  // namespace cairn::testing
