#include "cairn/engine/prefix.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <future>

#include "tests/support/scratch_folder.h"
#include "tests/support/token_state.h"

namespace cairn {
namespace {

using namespace cairn::testing;

ModelSpec spec_of(std::vector<SlotSpec> slots) {
  ModelSpec spec;
  spec.identity = sha256("prefixes");
  spec.arithmetic = "test";
  spec.slots = std::move(slots);
  return spec;
}

SlotSpec plain() { return attention({.heads = 2, .head_dim = 32}); }
SlotSpec sliding(Pos width, Pos sinks, Pos rewind) {
  return window({.heads = 1, .head_dim = 32, .window = width, .sinks = sinks, .rewind = rewind});
}
SlotSpec fixed() {
  return recurrent({{.family = &kConvFamily, .heads = 3, .width = 8},
                    {.family = &kRecurrentFamily, .heads = 2, .width = 16}});
}

struct Setting {
  std::string name;
  std::vector<SlotSpec> slots;
  std::string scheme = "f32";
  uint32_t page_positions = 16;
};

std::vector<Setting> settings() {
  return {{"attention", {plain()}},
          {"attention_f16_small_pages", {plain()}, "f16", 4},
          {"attention_affine", {plain()}, "affine4-g32"},
          {"attention_keep", {plain()}, "affine8-g32-keep64"},
          {"window", {plain(), sliding(24, 0, 32)}},
          {"window_sinks", {sliding(20, 5, 40), plain()}},
          {"windows_only", {sliding(40, 3, 32), sliding(24, 0, 32)}},
          {"latent", {latent({.latent_dim = 32, .rope_dim = 32, .index_dim = 32}), plain()}},
          {"recurrent", {fixed(), plain(), fixed()}},
          {"recurrent_only", {fixed()}},
          {"recurrent_window", {plain(), fixed(), sliding(24, 2, 32)}}};
}

// One process: a memory, a session, tiers over a store that others may share.
class Host {
 public:
  explicit Host(const Setting& setting,
                Store* store = nullptr,
                PrefixOptions options = {},
                TierOptions tiers = {},
                uint64_t max_bytes = uint64_t{1} << 30)
      : memory_({.max_bytes = max_bytes}),
        session_(must(open_session(spec_of(setting.slots),
                                   must(parse_scheme(setting.scheme)),
                                   memory_,
                                   {.page_positions = setting.page_positions}))),
        tiers_(memory_, store, tiers),
        prefixes_(must(Prefixes::make(session_, tiers_, std::move(options)))) {}

  Session& session() { return session_; }
  Memory& memory() { return memory_; }
  Tiers& tiers() { return tiers_; }
  Prefixes& prefixes() { return prefixes_; }

  // A turn: finds, computes the rest, publishes after every step, marks the end.
  Found tell(const Tokens& tokens, bool marks = true) {
    Found found = prefixes_.find(session_, tokens);
    go_on(found, tokens, marks);
    return found;
  }
  void go_on(Found& found, const Tokens& tokens, bool marks = true) {
    compute(session_, found.seq, tokens, 32,
            [&] { prefixes_.publish(session_, found.seq, tokens, found.published); });
    if (marks) prefixes_.mark(session_, found.seq, tokens, found.published);
  }

  // What differs between `seq` and a run that computes everything.
  std::optional<std::string> wrong(SeqId seq, const Tokens& tokens) {
    const SeqId cold = session_.start();
    compute(session_, cold, first(tokens, session_.length(seq)), 1000);
    auto differs = difference(session_, seq, session_, cold);
    session_.drop(cold);
    return differs;
  }

 private:
  Memory memory_;
  Session session_;
  Tiers tiers_;
  Prefixes prefixes_;
};

// What was told and is remembered, in plain terms: the oracle of how much can be reused.
struct Told {
  Tokens tokens;
  bool is_marked = false;
};

bool is_recurrent(const Setting& setting) { return setting.name.starts_with("recurrent"); }

// The greatest number of tokens that `told` lets a prompt reuse.
Pos reusable(const Setting& setting, const std::vector<Told>& told, const Tokens& prompt) {
  Pos best = 0;
  for (const Told& one : told) {
    const auto common =
        static_cast<Pos>(std::ranges::mismatch(one.tokens, first(prompt, prompt.size() - 1)).in1 -
                         one.tokens.begin());
    const Pos length = one.tokens.size();
    if (is_recurrent(setting)) {
      if (one.is_marked && common == length) best = std::max(best, length);
    } else {
      const Pos covered =
          one.is_marked ? length : length / setting.page_positions * setting.page_positions;
      best = std::max(best, std::min(common, covered));
    }
  }
  return best;
}

// A prompt that begins like an earlier one, as far as chance likes.
Tokens random_prompt(Random& random, const std::vector<Told>& told) {
  Tokens prompt;
  if (!told.empty() && !random.one_in(5)) {
    const Tokens& from = told[random.below(told.size())].tokens;
    prompt = first(from, random.one_in(2) ? from.size() : random.below(from.size() + 1));
  }
  return joined(std::move(prompt), random_tokens(random, 1 + random.below(70), 2));
}

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

Setting setting_of(const std::string& name) {
  for (const Setting& setting : settings())
    if (setting.name == name) return setting;
  throw std::runtime_error(name);
}

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

TEST(Prefixes, C51_TheNewestMarkOfAConversationReplacesItsOlderOnes) {
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
TEST(Prefixes, GiveTheirPagesBackBeforeAPlanFails) {
  const Setting setting = setting_of("window_sinks");
  uint64_t bytes = 0;
  {
    Host host(setting);
    bytes = host.session().peak_bytes_for(300, 32);
  }
  for (const bool has_disk : {false, true}) {
    const ScratchFolder folder;
    const auto store = must(Store::open(folder / "store"));
    Host host(setting, has_disk ? store.get() : nullptr, {}, {}, 3 * bytes);
    Random random(12);
    for (int i = 0; i < 30; ++i) {
      const Tokens tokens = random_tokens(random, 300);
      Found found = host.tell(tokens);
      EXPECT_EQ(host.session().length(found.seq), 300u);
      host.session().drop(found.seq);
    }
    if (!has_disk) continue;
    const FlushVerdict verdict = host.tiers().flush();
    EXPECT_EQ(verdict.is_durable, host.tiers().ram().use().dropped == 0) << verdict.reason;
  }
}

TEST(Prefixes, WhatIsDamagedOnDiskOnlyShortensReuse) {
  const ScratchFolder folder;
  Random random(13);
  const Setting setting = setting_of("window_sinks");
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
    bytes[bytes.size() / 2] ^= 4;
    std::ofstream(file.path(), std::ios::binary).write(bytes.data(), std::ssize(bytes));
  }
  const auto store = must(Store::open(folder / "store"));
  Host host(setting, store.get());
  Found found = host.tell(joined(tokens, {1}));
  EXPECT_LT(found.length, 150u);
  EXPECT_EQ(host.wrong(found.seq, joined(tokens, {1})), std::nullopt);
  EXPECT_TRUE(host.tiers().take_problem().has_value());
  EXPECT_EQ(must(store->use()).set_aside, 1u);
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
