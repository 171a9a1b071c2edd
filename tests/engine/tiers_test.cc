// RAM over disk under pressure, with a disk that is slow, broken or full of others' bytes. Oracles
// are those of state-spec.md section 10.
#include "cairn/engine/tiers.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <thread>

#include "tests/engine/remembering.h"
#include "tests/support/gated_fs.h"
#include "tests/support/scratch_folder.h"

namespace cairn {
namespace {

using namespace cairn::testing;
using std::chrono::milliseconds;

class TiersTest : public ::testing::Test {
 protected:
  ~TiersTest() override { fs_.open_gate(); }

  std::unique_ptr<Store> open(uint64_t max_bytes = uint64_t{1} << 30) {
    return must(Store::open(folder_ / "store",
                            {.fs = &fs_, .max_bytes = max_bytes, .segment_bytes = 1 << 20}));
  }

  ScratchFolder folder_;
  GatedFs fs_;
  Random random_{1};
  const Setting setting_ = setting_of("attention");
};

// Oracles 146, C69: what waits for the disk is found in RAM, above the cap if need be; afterwards
// RAM keeps to its cap, and the disk has the rest.
TEST_F(TiersTest, WhatIsOnItsWayToTheDiskStaysInRam) {
  const auto store = open();
  Host host(setting_, store.get(), {}, {.ram_bytes = 20000});
  fs_.close_gate();
  std::vector<Tokens> all;
  for (int i = 0; i < 8; ++i) {
    all.push_back(random_tokens(random_, 100, 1000));
    Found found = host.tell(all.back());
    host.session().drop(found.seq);
  }
  EXPECT_GT(host.tiers().ram().use().bytes, 20000u);
  for (const Tokens& tokens : all) EXPECT_EQ(host.prefixes().longest(tokens), 99u);
  EXPECT_EQ(host.tiers().ram().use().dropped, 0u);
  fs_.open_gate();
  ASSERT_TRUE(host.tiers().flush().is_durable);
  EXPECT_LE(host.tiers().ram().use().bytes, 20000u);
  for (const Tokens& tokens : all) {
    Found found = host.prefixes().find(host.session(), tokens);
    EXPECT_EQ(found.length, 99u);
    EXPECT_EQ(host.wrong(found.seq, tokens), std::nullopt);
    host.session().drop(found.seq);
  }
}

// Oracles 147, 149, 151: a failing disk is said, nothing is lost, and a later flush makes it good.
TEST_F(TiersTest, AFlushSaysWhetherEverythingIsSafe) {
  const auto store = open();
  Host host(setting_, store.get());
  const Tokens tokens = random_tokens(random_, 100);
  fs_.break_disk();
  host.tell(tokens);
  const FlushVerdict broken = host.tiers().flush();
  EXPECT_FALSE(broken.is_durable);
  EXPECT_GT(broken.waiting, 0u);
  EXPECT_EQ(broken.missing, 0u);
  EXPECT_NE(broken.reason.find("broken"), std::string::npos) << broken.reason;
  EXPECT_TRUE(host.tiers().take_problem().has_value());
  EXPECT_FALSE(host.tiers().take_problem().has_value()) << "each is said once";
  EXPECT_EQ(host.prefixes().longest(tokens), 99u);
  fs_.open_gate();
  const FlushVerdict whole = host.tiers().flush();
  EXPECT_TRUE(whole.is_durable) << whole.reason;
  Host later(setting_, store.get());
  EXPECT_EQ(later.prefixes().longest(tokens), 99u);
}

TEST_F(TiersTest, AFlushGivesUpWhenItsTimeIsOver) {
  const auto store = open();
  Host host(setting_, store.get());
  fs_.close_gate();
  host.tell(random_tokens(random_, 100));
  fs_.wait_for_a_sync();
  std::thread opener([&] {  // the store's own sync waits at the gate as well
    std::this_thread::sleep_for(milliseconds(200));
    fs_.open_gate();
  });
  const FlushVerdict verdict = host.tiers().flush(milliseconds(0));
  opener.join();
  EXPECT_FALSE(verdict.is_durable);
  EXPECT_TRUE(host.tiers().flush().is_durable);
}

// Oracle 150: what memory had to give up before it was written makes a flush say so, until it is
// there again.
TEST_F(TiersTest, WhatWasGivenUpUnwrittenIsMissingUntilItComesAgain) {
  const auto store = open();
  Host host(setting_, store.get());
  const Tokens tokens = random_tokens(random_, 100);
  fs_.break_disk();
  Found found = host.tell(tokens);
  (void)host.tiers().flush();
  host.session().drop(found.seq);
  while (host.tiers().ram().reclaim(1) > 0) {
  }
  EXPECT_GT(host.tiers().ram().use().dropped, 0u);
  fs_.open_gate();
  const FlushVerdict missing = host.tiers().flush();
  EXPECT_FALSE(missing.is_durable);
  EXPECT_GT(missing.missing, 0u);
  EXPECT_FALSE(host.tiers().flush().is_durable) << "a second flush cannot claim success";
  host.tell(tokens);
  const FlushVerdict whole = host.tiers().flush();
  EXPECT_TRUE(whole.is_durable) << whole.reason;
}

// C73: a burst against a slow disk: everything is stored in the end, or counted.
TEST_F(TiersTest, C73_ABurstIsStoredOrCounted) {
  for (const bool has_room : {true, false}) {
    SCOPED_TRACE(has_room);
    const auto store = open();
    Host host(setting_, store.get(), {},
              {.ram_bytes = has_room ? UINT64_MAX : 30000, .queue_bytes = 50000});
    fs_.close_gate();
    for (int i = 0; i < 20; ++i) {
      Found found = host.tell(random_tokens(random_, 64, 1000));
      host.session().drop(found.seq);
    }
    EXPECT_GT(host.tiers().writes().dropped, 0u);
    fs_.open_gate();
    const FlushVerdict verdict = host.tiers().flush();
    const uint64_t lost = host.tiers().ram().use().dropped;
    EXPECT_EQ(verdict.is_durable, has_room) << verdict.reason;
    EXPECT_LE(verdict.missing, lost) << "what was being written when it was given up is there";
    EXPECT_EQ(verdict.missing > 0, !has_room);
  }
}

// Oracles 113, 123: the least recently used leaves first, and a hit counts as use.
TEST_F(TiersTest, TheLeastRecentlyUsedLeavesRamFirst) {
  Host host(setting_, nullptr, {}, {.ram_bytes = 60000});
  const Tokens kept = random_tokens(random_, 64, 1000), old = random_tokens(random_, 64, 1000);
  host.tell(kept);
  host.tell(old);
  host.tell(joined(kept, {1}));
  while (host.prefixes().longest(old) == 63) {
    host.tell(random_tokens(random_, 64, 1000));
    ASSERT_EQ(host.prefixes().find(host.session(), kept).length, 63u);
  }
  EXPECT_LE(host.tiers().ram().use().bytes, 60000u);
  EXPECT_LT(host.prefixes().longest(old), 63u);
  EXPECT_EQ(host.tiers().ram().use().dropped, 0u) << "there is no disk to miss";
}

TEST_F(TiersTest, TheLeafOfAChainLeavesBeforeItsRoot) {
  Host host(setting_, nullptr, {}, {.ram_bytes = 100000});
  const Tokens tokens = random_tokens(random_, 160, 1000);
  host.tell(tokens, false);
  Pos last = host.prefixes().longest(tokens);
  EXPECT_EQ(last, 159u);
  for (uint64_t bytes = 90000; bytes > 10000; bytes -= 10000) {
    host.tiers().ram().set_max_bytes(bytes);
    const Pos now = host.prefixes().longest(tokens);
    EXPECT_LE(now, last);
    EXPECT_GT(now, 0u);
    last = now;
  }
}

TEST_F(TiersTest, WhatNobodyUsedLeavesRamWhenTheDiskHasIt) {
  const auto store = open();
  Host host(setting_, store.get());
  const Tokens tokens = random_tokens(random_, 100);
  host.tell(tokens);
  fs_.break_disk();
  host.tell(random_tokens(random_, 50, 1000));
  EXPECT_EQ(host.tiers().ram().demote_idle(std::chrono::hours(1)), 0u);
  (void)host.tiers().flush();
  EXPECT_GT(host.tiers().ram().demote_idle(milliseconds(0)) + 1, 0u);
  const uint64_t left = host.tiers().ram().use().records;
  EXPECT_EQ(left, host.tiers().ram().with_disk(DiskCopy::Failed).size()) << "only those stay";
  EXPECT_EQ(host.prefixes().longest(tokens), 99u) << "from disk";
}

TEST_F(TiersTest, ClearingForgetsWithoutWriting) {
  Host host(setting_);
  const Tokens tokens = random_tokens(random_, 100);
  Found found = host.tell(tokens);
  host.session().drop(found.seq);
  host.tiers().ram().clear();
  EXPECT_EQ(host.prefixes().longest(tokens), 0u);
  EXPECT_EQ(host.tiers().ram().use().bytes, 0u);
  EXPECT_EQ(host.memory().use().live_pages, 0u);
}

// Oracle 153: a checkpoint that is being written when its answer ends is gone afterwards; until the
// disk knows, the name is closed.
TEST_F(TiersTest, AFinishedGenerationIsRemovedWhateverIsOnItsWay) {
  const auto store = open();
  Host host(setting_, store.get());
  const Digest name = sha256("request");
  const Tokens tokens = random_tokens(random_, 70);
  Found found = host.prefixes().find(host.session(), tokens);
  compute(host.session(), found.seq, tokens);
  fs_.close_gate();
  const auto save = [&] {
    host.prefixes().save_generation(host.session(), found.seq, tokens, found.published, name,
                                    {.pending = 1});
  };
  save();
  fs_.wait_for_a_sync();
  EXPECT_TRUE(host.prefixes().find_generation(host.session(), name).has_value());
  host.prefixes().finish_generation(name);
  EXPECT_FALSE(host.prefixes().find_generation(host.session(), name).has_value());
  save();
  EXPECT_FALSE(host.prefixes().find_generation(host.session(), name).has_value()) << "closed";
  fs_.open_gate();
  ASSERT_TRUE(host.tiers().flush().is_durable);
  EXPECT_FALSE(host.prefixes().find_generation(host.session(), name).has_value());
  save();
  EXPECT_TRUE(host.prefixes().find_generation(host.session(), name).has_value()) << "open again";
}

// C70: whatever the disk holds counts, and the oldest leaves, whoever wrote it.
TEST_F(TiersTest, C70_TheBudgetCountsWhatEveryModelWrote) {
  const uint64_t budget = 3 << 20;
  Setting other = setting_;
  other.scheme = "f16";
  Tokens newest;
  for (int i = 0; i < 12; ++i) {
    const auto store = open(budget);
    Host host(i % 2 == 0 ? setting_ : other, store.get());
    newest = random_tokens(random_, 640, 1000);
    host.tell(newest);
    ASSERT_TRUE(host.tiers().flush().is_durable);
    EXPECT_LE(must(store->use()).bytes, budget);
    EXPECT_EQ(host.prefixes().longest(newest), 639u);
  }
}

// C82: no tier answers whoever lacks the secret, and no name that a tenant can compute
// is one of another's. (That a miss takes no longer for another's entries is measured:
// store_bench.)
TEST_F(TiersTest, C82_ATenantNeitherSharesNorGuessesAnothersEntries) {
  const auto store = open();
  std::vector<Tokens> theirs;
  {
    Host alice(setting_, store.get(), {.secret = "alice"});
    for (int i = 0; i < 30; ++i) {
      theirs.push_back(random_tokens(random_, 33, 1000));
      Found found = alice.tell(theirs.back(), false);
      alice.session().drop(found.seq);
    }
    ASSERT_TRUE(alice.tiers().flush().is_durable);
  }
  const auto names_of = [&] {
    std::set<Digest> names;
    must(store->for_each([&](const StoredRecord& record) {
      names.insert(record.info.key.name);
      return true;
    }));
    return names;
  };
  const std::set<Digest> alices = names_of();
  for (const char* secret : {"bob", "", "alic", "alice "}) {
    SCOPED_TRACE(secret);
    Host other(setting_, store.get(), {.secret = secret});
    for (const Tokens& tokens : theirs) {
      EXPECT_EQ(other.prefixes().longest(tokens), 0u);
      Found found = other.prefixes().find(other.session(), tokens);
      EXPECT_EQ(found.length, 0u);
      other.session().drop(found.seq);
    }
    const size_t before = names_of().size();
    Found found = other.tell(theirs[0], false);
    other.session().drop(found.seq);
    ASSERT_TRUE(other.tiers().flush().is_durable);
    EXPECT_GT(names_of().size(), before) << "the same tokens, and none of alice's records served";
  }
  Host again(setting_, store.get(), {.secret = "alice"});
  for (const Tokens& tokens : theirs) EXPECT_EQ(again.prefixes().longest(tokens), 32u);
  EXPECT_TRUE(std::ranges::includes(names_of(), alices));
}

}  // namespace
}  // namespace cairn
