// A long random life of a store: turns, look-ups, evictions, clean and sudden restarts, against a
// plain account of what was ever told.
#ifndef CAIRN_TESTS_ENGINE_SOAK_H_
#define CAIRN_TESTS_ENGINE_SOAK_H_

#include <gtest/gtest.h>

#include <filesystem>
#include <unordered_set>

#include "tests/engine/remembering.h"
#include "tests/support/scratch_folder.h"

namespace cairn::testing {

class Soak {
 public:
  Soak(const Setting& setting, uint64_t seed) : setting_(setting), random_(seed) { restart(); }

  void run(size_t operations) {
    const size_t files = open_files();
    for (size_t i = 0; i < operations && !::testing::Test::HasFatalFailure(); ++i) {
      SCOPED_TRACE(fmt::format("operation {}", i));
      step();
    }
    host_->tiers().flush();
    expect_nothing_leaks(files);
  }

 private:
  static constexpr uint64_t kBudget = uint64_t{6} << 20;
  static constexpr uint64_t kSegment = uint64_t{1} << 20;
  static constexpr uint64_t kLeastRam = 300000;

  void step() {
    const uint64_t dice = random_.below(100);
    if (dice < 70)
      tell();
    else if (dice < 80)
      look_up();
    else if (dice < 86)
      host_->tiers().ram().set_max_bytes(kLeastRam + random_.below(2000000));
    else if (dice < 89)
      host_->tiers().ram().reclaim(random_.below(1000000));
    else if (dice < 91)
      host_->tiers().ram().demote_idle(std::chrono::seconds(0));
    else if (dice < 94)
      must(store_->gc());
    else if (dice < 96)
      expect_flush();
    else
      restart();
  }

  void tell() {
    const Tokens prompt = random_prompt();
    const Pos most = reusable(prompt);
    const bool is_marked = !random_.one_in(4);
    Found found = host_->tell(prompt, is_marked);
    ASSERT_LE(found.length, most);
    ASSERT_EQ(host_->wrong(found.seq, prompt), std::nullopt);
    host_->session().drop(found.seq);
    remember(prompt, is_marked);
    // What was just told is in RAM, whatever the disk does.
    if (is_marked) {
      Tokens more = prompt;
      more.push_back(0);
      ASSERT_EQ(host_->prefixes().longest(more), reusable(more));
    }
  }

  void look_up() {
    const Tokens prompt = random_prompt();
    Found found = host_->prefixes().find(host_->session(), prompt);
    ASSERT_LE(found.length, reusable(prompt));
    ASSERT_EQ(host_->wrong(found.seq, prompt), std::nullopt);
    host_->session().drop(found.seq);
  }

  void expect_flush() {
    const FlushVerdict verdict = host_->tiers().flush();
    ASSERT_TRUE(verdict.is_durable || host_->tiers().ram().use().dropped > 0) << verdict.reason;
    const StoreUse use = must(store_->use());
    ASSERT_LE(use.bytes, kBudget);
    ASSERT_LE(use.allocated_bytes, kBudget + 2 * kSegment);
  }

  // Sometimes with writes on their way, which are lost then.
  void restart() {
    if (host_ && random_.one_in(2)) host_->tiers().flush();
    host_.reset();
    store_.reset();
    store_ =
        must(Store::open(folder_ / "store", {.max_bytes = kBudget, .segment_bytes = kSegment}));
    host_.emplace(setting_, store_.get());
  }

  Tokens random_prompt() {
    Tokens prompt;
    if (!recent_.empty() && !random_.one_in(6)) {
      const Tokens& from = recent_[random_.below(recent_.size())];
      prompt = first(from, random_.one_in(2) ? from.size() : random_.below(from.size() + 1));
    }
    if (prompt.size() > 220) prompt.resize(random_.below(100));
    return joined(std::move(prompt), random_tokens(random_, 1 + random_.below(50), 4));
  }

  // Hashes of what was told: of every prefix, or where a slot is recurrent of what was marked.
  void remember(const Tokens& tokens, bool is_marked) {
    const std::vector<uint64_t> hashes = prefix_hashes(tokens);
    const Pos span = setting_.page_positions;
    if (is_recurrent(setting_)) {
      if (is_marked) told_.insert(hashes.back());
    } else {
      const Pos length = is_marked ? tokens.size() : tokens.size() / span * span;
      told_.insert(hashes.begin(), hashes.begin() + static_cast<ptrdiff_t>(length));
    }
    recent_.push_back(tokens);
    if (recent_.size() > 60) recent_.erase(recent_.begin());
  }

  Pos reusable(const Tokens& prompt) const {
    const std::vector<uint64_t> hashes = prefix_hashes(prompt);
    for (Pos length = prompt.size() - 1; length > 0; --length)
      if (told_.contains(hashes[length - 1])) return length;
    return 0;
  }

  static std::vector<uint64_t> prefix_hashes(const Tokens& tokens) {
    std::vector<uint64_t> hashes;
    uint64_t hash = 1;
    for (const int32_t token : tokens)
      hashes.push_back(hash = scatter(hash ^ scatter(static_cast<uint64_t>(token) + 7)));
    return hashes;
  }

  static size_t open_files() {
    const std::filesystem::directory_iterator files("/proc/self/fd");
    return static_cast<size_t>(std::distance(begin(files), end(files)));
  }

  void expect_nothing_leaks(size_t files) {
    host_->tiers().ram().clear();
    EXPECT_EQ(host_->memory().use().live_pages, 0u);
    EXPECT_EQ(must(store_->verify()).damage.size(), 0u);
    host_.reset();
    store_.reset();
    EXPECT_LE(open_files(), files);
    store_ =
        must(Store::open(folder_ / "store", {.max_bytes = kBudget, .segment_bytes = kSegment}));
    must(store_->gc());
    const StoreUse use = must(store_->use());
    EXPECT_LE(use.allocated_bytes, use.bytes + use.segments * 4096) << "space is lost";
    EXPECT_EQ(use.set_aside, 0u);
  }

  const Setting setting_;
  Random random_;
  ScratchFolder folder_;
  std::unique_ptr<Store> store_;
  std::optional<Host> host_;
  std::unordered_set<uint64_t> told_;
  std::vector<Tokens> recent_;
};

}  // namespace cairn::testing

#endif  // CAIRN_TESTS_ENGINE_SOAK_H_
