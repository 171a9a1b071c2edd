#include "cairn/session/scheme.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

ModelSpec model() {
  return {.identity = sha256("model"),
          .slots = std::vector(4, attention({.heads = 1, .head_dim = 64, .value_dim = 128}))};
}

TEST(Scheme, PrintsAsItWasTyped) {
  for (const char* text :
       {"f32", "f16+value:bf16", "bf16+slots0-3:f32", "f16+slots2:f32+key:bf16", "affine4-g128",
        "turbo-k8v3", "turbo-k4v2-keep64", "affine8-keep64", "affine8-keep60", "bf16-after512",
        "turbo-k8v3-after512", "affine4-g32-keep100-after512", "affine4+slots0-3:affine8",
        "affine8-keep64+latent:turbo-value3", "turbo-k8v3-after512+slots0:f16"})
    EXPECT_EQ(print(parse_scheme(text).value()), text);
}

TEST(Scheme, EveryRegisteredEncodingIsABase) {
  for (const Encoding* encoding : builtin().encodings)
    for (std::string_view sample : encoding->samples) {
      const Scheme scheme = parse_scheme(sample).value();
      EXPECT_EQ(parse_scheme(print(scheme)).value(), scheme) << sample;
      EXPECT_TRUE(resolve(scheme, model())) << sample;
    }
}

TEST(Scheme, LaterRulesWin) {
  const auto codecs =
      resolve(parse_scheme("f16+slots1-2:f32+value:bf16+slots2:f16").value(), model()).value();
  EXPECT_EQ(codecs[0][0].encoding, &kF16);
  EXPECT_EQ(codecs[0][1].encoding, &kBf16);
  EXPECT_EQ(codecs[1][0].encoding, &kF32);
  EXPECT_EQ(codecs[1][1].encoding, &kBf16);
  EXPECT_EQ(codecs[2][1].encoding, &kF16);
  EXPECT_EQ(codecs[0][1].width, 128u);
}

TEST(Scheme, LatentsTakeTheFinerOfWhatTheTextLeavesOpen) {
  const ModelSpec both{.identity = sha256("model"),
                       .slots = {attention({.heads = 1, .head_dim = 64}),
                                 latent({.latent_dim = 64, .rope_dim = 64, .index_dim = 64}),
                                 latent_draft({.latent_dim = 64, .rope_dim = 64})}};
  const auto stored = [&](std::string_view text) {
    std::set<std::string> latents, others;
    const auto codecs = resolve(parse_scheme(text).value(), both).value();
    for (size_t slot = 0; slot < codecs.size(); ++slot)
      for (const Codec& codec : codecs[slot])
        (slot == 0 ? others : latents).insert(codec.encoding->print(codec.params));
    EXPECT_EQ(print(parse_scheme(text).value()), text);  // as it was typed
    return std::pair(others, latents);
  };
  EXPECT_THAT(stored("affine8"), Pair(ElementsAre("affine8"), ElementsAre("affine8-g64-f32")));
  EXPECT_THAT(stored("affine8-g64-f16"),
              Pair(ElementsAre("affine8"), ElementsAre("affine8-g64-f16")));
  EXPECT_THAT(stored("f16+slots1-2:affine4-g32"),
              Pair(ElementsAre("f16"), ElementsAre("affine4-g32-f32")));
  EXPECT_THAT(
      stored("turbo-k8v3+latent:turbo-value3"),
      Pair(ElementsAre("turbo-key8", "turbo-value3"), ElementsAre("turbo-key8", "turbo-value3")));
}

TEST(Scheme, SaysWhatItDoesNotUnderstand) {
  const auto message = [](std::string_view text) { return parse_scheme(text).error().message; };
  EXPECT_THAT(message("f17"), HasSubstr("\"f17\" is none, expected one like f32"));
  EXPECT_THAT(message(""), HasSubstr("scheme \"\""));
  EXPECT_THAT(message("f16+value"), HasSubstr("\"value\" has no colon"));
  EXPECT_THAT(message("f16+slots3-1:f32"), HasSubstr("no range of slots"));
  EXPECT_THAT(message("f16+slots01:f32"), HasSubstr("no range of slots"));
  EXPECT_THAT(message("f16+:f32"), HasSubstr("before the colon"));
  EXPECT_THAT(message("f16+value:f17"), HasSubstr("f17"));
}

}  // namespace
}  // namespace cairn
