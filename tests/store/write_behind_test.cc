#include "cairn/store/write_behind.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/random.h"

namespace cairn::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// What happened, in order, as the items' functions saw it.
class Log {
 public:
  void add(const std::string& line) {
    const std::lock_guard lock(mutex_);
    lines_.push_back(line);
  }
  std::vector<std::string> lines() const {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

class WriteQueue : public ::testing::Test {
 protected:
  WriteItem item(const std::string& name, uint64_t bytes) {
    return {.bytes = bytes,
            .store = [this, name]() -> Result<void> {
              log_.add("store " + name);
              return {};
            },
            .release = [this, name] { log_.add("release " + name); }};
  }

  // An item that stays in flight until let_go().
  WriteItem held(const std::string& name, uint64_t bytes) {
    WriteItem held = item(name, bytes);
    held.store = [this, name]() -> Result<void> {
      log_.add("store " + name);
      begun_.set_value();
      go_.get_future().wait();
      return {};
    };
    return held;
  }
  void wait_until_held() { begun_.get_future().wait(); }
  void let_go() { go_.set_value(); }

  // The items' functions use them: the queue of a test goes before.
  Log log_;
  std::promise<void> begun_, go_;
};

TEST_F(WriteQueue, StoresInOrderAndReleasesEachOnce) {
  WriteBehind queue;
  std::future<bool> a = queue.enqueue(item("a", 1)), b = queue.enqueue(item("b", 2)),
                    c = queue.enqueue(item("c", 3));
  queue.drain();
  EXPECT_TRUE(a.get() && b.get() && c.get());
  EXPECT_THAT(log_.lines(),
              ElementsAre("store a", "release a", "store b", "release b", "store c", "release c"));
  const WriteCounts counts = queue.counts();
  EXPECT_EQ(counts.pending, 0u);
  EXPECT_EQ(counts.pending_bytes, 0u);
  EXPECT_EQ(counts.stored, 3u);
  EXPECT_EQ(counts.dropped, 0u);
  EXPECT_EQ(counts.failed, 0u);
  EXPECT_TRUE(queue.last_error());
}

TEST_F(WriteQueue, ShedsTheOldestThatWaitsAndReleasesItAtOnce) {
  WriteBehind queue(100);
  std::future<bool> a = queue.enqueue(held("a", 60));
  wait_until_held();
  std::future<bool> b = queue.enqueue(item("b", 60));
  EXPECT_EQ(queue.counts().pending_bytes, 120u) << "no victim: a is in flight, b the newest";
  EXPECT_THAT(log_.lines(), ElementsAre("store a"));
  std::future<bool> c = queue.enqueue(item("c", 60));
  EXPECT_THAT(log_.lines(), ElementsAre("store a", "release b"));
  EXPECT_EQ(queue.counts().pending_bytes, 120u);
  EXPECT_EQ(queue.counts().pending, 2u);
  EXPECT_FALSE(b.get());
  let_go();
  queue.drain();
  EXPECT_TRUE(a.get());
  EXPECT_TRUE(c.get());
  EXPECT_THAT(log_.lines(),
              ElementsAre("store a", "release b", "release a", "store c", "release c"));
  EXPECT_EQ(queue.counts().dropped, 1u);
  EXPECT_EQ(queue.counts().stored, 2u);
  EXPECT_EQ(queue.counts().pending_bytes, 0u);
}

TEST_F(WriteQueue, StoresASingleItemLargerThanTheCap) {
  WriteBehind queue(10);
  EXPECT_TRUE(queue.enqueue(item("a", 1000)).get());
  EXPECT_EQ(queue.counts().dropped, 0u);
}

TEST_F(WriteQueue, AFailureSettlesFalseAndLaterItemsAreStored) {
  WriteBehind queue;
  WriteItem failing = item("a", 1), throwing = item("b", 1);
  failing.store = []() -> Result<void> { return fail(Code::NoSpace, "disk: full"); };
  throwing.store = []() -> Result<void> { throw std::runtime_error("out of luck"); };
  EXPECT_FALSE(queue.enqueue(std::move(failing)).get());
  EXPECT_EQ(queue.last_error().error().code, Code::NoSpace);
  EXPECT_FALSE(queue.enqueue(std::move(throwing)).get());
  EXPECT_THAT(queue.last_error().error().message, HasSubstr("out of luck"));
  EXPECT_TRUE(queue.enqueue(item("c", 1)).get());
  queue.drain();
  EXPECT_THAT(log_.lines(), ElementsAre("release a", "release b", "store c", "release c"));
  EXPECT_EQ(queue.counts().failed, 2u);
  EXPECT_EQ(queue.counts().stored, 1u);
  EXPECT_FALSE(queue.last_error()) << "of the item that failed last";
}

TEST_F(WriteQueue, AFailureIsNoDrop) {
  WriteBehind queue(8);
  std::future<bool> first = queue.enqueue(held("in flight", 0));
  wait_until_held();
  std::future<bool> a = queue.enqueue(item("a", 8));
  WriteItem failing = item("b", 8);
  failing.store = []() -> Result<void> { return fail(Code::Io, "disk: gone"); };
  std::future<bool> b = queue.enqueue(std::move(failing));
  EXPECT_FALSE(a.get()) << "the cap of 8 holds one of two";
  let_go();
  EXPECT_FALSE(b.get());
  EXPECT_EQ(queue.counts().dropped, 1u);
  EXPECT_EQ(queue.counts().failed, 1u);
}

TEST_F(WriteQueue, WithACapOfNothingKeepsTheNewestAndTheOneInFlight) {
  WriteBehind queue(0);
  std::future<bool> a = queue.enqueue(held("a", 5));
  wait_until_held();
  std::future<bool> b = queue.enqueue(item("b", 5)), c = queue.enqueue(item("c", 5)),
                    d = queue.enqueue(item("d", 5));
  EXPECT_EQ(queue.counts().pending, 2u);
  let_go();
  EXPECT_TRUE(a.get());
  EXPECT_FALSE(b.get());
  EXPECT_FALSE(c.get());
  EXPECT_TRUE(d.get());
}

TEST_F(WriteQueue, ShedsNothingThatMayNotBeDropped) {
  WriteBehind queue(10);
  std::future<bool> a = queue.enqueue(held("a", 10));
  wait_until_held();
  WriteItem kept = item("b", 10);
  kept.can_drop = [] { return false; };
  std::future<bool> b = queue.enqueue(std::move(kept)), c = queue.enqueue(item("c", 10)),
                    d = queue.enqueue(item("d", 10));
  EXPECT_FALSE(c.get()) << "the oldest that may be dropped";
  EXPECT_EQ(queue.counts().pending_bytes, 30u);
  let_go();
  EXPECT_TRUE(a.get() && b.get() && d.get());
}

TEST_F(WriteQueue, ShedsAsManyAsTheNewestNeeds) {
  WriteBehind queue(100);
  std::future<bool> a = queue.enqueue(held("a", 10));
  wait_until_held();
  std::vector<std::future<bool>> small;
  for (int i = 0; i < 9; ++i) small.push_back(queue.enqueue(item(std::to_string(i), 10)));
  EXPECT_EQ(queue.counts().dropped, 0u);
  std::future<bool> large = queue.enqueue(item("large", 45));
  EXPECT_EQ(queue.counts().dropped, 5u);
  EXPECT_EQ(queue.counts().pending_bytes, 95u);
  let_go();
  EXPECT_TRUE(large.get());
  for (int i = 0; i < 9; ++i) EXPECT_EQ(small[static_cast<size_t>(i)].get(), i >= 5) << i;
}

TEST_F(WriteQueue, CancelsWhatMatchesButNotWhatIsInFlight) {
  WriteBehind queue;
  WriteItem first = held("a", 1);
  first.tag = 7;
  std::future<bool> a = queue.enqueue(std::move(first));
  wait_until_held();
  std::vector<std::future<bool>> rest;
  for (uint64_t tag : {7, 8, 7}) {
    WriteItem next = item("tag " + std::to_string(tag), 1);
    next.tag = tag;
    rest.push_back(queue.enqueue(std::move(next)));
  }
  EXPECT_EQ(queue.cancel_where([](uint64_t tag) { return tag == 7; }), 2u);
  EXPECT_THAT(log_.lines(), ElementsAre("store a", "release tag 7", "release tag 7"));
  let_go();
  EXPECT_TRUE(a.get());
  EXPECT_FALSE(rest[0].get());
  EXPECT_TRUE(rest[1].get());
  EXPECT_FALSE(rest[2].get());
  EXPECT_EQ(queue.counts().dropped, 2u);
}

TEST_F(WriteQueue, SettlesBeforeItReleases) {
  std::shared_future<bool> stored;
  std::promise<void> is_known;
  bool was_settled = false;
  WriteBehind queue;
  WriteItem next = item("a", 1);
  next.store = [known = is_known.get_future().share()]() -> Result<void> {
    known.wait();
    return {};
  };
  next.release = [&] {
    was_settled = stored.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  };
  stored = queue.enqueue(std::move(next)).share();
  is_known.set_value();
  queue.drain();
  EXPECT_TRUE(was_settled);
}

TEST_F(WriteQueue, CountsNothingOfAnItemOnceItsFutureSettled) {
  WriteBehind queue;
  for (uint64_t i = 1; i <= 200; ++i) {
    ASSERT_TRUE(queue.enqueue(item("a", 10)).get());
    const WriteCounts counts = queue.counts();
    ASSERT_EQ(counts.pending, 0u);
    ASSERT_EQ(counts.pending_bytes, 0u);
    ASSERT_EQ(counts.stored, i);
  }
}

TEST_F(WriteQueue, ItsFunctionsMayAskTheQueue) {
  WriteBehind queue(10);
  uint64_t seen = 0;
  WriteItem first = held("a", 10);
  std::future<bool> a = queue.enqueue(std::move(first));
  wait_until_held();
  WriteItem asking = item("b", 10);
  asking.can_drop = [&] { return queue.counts().pending == 3; };
  asking.release = [&] { seen = queue.counts().dropped; };
  std::future<bool> b = queue.enqueue(std::move(asking)), c = queue.enqueue(item("c", 10));
  EXPECT_FALSE(b.get());
  EXPECT_EQ(seen, 1u);
  let_go();
}

TEST_F(WriteQueue, ClosingFinishesWhatIsInFlightAndDropsTheRest) {
  std::future<bool> a, b;
  std::thread closing;
  {
    auto queue = std::make_unique<WriteBehind>();
    a = queue->enqueue(held("a", 1));
    wait_until_held();
    b = queue->enqueue(item("b", 1));
    closing = std::thread([closed = std::move(queue)]() mutable { closed.reset(); });
  }
  EXPECT_EQ(a.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  let_go();
  closing.join();
  EXPECT_TRUE(a.get());
  EXPECT_FALSE(b.get());
  EXPECT_THAT(log_.lines(), ElementsAre("store a", "release a", "release b"));
}

// Producers on several threads, failures, cancels and a small cap: every future settles, every item
// is released once, and the counts add up.
TEST(WriteBehind, SettlesAndReleasesEveryItemOnceWhateverProducersDo) {
  constexpr uint64_t kThreads = 4, kItems = 500;
  std::vector<std::atomic<int>> stored(kThreads * kItems), released(kThreads * kItems);
  std::atomic<uint64_t> yes = 0;
  WriteCounts counts;
  {
    WriteBehind queue(50);
    std::vector<std::thread> producers;
    for (uint64_t thread = 0; thread < kThreads; ++thread)
      producers.emplace_back([&, thread] {
        Random random(thread);
        std::vector<std::future<bool>> futures;
        for (uint64_t i = 0; i < kItems; ++i) {
          const uint64_t id = thread * kItems + i;
          const bool fails = random.one_in(10);
          WriteItem item{.bytes = random.below(20),
                         .store = [&stored, id, fails]() -> Result<void> {
                           ++stored[id];
                           if (fails) return fail(Code::Io, "item {}", id);
                           return {};
                         },
                         .release = [&released, id] { ++released[id]; },
                         .tag = random.below(100)};
          if (random.one_in(5)) item.can_drop = [] { return false; };
          futures.push_back(queue.enqueue(std::move(item)));
          if (random.one_in(50))
            queue.cancel_where([tag = random.below(100)](uint64_t t) { return t == tag; });
          if (random.one_in(100)) queue.drain();
        }
        for (std::future<bool>& future : futures) yes += future.get();
      });
    for (std::thread& producer : producers) producer.join();
    queue.drain();
    counts = queue.counts();
  }
  EXPECT_EQ(counts.pending, 0u);
  EXPECT_EQ(counts.pending_bytes, 0u);
  EXPECT_EQ(counts.stored, yes);
  EXPECT_EQ(counts.stored + counts.failed + counts.dropped, kThreads * kItems);
  EXPECT_GT(counts.dropped, 0u);
  EXPECT_GT(counts.failed, 0u);
  for (const std::atomic<int>& times : released) ASSERT_EQ(times, 1);
  for (const std::atomic<int>& times : stored) ASSERT_LE(times, 1);
}

}  // namespace
}  // namespace cairn::testing
