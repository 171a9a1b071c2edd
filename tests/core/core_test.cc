#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "cairn/core/bytes.h"
#include "cairn/core/dtype.h"
#include "cairn/core/error.h"
#include "cairn/core/hash.h"
#include "cairn/core/ids.h"
#include "cairn/core/numbers.h"

namespace cairn {
namespace {

Result<std::unique_ptr<int>> positive(int x) {
  if (x <= 0) return fail(Code::BadInput, "number: {}, expected above 0", x);
  return std::make_unique<int>(x);
}
Result<void> check(int x) {
  CAIRN_TRY(positive(x));
  return {};
}
Result<int> doubled(int x) {
  auto held = CAIRN_TRY(positive(x));
  CAIRN_TRY(check(x));
  return 2 * *held;
}

TEST(Error, TravelsUpUnchanged) {
  EXPECT_EQ(doubled(3).value(), 6);
  const auto failed = doubled(-1);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, Code::BadInput);
  EXPECT_EQ(failed.error().message, "number: -1, expected above 0");
}

TEST(Error, ABrokenContractThrowsWithItsCondition) {
  try {
    CAIRN_CHECK(1 + 1 == 3, "sum: {}", 2);
    FAIL();
  } catch (const ContractError& error) {
    EXPECT_STREQ(error.what(), "sum: 2 (1 + 1 == 3)");
  }
}

TEST(Hash, KnownDigests) {
  EXPECT_EQ(hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(Sha256().add("a").add("bc").digest()), hex(sha256("abc")));
  EXPECT_EQ(hex(xxh3(std::string_view())), "2d06800538d394c2");
}

TEST(Hash, TextHasOneSpelling) {
  EXPECT_EQ(parse_digest(hex(sha256("x"))), sha256("x"));
  EXPECT_EQ(parse_hex64("00000000000000ff"), 255u);
  for (std::string_view bad :
       {"", "00000000000000FF", "0000000000000ff", "00000000000000fg", "0x000000000000ff"})
    EXPECT_FALSE(parse_hex64(bad)) << bad;
  EXPECT_FALSE(parse_digest(std::string(64, 'A')));
  EXPECT_FALSE(parse_digest(std::string(63, 'a')));
}

TEST(DType, NamesRoundTrip) {
  for (DType dtype : {DType::F32, DType::F16, DType::BF16, DType::I32, DType::U32, DType::U8})
    EXPECT_EQ(dtype_named(name_of(dtype)), dtype);
  EXPECT_FALSE(dtype_named("F64"));
  EXPECT_EQ(bytes_of(DType::BF16), 2u);
}

TEST(Bytes, ProductsThatPassSixtyFourBitsAreSeen) {
  EXPECT_EQ(checked_mul(1u << 31, 2), uint64_t{1} << 32);
  EXPECT_FALSE(checked_mul(uint64_t{1} << 40, uint64_t{1} << 24));
  EXPECT_FALSE(checked_add(UINT64_MAX, 1));
  EXPECT_EQ(round_up(65, 64), 128u);
  EXPECT_EQ(ceil_div(0, 64), 0u);
  EXPECT_EQ(ceil_div(UINT64_MAX, 2), UINT64_MAX / 2 + 1);
}

TEST(Numbers, ReadsEveryDTypeExactly) {
  const float f32[] = {1.5f, -2, 0};
  const uint16_t f16[] = {0x3e00, 0xc000, 0}, bf16[] = {0x3fc0, 0xc000, 0};
  for (const Numbers& numbers :
       {Numbers(f32), Numbers(f16, DType::F16), Numbers(bf16, DType::BF16)}) {
    float out[2];
    load_f32(numbers, 0, 2, out);
    EXPECT_EQ(out[0], 1.5f);
    EXPECT_EQ(out[1], -2.0f);
    load_f32(numbers, 1, 2, out);
    EXPECT_EQ(out[1], 0.0f);
  }
  float out[1];
  EXPECT_THROW(load_f32(Numbers(f32, DType::I32), 0, 1, out), ContractError);
}

}  // namespace
}  // namespace cairn
