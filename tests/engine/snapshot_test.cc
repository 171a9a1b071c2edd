#include "cairn/engine/snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <thread>

#include "cairn/format/safetensors.h"
#include "cairn/io/faulty_fs.h"
#include "cairn/io/memory_fs.h"
#include "tests/support/conversation.h"
#include "tests/support/program.h"
#include "tests/support/sample_checkpoint.h"
#include "tests/support/scratch_folder.h"

namespace cairn::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Pos kLengths[] = {0, 1, 63, 64, 65, 300};
constexpr uint32_t kPageSizes[] = {1, 16, 64};

std::vector<std::string> schemes() {
  std::vector<std::string> texts;
  for (const Encoding* encoding : kEncodings)
    for (std::string_view sample : encoding->samples) texts.emplace_back(sample);
  return texts;
}

class EveryEncoding : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Registered, EveryEncoding, ::testing::ValuesIn(schemes()));

TEST_P(EveryEncoding, LoadsWhatWasSavedByteByByteAndAnyPageSizeReadsAnyFile) {
  for (const Pos length : kLengths) {
    SCOPED_TRACE(::testing::Message() << length << " positions");
    MemoryFs fs;
    const auto tokens = count_tokens(length);
    std::string records;
    for (const uint32_t page_positions : kPageSizes) {
      Conversation writer({.scheme = GetParam(), .page_positions = page_positions});
      const SeqId seq = writer.start(length, 7);
      const std::string path = fmt::format("{}", page_positions);
      must(save(writer.session(), seq, tokens, path, {.fs = &fs}));
      ASSERT_TRUE(file_bytes(fs, path) == file_bytes(fs, "1")) << "pages of " << page_positions;
      records = writer.records(seq);
    }
    for (const uint32_t page_positions : kPageSizes) {
      Conversation reader({.scheme = GetParam(), .page_positions = page_positions});
      const Loaded loaded = must(load(reader.session(), "1", {.fs = &fs}));
      EXPECT_EQ(reader.session().length(loaded.seq), length);
      EXPECT_EQ(loaded.tokens, tokens);
      EXPECT_FALSE(loaded.is_derived);
      EXPECT_EQ(loaded.warning, "");
      ASSERT_TRUE(reader.records(loaded.seq) == records) << "pages of " << page_positions;

      // Built or loaded, the two go on alike.
      Conversation twin({.scheme = GetParam(), .page_positions = page_positions});
      const SeqId seq = twin.start(length, 7);
      twin.append(seq, 30, 8);
      reader.append(loaded.seq, 30, 8);
      ASSERT_TRUE(reader.records(loaded.seq) == twin.records(seq));
      EXPECT_EQ(reader.memory().use().live_bytes, twin.memory().use().live_bytes);
      reader.session().drop(loaded.seq);
      EXPECT_EQ(reader.memory().use().live_pages, 0u);
    }
  }
}

// Every kind of slot under schemes of one form and of two, at lengths around pages, `keep` and
// `after`.
struct KindCase {
  std::string name;
  ModelSpec spec;
  std::string scheme;
};

std::vector<KindCase> kind_cases() {
  std::vector<KindModel> models = kind_models();
  models.push_back({"mixed", mixed_spec()});
  constexpr const char* kSchemes[] = {
      "f16",
      "affine8",
      "affine4-g32",
      "turbo-k8v3",
      "f16-keep64",
      "affine8-after300",
      "affine4-g32-keep100-after200",
  };
  std::vector<KindCase> cases;
  for (const auto& [name, spec] : models)
    for (const std::string scheme : kSchemes)
      if (name != "mixed" || scheme.starts_with("f16"))  // heads of 8 numbers
        cases.push_back({name, spec, scheme});
  return cases;
}

class EveryKind : public ::testing::TestWithParam<KindCase> {
 protected:
  ConversationOptions options(uint32_t page_positions) const {
    return {.spec = GetParam().spec, .scheme = GetParam().scheme, .page_positions = page_positions};
  }
};
INSTANTIATE_TEST_SUITE_P(Kinds,
                         EveryKind,
                         ::testing::ValuesIn(kind_cases()),
                         [](const auto& tested) {
                           std::string name = tested.param.name + "_" + tested.param.scheme;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

constexpr Pos kKindLengths[] = {0, 1, 63, 64, 65, 199, 200, 300, 420};

TEST_P(EveryKind, LoadsWhatWasSavedByteByByteAndResumesWhereItCouldBeCut) {
  for (const Pos length : kKindLengths) {
    SCOPED_TRACE(::testing::Message() << length << " positions");
    MemoryFs fs;
    Conversation writer(options(16));
    const SeqId seq = writer.start(length, 7);
    must(save(writer.session(), seq, count_tokens(length), "16", {.fs = &fs}));
    Conversation reader(options(64));
    const Loaded loaded = must(load(reader.session(), "16", {.fs = &fs}));
    EXPECT_FALSE(loaded.is_derived);
    ASSERT_TRUE(reader.records(loaded.seq) == writer.records(seq));
    must(save(reader.session(), loaded.seq, loaded.tokens, "64", {.fs = &fs}));
    ASSERT_TRUE(file_bytes(fs, "64") == file_bytes(fs, "16"));

    const CheckpointInfo info = must(inspect("16", {.fs = &fs}));
    for (Pos position = 0; position <= length + 1; ++position) {
      const bool can = can_resume_at(info, position);
      ASSERT_EQ(can, writer.session().can_truncate(seq, position)) << position;
      ASSERT_EQ(can, reader.session().can_truncate(loaded.seq, position)) << position;
    }

    // Built or loaded, the two go on alike.
    Conversation twin(options(64));
    const SeqId built = twin.start(length, 7);
    twin.append(built, 150, 8);
    reader.append(loaded.seq, 150, 8);
    ASSERT_TRUE(reader.records(loaded.seq) == twin.records(built));
    EXPECT_EQ(reader.memory().use().live_bytes, twin.memory().use().live_bytes);
    reader.session().drop(loaded.seq);
    EXPECT_EQ(reader.memory().use().live_pages, 0u);
  }
}

TEST_P(EveryKind, ACutSequenceIsSavedAsItIs) {
  for (const Pos length : kKindLengths)
    for (const Pos cut : {length / 2, length - std::min<Pos>(length, 15)}) {
      SCOPED_TRACE(::testing::Message() << length << " positions cut to " << cut);
      MemoryFs fs;
      Conversation writer(options(16));
      const SeqId seq = writer.start(length, 7);
      if (!writer.session().can_truncate(seq, cut)) continue;
      must(writer.session().truncate(seq, cut));
      must(save(writer.session(), seq, count_tokens(cut), "a", {.fs = &fs}));
      Conversation reader(options(64));
      const Loaded loaded = must(load(reader.session(), "a", {.fs = &fs}));
      ASSERT_TRUE(reader.records(loaded.seq) == writer.records(seq));
      const CheckpointInfo info = must(inspect("a", {.fs = &fs}));
      for (Pos position = 0; position <= cut + 1; ++position)
        ASSERT_EQ(can_resume_at(info, position), writer.session().can_truncate(seq, position))
            << position;
    }
}

TEST_P(EveryKind, FilesOfOneModelAndSchemeHaveOneFingerprint) {
  MemoryFs fs;
  Conversation writer(options(64));
  for (const Pos length : {Pos{0}, Pos{150}, Pos{420}})
    must(save(writer.session(), writer.start(length, 7), count_tokens(length),
              fmt::format("{}", length), {.fs = &fs}));
  const Digest fingerprint = must(inspect("0", {.fs = &fs})).fingerprint;
  EXPECT_EQ(must(inspect("150", {.fs = &fs})).fingerprint, fingerprint);
  EXPECT_EQ(must(inspect("420", {.fs = &fs})).fingerprint, fingerprint);
}

TEST(TwoForms, OfAnotherKeepOrAfterAreAMismatch) {
  struct Case {
    const char *saved, *expected, *says;
    Pos length;
  };
  constexpr Case kCases[] = {
      {"f16", "f16-keep64", "slot 0: forms of records: 1, expected 2", 100},
      {"f16-keep64", "f16", "slot 0: forms of records: 2, expected 1", 100},
      {"f16-keep64", "f16-keep128", "key in f32 up to position 64, expected 128", 200},
      {"f16-keep64", "f16-keep128", "scheme f16-keep64, expected f16-keep128", 20},
      {"f16-keep64", "f16-keep60", "scheme f16-keep64, expected f16-keep60", 200},
      {"f16-after100", "f16-after200", "encoded after positions: 100, expected 200", 300},
      {"f16-after100", "f16-keep64", "encoded after positions: 100, expected 0", 300},
      {"f16", "f16-after100", "encoded after positions: 0, expected 100", 300},
      {"f16-keep64", "bf16-keep64", "slot 0: key holds f16, expected bf16", 300},
      {"f32-keep64", "f32", "slot 0: forms of records: 2, expected 1", 100},
  };
  for (const Case& c : kCases) {
    MemoryFs fs;
    Conversation writer({.scheme = c.saved});
    must(save(writer.session(), writer.start(c.length, 7), count_tokens(c.length), "a",
              {.fs = &fs}));
    Conversation reader({.scheme = c.expected});
    const auto loaded = load(reader.session(), "a", {.fs = &fs});
    ASSERT_FALSE(loaded) << c.saved << " as " << c.expected;
    EXPECT_EQ(loaded.error().code, Code::Mismatch) << loaded.error().message;
    EXPECT_THAT(loaded.error().message, HasSubstr(c.says));
    EXPECT_EQ(reader.memory().use().live_pages, 0u);
  }
}

// A sound file whose forms are split elsewhere than the scheme says.
TEST(TwoForms, SplitWhereTheSchemeDoesNotAreAMismatch) {
  MemoryFs fs;
  Conversation writer({.scheme = "f16-keep64"});
  must(save(writer.session(), writer.start(300, 7), count_tokens(300), "a", {.fs = &fs}));
  CheckpointInfo info = must(inspect("a", {.fs = &fs}));
  for (CheckpointSlot& slot : info.slots)
    for (size_t i = 0; i < slot.families.size(); i += 2)
      slot.families[i].end = slot.families[i + 1].begin = 65;
  must(write_checkpoint(fs, "a", info, sample_rows()));
  const auto loaded = load(writer.session(), "a", {.fs = &fs});
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, Code::Mismatch) << loaded.error().message;
}

TEST(FixedTensors, MayBeWiderThanAnyEncodingTakes) {
  ModelSpec spec{.identity = sha256("wide tensors")};
  spec.slots = {recurrent({{&kConvFamily, 3, 10007}, {&kRecurrentFamily, 4, 128 * 128 + 1}})};
  MemoryFs fs;
  Conversation writer({.spec = spec, .scheme = "affine8-keep64-after100"});
  for (const Pos length : {0, 1, 120}) {
    const SeqId seq = writer.start(length, 7);
    must(save(writer.session(), seq, count_tokens(length), "a", {.fs = &fs}));
    Conversation reader({.spec = spec, .scheme = "affine8-keep64-after100"});
    const Loaded loaded = must(load(reader.session(), "a", {.fs = &fs}));
    EXPECT_TRUE(reader.records(loaded.seq) == writer.records(seq));
    EXPECT_EQ(reader.records(loaded.seq).size(),
              length == 0 ? 0u : (3 * 10007 + 4 * (128 * 128 + 1)) * sizeof(float));
    const CheckpointInfo info = must(inspect("a", {.fs = &fs}));
    for (Pos position = 0; position <= length + 1; ++position)
      EXPECT_EQ(can_resume_at(info, position), writer.session().can_truncate(seq, position));
  }
}

TEST(FixedTensors, AreNoRecordsByPosition) {
  MemoryFs fs;
  Conversation writer({.spec = {.identity = sha256("fixed"), .slots = kRecurrentKind.samples()}});
  must(save(writer.session(), writer.start(100, 7), count_tokens(100), "a", {.fs = &fs}));
  CheckpointInfo info = must(inspect("a", {.fs = &fs}));
  info.slots[0].is_fixed = false;
  for (CheckpointFamily& family : info.slots[0].families) family.end = 100;
  must(write_checkpoint(fs, "a", info, sample_rows()));
  const auto loaded = load(writer.session(), "a", {.fs = &fs});
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, Code::Mismatch);
  EXPECT_THAT(loaded.error().message,
              HasSubstr("slot 0: records by position, expected fixed tensors"));
}

// A recurrent layer of a large model: its tensor is one row of the file.
TEST(FixedTensors, MayBeLargerThanSixteenMebibytes) {
  const ModelSpec spec{.identity = sha256("large tensors"),
                       .slots = {recurrent({{&kRecurrentFamily, 80, 65536}})}};  // 20 MiB
  MemoryFs fs;
  Conversation writer({.spec = spec});
  const SeqId seq = writer.start(3, 7);
  must(save(writer.session(), seq, count_tokens(3), "a", {.fs = &fs}));
  Conversation reader({.spec = spec});
  const Loaded loaded = must(load(reader.session(), "a", {.fs = &fs}));
  EXPECT_TRUE(reader.records(loaded.seq) == writer.records(seq));
}

TEST(Latents, WithAnotherIndexAreAMismatch) {
  const auto options = [](SlotSpec slot) {
    return ConversationOptions{.spec = {.identity = sha256("latents"), .slots = {std::move(slot)}}};
  };
  const auto indexed = [](uint32_t index_dim) {
    return latent({.latent_dim = 64, .rope_dim = 64, .index_dim = index_dim});
  };
  const SlotSpec draft = latent_draft({.latent_dim = 64, .rope_dim = 64});
  struct Case {
    SlotSpec saved, expected;
    const char* says;
  };
  const Case cases[] = {
      {indexed(128), indexed(64), "slot 0: index has width 128, expected 64"},
      {indexed(128), indexed(0), "slot 0: families: 3, expected 2"},
      {indexed(0), indexed(128), "slot 0: families: 2, expected 3"},
      {indexed(128), draft, "slot 0: kind latent, expected latent-draft"},
      {indexed(0), draft, "slot 0: kind latent, expected latent-draft"},
  };
  for (const Case& c : cases) {
    MemoryFs fs;
    Conversation writer(options(c.saved));
    must(save(writer.session(), writer.start(70, 7), count_tokens(70), "a", {.fs = &fs}));
    Conversation reader(options(c.expected));
    const auto loaded = load(reader.session(), "a", {.fs = &fs});
    ASSERT_FALSE(loaded) << c.says;
    EXPECT_EQ(loaded.error().code, Code::Mismatch);
    EXPECT_THAT(loaded.error().message, HasSubstr(c.says));
    EXPECT_EQ(reader.memory().use().live_pages, 0u);
  }
}

// A sound file of a draft head that has index keys, which no session can have written.
TEST(Latents, OfADraftHeadWithAnIndexAreRefused) {
  MemoryFs fs;
  const ModelSpec spec{.identity = sha256("draft"),
                       .slots = {latent_draft({.latent_dim = 64, .rope_dim = 64})}};
  Conversation conversation({.spec = spec});
  must(save(conversation.session(), conversation.start(70, 7), count_tokens(70), "a", {.fs = &fs}));
  CheckpointInfo info = must(inspect("a", {.fs = &fs}));
  info.slots[0].families.push_back(info.slots[0].families.back());
  info.slots[0].families.back().name = "index";
  must(write_checkpoint(fs, "a", info, sample_rows()));
  const auto loaded = load(conversation.session(), "a", {.fs = &fs});
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, Code::Mismatch);
  EXPECT_THAT(loaded.error().message, HasSubstr("slot 0: families: 3, expected 2"));

  ModelSpec indexed = spec;
  indexed.slots = {latent_draft({.latent_dim = 64, .rope_dim = 64, .index_dim = 64})};
  Memory memory;
  const auto opened = open_session(indexed, must(parse_scheme("f16")), memory);
  ASSERT_FALSE(opened);
  EXPECT_THAT(opened.error().message,
              HasSubstr("slot 0: latent-draft: 3 families, expected latent and rope"));
}

// Two windows that keep differently much lie in two groups; where the reader keeps as much for
// both, they share one, which holds what both have.
TEST(Windows, OfAnotherRewindLoadAsTheyAreAdopted) {
  const auto spec = [](Pos first, Pos second) {
    ModelSpec model{.identity = sha256("windows")};
    for (const Pos rewind : {first, second})
      model.slots.push_back(
          window({.heads = 1, .head_dim = 64, .window = 40, .sinks = 5, .rewind = rewind}));
    return model;
  };
  for (const Pos length : {0, 60, 100, 300}) {
    MemoryFs fs;
    Conversation writer({.spec = spec(100, 16), .page_positions = 16});
    const SeqId seq = writer.start(length, 7);
    must(save(writer.session(), seq, count_tokens(length), "a", {.fs = &fs}));
    for (const ModelSpec& other : {spec(8, 8), spec(0, 200), spec(300, 300)}) {
      Conversation reader({.spec = other});
      const SeqId loaded = must(load(reader.session(), "a", {.fs = &fs})).seq;
      const SeqId adopted = must(reader.session().adopt(writer.session().snapshot(seq)));
      EXPECT_TRUE(reader.records(loaded) == reader.records(adopted));
      Conversation twin({.spec = other});
      const SeqId built = twin.start(length, 7);
      reader.append(loaded, 350, 8);
      twin.append(built, 350, 8);
      EXPECT_TRUE(reader.records(loaded) == twin.records(built));
    }
  }
}

TEST(Arrival, PlacesPositionsOfOneForm) {
  Conversation conversation({.scheme = "f16-keep64"});
  const std::vector<Pos> first_kept = {0, 250, 270};
  Session::Arrival arrival = must(conversation.session().arrive(300, first_kept));
  const std::vector<std::byte> records(uint64_t{300} * 3 * 64 * sizeof(float));
  const auto place = [&](uint32_t slot, Pos first, Pos count) {
    arrival.place(SlotId{slot}, kKey, 0, first, count, records.data());
  };
  place(0, 0, 64);
  place(0, 64, 236);
  EXPECT_THROW(place(0, 63, 2), ContractError);
  EXPECT_THROW(place(0, 299, 2), ContractError);
  place(1, 249, 51);
  place(2, 0, 64);  // 5 sinks
  place(2, 64, 236);
}

// A saved conversation on a disk in memory.
class SavedConversation : public ::testing::Test {
 protected:
  static constexpr Pos kLength = 300;

  SavedConversation() {
    must(save(conversation_.session(), seq_, tokens_, "chat", {.fs = &fs_, .name_space = "a"}));
  }

  Result<Loaded> load_into(ConversationOptions options, LoadOptions load_options = {}) {
    Conversation reader(std::move(options));
    load_options.fs = &fs_;
    if (load_options.name_space.empty()) load_options.name_space = "a";
    auto loaded = load(reader.session(), "chat", load_options);
    if (!loaded) {
      EXPECT_EQ(reader.memory().use().live_pages, 0u);
      reader.start(10, 1);  // the session is usable
    }
    return loaded;
  }

  void expect_refused(ConversationOptions options, Code code, std::string_view says) {
    const auto loaded = load_into(std::move(options));
    ASSERT_FALSE(loaded) << says;
    EXPECT_EQ(loaded.error().code, code) << loaded.error().message;
    EXPECT_THAT(loaded.error().message, HasSubstr(says));
    EXPECT_TRUE(loaded.error().message.starts_with("chat: ")) << loaded.error().message;
  }

  MemoryFs fs_;
  Conversation conversation_;
  SeqId seq_ = conversation_.start(kLength, 7);
  std::vector<int32_t> tokens_ = count_tokens(kLength + 1);
};

TEST_F(SavedConversation, IsLoadedOnlyIntoWhatItFits) {
  const auto with = [](auto change) {
    ConversationOptions options;
    change(options.spec);
    return options;
  };
  expect_refused(with([](ModelSpec& spec) { spec.identity = sha256("other"); }), Code::Mismatch,
                 "model " + hex(sha256("conversation")) + ", expected " + hex(sha256("other")));
  expect_refused(with([](ModelSpec& spec) { spec.tokenizer = Digest{}; }), Code::Mismatch,
                 "tokenizer " + hex(sha256("words")) + ", expected none");
  expect_refused(with([](ModelSpec& spec) { spec.adapter = sha256("lora"); }), Code::Mismatch,
                 "adapter none, expected ");
  expect_refused(with([](ModelSpec& spec) { spec.slots.pop_back(); }), Code::Mismatch,
                 "slots: 3, expected 2");
  expect_refused(with([](ModelSpec& spec) { std::swap(spec.slots[0], spec.slots[1]); }),
                 Code::Mismatch, "slot 0: kind attention, expected window");
  expect_refused(with([](ModelSpec& spec) { spec.slots[1].retention.window = 41; }), Code::Mismatch,
                 "slot 1: window 40, expected 41");
  expect_refused(with([](ModelSpec& spec) { spec.slots[2].retention.sinks = 4; }), Code::Mismatch,
                 "slot 2: sinks: 5, expected 4");
  expect_refused(
      with([](ModelSpec& spec) { spec.slots[0] = attention({.heads = 3, .head_dim = 64}); }),
      Code::Mismatch, "slot 0: key has heads: 2, expected 3");
  expect_refused(with([](ModelSpec& spec) {
                   spec.slots[0] = attention({.heads = 2, .head_dim = 64, .value_dim = 32});
                 }),
                 Code::Mismatch, "slot 0: value has width 64, expected 32");
  expect_refused(with([](ModelSpec& spec) { spec.slots[0].max_positions = 256; }), Code::BadInput,
                 "256");
  expect_refused({.scheme = "bf16"}, Code::Mismatch, "slot 0: key holds f16, expected bf16");
  expect_refused({.scheme = "f16+value:f32"}, Code::Mismatch,
                 "slot 0: value holds f16, expected f32");
  expect_refused({.scheme = "f16+value:f16"}, Code::Mismatch, "scheme f16, expected f16+value:f16");
}

TEST_F(SavedConversation, StaysInItsNamespace) {
  const auto loaded = load_into({}, {.name_space = "b"});
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, Code::Mismatch);
  EXPECT_EQ(loaded.error().message, R"(chat: namespace "a", expected "b")");
}

TEST_F(SavedConversation, OfAnotherRegistryIsAMismatch) {
  const Registry longer{.id = "mine", .encodings = builtin().encodings, .kinds = builtin().kinds};
  Memory memory;
  Session session =
      must(open_session(conversation_spec(), must(parse_scheme("f16")), memory, {}, longer));
  const auto loaded = load(session, "chat", {.fs = &fs_, .name_space = "a"});
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, Code::Mismatch);
  EXPECT_EQ(loaded.error().message,
            fmt::format(R"(chat: registry "{}", expected "mine")", builtin().id));
}

TEST_F(SavedConversation, AnotherRewindIsNoObstacle) {
  ConversationOptions options;
  options.spec.slots[1].retention.rewind = 100;
  options.spec.slots[2].retention.rewind = 0;
  EXPECT_TRUE(load_into(options));
}

TEST_F(SavedConversation, UnderAnotherArithmeticWarnsAndIsDerivedForGood) {
  ConversationOptions options;
  options.spec.arithmetic = "newer";
  Conversation reader(options);
  const Loaded loaded = must(load(reader.session(), "chat", {.fs = &fs_, .name_space = "a"}));
  EXPECT_TRUE(loaded.is_derived);
  EXPECT_TRUE(reader.session().is_derived(loaded.seq));
  EXPECT_THAT(loaded.warning, HasSubstr("chat: computed by cairn-1/test, this is cairn-1/newer"));
  EXPECT_TRUE(reader.records(loaded.seq) == conversation_.records(seq_));

  must(save(reader.session(), loaded.seq, loaded.tokens, "again", {.fs = &fs_}));
  EXPECT_TRUE(must(inspect("again", {.fs = &fs_})).is_derived);
  const Loaded again = must(load(reader.session(), "again", {.fs = &fs_}));
  EXPECT_TRUE(again.is_derived);
  EXPECT_THAT(again.warning, HasSubstr("derived"));
}

TEST_F(SavedConversation, OfAKindOrEncodingOfTheFutureIsUnsupportedAndNamed) {
  const CheckpointInfo info = must(inspect("chat", {.fs = &fs_}));
  const auto refused = [&](const CheckpointInfo& changed, std::string_view says) {
    must(write_checkpoint(fs_, "chat", changed, sample_rows()));
    expect_refused({}, Code::Unsupported, says);
    EXPECT_TRUE(fs_.exists("chat"));
  };
  CheckpointInfo changed = info;
  changed.slots[1].kind = "future-kind";
  refused(changed, R"(slot 1: kind "future-kind", unknown to the registry)");
  changed = info;
  changed.slots[2].families[1].encoding = "future9";
  refused(changed, R"(slot 2: value is encoded as "future9", unknown)");
}

TEST_F(SavedConversation, LoadsWithAnyNumberOfThreads) {
  for (uint32_t threads : {0u, 1u, 2u, 3u, 8u}) {
    Conversation reader;
    const Loaded loaded =
        must(load(reader.session(), "chat", {.fs = &fs_, .name_space = "a", .threads = threads}));
    EXPECT_TRUE(reader.records(loaded.seq) == conversation_.records(seq_)) << threads;
  }
}

TEST_F(SavedConversation, KeepsTokensThatWereChosenButNotComputed) {
  EXPECT_EQ(must(load_into({})).tokens, tokens_);
  EXPECT_EQ(must(read_tokens("chat", {.fs = &fs_})), tokens_);
  const CheckpointInfo info = must(inspect("chat", {.fs = &fs_}));
  EXPECT_EQ(info.length, kLength);
  EXPECT_EQ(info.tokens, kLength + 1);
}

TEST_F(SavedConversation, TooFewTokensAreTheCallersMistake) {
  EXPECT_THROW(
      (void)save(conversation_.session(), seq_, count_tokens(kLength - 1), "b", {.fs = &fs_}),
      ContractError);
}

TEST_F(SavedConversation, SaysFromItsHeaderWhereItCanResume) {
  const CheckpointInfo info = must(inspect("chat", {.fs = &fs_}));
  for (Pos position = 0; position <= kLength + 1; ++position)
    EXPECT_EQ(can_resume_at(info, position), conversation_.session().can_truncate(seq_, position))
        << position;
}

TEST_F(SavedConversation, ATruncatedWindowIsSavedAsItIs) {
  Session& session = conversation_.session();
  must(session.truncate(seq_, 295));
  must(save(session, seq_, tokens_, "cut", {.fs = &fs_}));
  Conversation reader;
  const Loaded loaded = must(load(reader.session(), "cut", {.fs = &fs_}));
  EXPECT_TRUE(reader.records(loaded.seq) == conversation_.records(seq_));
  const CheckpointInfo info = must(inspect("cut", {.fs = &fs_}));
  for (Pos position = 0; position <= 295; ++position) {
    EXPECT_EQ(can_resume_at(info, position), session.can_truncate(seq_, position)) << position;
    EXPECT_EQ(can_resume_at(info, position), reader.session().can_truncate(loaded.seq, position))
        << position;
  }
}

TEST_F(SavedConversation, ASnapshotIsSavedAsItWasWhileTheSessionGoesOn) {
  const Snapshot snapshot = conversation_.session().snapshot(seq_);
  conversation_.append(seq_, 100, 9);
  must(save(snapshot, tokens_, "old", {.fs = &fs_, .name_space = "a"}));
  EXPECT_TRUE(file_bytes(fs_, "old") == file_bytes(fs_, "chat"));
}

TEST_F(SavedConversation, AnotherThreadSavesASnapshotWhileTheSessionGoesOn) {
  const Snapshot snapshot = conversation_.session().snapshot(seq_);
  std::atomic<bool> is_over = false;
  std::jthread saver([&] {
    for (int i = 0; i < 20; ++i) {
      must(save(snapshot, tokens_, "old", {.fs = &fs_, .name_space = "a"}));
      EXPECT_TRUE(file_bytes(fs_, "old") == file_bytes(fs_, "chat"));
    }
    is_over = true;
  });
  // Until then: forks, appends and cuts of the very pages that are being saved.
  for (uint64_t i = 0; !is_over; ++i) {
    const SeqId fork = conversation_.session().fork(seq_);
    conversation_.append(i % 2 == 0 ? fork : seq_, 3, i);
    must(conversation_.session().truncate(seq_, kLength));
    conversation_.session().drop(fork);
  }
}

TEST_F(SavedConversation, AnEmptyPromptedSequenceOfAnotherSeedDoesNotLeakIn) {
  // Pages keep what their last owner left: none of it reaches a file.
  Conversation conversation;
  const SeqId secret = conversation.start(64, 1234);
  const std::string secrets = conversation.records(secret);
  conversation.session().drop(secret);
  const SeqId seq = conversation.start(3, 7);
  must(save(conversation.session(), seq, count_tokens(3), "b", {.fs = &fs_}));
  const std::string bytes = file_bytes(fs_, "b");
  for (size_t i = 0; i + 16 <= secrets.size(); i += 16)
    EXPECT_EQ(bytes.find(secrets.substr(i, 16)), std::string::npos);
  uint64_t rows = 0;
  const CheckpointLayout layout = make_layout(must(inspect("b", {.fs = &fs_}))).value();
  for (const CheckpointTensor& tensor : layout.tensors) rows += tensor.rows;
  EXPECT_EQ(rows, 3 * layout.tensors.size());
}

TEST_F(SavedConversation, AMemoryThatIsTooSmallIsSaid) {
  Conversation reader({.max_bytes = 0});
  const auto loaded = load(reader.session(), "chat", {.fs = &fs_, .name_space = "a"});
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, Code::NoSpace);
  EXPECT_EQ(reader.session().use().sequences, 0u);
}

TEST_F(SavedConversation, DamageHasAnAddressAndNothingIsLoaded) {
  const CheckpointLayout layout = make_layout(must(inspect("chat", {.fs = &fs_}))).value();
  const auto tensor =
      std::ranges::find_if(layout.tensors, [](const CheckpointTensor& t) { return t.slot == 2; });
  std::string bytes = file_bytes(fs_, "chat");
  bytes[tensor->begin + 3] ^= 4;
  bytes[layout.tensors[0].begin] ^= 4;
  put_file(fs_, "chat", bytes);
  expect_refused({}, Code::Corrupt, "positions");

  const VerifyReport report = must(verify("chat", {.fs = &fs_}));
  EXPECT_EQ(report.file_bytes, bytes.size());
  EXPECT_THAT(report.damage, ElementsAre("slot 0, key, values, positions 0-299",
                                         "slot 2, key, values, positions 0-4 and 268-299"));
}

TEST_F(SavedConversation, EveryFailingCallOfALoadIsAnErrorAndLeavesTheSessionAsItWas) {
  Conversation reader;
  for (uint64_t call = 1;; ++call) {
    FaultyFs faulty(fs_);
    faulty.fail_call(call, Fault::once);
    const auto loaded =
        load(reader.session(), "chat", {.fs = &faulty, .name_space = "a", .threads = 1});
    if (faulty.calls() < call) {
      EXPECT_TRUE(loaded);
      break;
    }
    ASSERT_FALSE(loaded) << call;
    EXPECT_EQ(loaded.error().code, Code::Io);
    EXPECT_EQ(reader.memory().use().live_pages, 0u);
  }
}

TEST_F(SavedConversation, AFileThatShrinksWhileItIsReadIsCorrupt) {
  for (const std::string& bytes : {std::string(), file_bytes(fs_, "chat").substr(0, 5000)}) {
    put_file(fs_, "chat", bytes);
    expect_refused({}, Code::Corrupt, "");
  }
  must(fs_.remove("chat"));
  expect_refused({}, Code::NotFound, "no such file");
}

TEST_F(SavedConversation, AFullDiskLeavesTheOldFileAndTheSession) {
  FaultyFs full(fs_);
  full.limit_bytes(10000);
  const std::string old_bytes = file_bytes(fs_, "chat");
  conversation_.append(seq_, 10, 3);
  const auto saved = save(conversation_.session(), seq_, count_tokens(400), "chat", {.fs = &full});
  ASSERT_FALSE(saved);
  EXPECT_EQ(saved.error().code, Code::NoSpace);
  EXPECT_TRUE(file_bytes(fs_, "chat") == old_bytes);
  conversation_.append(seq_, 10, 4);
  must(save(conversation_.session(), seq_, count_tokens(400), "chat", {.fs = &fs_}));
}

TEST_F(SavedConversation, ASessionAdoptsAsItLoads) {
  Conversation other;
  const SeqId adopted = must(other.session().adopt(conversation_.session().snapshot(seq_)));
  const SeqId loaded = must(load(other.session(), "chat", {.fs = &fs_, .name_space = "a"})).seq;
  EXPECT_TRUE(other.records(adopted) == other.records(loaded));
}

// --- real file systems

void round_trip_in(const std::filesystem::path& parent) {
  const ScratchFolder folder(parent);
  Conversation conversation;
  const SeqId seq = conversation.start(300, 7);
  must(save(conversation.session(), seq, count_tokens(300), folder / "chat.cairn"));
  Conversation reader;
  const Loaded loaded = must(load(reader.session(), folder / "chat.cairn"));
  EXPECT_TRUE(reader.records(loaded.seq) == conversation.records(seq));
  EXPECT_TRUE(must(verify(folder / "chat.cairn")).damage.empty());
  EXPECT_THAT(must(posix_fs().list(folder.path())), ElementsAre("chat.cairn"));
}

TEST(Snapshot, RoundTripsOnTheDisk) { round_trip_in(std::filesystem::temp_directory_path()); }

TEST(Snapshot, RoundTripsOnATmpfs) {
  if (::access("/dev/shm", W_OK) != 0) GTEST_SKIP() << "no /dev/shm";
  round_trip_in("/dev/shm");
}

TEST(Snapshot, AFolderThatTakesNoFilesIsSaid) {
  Conversation conversation;
  const SeqId seq = conversation.start(3, 7);
  for (const std::string path : {"/proc/self/chat.cairn", "/no/such/folder/chat.cairn"}) {
    const auto saved = save(conversation.session(), seq, count_tokens(3), path);
    ASSERT_FALSE(saved);
    EXPECT_TRUE(saved.error().code == Code::Io || saved.error().code == Code::NotFound)
        << saved.error().message;
    EXPECT_THAT(saved.error().message, HasSubstr("cannot be created"));
  }
  const ScratchFolder folder;
  if (::geteuid() != 0) {
    ASSERT_EQ(::chmod(folder.path().c_str(), 0500), 0);
    EXPECT_EQ(
        save(conversation.session(), seq, count_tokens(3), folder / "chat.cairn").error().code,
        Code::Io);
  }
}

TEST(Snapshot, AFolderIsNoFile) {
  const ScratchFolder folder;
  Conversation conversation;
  const SeqId seq = conversation.start(3, 7);
  EXPECT_EQ(save(conversation.session(), seq, count_tokens(3), folder.path()).error().code,
            Code::BadInput);
  EXPECT_EQ(load(conversation.session(), folder.path()).error().code, Code::BadInput);
  EXPECT_EQ(load(conversation.session(), folder / "none").error().code, Code::NotFound);
  EXPECT_EQ(inspect("/dev/null").error().code, Code::BadInput);
}

}  // namespace
}  // namespace cairn::testing
