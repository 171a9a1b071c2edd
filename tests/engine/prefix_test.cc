#include "cairn/engine/prefix.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <future>

#include "tests/engine/remembering.h"
#include "tests/support/scratch_folder.h"

namespace cairn {
namespace {

using namespace cairn::testing;

class Reuse : public ::testing::TestWithParam<Setting> {};

TEST_P(Reuse, IsTheGreatestPossibleAndChangesNoBit) {
  for (const uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(seed);
    Host host(GetParam());
    Random random(seed);
    std::vector<Told> told;
    for (int i = 0; i < 40; ++i) {
      const Tokens prompt = random_prompt(random, told);
      const Pos expected = reusable(GetParam(), told, prompt);
      EXPECT_EQ(host.prefixes().longest(prompt), expected);
      const bool is_marked = !random.one_in(3);
      Found found = host.tell(prompt, is_marked);
      EXPECT_EQ(found.length, expected);
      EXPECT_EQ(found.from_ram, expected);
      EXPECT_EQ(host.wrong(found.seq, prompt), std::nullopt);
      told.push_back({prompt, is_marked});
      if (random.one_in(3)) {  // the same conversation, another turn
        const Tokens more = joined(prompt, random_tokens(random, 1 + random.below(50), 2));
        host.go_on(found, more, is_marked);
        EXPECT_EQ(host.wrong(found.seq, more), std::nullopt);
        if (is_recurrent(GetParam())) told.pop_back();  // its mark was replaced
        told.push_back({more, is_marked});
      }
      if (random.one_in(2)) host.session().drop(found.seq);
    }
  }
}

TEST_P(Reuse, IsTheSameFromTheDiskInANewProcess) {
  const ScratchFolder folder;
  Random random(4);
  std::vector<Told> told;
  for (int i = 0; i < 20; ++i) {
    const auto store = must(Store::open(folder / "store", {.segment_bytes = 1 << 20}));
    Host host(GetParam(), store.get());
    const Tokens prompt = random_prompt(random, told);
    const Pos expected = reusable(GetParam(), told, prompt);
    const bool is_marked = !random.one_in(3);
    Found found = host.tell(prompt, is_marked);
    EXPECT_EQ(found.length, expected);
    EXPECT_EQ(found.from_disk, expected);
    EXPECT_EQ(host.wrong(found.seq, prompt), std::nullopt);
    told.push_back({prompt, is_marked});
    Found again = host.prefixes().find(host.session(), joined(prompt, {1}));
    EXPECT_EQ(again.from_ram, is_marked ? prompt.size() : again.length);
    const FlushVerdict verdict = host.tiers().flush();
    EXPECT_TRUE(verdict.is_durable) << verdict.reason;
    EXPECT_FALSE(host.tiers().take_problem().has_value());
  }
}

TEST_P(Reuse, OfRamCopiesNoPage) {
  Host host(GetParam());
  Random random(5);
  const Tokens tokens = random_tokens(random, 160);
  Found cold = host.tell(tokens);
  const uint64_t pages = host.memory().use().live_pages;
  const Found warm = host.prefixes().find(host.session(), joined(tokens, {0}));
  EXPECT_EQ(warm.length, 160u);
  EXPECT_EQ(host.memory().use().live_pages, pages);
}

INSTANTIATE_TEST_SUITE_P(Models, Reuse, ::testing::ValuesIn(settings()), [](const auto& setting) {
  return setting.param.name;
});

TEST(Prefixes, OfAnotherNamespaceTenantOrModelAreNotFound) {
  const ScratchFolder folder;
  const auto store = must(Store::open(folder / "store"));
  Random random(6);
  const Tokens tokens = random_tokens(random, 100);
  const Setting setting = setting_of("attention");
  Host host(setting, store.get(), {.name_space = "alice", .secret = "a"});
  host.tell(tokens);
  ASSERT_TRUE(host.tiers().flush().is_durable);
  const auto reused = [&](const Setting& other, PrefixOptions options) {
    Host theirs(other, store.get(), std::move(options));
    return theirs.prefixes().find(theirs.session(), tokens).length;
  };
  EXPECT_EQ(reused(setting, {.name_space = "alice", .secret = "a"}), 99u);
  EXPECT_EQ(reused(setting, {.name_space = "bob", .secret = "a"}), 0u);
  EXPECT_EQ(reused(setting, {.name_space = "alice", .secret = "b"}), 0u);
  EXPECT_EQ(reused(setting, {.name_space = "alice", .secret = ""}), 0u);
  EXPECT_EQ(reused(setting_of("window"), {.name_space = "alice", .secret = "a"}), 0u);
  Setting wider = setting;
  wider.slots = {attention({.heads = 2, .head_dim = 64})};
  EXPECT_EQ(reused(wider, {.name_space = "alice", .secret = "a"}), 0u);
  Setting encoded = setting;
  encoded.scheme = "f16";
  EXPECT_EQ(reused(encoded, {.name_space = "alice", .secret = "a"}), 0u);
  Setting pages = setting;
  pages.page_positions = 8;
  EXPECT_EQ(reused(pages, {.name_space = "alice", .secret = "a"}), 0u);
}

TEST(Prefixes, OfADerivedSequenceAreNeverPublished) {
  Host host(setting_of("attention"));
  Setting f16 = setting_of("attention");
  f16.scheme = "f16";
  Host other(f16);
  Random random(7);
  const Tokens tokens = random_tokens(random, 100);
  Found theirs = other.tell(tokens);
  const SeqId derived = must(host.session().adopt(other.session().snapshot(theirs.seq)));
  ASSERT_TRUE(host.session().is_derived(derived));
  Published published;
  host.prefixes().publish(host.session(), derived, tokens, published);
  host.prefixes().mark(host.session(), derived, tokens, published);
  EXPECT_EQ(host.tiers().ram().use().records, 0u);
}

// `after 64`: what is shorter is exact, and of what is longer no exact numbers are left.
TEST(Prefixes, BelowAfterUseTheExactChainAndFromThereOnTheEncodedOne) {
  const Setting setting{"after", {plain()}, "affine4-g32-after64"};
  Random random(8);
  const Tokens tokens = random_tokens(random, 120, 100);
  const auto with_tail = [&](size_t shared) {
    return joined(first(tokens, shared), random_tokens(random, 30, 100));
  };
  {
    Host host(setting);
    Found found = host.prefixes().find(host.session(), tokens);
    compute(host.session(), found.seq, tokens);  // nothing was published on the way
    host.prefixes().mark(host.session(), found.seq, tokens, found.published);
    EXPECT_EQ(host.prefixes().longest(with_tail(40)), 0u);
    EXPECT_EQ(host.prefixes().longest(with_tail(63)), 0u);
    EXPECT_EQ(host.prefixes().longest(with_tail(64)), 64u);
    EXPECT_EQ(host.prefixes().longest(with_tail(90)), 90u);
    EXPECT_EQ(host.prefixes().longest(joined(tokens, {1})), 120u);
  }
  Host host(setting);
  host.tell(tokens);  // the exact pages of the first step were published too
  EXPECT_EQ(host.prefixes().longest(with_tail(40)), 32u);
  for (const auto& [shared, reused] : {std::pair(40, 32), std::pair(90, 90)}) {
    const Tokens prompt = with_tail(static_cast<size_t>(shared));
    Found found = host.prefixes().find(host.session(), prompt);
    EXPECT_EQ(found.length, static_cast<Pos>(reused));
    EXPECT_EQ(host.wrong(found.seq, prompt), std::nullopt);
    host.go_on(found, prompt);
    EXPECT_EQ(host.wrong(found.seq, prompt), std::nullopt);
  }
}

// A prompt that goes on from the middle of an answer of a model with windows.
TEST(Prefixes, C06_C10_ResumeOnlyWhereTheWindowIsWhole) {
  const Setting setting{"window", {plain(), sliding(24, 0, 0)}};
  Host host(setting);
  Random random(9);
  const Tokens tokens = random_tokens(random, 200);
  Found found = host.prefixes().find(host.session(), tokens);
  compute(host.session(), found.seq, tokens);  // published once, at the end: one window is left
  host.prefixes().mark(host.session(), found.seq, tokens, found.published);
  EXPECT_EQ(host.prefixes().longest(joined(first(tokens, 100), {7, 7})), 0u);
  EXPECT_EQ(host.prefixes().longest(joined(tokens, {7})), 200u);
}

TEST(Prefixes, C43_C48_OfAHybridResumeAtMarksOnly) {
  Host host(setting_of("recurrent"));
  Random random(10);
  const Tokens tokens = random_tokens(random, 150);
  Found found = host.prefixes().find(host.session(), tokens);
  compute(host.session(), found.seq, first(tokens, 70));
  host.prefixes().mark(host.session(), found.seq, tokens, found.published, MarkUse::Boundary);
  compute(host.session(), found.seq, tokens);
  host.prefixes().mark(host.session(), found.seq, tokens, found.published);
  EXPECT_EQ(host.prefixes().longest(joined(tokens, {7})), 150u);
  EXPECT_EQ(host.prefixes().longest(tokens), 70u);
  EXPECT_EQ(host.prefixes().longest(joined(first(tokens, 71), {7})), 70u);
  EXPECT_EQ(host.prefixes().longest(first(tokens, 70)), 0u);
  Found middle = host.tell(first(tokens, 120));
  EXPECT_EQ(middle.length, 70u);
  EXPECT_EQ(host.wrong(middle.seq, first(tokens, 120)), std::nullopt);
}

TEST(Prefixes, C49_C51_ANewProcessResumesAHybridAtTheNewestMarkThatFits) {
  const ScratchFolder folder;
  const auto store = must(Store::open(folder / "store"));
  Random random(16);
  const Tokens tokens = random_tokens(random, 100, 50);
  {
    Host host(setting_of("recurrent"), store.get());
    Found found = host.prefixes().find(host.session(), tokens);
    for (const size_t boundary : {32, 64, 96}) {
      compute(host.session(), found.seq, first(tokens, boundary));
      host.prefixes().mark(host.session(), found.seq, tokens, found.published, MarkUse::Boundary);
    }
    host.go_on(found, tokens);
    ASSERT_TRUE(host.tiers().flush().is_durable);
  }
  Host host(setting_of("recurrent"), store.get());
  EXPECT_EQ(host.tell(joined(tokens, random_tokens(random, 5))).length, 100u);
  EXPECT_EQ(host.tell(joined(first(tokens, 70), random_tokens(random, 5, 50))).length, 64u);
  EXPECT_EQ(host.prefixes().longest(first(tokens, 65)), 64u);
  EXPECT_EQ(host.prefixes().longest(first(tokens, 64)), 32u) << "one token is left to compute";
}

TEST(Prefixes, TheNewestMarkOfAConversationReplacesItsOlderOnes) {
  const ScratchFolder folder;
  const auto store = must(Store::open(folder / "store"));
  Host host(setting_of("recurrent"), store.get());
  Random random(11);
  Tokens tokens = random_tokens(random, 50);
  Found found = host.tell(tokens);
  for (int turn = 0; turn < 4; ++turn) {
    tokens = joined(tokens, random_tokens(random, 33));
    host.go_on(found, tokens);
  }
  ASSERT_TRUE(host.tiers().flush().is_durable);
  size_t marks = 0;
  ASSERT_TRUE(store->for_each([&](const StoredRecord& record) {
    marks += record.info.kind == RecordKind::Mark;
    return true;
  }));
  EXPECT_EQ(marks, 1u);
  EXPECT_EQ(host.prefixes().longest(joined(tokens, {1})), tokens.size());
}

// Plans never fail because of what is merely remembered.
// A span's bytes are those of a page, so a page that is laid out otherwise has other names.
TEST(Prefixes, NameSpansByTheirLayout) {
  const auto layouts = [](const std::string& scheme, uint32_t page_positions) {
    Host host({.name = "", .slots = {plain()}, .scheme = scheme, .page_positions = page_positions});
    return PayloadFormat(host.session()).layouts();
  };
  EXPECT_EQ(layouts("turbo-k8v3", 16), layouts("turbo-k8v3", 16));
  EXPECT_NE(layouts("turbo-k8v3", 16), layouts("turbo-k8v3", 32));
  EXPECT_NE(layouts("bf16", 16), layouts("bf16-keep16", 16));
  EXPECT_NE(layouts("affine4-g32", 16), layouts("turbo-k4v4", 16));
}

// Tells 30 conversations of 300 tokens, none of which stays open.
void tell_many(Host& host) {
  Random random(12);
  for (int i = 0; i < 30; ++i) {
    Found found = host.tell(random_tokens(random, 300));
    EXPECT_EQ(host.session().length(found.seq), 300u);
    host.session().drop(found.seq);
  }
}

TEST(Prefixes, GiveTheirPagesBackBeforeAPlanFails) {
  const Setting setting = setting_of("window_sinks");
  const ScratchFolder folder;
  uint64_t bytes = 0, records = 0;
  {
    const auto store = must(Store::open(folder / "ample"));
    Host host(setting, store.get());
    bytes = host.session().peak_bytes_for(300, 32);
    tell_many(host);
    EXPECT_TRUE(host.tiers().flush().is_durable);
    records = must(store->use()).records;
  }
  {
    Host host(setting, nullptr, {}, {}, 3 * bytes);
    tell_many(host);
    EXPECT_GT(host.tiers().ram().use().evicted, 0u);
  }
  const auto store = must(Store::open(folder / "store"));
  Host host(setting, store.get(), {}, {}, 3 * bytes);
  tell_many(host);
  const FlushVerdict verdict = host.tiers().flush();
  EXPECT_EQ(verdict.is_durable, verdict.missing == 0) << verdict.reason;
  EXPECT_EQ(verdict.waiting, 0u);
  // Of those that were dropped, some were being written just then.
  EXPECT_LE(verdict.missing, host.tiers().ram().use().dropped);
  EXPECT_EQ(must(store->use()).records + verdict.missing, records);
}

// A model of which every record is needed for the whole prompt, and one of which those that the
// window has left behind are not.
TEST(Prefixes, WhatIsDamagedOnDiskOnlyShortensReuse) {
  for (const bool is_all_damaged : {false, true}) {
    SCOPED_TRACE(is_all_damaged);
    const ScratchFolder folder;
    Random random(13);
    const Setting setting = setting_of(is_all_damaged ? "window_sinks" : "attention");
    const Tokens tokens = random_tokens(random, 150);
    {
      const auto store = must(Store::open(folder / "store"));
      Host host(setting, store.get());
      host.tell(tokens);
      ASSERT_TRUE(host.tiers().flush().is_durable);
    }
    for (const auto& file : std::filesystem::directory_iterator(folder / "store" + "/segments")) {
      std::string bytes(std::filesystem::file_size(file.path()), '\0');
      std::ifstream(file.path(), std::ios::binary).read(bytes.data(), std::ssize(bytes));
      if (is_all_damaged) {
        for (size_t block = 0; block < bytes.size(); block += kDirectAlignment) bytes[block] ^= 4;
      } else {
        bytes[bytes.size() / 2] ^= 4;
      }
      std::ofstream(file.path(), std::ios::binary).write(bytes.data(), std::ssize(bytes));
    }
    const auto store = must(Store::open(folder / "store"));
    Host host(setting, store.get());
    Found found = host.tell(joined(tokens, {1}));
    if (is_all_damaged) {
      EXPECT_EQ(found.length, 0u);
      EXPECT_GE(must(store->use()).set_aside, 1u);
    } else {
      EXPECT_LT(found.length, 150u);
      EXPECT_EQ(must(store->use()).set_aside, 1u);
    }
    EXPECT_EQ(host.wrong(found.seq, joined(tokens, {1})), std::nullopt);
    EXPECT_TRUE(host.tiers().take_problem().has_value());
  }
}

// Where a name is right and the tokens are not (a hash that collides, a row that lies), nothing is
// reused.
TEST(Prefixes, ANameThatLiesIsNoHit) {
  const ScratchFolder folder;
  Random random(17);
  const Tokens tokens = random_tokens(random, 64);
  const Setting setting = setting_of("attention");
  const auto honest = must(Store::open(folder / "honest"));
  const auto lying = must(Store::open(folder / "lying"));
  {
    Host host(setting, honest.get());
    host.tell(tokens);
    ASSERT_TRUE(host.tiers().flush().is_durable);
  }
  std::vector<StoredRecord> stored;
  must(honest->for_each([&](const StoredRecord& record) {
    stored.push_back(record);
    return true;
  }));
  AlignedBuffer buffer;
  for (StoredRecord& record : stored) {
    const auto payload = must(honest->read(record, buffer));
    if (!record.info.tokens.empty()) record.info.tokens[5] += 1;
    must(lying->write(
        std::vector{NewRecord{.info = record.info, .fill = [&](std::span<std::byte> out) {
                                std::ranges::copy(payload, out.begin());
                              }}}));
  }
  Host host(setting, lying.get());
  Found found = host.tell(joined(tokens, {1}));
  EXPECT_EQ(found.length, 0u);
  EXPECT_EQ(host.wrong(found.seq, joined(tokens, {1})), std::nullopt);
}

TEST(Prefixes, ArePinnedByAPrefetch) {
  const ScratchFolder folder;
  Random random(14);
  const Tokens tokens = random_tokens(random, 160);
  const Setting setting = setting_of("attention");
  const auto store = must(Store::open(folder / "store"));
  {
    Host host(setting, store.get());
    host.tell(tokens);
    ASSERT_TRUE(host.tiers().flush().is_durable);
  }
  Host host(setting, store.get(), {}, {.ram_bytes = 0});
  auto pin = std::async(std::launch::async, [&] { return host.prefixes().prefetch(tokens); }).get();
  EXPECT_EQ(pin.length, 159u);
  EXPECT_EQ(host.tiers().ram().reclaim(UINT64_MAX), 0u);
  pin = {};
}

struct Answer {
  Tokens tokens;
  MarkNotes notes{.pending = 7, .attachments = {{"sampler", {std::byte{1}, std::byte{2}}}}};
};

TEST(Generations, GoOnAfterARestartUntilTheyAreFinished) {
  const ScratchFolder folder;
  Random random(15);
  for (const Setting& setting : settings()) {
    SCOPED_TRACE(setting.name);
    const auto store = must(Store::open(folder / setting.name));
    const Digest name = sha256("request");
    Answer answer{.tokens = random_tokens(random, 90)};
    {
      Host host(setting, store.get());
      Found found = host.prefixes().find(host.session(), answer.tokens);
      for (const size_t length : {60, 75, 90}) {
        host.go_on(found, first(answer.tokens, length), false);
        host.prefixes().save_generation(host.session(), found.seq, answer.tokens, found.published,
                                        name, answer.notes);
      }
      ASSERT_TRUE(host.tiers().flush().is_durable);
      EXPECT_EQ(host.prefixes().longest(joined(answer.tokens, {1})) % setting.page_positions, 0u)
          << "a generation is not found by its tokens";
    }
    Host host(setting, store.get());
    auto generation = host.prefixes().find_generation(host.session(), name);
    ASSERT_TRUE(generation.has_value());
    EXPECT_EQ(generation->tokens, answer.tokens);
    EXPECT_EQ(generation->notes, answer.notes);
    EXPECT_EQ(generation->found.length, 90u);
    EXPECT_EQ(host.wrong(generation->found.seq, answer.tokens), std::nullopt);
    EXPECT_FALSE(host.prefixes().find_generation(host.session(), sha256("other")).has_value());

    host.prefixes().finish_generation(name);
    EXPECT_FALSE(host.prefixes().find_generation(host.session(), name).has_value());
    ASSERT_TRUE(host.tiers().flush().is_durable);
    EXPECT_FALSE(host.prefixes().find_generation(host.session(), name).has_value());
    Host later(setting, store.get());
    EXPECT_FALSE(later.prefixes().find_generation(later.session(), name).has_value());
  }
}

TEST(Objects, AreFoundByTheirExactName) {
  const ScratchFolder folder;
  const auto store = must(Store::open(folder / "store"));
  const std::vector<Attachment> tensors = {{"image", {std::byte{3}}}, {"empty", {}}};
  const Setting setting = setting_of("attention");
  {
    Host host(setting, store.get());
    host.prefixes().put_object("cat.png", tensors);
    EXPECT_EQ(host.prefixes().find_object("cat.png"), tensors);
    ASSERT_TRUE(host.tiers().flush().is_durable);
  }
  Host host(setting, store.get());
  EXPECT_EQ(host.prefixes().find_object("cat.png"), tensors);
  EXPECT_EQ(host.prefixes().find_object("dog.png"), std::nullopt);
}

}  // namespace
}  // namespace cairn
