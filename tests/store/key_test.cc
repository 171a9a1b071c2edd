#include "cairn/store/key.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "cairn/core/error.h"

namespace cairn::testing {
namespace {

Digest counting_digest() {
  Digest digest;
  std::iota(digest.bytes.begin(), digest.bytes.end(), uint8_t{0});
  return digest;
}

std::vector<int32_t> some_tokens(int32_t count) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back(i * 7919 % 128256);
  return tokens;
}

// What Python says:
//   n1 = hashlib.sha256(bytes(range(32)) + struct.pack('<4i', *tokens[:4])).digest()
//   n2 = hashlib.sha256(n1 + struct.pack('<4i', *tokens[4:])).digest()
TEST(Chain, HasTheNamesThatAnotherLanguageComputes) {
  const Chain chain(counting_digest(), some_tokens(8), 4);
  ASSERT_EQ(chain.spans(), 2u);
  EXPECT_EQ(chain.name(0), counting_digest());
  EXPECT_EQ(hex(chain.name(1)), "a580d1fdf8d0e55d0d763c1f964bffbd09521f82e158808742fb6cde7fe461a8");
  EXPECT_EQ(hex(chain.name(2)), "c923c9d641607931c2a5a47aa13fa79d9b8437ebdeb15da4a57c542407c9045c");
}

// m = b''.join(struct.pack('<Q', len(p)) + p for p in parts); hmac.new(secret, m, 'sha256')
TEST(KeyedName, IsTheNameThatAnotherLanguageComputes) {
  const std::string_view parts[] = {"fingerprint", "", "namespace"};
  EXPECT_EQ(hex(keyed_name("tenant", parts)),
            "20b0b6ed36ed4b463873ce7b024ec7c2132f4ba810573d86bf49ab5ccf0f6d1b");
  EXPECT_EQ(hex(keyed_name("", parts)),
            "7a2367c01081e7465f93d784f17b93c2d103d1d3238197e14fcff602fb2028a9");
}

TEST(KeyedName, DiffersWhereSecretsOrThePartsDiffer) {
  const std::string_view ab_c[] = {"ab", "c"}, a_bc[] = {"a", "bc"}, abc[] = {"abc"},
                         abc_nothing[] = {"abc", ""};
  std::set<Digest> names;
  for (std::string_view secret : {"", "x", "y"}) {
    names.insert(keyed_name(secret, ab_c));
    names.insert(keyed_name(secret, a_bc));
    names.insert(keyed_name(secret, abc));
    names.insert(keyed_name(secret, abc_nothing));
  }
  EXPECT_EQ(names.size(), 12u);
}

TEST(Chain, NamesWholeSpansOnly) {
  for (int32_t count : {0, 1, 63, 64, 65, 127, 128}) {
    const Chain chain(counting_digest(), some_tokens(count), 64);
    EXPECT_EQ(chain.spans(), static_cast<Pos>(count / 64)) << count;
  }
}

TEST(Chain, ExtendedInAnyStepsHasTheNamesOfTheWhole) {
  const std::vector<int32_t> tokens = some_tokens(1000);
  const Chain whole(counting_digest(), tokens, 16);
  Chain grown(counting_digest(), std::span(tokens).first(5), 16);
  for (size_t count : {5, 16, 17, 40, 400, 390, 1000}) grown.extend(std::span(tokens).first(count));
  ASSERT_EQ(grown.spans(), whole.spans());
  for (Pos span = 0; span <= whole.spans(); ++span) EXPECT_EQ(grown.name(span), whole.name(span));
}

TEST(Chain, SharesNamesExactlyAsFarAsTheTokensAreShared) {
  const std::vector<int32_t> tokens = some_tokens(640);
  const Chain chain(counting_digest(), tokens, 64);
  for (size_t changed : {0, 63, 64, 200, 639}) {
    std::vector<int32_t> other = tokens;
    ++other[changed];
    const Chain other_chain(counting_digest(), other, 64);
    for (Pos span = 0; span <= chain.spans(); ++span)
      EXPECT_EQ(chain.name(span) == other_chain.name(span), span <= changed / 64) << span;
  }
}

// A polynomial hash would not see it: one token up by 31, the one after it down by one.
TEST(Chain, SeesPairsOfChangesThatCancelInSums) {
  const std::vector<int32_t> tokens = some_tokens(64);
  std::set<Digest> names = {child_name(counting_digest(), tokens)};
  for (size_t at = 0; at + 1 < tokens.size(); ++at) {
    std::vector<int32_t> other = tokens;
    other[at] += 31;
    other[at + 1] -= 1;
    names.insert(child_name(counting_digest(), other));
  }
  EXPECT_EQ(names.size(), tokens.size());
}

TEST(Chain, StartsAnewUnderAnotherRoot) {
  const std::vector<int32_t> tokens = some_tokens(256);
  Digest root = counting_digest();
  const Chain chain(root, tokens, 64);
  root.bytes[31] ^= 1;
  const Chain other(root, tokens, 64);
  for (Pos span = 0; span <= chain.spans(); ++span) EXPECT_NE(chain.name(span), other.name(span));
}

TEST(Chain, ASpanIsAChildOfTheOneBefore) {
  const std::vector<int32_t> tokens = some_tokens(192);
  const Chain chain(counting_digest(), tokens, 64);
  for (Pos span = 0; span < chain.spans(); ++span)
    EXPECT_EQ(chain.name(span + 1),
              child_name(chain.name(span), std::span(tokens).subspan(span * 64, 64)));
}

TEST(Chain, RefusesSpansOfNothing) {
  EXPECT_THROW(Chain(counting_digest(), some_tokens(1), 0), ContractError);
}

}  // namespace
}  // namespace cairn::testing
