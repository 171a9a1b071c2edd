#include "cairn/format/json_fields.h"

#include <gtest/gtest.h>

namespace cairn::testing {
namespace {

struct Leaf {
  std::string name;
  uint64_t count = 0;
  static void fields(auto& io, auto& leaf) {
    io("name", leaf.name);
    io("count", leaf.count);
  }
  bool operator==(const Leaf&) const = default;
};

struct Tree {
  bool is_big = false;
  std::vector<Leaf> leaves;
  Digest digest;
  static void fields(auto& io, auto& tree) {
    io("big", tree.is_big);
    io("leaves", tree.leaves);
    io("digest", tree.digest);
  }
  bool operator==(const Tree&) const = default;
};

Result<Tree> parse(std::string_view text) {
  Tree tree;
  CAIRN_TRY(from_json(text, tree));
  return tree;
}

TEST(JsonFields, ReadsWhatItWrites) {
  for (const Tree& tree :
       {Tree{}, Tree{true, {{"a", 1}, {"", UINT64_MAX}}, sha256("x")},
        Tree{false,
             {{"quote \" backslash \\ newline \n nul " + std::string(1, '\0') + " \u00e9", 0}},
             {}}}) {
    const auto again = parse(to_json(tree));
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(*again, tree);
  }
}

TEST(JsonFields, HasOneSpelling) {
  EXPECT_EQ(to_json(Leaf{"a\tb", 7}), R"({"name":"a\u0009b","count":7})");
}

TEST(JsonFields, SaysWhereTheTextDiffers) {
  const std::string good = to_json(Tree{true, {{"a", 1}}, {}});
  for (size_t cut = 0; cut < good.size(); ++cut) EXPECT_FALSE(parse(good.substr(0, cut))) << cut;
  EXPECT_FALSE(parse(good + " "));
  EXPECT_FALSE(parse(" " + good));
  EXPECT_EQ(parse(R"({"big":true,"leaves":[{"name":"a","count":-1}]})").error().message,
            R"(-1}]} at byte 42, expected a number below 2^64)");
  EXPECT_FALSE(parse(R"({"big":true,"leaves":[{"count":1,"name":"a"}]})"));
  EXPECT_FALSE(parse(R"({"big":true,"leaves":[{"name":"\x","count":1}]})"));
  EXPECT_FALSE(parse(R"({"big":true,"leaves":[{"name":"\u00zz","count":1}]})"));
  EXPECT_FALSE(parse(R"({"big":true,"leaves":[],"digest":"00"})"));
}

TEST(JsonFields, KnowsUtf8) {
  EXPECT_TRUE(is_utf8("plain \u00e9 \u20ac \n \" \\"));
  EXPECT_FALSE(is_utf8("\xff"));
  EXPECT_FALSE(is_utf8("\xc3"));
  EXPECT_FALSE(is_utf8("\xed\xa0\x80"));  // half of a surrogate pair
}

}  // namespace
}  // namespace cairn::testing
