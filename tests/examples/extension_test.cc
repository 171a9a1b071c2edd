// One more encoding and one more kind, as the two documents add them: what is in a registry works
// everywhere, and who does not have it says what is missing. The documents quote the whole files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "cairn/cairn.h"
#include "cairn/io/memory_fs.h"
#include "tests/examples/examples.h"
#include "tests/support/conversation.h"
#include "tests/support/feed.h"
#include "tests/support/program.h"
#include "tests/support/text_file.h"

namespace cairn::testing {
namespace {

using ::testing::HasSubstr;

template <class Row, size_t count>
constexpr auto with(const std::array<const Row*, count>& list, const Row* row) {
  std::array<const Row*, count + 1> longer{};
  std::ranges::copy(list, longer.begin());
  longer[count] = row;
  return longer;
}

const auto kMoreEncodings = with<Encoding>(kEncodings, &kE5m2);
const auto kMoreKinds = with<StateKind>(kKinds, &kTied);
const Registry kWithEncoding{.id = "with-e5m2-1", .encodings = kMoreEncodings, .kinds = kKinds};
const Registry kWithKind{.id = "with-tied-1", .encodings = kEncodings, .kinds = kMoreKinds};

// The blocks of a document that are marked as parts of a file, one after the other.
std::string quoted(const std::string& document, const std::string& file) {
  const std::string text = read_text(document);
  const std::string begin = "<!-- " + file + " -->\n```cpp\n", end = "```\n";
  std::string parts;
  for (size_t at = text.find(begin); at != text.npos; at = text.find(begin, at + 1)) {
    const size_t first = at + begin.size();
    if (!parts.empty()) parts += "\n";
    parts += text.substr(first, text.find(end, first) - first);
  }
  return parts;
}

void expect_quoted(const std::string& document, const std::string& file) {
  const std::string code = read_text(file);
  ASSERT_FALSE(code.empty());
  EXPECT_EQ(quoted(document, file), code);
}

void expect_programs_hold(const Registry& registry,
                          const std::vector<KindModel>& models,
                          const std::vector<std::string>& schemes) {
  uint64_t seed = 1;
  for (const KindModel& model : models)
    for (const std::string& scheme : schemes) {
      const Outcome outcome = run({.spec = model.spec,
                                   .registry = &registry,
                                   .scheme = scheme,
                                   .page_positions = ++seed % 2 == 0 ? 4u : 64u,
                                   .longest = 700,
                                   .ops = random_ops(seed, 700)});
      ASSERT_EQ(outcome.wrong, std::nullopt) << model.name << ", " << scheme;
    }
}

void expect_attends(const Registry& registry,
                    const std::vector<SlotSpec>& slots,
                    const std::vector<std::string>& schemes) {
  for (const SlotSpec& slot : slots)
    for (const std::string& scheme : schemes) {
      Feed feed(slot, scheme, {.runs = {440}, .attend_from = 440, .registry = &registry});
      const Fed whole = feed.feed();
      const std::vector<double> expected = feed.last_row();
      for (size_t i = 0; i < expected.size(); ++i)
        ASSERT_NEAR(whole.out[whole.out.size() - expected.size() + i], expected[i], 2e-3);
      const Fed cut = Feed(slot, scheme,
                           {.runs = {1, 439, 7},
                            .attend_from = 440,
                            .page_positions = 4,
                            .parts = 3,
                            .beside_another = true,
                            .registry = &registry})
                          .feed();
      ASSERT_EQ(std::memcmp(whole.out.data(), cut.out.data(), whole.out.size() * sizeof(float)), 0)
          << slot.kind->name << ", " << scheme;
    }
}

// Saved, verified, loaded; and refused, by name, by a session of the registry that ships.
void expect_files(const ConversationOptions& options,
                  const ConversationOptions& stranger,
                  std::string_view says) {
  for (const Pos length : {Pos{0}, Pos{150}, Pos{420}}) {
    MemoryFs fs;
    Conversation writer(options);
    const SeqId seq = writer.start(length, 7);
    must(save(writer.session(), seq, count_tokens(length), "a", {.fs = &fs}));
    EXPECT_TRUE(must(verify("a", {.fs = &fs})).damage.empty());
    Conversation reader(options);
    const Loaded loaded = must(load(reader.session(), "a", {.fs = &fs}));
    EXPECT_TRUE(reader.records(loaded.seq) == writer.records(seq));

    Conversation other(stranger);
    const auto refused = load(other.session(), "a", {.fs = &fs});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::Unsupported);
    EXPECT_THAT(refused.error().message, HasSubstr(says));
    EXPECT_EQ(other.memory().use().live_pages, 0u);
  }
}

TEST(AddAnEncoding, QuotesTheFileThatIsCompiled) {
  expect_quoted("docs/add-an-encoding.md", "tests/examples/e5m2.cc");
}

TEST(AddAnEncoding, ItStaysWithinTheBoundItStates) {
  const Codec codec = must(make_codec(kE5m2, {}, 64));
  std::vector<float> numbers = random_floats(3, 64 * 64, 100), back(numbers.size());
  numbers[5] = NAN;
  numbers[6] = 1e6f;
  std::vector<std::byte> bytes(numbers.size());
  const Records records{
      .planes = {{{.data = bytes.data(), .position_stride = 64, .word_stride = 1}}},
      .count = 64,
      .capacity = 64};
  EXPECT_EQ(codec.encoding->functions().encode(codec, numbers.data(), records), 1u) << "1e6";
  codec.encoding->functions().decode(codec, records, back.data());
  for (size_t i = 0; i < numbers.size(); ++i)
    if (i == 5)
      EXPECT_TRUE(std::isnan(back[i]));
    else if (i == 6)
      EXPECT_EQ(back[i], INFINITY);
    else
      EXPECT_LE(std::abs(back[i] - numbers[i]),
                std::abs(numbers[i]) * codec.geometry.error_bound + 0x1p-17);
}

TEST(AddAnEncoding, ItWorksInEverySessionOfEveryKind) {
  expect_programs_hold(kWithEncoding, kind_models(),
                       {"e5m2", "e5m2-keep64", "f16+slots0:e5m2", "e5m2-after512"});
  expect_attends(kWithEncoding, attending_slots(), {"e5m2", "e5m2-keep64-after300"});
}

TEST(AddAnEncoding, ItWorksInFilesAndIsRefusedByAReaderWithoutIt) {
  for (const char* scheme : {"e5m2", "e5m2-keep64-after300"})
    expect_files({.scheme = scheme, .registry = &kWithEncoding}, {},
                 R"(key is encoded as "e5m2", unknown to the registry "cairn-1")");
}

TEST(AddAnEncoding, OneThatTakesWiderVectorsThanTheExactFormIsRefusedUnderKeepAndAfter) {
  const ModelSpec spec{.identity = sha256("wide"),
                       .slots = {attention({.heads = 1, .head_dim = 2048})}};
  Memory memory;
  const auto open = [&](std::string_view scheme) {
    return open_session(spec, must(parse_scheme(scheme, kWithEncoding)), memory, {}, kWithEncoding);
  };
  EXPECT_TRUE(open("e5m2"));
  for (const char* scheme : {"e5m2-keep64", "e5m2-after512"}) {
    const auto refused = open(scheme);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::BadInput);
    EXPECT_THAT(refused.error().message,
                HasSubstr("slot 0, key, exact: f32: vectors of 2048 numbers, expected a multiple "
                          "of 8 up to 1024"));
  }
}

TEST(AddAKind, QuotesTheFileThatIsCompiled) {
  expect_quoted("docs/add-a-kind.md", "tests/examples/tied.cc");
}

TEST(AddAKind, SaysWhatItRefuses) {
  Memory memory;
  const auto message = [&](SlotSpec slot, const Registry& registry) {
    const auto opened = open_session({.identity = sha256("model"), .slots = {std::move(slot)}},
                                     must(parse_scheme("f16")), memory, {}, registry);
    return opened ? "opened" : opened.error().message;
  };
  const SlotSpec good = tied_attention({.heads = 1, .head_dim = 64});
  EXPECT_EQ(message(good, kWithKind), "opened");
  EXPECT_THAT(message(good, builtin()), HasSubstr("its kind is not in the registry \"cairn-1\""));
  EXPECT_THAT(message(tied_attention({.heads = 1, .head_dim = 12}), kWithKind),
              HasSubstr("tied: [1, 12], expected"));
  SlotSpec windowed = good;
  windowed.retention.window = 5;
  EXPECT_THAT(message(windowed, kWithKind), HasSubstr("a window of 5 positions"));
}

TEST(AddAKind, ItWorksInEverySession) {
  std::vector<KindModel> models = kind_models(kWithKind);
  std::erase_if(models, [](const KindModel& model) {
    return model.name != "tied" && !model.name.starts_with("all");
  });
  ASSERT_EQ(models.size(), 3u);
  expect_programs_hold(kWithKind, models, {"f16", "affine8-keep64", "turbo-k8v3-after512"});
  expect_attends(kWithKind, kTied.samples(), {"f32", "affine4", "turbo-key4", "f16-after300"});
}

TEST(AddAKind, ItWorksInFilesAndIsRefusedByAReaderWithoutIt) {
  const ModelSpec spec{.identity = sha256("model"), .slots = kTied.samples()};
  const ModelSpec without{.identity = sha256("model"), .slots = kAttention.samples()};
  for (const char* scheme : {"f16", "affine8-keep64-after300"})
    expect_files({.spec = spec, .scheme = scheme, .registry = &kWithKind},
                 {.spec = without, .scheme = scheme},
                 R"(slot 0: kind "tied", unknown to the registry "cairn-1")");
}

}  // namespace
}  // namespace cairn::testing
