// cairn run --store, and cairn store: what users and scripts see of a folder that remembers.
#include "cairn/store/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <algorithm>

#include "tests/apps/program.h"
#include "tests/apps/tiny_chat_model.h"

namespace cairn::testing {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

constexpr int kSpan = 64;  // positions

const Words kVerbs{"stat", "ls", "verify", "gc", "rm", "flush", "rebuild"};

// A token each, unlike any other text's from the first one on.
std::string letters(size_t count, char first) {
  std::string text(1, first);
  for (uint64_t i = 1; i < count; ++i)
    text += static_cast<char>('a' + scatter(scatter(static_cast<uint64_t>(first)) + i) % 26);
  return text;
}

// One line on stderr that begins with the program's name.
void expect_error(const Ran& ran, int code, const std::string& part) {
  EXPECT_EQ(ran.code, code) << ran.err;
  EXPECT_THAT(ran.err, AllOf(StartsWith("cairn: "), HasSubstr(part)));
  EXPECT_EQ(std::ranges::count(ran.err, '\n'), 1) << ran.err;
  EXPECT_EQ(ran.out, "");
}

class StoreFolder : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    models_ = new ScratchFolder;
    write_tiny_chat_model(model(), 1);
  }
  static void TearDownTestSuite() { delete models_; }

  static std::string model() { return *models_ / "tiny.gguf"; }
  std::string folder() const { return folder_ / "cache"; }
  std::string index() const { return folder() + "/index.sqlite"; }
  std::vector<std::string> segments() const {
    std::vector<std::string> paths;
    for (const auto& entry : fs::directory_iterator(folder() + "/segments"))
      paths.push_back(entry.path());
    return paths;
  }

  static Words words(const std::string& text, const Words& more) {
    Words words{"run", model(), "-p", text, "--threads", "1"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  Words with_store(const std::string& text, Words more) const {
    more.insert(more.end(), {"--store", folder()});
    return words(text, more);
  }
  Ran answer(const std::string& text, const Words& more = {"-n", "4"}) const {
    return run_cairn(with_store(text, more));
  }
  json answer_json(const std::string& text, Words more = {"-n", "4"}) const {
    more.push_back("--json");
    const Ran ran = answer(text, more);
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_EQ(ran.err, "");
    return ran.json();
  }
  // Without the store.
  static json cold(const std::string& text, Words more = {"-n", "4"}) {
    more.push_back("--json");
    return run_cairn(words(text, more)).json();
  }

  // cairn store VERB DIR ...
  Ran store(const std::string& verb, const Words& more = {}) const {
    Words words{"store", verb, folder()};
    words.insert(words.end(), more.begin(), more.end());
    return run_cairn(words);
  }
  json store_json(const std::string& verb, Words more = {}) const {
    more.push_back("--json");
    const Ran ran = store(verb, more);
    EXPECT_EQ(ran.code, 0) << ran.err;
    return ran.json();
  }
  // As a host of the library would, bytes of its own.
  void write_record(const RecordInfo& info) const {
    const auto store = Store::open(folder());
    ASSERT_TRUE(store) << store.error().message;
    const NewRecord record{.info = info, .fill = [](std::span<std::byte> out) {
                             std::ranges::fill(out, std::byte{7});
                           }};
    ASSERT_TRUE((*store)->write(std::span(&record, 1)));
  }
  static Digest digest(const std::string& first_digits) {
    return *parse_digest(first_digits + std::string(64 - first_digits.size(), '5'));
  }

  // In every 4 KiB of every segment that hold anything, but for the headers' names.
  void damage_every_payload() const {
    for (const std::string& path : segments()) {
      std::string bytes = read_file(path);
      for (size_t block = 0; block + 4096 <= bytes.size(); block += 4096)
        if (!bytes.substr(block).starts_with("cairnrec")) bytes[block + 100] ^= 0x10;
      write_file(path, bytes);
    }
  }

  ScratchFolder folder_;

 private:
  static ScratchFolder* models_;
};
ScratchFolder* StoreFolder::models_ = nullptr;

// --- cairn store ls ---

TEST_F(StoreFolder, LsShowsConversationsMostRecentlyUsedFirst) {
  const std::string one = letters(150, 'A'), two = letters(100, 'B');
  answer_json(one);
  answer_json(two);
  const json listed = store_json("ls");
  ASSERT_EQ(listed.size(), 2u);
  EXPECT_EQ(listed[0]["first_words"], two.substr(0, 64));
  EXPECT_EQ(listed[1]["first_words"], one.substr(0, 64));
  EXPECT_EQ(listed[1]["tokens"], 150 + 4);
  EXPECT_EQ(listed[1]["kind"], "conversation");
  EXPECT_EQ(listed[1]["model"], model());
  EXPECT_EQ(listed[1]["namespace"], "");
  EXPECT_EQ(listed[1]["shared_bytes"], 0);
  EXPECT_GT(listed[1]["bytes"], 150 * 2 * 2 * 2 * 16 * 2);
  EXPECT_LT(listed[1]["age_s"], 3600);

  answer_json(one);
  EXPECT_EQ(store_json("ls")[0]["first_words"], one.substr(0, 64));
  const Ran table = store("ls");
  EXPECT_THAT(table.out, AllOf(HasSubstr(one.substr(0, 36)), HasSubstr("conversation"),
                               HasSubstr("tiny"), ContainsRegex(" s ago +154 ")));
  const Ran newest = store("ls", {"--limit", "1"});
  EXPECT_THAT(newest.out, AllOf(HasSubstr(one.substr(0, 36)), Not(HasSubstr(two.substr(0, 20))),
                                HasSubstr("1 older")));
}

TEST_F(StoreFolder, LsKnowsTheModelOfAConversationShorterThanASpan) {
  answer_json("short one");
  const json listed = store_json("ls");
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_EQ(listed[0]["model"], model());
  EXPECT_EQ(std::string(listed[0]["first_words"]).substr(0, 9), "short one");
}

TEST_F(StoreFolder, LsShowsAConversationThatGrowsAsOne) {
  std::string text;
  for (int turn = 0; turn < 5; ++turn) {
    text += letters(40, static_cast<char>('A' + turn));
    answer_json(text, {"-n", "0"});
    const json listed = store_json("ls");
    EXPECT_EQ(listed.size(), 1u);
    EXPECT_EQ(listed[0]["tokens"], text.size());
  }
}

TEST_F(StoreFolder, LsShowsControlCharactersOfATextAsSuch) {
  answer_json("bell \a and \x1b[31mred\nnext\tline", {"-n", "0"});
  const Ran table = store("ls");
  EXPECT_THAT(table.out, HasSubstr("bell \\x07 and \\x1b[31mred next line"));
  EXPECT_EQ(std::ranges::count(table.out, '\n'), 2);
}

TEST_F(StoreFolder, LsShowsTokenIdsWhereNoInstalledModelKnowsThem) {
  const std::string gone = folder_ / "gone.gguf";
  fs::copy_file(model(), gone);
  ASSERT_EQ(run_cairn({"run", gone, "-p", "AB", "-n", "0", "--store", folder()}).code, 0);
  EXPECT_EQ(store_json("ls")[0]["first_words"], "AB");
  fs::remove(gone);
  const json entry = store_json("ls")[0];
  EXPECT_FALSE(entry.contains("first_words"));
  EXPECT_EQ(entry["first_tokens"], json({65, 66}));
  EXPECT_THAT(store("ls").out, HasSubstr("tokens 65 66"));
}

TEST_F(StoreFolder, LsShowsObjectsAndWhatLostItsBeginning) {
  write_record({.key = {digest("aa"), 0}, .kind = RecordKind::Object, .payload_bytes = 5000});
  const std::vector<int32_t> tokens(kSpan, 9);
  write_record({.key = {digest("bb"), 0},
                .kind = RecordKind::Span,
                .parent = digest("cc"),
                .tokens = tokens,
                .length = 2 * kSpan,
                .payload_bytes = 10});
  write_record({.key = {digest("bb"), 1},
                .kind = RecordKind::Span,
                .parent = digest("cc"),
                .tokens = tokens,
                .length = 2 * kSpan,
                .payload_bytes = 10});
  const json listed = store_json("ls");
  ASSERT_EQ(listed.size(), 2u);
  EXPECT_EQ(listed[0]["kind"], "conversation");
  EXPECT_EQ(listed[0]["has_beginning"], false);
  EXPECT_EQ(listed[0]["tokens"], 2 * kSpan);
  EXPECT_EQ(listed[0]["bytes"], 2 * 2 * 4096);  // both parts
  EXPECT_EQ(listed[1]["kind"], "object");
  EXPECT_EQ(listed[1]["bytes"], 3 * 4096);
  EXPECT_THAT(store("ls").out, HasSubstr("... tokens 9 9 9"));
  EXPECT_EQ(store_json("rm", {listed[0]["name"]})["given_back_bytes"], 2 * 2 * 4096);
  EXPECT_EQ(store_json("stat")["records"], 1);
}

// --- cairn store rm ---

TEST_F(StoreFolder, RmLeavesWhatOtherConversationsShare) {
  const std::string shared = letters(2 * kSpan, 'A');
  const std::string one = shared + letters(100, 'x'), two = shared + letters(100, 'y');
  answer_json(one);
  answer_json(two);
  const json listed = store_json("ls");
  ASSERT_EQ(listed.size(), 2u);
  for (const json& entry : listed) {
    EXPECT_GT(entry["shared_bytes"], 2 * kSpan * 2 * 2 * 2 * 16 * 2);
    EXPECT_LT(entry["shared_bytes"], entry["bytes"]);
  }
  const uint64_t own =
      listed[0]["bytes"].get<uint64_t>() - listed[0]["shared_bytes"].get<uint64_t>();
  const json removed = store_json("rm", {listed[0]["short_name"]});
  EXPECT_EQ(removed["removed"], 1);
  EXPECT_EQ(removed["given_back_bytes"], own);

  const json left = store_json("ls");
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0]["name"], listed[1]["name"]);
  EXPECT_EQ(left[0]["shared_bytes"], 0);
  EXPECT_EQ(answer_json(one)["reused"], one.size() - 1);
  EXPECT_EQ(answer_json(two, {"-n", "0"})["reused"], 2 * kSpan);
  EXPECT_EQ(store("verify").code, 0);
}

TEST_F(StoreFolder, RmOfAllConversationsOfAPrefixTakesThePrefixToo) {
  const std::string shared = letters(2 * kSpan, 'A');
  answer_json(shared + "x");
  answer_json(shared + "y");
  answer_json(letters(70, 'C'));
  const json listed = store_json("ls");
  EXPECT_EQ(store_json("rm", {listed[1]["name"], listed[2]["short_name"]})["removed"], 2);
  EXPECT_EQ(store_json("ls").size(), 1u);
  EXPECT_EQ(answer_json(shared)["reused"], 0);
}

TEST_F(StoreFolder, RmTakesANamespaceOrAll) {
  const std::string text = letters(100, 'A');
  for (const char* name_space : {"alice", "bob"})
    answer_json(text, {"-n", "1", "--namespace", name_space});
  answer_json(text);
  EXPECT_EQ(store_json("rm", {"--namespace", "alice"})["removed"], 1);
  EXPECT_EQ(answer_json(text, {"-n", "0", "--namespace", "alice"})["reused"], 0);
  EXPECT_GT(answer_json(text, {"-n", "0", "--namespace", "bob"})["reused"], 0);
  EXPECT_GT(answer_json(text, {"-n", "0"})["reused"], 0);

  EXPECT_EQ(store_json("rm", {"--all"})["removed"], 3);
  EXPECT_EQ(store_json("ls"), json::array());
  const json use = store_json("stat");
  EXPECT_EQ(use["records"], 0);
  EXPECT_EQ(use["allocated_bytes"], 0);
}

TEST_F(StoreFolder, RmRefusesDigitsThatSeveralNamesBeginWith) {
  for (const char* name : {"0123456789aa", "0123456789ab", "f"})
    write_record({.key = {digest(name), 0}, .kind = RecordKind::Object, .payload_bytes = 10});
  for (const json& entry : store_json("ls"))
    EXPECT_EQ(std::string(entry["short_name"]).size(), 12u);  // as many as tell all apart
  expect_error(store("rm", {"0123456789a"}), 2, "2 names");
  EXPECT_EQ(store_json("stat")["records"], 3);
  EXPECT_EQ(store_json("rm", {"0123456789aa", "f555"})["removed"], 2);
  EXPECT_EQ(store_json("ls")[0]["name"], hex(digest("0123456789ab")));
}

TEST_F(StoreFolder, RmRefusesWhatIsNotClear) {
  for (char c = 'a'; c < 'e'; ++c) answer_json(letters(70, c), {"-n", "0"});
  const json before = store_json("ls");
  expect_error(store("rm"), 2, "--all");
  expect_error(store("rm", {"--all", "--namespace", "x"}), 2, "either");
  expect_error(store("rm", {before[0]["short_name"], "--all"}), 2, "either");
  expect_error(store("rm", {"0000000000"}), 2, "cairn store ls");
  expect_error(store("rm", {std::string(before[0]["name"]).substr(0, 3)}), 2, "at least 4");
  expect_error(store("rm", {"not a name"}), 2, "not a name");
  expect_error(store("rm", {before[0]["short_name"], "0000000000"}), 2, "0000000000");
  EXPECT_EQ(store_json("ls").size(), before.size());
}

// --- the other commands ---

TEST_F(StoreFolder, StatCountsWhatIsThere) {
  answer_json(letters(150, 'A'));
  answer_json(letters(100, 'B'));
  const json use = store_json("stat");
  EXPECT_EQ(use["conversations"], 2);
  EXPECT_EQ(use["kinds"]["spans"]["records"], 2 + 1);
  EXPECT_EQ(use["kinds"]["marks"]["records"], 2);
  EXPECT_EQ(use["kinds"]["objects"]["records"], 1);
  EXPECT_EQ(use["records"], 6);
  uint64_t bytes = 0;
  for (const json& kind : use["kinds"]) bytes += kind["bytes"].get<uint64_t>();
  EXPECT_EQ(use["bytes"], bytes);
  EXPECT_EQ(use["set_aside"], 0);
  EXPECT_THAT(store("stat").out, AllOf(ContainsRegex("conversations +2"), HasSubstr("on disk")));
}

TEST_F(StoreFolder, VerifyNamesWhatIsDamagedAndSetsItAside) {
  answer_json(letters(150, 'A'));
  const Ran sound = store("verify");
  EXPECT_EQ(sound.code, 0) << sound.err;
  EXPECT_THAT(sound.out, HasSubstr("sound, 4 records"));

  damage_every_payload();
  const Ran damaged = store("verify", {"--json"});
  EXPECT_EQ(damaged.code, 4);
  const json report = damaged.json();
  EXPECT_EQ(report["is_sound"], false);
  EXPECT_EQ(report["damage"].size(), 4u);
  EXPECT_THAT(std::string(report["damage"][0]), HasSubstr(".segment"));
  EXPECT_EQ(store("verify").code, 0);
  EXPECT_EQ(store_json("stat")["set_aside"], 4);
  EXPECT_EQ(store_json("ls"), json::array());
}

TEST_F(StoreFolder, GcEvictsToTheBudget) {
  for (char c = 'a'; c < 'i'; ++c) answer_json(letters(150, c));
  const uint64_t before = store_json("stat")["bytes"];
  const json kept = store_json("gc");
  EXPECT_EQ(kept["evicted_records"], 0);
  EXPECT_EQ(kept["bytes"], before);
  const json evicted = store_json("gc", {"--store-bytes", "100kb"});
  EXPECT_GT(evicted["evicted_records"], 0);
  EXPECT_LE(evicted["bytes"], 100 * 1024);
  EXPECT_GT(evicted["given_back_bytes"], 0);
  EXPECT_EQ(store_json("stat")["bytes"], evicted["bytes"]);
  EXPECT_EQ(answer_json(letters(150, 'h'))["reused"], 149);  // the newest stayed
  EXPECT_EQ(store("verify").code, 0);
}

TEST_F(StoreFolder, FlushSaysWhatIsSafe) {
  answer_json(letters(150, 'A'));
  EXPECT_EQ(store_json("flush")["records"], 4);
  EXPECT_THAT(store("flush").out, HasSubstr("survive a power cut"));
}

TEST_F(StoreFolder, RebuildMakesALostIndexAnew) {
  const std::string text = letters(150, 'A');
  answer_json(text);
  const json listed = store_json("ls");
  for (const char* file : {"", "-wal", "-shm"}) fs::remove(index() + file);
  for (const std::string& verb : kVerbs)
    if (verb != "rebuild")
      expect_error(store(verb, verb == "rm" ? Words{"--all"} : Words{}), 2, "cairn store rebuild");
  EXPECT_FALSE(fs::exists(index()));

  EXPECT_EQ(store_json("rebuild")["records"], 4);
  EXPECT_EQ(store_json("ls")[0]["name"], listed[0]["name"]);
  EXPECT_EQ(answer_json(text)["reused_from_disk"], 149);
}

TEST_F(StoreFolder, RebuildRefusesAStoreInUse) {
  answer_json(letters(100, 'A'));
  Process chat({"run", model(), "--chat", "-n", "3000", "--store", folder()}, "hello\n");
  ASSERT_TRUE(chat.wait_for_output());
  ASSERT_TRUE(wait_for_unfinished_answers(chat, folder()));
  expect_error(store("rebuild"), 2, "in use");
  EXPECT_GT(store_json("stat")["records"], 0);
}

TEST_F(StoreFolder, AFolderThatIsNoStoreIsLeftAlone) {
  fs::create_directory(folder_ / "empty");
  write_file(folder_ / "file", "x");
  for (const std::string& verb : kVerbs)
    for (const char* place : {"absent", "empty", "file"}) {
      SCOPED_TRACE(verb + " " + place);
      Words words{"store", verb, folder_ / place};
      if (verb == "rm") words.push_back("--all");
      expect_error(run_cairn(words), 2, "cairn run --store");
    }
  EXPECT_FALSE(fs::exists(folder_ / "absent"));
  EXPECT_TRUE(fs::is_empty(folder_ / "empty"));
}

TEST_F(StoreFolder, WrongUseIsSaidInOneLine) {
  expect_error(run_cairn({"store"}), 2, "cairn store --help");
  expect_error(run_cairn({"store", "walk"}), 2, "--help");
  expect_error(run_cairn({"store", "ls"}), 2, "cairn store ls --help");
  answer_json("x");
  expect_error(store("ls", {"--limit", "0"}), 2, "--limit");
  expect_error(store("gc", {"--store-bytes", "much"}), 2, "--store-bytes");
}

TEST_F(StoreFolder, EveryCommandTeachesWithExamples) {
  EXPECT_THAT(run_cairn({"--help"}).out, HasSubstr("cairn store ls"));
  for (const std::string& verb : kVerbs) {
    const Ran help = run_cairn({"store", verb, "--help"});
    EXPECT_EQ(help.code, 0);
    EXPECT_THAT(help.out, AllOf(HasSubstr("cairn store " + verb + " cache"), HasSubstr("--json")));
  }
}

// --- cairn run --store: what it reuses ---

TEST_F(StoreFolder, AnyLaterRunReusesTheLongestPrefix) {
  const std::string text = letters(200, 'A'), longer = text + letters(50, 'x');
  EXPECT_EQ(answer_json(text)["reused"], 0);
  for (const std::string& prompt : {text, longer, text.substr(0, 100) + letters(30, 'y')}) {
    const json found = answer_json(prompt), alone = cold(prompt);
    EXPECT_EQ(found["tokens"], alone["tokens"]);
    EXPECT_EQ(found["reused"], found["reused_from_disk"]);
    EXPECT_EQ(found["reused_from_ram"], 0);
    EXPECT_EQ(found["reused"].get<int>() + found["computed"].get<int>(), prompt.size());
  }
  EXPECT_EQ(answer_json(longer)["computed"], 1);
  EXPECT_THAT(answer(text, {"-n", "4", "--stats"}).err,
              ContainsRegex("reused +199 +tokens, 199 from disk"));
}

TEST_F(StoreFolder, AChatReusesWhatItHolds) {
  const Words chat{"run", model(), "--chat", "-n", "70"};
  Words stored = chat;
  stored.insert(stored.end(), {"--store", folder(), "--stats"});
  const std::string input = "hello\nand again\n";
  const Ran whole = run_cairn(chat, input), first = run_cairn(stored, input);
  EXPECT_EQ(first.out, whole.out);
  EXPECT_THAT(first.err, HasSubstr(" held already"));
  const Ran second = run_cairn(stored, input);
  EXPECT_EQ(second.out, whole.out);
  EXPECT_THAT(second.err, HasSubstr(" from disk"));
  EXPECT_EQ(store_json("ls").size(), 1u);
}

TEST_F(StoreFolder, AStateFileAndAStoreServeOneRun) {
  const std::string state = folder_ / "a.cairn", text = letters(150, 'A');
  const json alone = cold(text + "more", {"-n", "20"});
  answer_json(text, {"-n", "0"});
  // The store has more of it than the new file.
  const json from_store = answer_json(text + "more", {"-n", "20", "--state", state});
  EXPECT_EQ(from_store["tokens"], alone["tokens"]);
  EXPECT_EQ(from_store["reused_from_disk"], 150);
  EXPECT_EQ(run_cairn({"verify", state}).code, 0);
  // The file has more of it than a new store.
  fs::remove_all(folder());
  const json from_file = answer_json(text + "more", {"-n", "20", "--state", state});
  EXPECT_EQ(from_file["tokens"], alone["tokens"]);
  EXPECT_EQ(from_file["reused"], 153);
  EXPECT_EQ(from_file["reused_from_disk"], 0);
  EXPECT_EQ(answer_json(text + "more", {"-n", "0"})["reused_from_disk"], 153);  // it is there now
}

TEST_F(StoreFolder, ContinuingAStateFileFeedsTheStore) {
  const std::string state = folder_ / "a.cairn", text = letters(100, 'A');
  const json whole = cold(text + "and so", {"-n", "20"});
  run_cairn(words(text, {"-n", "0", "--state", state}));
  const json rest = answer_json("and so", {"-n", "20", "--state", state, "--continue"});
  EXPECT_EQ(rest["tokens"], whole["tokens"]);
  EXPECT_EQ(answer_json(text + "and so", {"-n", "20"})["reused"], text.size() + 5);
  // A chat of two processes by its file, and its words in the store.
  const std::string chat = folder_ / "chat.cairn";
  const Words turn{"run", model(), "--chat", "--state", chat, "--store", folder(), "-n", "30"};
  const Ran both = run_cairn({"run", model(), "--chat", "-n", "30"}, "hello\nagain\n");
  const Ran first = run_cairn(turn, "hello\n"), second = run_cairn(turn, "again\n");
  EXPECT_EQ(first.out + second.out, both.out);
  expect_error(answer("x", {"--continue"}), 2, "--state");
}

TEST_F(StoreFolder, TenantsAndNamespacesShareNothing) {
  const std::string text = letters(150, 'A'), key = folder_ / "key", other = folder_ / "other";
  write_file(key, "one secret");
  write_file(other, "another");
  const std::vector<Words> readers{{"-n", "0"},
                                   {"-n", "0", "--namespace", "alice"},
                                   {"-n", "0", "--tenant-key", key},
                                   {"-n", "0", "--tenant-key", other},
                                   {"-n", "0", "--tenant-key", key, "--namespace", "alice"}};
  for (const Words& reader : readers) EXPECT_EQ(answer_json(text, reader)["reused"], 0);
  for (const Words& reader : readers) EXPECT_EQ(answer_json(text, reader)["reused"], 149);
  EXPECT_EQ(store_json("ls").size(), readers.size());
}

TEST_F(StoreFolder, AKeyThatIsNoneIsRefused) {
  write_file(folder_ / "empty", "");
  expect_error(answer("x", {"--tenant-key", folder_ / "empty"}), 2, "0 bytes");
  expect_error(answer("x", {"--tenant-key", folder_ / "absent"}), 2, "absent");
  expect_error(answer("x", {"--tenant-key", ""}), 2, "--tenant-key");
  expect_error(run_cairn(words("x", {"--tenant-key", folder_ / "absent"})), 2, "--store");
  EXPECT_FALSE(fs::exists(folder()));
}

TEST_F(StoreFolder, ASmallBudgetIsKept) {
  const Words small{"-n", "4", "--store-bytes", "200kb"};
  for (char c = 'a'; c < 'k'; ++c) {
    const json found = answer_json(letters(150, c), small);
    EXPECT_EQ(found["tokens"], cold(letters(150, c))["tokens"]);
    EXPECT_LE(store_json("stat")["bytes"], 200 * 1024);
  }
  EXPECT_EQ(answer_json(letters(150, 'j'), small)["reused"], 149);
  EXPECT_EQ(answer_json(letters(150, 'a'), small)["reused"], 0);
}

TEST_F(StoreFolder, ABudgetTooSmallForAnythingIsSaidOnce) {
  const Ran ran = answer(letters(500, 'A'), {"-n", "100", "--store-bytes", "4kb", "--json"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(std::ranges::count(ran.err, '\n'), 1) << ran.err;
  EXPECT_THAT(ran.err, AllOf(StartsWith("cairn: warning: "), HasSubstr("4096")));
  EXPECT_EQ(ran.json()["tokens"], cold(letters(500, 'A'), {"-n", "100"})["tokens"]);
}

// --- cairn run --store: what goes wrong ---

TEST_F(StoreFolder, APlaceThatCannotBeAStoreIsSaidBeforeAnythingIsComputed) {
  write_file(folder_ / "file", "x");
  const auto at = [](const std::string& place) {
    return run_cairn(words("x", {"--store", place}));
  };
  expect_error(at(folder_ / "file"), 2, "expected a folder");
  expect_error(at(folder_ / "file/below"), 2, "file/below");
  expect_error(at(folder_ / "no/such"), 2, "no/such");
  expect_error(at("/proc/cache"), 2, "/proc/cache");
  expect_error(at(""), 2, "--store");
  EXPECT_EQ(read_file(folder_ / "file"), "x");
}

TEST_F(StoreFolder, InterruptedItGoesOnWithTheSameWords) {
  const std::string text = letters(100, 'A');
  for (const Words& sampling : {Words{}, Words{"--temp", "1", "--top-k", "3"}}) {
    for (const int signal : {SIGINT, SIGKILL}) {
      SCOPED_TRACE(signal);
      fs::remove_all(folder());
      Words more{"-n", "2500"};
      more.insert(more.end(), sampling.begin(), sampling.end());
      Process process(with_store(text, more));
      ASSERT_TRUE(process.wait_for_output());
      ASSERT_TRUE(wait_for_unfinished_answers(process, folder()));
      EXPECT_EQ(store_json("ls")[0]["kind"], "unfinished answer");
      process.send(signal);
      const Ran ran = process.wait();
      EXPECT_EQ(ran.code, signal == SIGINT ? 130 : -SIGKILL) << ran.err;

      const json rest = answer_json(text, more), whole = cold(text, more);
      EXPECT_GE(rest["resumed"], 32);
      EXPECT_EQ(rest["tokens"], whole["tokens"]);
      EXPECT_EQ(rest["text"], whole["text"]);
      EXPECT_EQ(rest["reused"].get<int>() + rest["computed"].get<int>(),
                text.size() + rest["resumed"].get<size_t>());
      EXPECT_EQ(store_json("stat")["unfinished_answers"], 0);
      EXPECT_EQ(answer_json(text, more)["resumed"], 0);
      EXPECT_EQ(store("verify").code, 0);
    }
  }
}

TEST_F(StoreFolder, AnotherRequestDoesNotGoOnWithAnInterruptedAnswer) {
  const std::string text = letters(100, 'A');
  Process process(with_store(text, {"-n", "3000"}));
  ASSERT_TRUE(process.wait_for_output());
  ASSERT_TRUE(wait_for_unfinished_answers(process, folder()));
  process.send(SIGKILL);
  ASSERT_EQ(process.wait().code, -SIGKILL);
  for (const Words& other : {Words{"-n", "50"}, Words{"-n", "50", "--temp", "1", "--seed", "5"}}) {
    const json answered = answer_json(text, other);
    EXPECT_EQ(answered["resumed"], 0);
    EXPECT_EQ(answered["tokens"], cold(text, other)["tokens"]);
  }
  EXPECT_EQ(store_json("stat")["unfinished_answers"], 1);
}

TEST_F(StoreFolder, ManyProcessesShareOneStore) {
  const std::string shared = letters(150, 'A');
  std::vector<std::string> prompts;
  for (char c = 'a'; c < 'e'; ++c) prompts.push_back(shared + letters(60, c));
  prompts.push_back(prompts[0]);  // twice the same
  std::vector<std::unique_ptr<Process>> processes;
  for (const std::string& prompt : prompts)
    processes.push_back(std::make_unique<Process>(with_store(prompt, {"-n", "100", "--json"})));
  for (size_t i = 0; i < prompts.size(); ++i) {
    const Ran ran = processes[i]->wait();
    EXPECT_EQ(ran.code, 0);
    EXPECT_EQ(ran.err, "");
    EXPECT_EQ(ran.json()["tokens"], cold(prompts[i], {"-n", "100"})["tokens"]);
  }
  EXPECT_EQ(store("verify").code, 0);
  EXPECT_EQ(store_json("ls").size(), 4u);
  for (const std::string& prompt : prompts) EXPECT_EQ(answer_json(prompt)["computed"], 1);
}

TEST_F(StoreFolder, DamagedRecordsAreSaidAndComputedAnew) {
  const std::string text = letters(300, 'A');
  answer_json(text);
  damage_every_payload();
  const Ran ran = answer(text, {"-n", "4", "--json"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.json()["tokens"], cold(text)["tokens"]);
  EXPECT_EQ(ran.json()["reused"], 0);
  EXPECT_EQ(std::ranges::count(ran.err, '\n'), 1) << ran.err;
  EXPECT_THAT(ran.err, AllOf(StartsWith("cairn: warning: "), HasSubstr("damaged"),
                             HasSubstr("cairn store verify")));
  // It found what it ran into; all of it is computed anew once it is known.
  EXPECT_EQ(store("verify").code, 4);
  answer_json(text);
  EXPECT_EQ(answer_json(text)["reused"], 299);
}

TEST_F(StoreFolder, ADamagedIndexIsSaidAndDoneWithout) {
  const std::string text = letters(150, 'A');
  answer_json(text);
  for (const char* file : {"-wal", "-shm"}) fs::remove(index() + file);
  std::string bytes = read_file(index());
  bytes.replace(0, 100, 100, 'x');
  write_file(index(), bytes);
  const Ran ran = answer(text, {"-n", "4", "--json"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.json()["tokens"], cold(text)["tokens"]);
  EXPECT_EQ(std::ranges::count(ran.err, '\n'), 1) << ran.err;
  EXPECT_THAT(ran.err, AllOf(StartsWith("cairn: warning: "), HasSubstr("cairn store rebuild")));
  expect_error(store("ls"), 4, "cairn store rebuild");

  EXPECT_EQ(store_json("rebuild")["records"], 4);
  EXPECT_EQ(answer_json(text)["reused"], 149);
}

// A file system of its own with little room.
class SmallDisk {
 public:
  explicit SmallDisk(const std::string& bytes)
      : is_mounted_(
            mount("cairn-test", folder_.path().c_str(), "tmpfs", 0, ("size=" + bytes).c_str()) ==
            0) {}
  ~SmallDisk() {
    if (is_mounted_) umount2(folder_.path().c_str(), MNT_DETACH);
  }
  bool is_mounted() const { return is_mounted_; }
  std::string operator/(const std::string& name) const { return folder_ / name; }

 private:
  ScratchFolder folder_;
  bool is_mounted_;
};

TEST_F(StoreFolder, AFullDiskIsSaidOnceAndTheAnswerIsUnharmed) {
  const SmallDisk disk("4m");
  if (!disk.is_mounted()) GTEST_SKIP() << "this process may not mount a file system";
  const std::string text = letters(3000, 'A');
  const Words more{"-n", "200", "--json", "--store", disk / "cache"};
  const json alone = cold(text, {"-n", "200"});

  const auto fill = [&](const std::string& name) {
    write_file(disk / name, std::string(5 << 20, 'x'));
  };
  fill("other");  // not even an index
  const Ran none = run_cairn(words(text, more));
  EXPECT_EQ(none.code, 0);
  EXPECT_EQ(std::ranges::count(none.err, '\n'), 1) << none.err;
  EXPECT_EQ(none.json()["tokens"], alone["tokens"]);

  write_file(disk / "other", std::string(3'500'000, 'x'));  // not enough for the segments
  const Ran full = run_cairn(words(text, more));
  EXPECT_EQ(full.code, 0);
  EXPECT_EQ(std::ranges::count(full.err, '\n'), 1) << full.err;
  EXPECT_THAT(full.err, AllOf(StartsWith("cairn: warning: "), ContainsRegex("No space|is full")));
  EXPECT_EQ(full.json()["tokens"], alone["tokens"]);
  EXPECT_EQ(run_cairn({"store", "verify", disk / "cache"}).code, 0);

  fs::remove(disk / "other");
  const Ran again = run_cairn(words(text, more));
  EXPECT_EQ(again.err, "");
  EXPECT_EQ(again.json()["tokens"], alone["tokens"]);
  EXPECT_EQ(run_cairn(words(text, more)).json()["computed"], 1);
}

}  // namespace
}  // namespace cairn::testing
