#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cairn/core/half.h"
#include "cairn/engine/convert.h"
#include "cairn/engine/mlx_lm_reader.h"
#include "cairn/engine/mlx_lm_writer.h"
#include "cairn/engine/snapshot.h"
#include "cairn/io/memory_fs.h"
#include "tests/support/conversation.h"
#include "tests/support/prompt_cache.h"
#include "tests/support/sanitized.h"

namespace cairn::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

// A disk in memory, with a prompt cache on it under the name "p".
class MlxLm : public ::testing::Test {
 protected:
  void put(
      const PromptCacheFile& content,
      const ArrayFiller& fill = [](const TensorInfo&, std::span<std::byte>) {}) {
    put_file(fs_, "p", prompt_cache_bytes(content, fill));
  }
  Result<std::unique_ptr<StoredSequence>> open(const ModelSpec* model = nullptr) {
    return open_prompt_cache(fs_, "p", model, builtin());
  }
  Result<Conversion> import(const StateOwner* owner = nullptr) {
    return convert("p", "out", {.fs = &fs_, .owner = owner});
  }
  void expect_refused(Code code, std::string_view says) {
    const auto opened = open();
    ASSERT_FALSE(opened) << says;
    EXPECT_EQ(opened.error().code, code) << opened.error().message;
    EXPECT_THAT(opened.error().message, HasSubstr(std::string(says)));
    EXPECT_THAT(opened.error().message, HasSubstr("p: "));
  }

  MemoryFs fs_;
};

std::vector<float> rows_of(StoredSequence& sequence, PlaneId plane, uint64_t first, uint64_t rows) {
  const CheckpointFamily& family = sequence.info().slots[plane.slot].families[plane.family];
  std::vector<float> numbers(rows * family.heads * family.width);
  must(sequence.read(plane, first, rows, std::as_writable_bytes(std::span(numbers))));
  return numbers;
}

// A ring as mlx-lm turns it: once it is full, a position takes the place of the oldest one that may
// go.
struct Ring {
  std::vector<Pos> held;
  Pos index = 0;

  Ring(Pos length, Pos max_size, Pos keep) {
    for (Pos position = 0; position < length; ++position) {
      if (held.size() < max_size) {
        held.push_back(position);
        index = held.size();
        continue;
      }
      if (index == max_size) index = keep;
      held[index++] = position;
    }
  }
};

TEST_F(MlxLm, RingsAreReadInTheOrderOfTime) {
  constexpr Pos kMaxSize = 8;
  for (Pos keep = 0; keep < 4; ++keep)
    for (Pos length = 1; length < 40; ++length) {
      SCOPED_TRACE(::testing::Message() << length << " positions, keep " << keep);
      const Ring ring(length, kMaxSize, keep);
      PromptCache cache = rotating_cache(length, kMaxSize, keep);
      cache.index = ring.index;
      put({.about = {}, .caches = {cache}}, [&](const TensorInfo& array, auto bytes) {
        std::vector<float> numbers;
        for (uint64_t head = 0; head < array.shape[1]; ++head)
          for (const Pos position : ring.held)
            numbers.insert(numbers.end(), 8, static_cast<float>(100 * head + position));
        std::memcpy(bytes.data(), numbers.data(), bytes.size());
      });
      const auto sequence = must(open());
      const CheckpointSlot& slot = sequence->info().slots[0];
      EXPECT_EQ(slot.kind, "window");
      EXPECT_EQ(slot.window, kMaxSize - keep);
      EXPECT_EQ(slot.sinks, keep);
      const Pos rows = stored_rows(slot, length);
      ASSERT_EQ(rows, ring.held.size());
      std::vector<float> expected;
      for (const PositionRun& run : positions_of(slot, 0, rows))
        for (Pos position = run.first; position < run.first + run.count; ++position)
          for (const Pos head : {0, 1})
            expected.insert(expected.end(), 8, static_cast<float>(100 * head + position));
      EXPECT_EQ(rows_of(*sequence, {0, 1, 0}, 0, rows), expected);
      // In pieces too.
      for (Pos row = 0; row < rows; ++row)
        EXPECT_EQ(rows_of(*sequence, {0, 0, 0}, row, 1)[0], expected[row * 16]);
    }
}

TEST_F(MlxLm, WhatLiesBeyondTheOffsetIsLeftOut) {
  put({.about = {}, .caches = {plain_cache(5, "F32", 256)}}, [](const TensorInfo&, auto bytes) {
    std::vector<float> numbers(bytes.size() / sizeof(float));
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i);
    std::memcpy(bytes.data(), numbers.data(), bytes.size());
  });
  const auto sequence = must(open());
  EXPECT_EQ(sequence->info().length, 5u);
  EXPECT_EQ(rows_of(*sequence, {0, 0, 0}, 4, 1)[8], static_cast<float>((256 + 4) * 8));
}

TEST_F(MlxLm, ArraysKeepTheirTypeAndFixedTensorsBecomeF32) {
  PromptCacheFile content{.about = {{"tokens", "[7, 8, 9]"}},
                          .caches = {plain_cache(2, "BF16"), arrays_cache()}};
  put(content, [](const TensorInfo& array, auto bytes) {
    for (size_t i = 0; i < bytes.size() / 2; ++i) {
      const uint16_t number =
          array.dtype == "BF16" ? bf16_from_f32(1.5f) : f16_from_f32(static_cast<float>(i));
      std::memcpy(bytes.data() + 2 * i, &number, 2);
    }
  });
  const auto sequence = must(open());
  EXPECT_EQ(sequence->info().scheme, "bf16");
  EXPECT_EQ(sequence->info().slots[0].families[0].encoding, "bf16");
  EXPECT_EQ(sequence->info().slots[1].kind, "recurrent");
  EXPECT_EQ(sequence->info().slots[1].families[0].encoding, "f32");
  EXPECT_EQ(rows_of(*sequence, {1, 0, 0}, 0, 1)[20], 20.0f);
}

TEST_F(MlxLm, AMixOfEncodingsIsASchemeOfItsOwn) {
  const auto scheme_of = [&](std::vector<PromptCache> caches) {
    put({.about = {}, .caches = std::move(caches)});
    auto opened = open();
    return opened ? (*opened)->info().scheme : opened.error().message;
  };
  PromptCache mixed = plain_cache(4, "F16");
  mixed.arrays[1][0].dtype = "F32";
  EXPECT_EQ(scheme_of({plain_cache(4), plain_cache(4)}), "f32");
  EXPECT_EQ(scheme_of({quantized_cache(4), quantized_cache(4)}), "affine8-g32");
  EXPECT_EQ(scheme_of({mixed, mixed}), "f16+value:f32");
  EXPECT_EQ(scheme_of({plain_cache(4, "F16"), plain_cache(4), plain_cache(4)}),
            "f16+slots1:f32+slots2:f32");
  EXPECT_EQ(scheme_of({mixed, plain_cache(4)}), "f16+value:f32+slots1:f32");
  PromptCache reversed = mixed;
  std::swap(reversed.arrays[0], reversed.arrays[1]);
  EXPECT_THAT(scheme_of({mixed, reversed}), HasSubstr("no scheme says so"));
}

TEST_F(MlxLm, TokensComeFromTheMetadataOrAreUnknown) {
  const auto tokens_of = [&](std::map<std::string, std::string, std::less<>> about) {
    put({.about = std::move(about), .caches = {plain_cache(3)}});
    must(import());
    return must(read_tokens("out", {.fs = &fs_}));
  };
  EXPECT_THAT(tokens_of({{"tokens", "[5, 6, 7]"}}), ElementsAre(5, 6, 7));
  EXPECT_THAT(tokens_of({{"tokens", "[5, 6, 7, 8]"}}), ElementsAre(5, 6, 7, 8));
  EXPECT_THAT(tokens_of({{"tokens", "[5]"}}), ElementsAre(5, -1, -1));
  for (const char* other : {"", "5 6 7", "[5, 6.5, 7]", "[5, -2, 7]", "[5, 4294967296, 7]", "{}"})
    EXPECT_THAT(tokens_of({{"tokens", other}}), ElementsAre(-1, -1, -1)) << other;
  EXPECT_THAT(tokens_of({{"model", "x"}}), ElementsAre(-1, -1, -1));
}

TEST_F(MlxLm, AnImportBelongsToNoModelAndOnlyConvertGivesItOne) {
  put({.about = {}, .caches = {plain_cache(5)}});
  EXPECT_EQ(must(import()).from_kind, FileKind::prompt_cache);
  const CheckpointInfo info = must(inspect("out", {.fs = &fs_}));
  EXPECT_TRUE(info.identity.is_zero());
  EXPECT_TRUE(info.is_derived);
  EXPECT_THAT(must(verify("out", {.fs = &fs_})).damage, IsEmpty());

  ModelSpec spec{.identity = sha256("model"),
                 .tokenizer = sha256("words"),
                 .slots = {attention({.heads = 2, .head_dim = 8, .max_positions = 100})}};
  Conversation reader({.spec = spec, .scheme = "f32"});
  const auto refused = load(reader.session(), "out", {.fs = &fs_});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::Mismatch);
  EXPECT_THAT(refused.error().message, HasSubstr("--model"));

  const StateOwner owner{.spec = spec};
  must(convert("out", "owned", {.fs = &fs_, .owner = &owner}));
  const Loaded loaded = must(load(reader.session(), "owned", {.fs = &fs_}));
  EXPECT_TRUE(loaded.is_derived);
  EXPECT_THAT(loaded.warning, HasSubstr("computed by mlx-lm"));
  must(import(&owner));
  EXPECT_TRUE(file_bytes(fs_, "out") == file_bytes(fs_, "owned"));
}

TEST_F(MlxLm, AnImportIsComparedWithItsModelSlotBySlot) {
  put({.about = {}, .caches = {plain_cache(5), rotating_cache(5, 16, 0)}});
  const auto import_as = [&](std::vector<SlotSpec> slots) {
    const StateOwner owner{.spec = {.identity = sha256("model"), .slots = std::move(slots)}};
    const auto made = import(&owner);
    return made ? std::string("fits") : made.error().message;
  };
  const SlotSpec full = attention({.heads = 2, .head_dim = 8});
  const SlotSpec sliding = window({.heads = 2, .head_dim = 8, .window = 16});
  EXPECT_EQ(import_as({full, sliding}), "fits");
  EXPECT_THAT(import_as({full}), HasSubstr("slots: 2, expected 1"));
  EXPECT_THAT(import_as({full, full}), HasSubstr("slot 1: kind window, expected attention"));
  EXPECT_THAT(import_as({attention({.heads = 1, .head_dim = 8}), sliding}),
              HasSubstr("slot 0: key has heads: 2, expected 1"));
  EXPECT_THAT(import_as({full, window({.heads = 2, .head_dim = 8, .window = 12})}),
              HasSubstr("slot 1: window 16, expected 12"));
  EXPECT_THAT(import_as({latent({.latent_dim = 8, .rope_dim = 8}), sliding}),
              HasSubstr("cache 0: latent: latent is [2, 8]"));
}

struct Refusal {
  Code code;
  const char* says;
  std::function<void(PromptCacheFile&)> spoil;
};

TEST_F(MlxLm, RefusesWhatNoSequenceIs) {
  for (const Refusal& refusal : std::vector<Refusal>{
           {Code::BadInput, "cache 0: 5 positions in arrays of 4, expected 5",
            [](auto& file) { file.caches[0] = plain_cache(5, "F32", 4); }},
           {Code::BadInput, "cache 1 holds 6 positions, expected 5 as the others",
            [](auto& file) { file.caches[1] = plain_cache(6); }},
           {Code::BadInput, "nothing was cached yet",
            [](auto& file) {
              file.caches[0].arrays.clear();
              file.caches[0].offset = 0;
            }},
           {Code::Unsupported, "0.0 holds I32",
            [](auto& file) { file.caches[0].arrays[0][0].dtype = "I32"; }},
           {Code::BadInput, "a ring of 4 positions of which 4 stay",
            [](auto& file) { file.caches[1].max_size = file.caches[1].keep = 4; }},
           {Code::BadInput, "a window lacks positions",
            [](auto& file) {
              file.caches[1] = rotating_cache(5, 4, 1), file.caches[1].max_size = 9;
            }},
           {Code::BadInput, "a ring that goes on at 1, expected at least the 2",
            [](auto& file) { file.caches[1] = rotating_cache(5, 4, 2), file.caches[1].index = 1; }},
           {Code::BadInput, "expected 5",
            [](auto& file) { file.caches[1] = rotating_cache(5, 9, 2), file.caches[1].index = 6; }},
           {Code::Unsupported, "an ArraysCache of 3 arrays",
            [](auto& file) { file.caches[2].arrays.push_back(file.caches[2].arrays[0]); }},
           {Code::Unsupported, "an ArraysCache of 0 arrays",
            [](auto& file) { file.caches[2].arrays.clear(); }},
           {Code::Unsupported, "expected 4 dimensions",
            [](auto& file) {
              file.caches[2].arrays[1][0].shape = {1, 2, 16};
            }},
           {Code::Unsupported, "a CacheList of 1 caches",
            [](auto& file) { file.caches[3].members.pop_back(); }},
           {Code::Unsupported, "expected two KVCaches",
            [](auto& file) { file.caches[3].members[1] = arrays_cache(); }},
           {Code::BadInput, "4 index keys, expected 5",
            [](auto& file) { file.caches[3].members[1].offset = 4; }},
           {Code::BadInput, "6 positions in arrays of 5",
            [](auto& file) {
              file.caches[3].members[0].offset = file.caches[3].members[1].offset = 6;
              file.caches[3].members[0].arrays = {{array_like("F32", {1, 1, 6, 16})},
                                                  {array_like("F32", {1, 1, 6, 8})}};
            }},
           {Code::BadInput, "groups of 48 numbers of 8 bits",
            [](auto& file) { file.caches[4].group_size = 48; }},
           {Code::BadInput, "groups of 32 numbers of 3 bits",
            [](auto& file) { file.caches[4].bits = 3; }},
           {Code::BadInput, "groups of 32 numbers of 0 bits",
            [](auto& file) { file.caches[4].bits = 0; }},
           {Code::BadInput, "groups of 32 numbers of 8 bits",
            [](auto& file) { file.caches[4].arrays[0][2].dtype = "F32"; }},
           {Code::BadInput, "expected affine and 2, 3, 4, 5, 6 or 8 bits",
            [](auto& file) {
              file.caches[4].bits = 1;
              for (auto& list : file.caches[4].arrays) list[1].shape[3] = list[2].shape[3] = 16;
            }},
           {Code::BadInput, "multiple of 8",
            [](auto& file) {
              for (auto& list : file.caches[0].arrays) list[0].shape[3] = 7;
            }},
       }) {
    PromptCacheFile content = sample_prompt_cache(5);
    refusal.spoil(content);
    put(content);
    expect_refused(refusal.code, refusal.says);
  }
}

TEST_F(MlxLm, RefusesNumbersBesideIndexKeys) {
  put({.about = {}, .caches = {list_cache(5)}}, [](const TensorInfo& array, auto bytes) {
    if (array.name == "0.1.0.1") bytes.back() = std::byte{1};
  });
  expect_refused(Code::Unsupported, "0.1.0.1 holds numbers, expected zeros");
}

TEST_F(MlxLm, RecurrentLayersAloneAreAsLongAsTheirTokens) {
  put({.about = {{"tokens", "[1, 2, 3]"}}, .caches = {arrays_cache()}});
  EXPECT_EQ(must(open())->info().length, 3u);
  put({.about = {}, .caches = {arrays_cache()}});
  expect_refused(Code::BadInput, "nor do token ids");
}

// Every byte changed, every length cut: an error, or a file that is sound.
TEST_F(MlxLm, AnyBytesGiveAnErrorOrASoundFile) {
  const std::string sound = prompt_cache_bytes(sample_prompt_cache(5));
  const auto try_bytes = [&](const std::string& bytes, size_t at) {
    put_file(fs_, "p", bytes);
    if (fs_.exists("out")) must(fs_.remove("out"));
    const auto made = import();
    EXPECT_EQ(fs_.exists("out"), made.has_value()) << at;
    if (made) {
      EXPECT_THAT(must(verify("out", {.fs = &fs_})).damage, IsEmpty());
      EXPECT_TRUE(convert("out", "back", {.fs = &fs_, .to = FileKind::prompt_cache}).has_value());
    } else {
      EXPECT_TRUE(made.error().code == Code::BadInput || made.error().code == Code::Corrupt ||
                  made.error().code == Code::Unsupported)
          << at << ": " << made.error().message;
    }
  };
  for (size_t at = 0; at < sound.size(); at += stride(5)) {
    std::string changed = sound;
    changed[at] ^= static_cast<char>(1 << at % 8);
    try_bytes(changed, at);
  }
  for (size_t length = 0; length < sound.size(); length += stride(5))
    try_bytes(sound.substr(0, length), length);
}

// --- and back

// Every kind that mlx-lm knows, in widths that affine encodings take.
StateOwner owner_of_all_kinds() {
  ModelSpec spec = conversation_spec();
  spec.slots[2] = window({.heads = 3, .head_dim = 64, .window = 24, .sinks = 5, .rewind = 8});
  spec.slots.push_back(latent({.latent_dim = 128, .rope_dim = 64, .index_dim = 64}));
  spec.slots.push_back(latent_draft({.latent_dim = 64, .rope_dim = 32}));
  spec.slots.push_back(recurrent({{&kConvFamily, 3, 10}, {&kRecurrentFamily, 2, 20 * 20}}));
  return {.spec = std::move(spec), .adjacent_pairs = 32};
}

TEST_F(MlxLm, WhatItHoldsComesBackBitForBit) {
  const StateOwner owner = owner_of_all_kinds();
  for (const char* scheme : {"f32", "f16", "bf16", "bf16+value:f32"})
    for (const Pos length : {1, 24, 29, 64, 333}) {
      SCOPED_TRACE(::testing::Message() << scheme << ", " << length);
      Conversation writer({.spec = owner.spec, .scheme = scheme});
      const SeqId seq = writer.start(length, 7);
      must(save(writer.session(), seq, count_tokens(length + 1), "in", {.fs = &fs_}));
      must(convert("in", "p", {.fs = &fs_, .owner = &owner, .to = FileKind::prompt_cache}));
      EXPECT_THAT(must(import(&owner)).warnings, IsEmpty());
      Conversation reader({.spec = owner.spec, .scheme = scheme});
      const Loaded loaded = must(load(reader.session(), "out", {.fs = &fs_}));
      EXPECT_TRUE(reader.records(loaded.seq) == writer.records(seq));
      EXPECT_EQ(loaded.tokens, count_tokens(length + 1));
    }
}

TEST_F(MlxLm, AffineAttentionComesBackBitForBit) {
  const StateOwner owner{
      .spec = {.identity = sha256("wide"),
               .slots = {2, attention({.heads = 2, .head_dim = 128, .value_dim = 64})}}};
  for (const char* scheme : {"affine8", "affine4-g32-f32", "affine3-g64-bf16", "affine5-g32",
                             "affine6-g64", "affine2-g32"}) {
    Conversation writer({.spec = owner.spec, .scheme = scheme});
    const SeqId seq = writer.start(100, 7);
    must(save(writer.session(), seq, count_tokens(100), "in", {.fs = &fs_}));
    const Conversion made =
        must(convert("in", "p", {.fs = &fs_, .owner = &owner, .to = FileKind::prompt_cache}));
    EXPECT_THAT(made.warnings, IsEmpty()) << scheme;
    must(import(&owner));
    Conversation reader({.spec = owner.spec, .scheme = scheme});
    EXPECT_TRUE(reader.records(must(load(reader.session(), "out", {.fs = &fs_})).seq) ==
                writer.records(seq))
        << scheme;
  }
}

// What mlx-lm cannot hold is decoded, and decoded numbers are what an f32 session would adopt.
TEST_F(MlxLm, WhatItCannotHoldBecomesF32) {
  StateOwner owner = owner_of_all_kinds();
  owner.adjacent_pairs = 0;
  for (const char* scheme : {"turbo-k8v3", "affine4-g32", "f16-keep64", "affine8-g32-after400"}) {
    SCOPED_TRACE(scheme);
    Conversation writer({.spec = owner.spec, .scheme = scheme});
    const SeqId seq = writer.start(333, 7);
    must(save(writer.session(), seq, count_tokens(333), "in", {.fs = &fs_}));
    ConvertOptions options{.fs = &fs_, .owner = &owner, .to = FileKind::prompt_cache};
    const Conversion made = must(convert("in", "p", options));
    options.to = FileKind::checkpoint;
    options.scheme = must(parse_scheme("f32"));
    must(convert("p", "out", options));
    Conversation exact({.spec = owner.spec, .scheme = "f32"}),
        reader({.spec = owner.spec, .scheme = "f32"});
    const SeqId adopted = must(exact.session().adopt(writer.session().snapshot(seq)));
    const Loaded loaded = must(load(reader.session(), "out", {.fs = &fs_}));
    if (std::string_view(scheme) == "affine4-g32") {  // but for the layer that stays affine
      const auto decoded = must(open(&owner.spec));
      EXPECT_EQ(decoded->info().slots[0].families[0].encoding, "affine4-g32");
      EXPECT_EQ(decoded->info().slots[1].families[0].encoding, "f32");
    }
    EXPECT_TRUE(reader.records(loaded.seq) == exact.records(adopted));
    EXPECT_EQ(made.warnings.empty(), std::string_view(scheme) == "affine8-g32-after400");
  }
}

TEST_F(MlxLm, NamesTheFamiliesThatItCannotHold) {
  const auto unknown_of = [&](const char* scheme) {
    Conversation writer({.spec = owner_of_all_kinds().spec, .scheme = scheme});
    must(save(writer.session(), writer.start(100, 7), count_tokens(100), "in", {.fs = &fs_}));
    Losses unknown;
    must(as_mlx_lm(must(inspect("in", {.fs = &fs_})), unknown));
    return unknown;
  };
  using Names = std::set<std::string>;
  EXPECT_THAT(unknown_of("f16"), IsEmpty());
  EXPECT_THAT(unknown_of("f16+value:turbo-value3"),
              ElementsAre(Pair("turbo-value3", Names{"value"})));
  EXPECT_THAT(unknown_of("f16-keep64+value:f32"),
              ElementsAre(Pair("f16", Names{"index", "key", "latent", "rope"}),
                          Pair("f32", Names{"value"})));
  EXPECT_THAT(unknown_of("affine8-g32+latent:f16+rope:f16+index:f16"),
              ElementsAre(Pair("affine8-g32", Names{"key", "value"})));  // of the windows
  EXPECT_THAT(unknown_of("f16+slots0:affine8-g32+value:affine4-g32"),
              ElementsAre(Pair("affine4-g32", Names{"value"}), Pair("affine8-g32", Names{"key"})));
}

// [2j] and [2j + 1] of a model are [j] and [j + 16] of mlx-lm.
TEST_F(MlxLm, KeysOfAModelWithAdjacentPairsBecomeHalves) {
  const StateOwner owner = owner_of_all_kinds();
  Conversation writer({.spec = owner.spec, .scheme = "f32"});
  must(save(writer.session(), writer.start(3, 7), count_tokens(3), "in", {.fs = &fs_}));
  must(convert("in", "p", {.fs = &fs_, .owner = &owner, .to = FileKind::prompt_cache}));
  const auto before = must(open_checkpoint(fs_, "in"));
  const auto after = must(open());
  for (const uint32_t slot : {0u, 1u, 2u}) {
    const std::vector<float> ours = rows_of(*before, {slot, 0, 0}, 2, 1);
    const std::vector<float> theirs = rows_of(*after, {slot, 0, 0}, 2, 1);
    for (size_t head = 0; head < ours.size(); head += 64)
      for (size_t j = 0; j < 64; ++j)
        EXPECT_EQ(theirs[head + j], ours[head + (j < 32 ? 2 * (j % 16) + j / 16 : j)]);
    EXPECT_EQ(rows_of(*before, {slot, 1, 0}, 0, 3), rows_of(*after, {slot, 1, 0}, 0, 3));
  }
}

TEST_F(MlxLm, EncodedKeysPassThroughNumbersOnTheWayToTheirOrder) {
  put({.about = {}, .caches = {quantized_cache(5)}});
  const StateOwner owner{
      .spec = {.identity = sha256("model"), .slots = {attention({.heads = 2, .head_dim = 64})}},
      .adjacent_pairs = 64};
  const Conversion made = must(import(&owner));
  EXPECT_EQ(made.to.scheme, "affine8-g32");
  EXPECT_THAT(made.warnings, ElementsAre(HasSubstr("key from affine8-g32")));
}

TEST_F(MlxLm, AStateOfAModelNeedsItToSayTheOrderOfItsKeys) {
  Conversation writer({.scheme = "f16"});
  must(save(writer.session(), writer.start(3, 7), count_tokens(3), "in", {.fs = &fs_}));
  const auto made = convert("in", "p", {.fs = &fs_, .to = FileKind::prompt_cache});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, Code::BadInput);
  EXPECT_FALSE(fs_.exists("p"));
}

TEST_F(MlxLm, HasNothingForSomeStates) {
  const auto refused = [&](SlotSpec slot, Pos length) {
    const ModelSpec spec{.identity = sha256("one"), .slots = {std::move(slot)}};
    Conversation writer({.spec = spec, .scheme = "f16"});
    must(save(writer.session(), writer.start(length, 7), count_tokens(length), "in", {.fs = &fs_}));
    Losses unknown;
    const auto found = as_mlx_lm(must(inspect("in", {.fs = &fs_})), unknown);
    return found ? std::string("none") : found.error().message;
  };
  EXPECT_THAT(refused(attention({.heads = 1, .head_dim = 8}), 0), HasSubstr("an empty sequence"));
  EXPECT_THAT(refused(recurrent({{&kRecurrentFamily, 2, 20}}), 3), HasSubstr("square matrix"));
}

}  // namespace
}  // namespace cairn::testing
