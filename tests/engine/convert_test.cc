#include "cairn/engine/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include "cairn/engine/snapshot.h"
#include "cairn/io/faulty_fs.h"
#include "cairn/io/memory_fs.h"
#include "tests/support/conversation.h"
#include "tests/support/sample_checkpoint.h"
#include "tests/support/scratch_folder.h"

namespace cairn::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Every kind, in widths that every encoding takes.
ModelSpec all_kinds() {
  ModelSpec spec = conversation_spec();
  spec.slots[1].families[1].width = 64;
  spec.slots[2] = window({.heads = 3, .head_dim = 64, .window = 24, .sinks = 5, .rewind = 8});
  spec.slots.push_back(latent({.latent_dim = 128, .rope_dim = 64, .index_dim = 64}));
  spec.slots.push_back(latent_draft({.latent_dim = 64, .rope_dim = 64}));
  spec.slots.push_back(recurrent({{&kConvFamily, 3, 10}, {&kRecurrentFamily, 2, 20 * 20}}));
  return spec;
}

constexpr const char* kSchemes[] = {
    "f32",        "f16",
    "bf16",       "affine8-g32",
    "affine3",    "turbo-k8v3",
    "f16-keep64", "affine4-g32-f32-after200",
    "turbo-k4v2", "affine8-keep100-after300+value:f16",
};
constexpr Pos kLengths[] = {0, 1, 64, 65, 199, 200, 333};

// A disk in memory, with a conversation on it under the name "in".
class Convert : public ::testing::Test {
 protected:
  ConversationOptions under(const std::string& scheme) const {
    return {.spec = all_kinds(), .scheme = scheme, .page_positions = 16};
  }
  ConvertOptions to(const std::string& scheme) {
    return {.fs = &fs_, .scheme = must(parse_scheme(scheme))};
  }
  void save_under(const std::string& scheme, Pos length) {
    Conversation writer(under(scheme));
    must(save(writer.session(), writer.start(length, 7), count_tokens(length), "in",
              {.fs = &fs_, .name_space = "tenant"}));
  }

  MemoryFs fs_;
};

// Adoption does the same between two sessions, page by page.
TEST_F(Convert, GivesTheRecordsThatAdoptionGives) {
  Random random(20);
  for (const char* from : kSchemes)
    for (const char* into : kSchemes) {
      const Pos length = kLengths[random.below(std::size(kLengths))];
      SCOPED_TRACE(::testing::Message() << from << " to " << into << ", " << length);
      Conversation writer(under(from)), twin(under(into)), reader(under(into));
      const SeqId seq = writer.start(length, 7);
      must(save(writer.session(), seq, count_tokens(length + 2), "in", {.fs = &fs_}));
      const Conversion made = must(convert("in", "out", to(into)));
      EXPECT_EQ(made.file_bytes, file_bytes(fs_, "out").size());

      const SeqId adopted = must(twin.session().adopt(writer.session().snapshot(seq)));
      const Loaded loaded = must(load(reader.session(), "out", {.fs = &fs_}));
      ASSERT_TRUE(reader.records(loaded.seq) == twin.records(adopted));
      EXPECT_EQ(loaded.tokens, count_tokens(length + 2));
      EXPECT_EQ(loaded.is_derived, made.to.is_derived);
    }
}

TEST_F(Convert, WithoutASchemeCopiesTheFile) {
  for (const char* scheme : kSchemes) {
    save_under(scheme, 333);
    const Conversion made = must(convert("in", "out", {.fs = &fs_}));
    EXPECT_TRUE(file_bytes(fs_, "in") == file_bytes(fs_, "out")) << scheme;
    EXPECT_THAT(made.warnings, IsEmpty());
  }
}

struct Derivation {
  const char* from;
  const char* to;
  Pos length;
  bool is_derived;
};

// A run under the new scheme would have read exact records while it was exact, and no longer.
TEST_F(Convert, MarksAsDerivedWhatARunWouldNotHaveStored) {
  for (const Derivation& made : std::vector<Derivation>{
           {"f32", "affine8", 0, false},
           {"f32", "affine8", 1, true},
           {"f32", "f32-keep64", 300, false},
           {"f32", "affine8-keep64", 64, false},
           {"f32", "affine8-keep64", 65, true},
           {"f32", "affine8-after200", 199, false},
           {"f32", "affine8-after200", 200, false},
           {"f32", "affine8-after200", 201, true},
           {"affine8-after200", "f32", 199, false},
           {"affine8-after200", "f32", 200, true},
           {"affine8-after200", "turbo-k8v3-after200", 199, false},
           {"affine8-after200", "turbo-k8v3-after200", 200, true},
           {"f16", "f16+value:f16", 300, false},
           {"f16", "f32", 300, true},
       }) {
    save_under(made.from, made.length);
    must(convert("in", "out", to(made.to)));
    const CheckpointInfo info = must(inspect("out", {.fs = &fs_}));
    EXPECT_EQ(info.is_derived, made.is_derived)
        << made.from << " to " << made.to << ", " << made.length;
    EXPECT_EQ(info.name_space, "tenant");
  }
}

TEST_F(Convert, OfWhatIsDerivedStaysDerived) {
  save_under("f32", 100);
  must(convert("in", "affine", to("affine8")));
  must(convert("affine", "again", to("affine8")));
  EXPECT_TRUE(must(inspect("again", {.fs = &fs_})).is_derived);
}

TEST_F(Convert, NamesWhatIsLostAndIsSilentFromExactFamilies) {
  save_under("f32-keep64", 300);
  EXPECT_THAT(must(convert("in", "out", to("turbo-k8v3"))).warnings, IsEmpty());
  save_under("f16+key:affine8", 300);
  EXPECT_THAT(must(convert("in", "out", to("f16"))).warnings,
              ElementsAre(HasSubstr("key from affine8: what")));
  save_under("turbo-k8v3", 300);
  EXPECT_THAT(must(convert("in", "out", to("affine8"))).warnings,
              ElementsAre(HasSubstr("index, key, latent, rope from turbo-key8"),
                          HasSubstr("value from turbo-value3")));
}

TEST_F(Convert, CountsNumbersThatSaturateOnce) {
  Conversation writer(
      {.spec = {.identity = sha256("loud"), .slots = {attention({.heads = 1, .head_dim = 64})}},
       .scheme = "f32"});
  const SeqId seq = writer.session().start();
  Step step = must(writer.session().plan({{.seq = seq, .count = 1}}));
  std::vector<float> numbers(64, 1.0f);
  numbers[3] = 1e9f;
  step.write(SlotId{0}, kKey, numbers.data());
  step.write(SlotId{0}, kValue, numbers.data());
  step.commit();
  must(save(writer.session(), seq, count_tokens(1), "in", {.fs = &fs_}));
  for (const char* scheme : {"f16", "affine8"})
    EXPECT_THAT(must(convert("in", "out", to(scheme))).warnings,
                ElementsAre(HasSubstr("2 numbers are beyond")))
        << scheme;
}

TEST_F(Convert, RefusesASchemeThatDoesNotFit) {
  save_under("f16", 100);
  const auto made = convert("in", "out", to("f16+slots0-9:f32"));
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, Code::BadInput);
  EXPECT_THAT(made.error().message, HasSubstr("in: "));
  EXPECT_FALSE(fs_.exists("out"));
}

TEST_F(Convert, GivesAStateToItsOwnModelOnly) {
  save_under("f16", 100);
  StateOwner owner{.spec = all_kinds()};
  ConvertOptions options = to("affine8");
  options.owner = &owner;
  must(convert("in", "out", options));
  owner.spec.identity = sha256("another");
  const auto made = convert("in", "other", options);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, Code::Mismatch);
  EXPECT_FALSE(fs_.exists("other"));
}

TEST_F(Convert, FindsDamageWhereverItIsAndLeavesOutAsItWas) {
  save_under("f16", 200);
  put_file(fs_, "out", "precious");
  const std::string sound = file_bytes(fs_, "in");
  Random random(21);
  for (int i = 0; i < 60; ++i) {
    std::string damaged = sound;
    const size_t at = i == 0 ? damaged.size() - 1 : random.below(damaged.size());
    damaged[at] ^= static_cast<char>(1 << random.below(8));
    put_file(fs_, "in", damaged);
    const auto made = convert("in", "out", to("affine8"));
    ASSERT_FALSE(made) << "byte " << at;
    EXPECT_EQ(file_bytes(fs_, "out"), "precious");
    EXPECT_EQ(fs_.list(".").value().size(), 2u);
  }
}

TEST_F(Convert, ReplacesOutWholeOrNotAtAllWhateverCallFails) {
  save_under("f16", 200);
  for (const FileKind kind : {FileKind::checkpoint, FileKind::prompt_cache}) {
    StateOwner owner{.spec = all_kinds()};
    ConvertOptions options{.scheme = must(parse_scheme("affine8")), .owner = &owner, .to = kind};
    options.fs = &fs_;
    must(convert("in", "whole", options));
    const std::string whole = file_bytes(fs_, "whole");
    for (uint64_t call = 1;; ++call) {
      ASSERT_LT(call, 10000u);
      put_file(fs_, "out", "precious");
      FaultyFs faulty(fs_);
      faulty.fail_call(call, Fault::once);
      options.fs = &faulty;
      const bool is_made = convert("in", "out", options).has_value();
      const std::string out = file_bytes(fs_, "out");
      EXPECT_TRUE(out == whole || (!is_made && out == "precious")) << "call " << call;
      if (faulty.calls() < call) break;
    }
  }
}

// Of the heap; the sanitizers' says nothing, and then this test neither.
uint64_t heap_bytes() {
  const struct mallinfo2 heap = mallinfo2();
  return heap.uordblks + heap.hblkhd;
}

TEST_F(Convert, HoldsALittleOfALongSequence) {
  constexpr uint64_t kMostBytes = 4 << 20, kLeastFile = 30 << 20;
  const ScratchFolder folder;
  const ModelSpec spec{.identity = sha256("long"),
                       .slots = {10, attention({.heads = 4, .head_dim = 64})}};
  {
    Conversation writer({.spec = spec, .scheme = "f16"});
    must(save(writer.session(), writer.start(4000, 7), count_tokens(4000), folder / "in"));
  }
  const StateOwner owner{.spec = spec};
  for (const FileKind kind : {FileKind::checkpoint, FileKind::prompt_cache}) {
    uint64_t most = 0, last = 0, all = 0;
    const uint64_t before = heap_bytes();
    ConvertOptions options{.scheme = must(parse_scheme("affine8")), .owner = &owner, .to = kind};
    options.progress = [&](uint64_t done, uint64_t total) {
      most = std::max(most, heap_bytes());
      EXPECT_GT(done, last);
      last = done;
      all = total;
    };
    const Conversion made = must(convert(folder / "in", folder / "out", options));
    EXPECT_EQ(last, all);
    EXPECT_GT(must(posix_fs().open_read(folder / "in"))->size().value(), kLeastFile);
    EXPECT_LT(most - std::min(most, before), kMostBytes);
    EXPECT_GT(made.file_bytes, all);
  }
}

}  // namespace
}  // namespace cairn::testing
