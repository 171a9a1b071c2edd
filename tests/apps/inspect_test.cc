// What cairn inspect says of every kind of slot, and of files in two forms.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cairn/engine/snapshot.h"
#include "tests/apps/program.h"
#include "tests/support/conversation.h"

namespace cairn::testing {
namespace {

using nlohmann::json;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

// What inspect shows of a sequence of these slots, as a table and as JSON.
struct Inspected {
  std::string table;
  json object;
  const json& family(size_t slot, size_t index) const {
    return object["slots"][slot]["families"][index];
  }
};

Inspected inspect(std::vector<SlotSpec> slots, const std::string& scheme, Pos length) {
  const ScratchFolder folder;
  const std::string path = folder / "state.cairn";
  Conversation conversation(
      {.spec = {.identity = sha256("inspected"), .slots = std::move(slots)}, .scheme = scheme});
  const SeqId seq = conversation.start(length, 1);
  must(save(conversation.session(), seq, count_tokens(length), path));
  const Ran table = run_cairn({"inspect", path}), object = run_cairn({"inspect", path, "--json"});
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_EQ(object.code, 0) << object.err;
  return {table.out, object.json()};
}

SlotSpec sliding() {
  return window({.heads = 2, .head_dim = 32, .window = 20, .sinks = 4, .rewind = 10});
}
SlotSpec fixed() { return recurrent({{&kConvFamily, 3, 40}, {&kRecurrentFamily, 2, 24}}); }
json run(Pos begin, Pos end) { return {{"begin", begin}, {"end", end}}; }

TEST(Inspect, ShowsWhatAWindowHoldsAndWhereItCanBeCut) {
  const Inspected shown = inspect({sliding()}, "f16", 100);
  // 20 + 10 positions and the sinks; the position after 90 sees from 71 on.
  EXPECT_THAT(shown.table, HasSubstr("window 20 + 4 sinks"));
  EXPECT_THAT(shown.table, HasSubstr("0-3, 70-99"));
  EXPECT_THAT(shown.table, ContainsRegex("resumes at +0-4, 89-100\n"));
  const json& slot = shown.object["slots"][0];
  EXPECT_EQ(slot["kind"], "window");
  EXPECT_EQ(slot["window"], 20);
  EXPECT_EQ(slot["sinks"], 4);
  EXPECT_EQ(slot["first_kept"], 70);
  EXPECT_EQ(slot["stored_positions"], 34);
  EXPECT_EQ(shown.family(0, 0)["bytes"], 34 * 2 * 32 * 2);
  EXPECT_EQ(shown.object["state_bytes"], 2 * 34 * 2 * 32 * 2);
  EXPECT_EQ(shown.object["resumes_at"], json::array({run(0, 5), run(89, 101)}));
}

TEST(Inspect, ShowsLatentsWithTheirIndexAndTheirFineScales) {
  const Inspected shown = inspect({latent({.latent_dim = 64, .rope_dim = 32, .index_dim = 128}),
                                   latent_draft({.latent_dim = 64, .rope_dim = 32})},
                                  "affine8", 70);
  for (const char* row :
       {"0 +latent +latent +affine8-g64-f32 +1 +64 +0-69", "rope +affine8-g64-f32 +1 +32",
        "index +affine8-g64-f32 +1 +128", "1 +latent-draft +latent +affine8-g64-f32 +1 +64 +0-69"})
    EXPECT_THAT(shown.table, ContainsRegex(row));
  EXPECT_THAT(shown.table, ContainsRegex("scheme +affine8\n"));
  EXPECT_THAT(shown.table, ContainsRegex("resumes at +0-70\n"));
  EXPECT_EQ(shown.object["scheme"], "affine8");
  EXPECT_EQ(shown.object["slots"][0]["kind"], "latent");
  EXPECT_EQ(shown.object["slots"][1]["kind"], "latent-draft");
  EXPECT_EQ(shown.family(0, 0)["encoding"], "affine8-g64-f32");
  // A byte a number, and a scale and a bias of four bytes for each group of 64.
  EXPECT_EQ(shown.family(0, 0)["bytes"], 70 * (64 + 8));
  EXPECT_EQ(shown.family(0, 1)["bytes"], 70 * (32 + 8));
  EXPECT_EQ(shown.family(0, 2)["bytes"], 70 * (128 + 16));
  EXPECT_EQ(shown.object["slots"][1]["families"].size(), 2u);
  EXPECT_EQ(shown.object["resumes_at"], json::array({run(0, 71)}));
}

TEST(Inspect, ShowsThatRecurrentSlotsResumeAtTheEndsOnly) {
  const Inspected shown = inspect({attention({.heads = 1, .head_dim = 32}), fixed()}, "f16", 50);
  EXPECT_THAT(shown.table, ContainsRegex("1 +recurrent +conv +f32 +3 +40 +the last state"));
  EXPECT_THAT(shown.table, ContainsRegex("recurrent +f32 +2 +24"));
  EXPECT_THAT(shown.table, ContainsRegex("resumes at +0, 50\n"));
  EXPECT_EQ(shown.object["slots"][1]["kind"], "recurrent");
  EXPECT_EQ(shown.object["slots"][1]["stored_positions"], 1);
  EXPECT_EQ(shown.family(1, 0)["bytes"], 3 * 40 * 4);
  EXPECT_EQ(shown.family(1, 1)["bytes"], 2 * 24 * 4);
  EXPECT_EQ(shown.object["resumes_at"], json::array({run(0, 1), run(50, 51)}));
}

TEST(Inspect, ShowsAnEmptySequence) {
  const Inspected shown = inspect({sliding(), fixed()}, "f16", 0);
  EXPECT_THAT(shown.table, ContainsRegex("resumes at +0\n"));
  EXPECT_EQ(shown.object["state_bytes"], 0);
  EXPECT_EQ(shown.object["resumes_at"], json::array({run(0, 1)}));
}

TEST(Inspect, ShowsWhatStaysExactForGood) {
  const Inspected shown = inspect({attention({.heads = 1, .head_dim = 64})}, "affine4-keep10", 100);
  EXPECT_THAT(shown.table, ContainsRegex("key +f32 +1 +64 +0-63"));  // 10, rounded up
  EXPECT_THAT(shown.table, ContainsRegex("key +affine4 +1 +64 +64-99"));
  EXPECT_THAT(shown.table, ContainsRegex("resumes at +0-100\n"));
  EXPECT_EQ(shown.object["scheme"], "affine4-keep10");
  EXPECT_EQ(shown.family(0, 0)["end"], 64);
  EXPECT_EQ(shown.family(0, 0)["bytes"], 64 * 64 * 4);
  EXPECT_EQ(shown.family(0, 1)["begin"], 64);
  EXPECT_EQ(shown.family(0, 1)["end"], 100);
  EXPECT_EQ(shown.family(0, 1)["bytes"], 36 * (32 + 4));
}

TEST(Inspect, ShowsWhetherASequenceIsEncodedYet) {
  const std::vector<SlotSpec> slots{attention({.heads = 1, .head_dim = 64})};
  const Inspected before = inspect(slots, "affine4-after60", 59);
  EXPECT_THAT(before.table, ContainsRegex("key +f32 +1 +64 +0-58"));
  EXPECT_THAT(before.table, Not(ContainsRegex("key +affine4")));
  EXPECT_EQ(before.object["resumes_at"], json::array({run(0, 60)}));
  const Inspected after = inspect(slots, "affine4-after60", 61);
  EXPECT_THAT(after.table, ContainsRegex("key +affine4 +1 +64 +0-60"));
  EXPECT_THAT(after.table, Not(ContainsRegex("key +f32")));
  EXPECT_THAT(after.table, ContainsRegex("resumes at +0, 60-61\n"));
  EXPECT_EQ(after.family(0, 0)["bytes"], 0);
  EXPECT_EQ(after.family(0, 1)["bytes"], 61 * (32 + 4));
  EXPECT_EQ(after.object["resumes_at"], json::array({run(0, 1), run(60, 62)}));
}

TEST(Inspect, ShowsWhereEverySlotOfAMixResumes) {
  const std::vector<SlotSpec> slots{attention({.heads = 1, .head_dim = 32}), sliding(), fixed()};
  EXPECT_EQ(inspect(slots, "f16", 100).object["resumes_at"],
            json::array({run(0, 1), run(100, 101)}));
  EXPECT_EQ(inspect({slots[0], slots[1]}, "f16-after95", 100).object["resumes_at"],
            json::array({run(0, 1), run(95, 101)}));
}

}  // namespace
}  // namespace cairn::testing
