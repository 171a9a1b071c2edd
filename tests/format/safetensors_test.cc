#include "cairn/format/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "cairn/io/memory_fs.h"

namespace cairn::testing {
namespace {

using ::testing::HasSubstr;

Result<SafetensorsHeader> parse(std::string_view json, uint64_t data_bytes) {
  return parse_safetensors("t", json, 8 + json.size() + data_bytes);
}

TEST(Safetensors, FindsTensorsByNameAndMetadataByKey) {
  const auto header = parse(R"({"__metadata__":{"x":"y \u00e9"},)"
                            R"("b":{"dtype":"F32","shape":[2,3],"data_offsets":[8,32]},)"
                            R"("a":{"data_offsets":[0,8],"dtype":"I64","shape":[]}}   )",
                            32);
  ASSERT_TRUE(header) << header.error().message;
  EXPECT_EQ(header->metadata.at("x"), "y \u00e9");
  ASSERT_EQ(header->tensors.size(), 2u);
  EXPECT_EQ(header->tensors[0].name, "a");
  const TensorInfo* b = header->find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->dtype, "F32");
  EXPECT_EQ(b->shape, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(b->elements(), 6u);
  EXPECT_EQ(b->begin, header->data_offset + 8);
  EXPECT_EQ(b->bytes(), 24u);
  EXPECT_EQ(header->find("c"), nullptr);
}

TEST(Safetensors, AcceptsEmptyTensorsEmptyFilesAndNullMetadata) {
  EXPECT_TRUE(parse(R"({"a":{"dtype":"F16","shape":[0,64],"data_offsets":[0,0]},)"
                    R"("b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
                    4));
  EXPECT_TRUE(parse(R"({})", 0));
  EXPECT_TRUE(parse(R"({"__metadata__":null})", 0));
  EXPECT_TRUE(parse(R"({"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}})", 1));
}

struct Hostile {
  const char* json;
  uint64_t data_bytes;
  const char* says;
};

class HostileHeader : public ::testing::TestWithParam<Hostile> {};

TEST_P(HostileHeader, IsRefusedAndSaysWhy) {
  const auto header = parse(GetParam().json, GetParam().data_bytes);
  ASSERT_FALSE(header);
  EXPECT_THAT(header.error().message, HasSubstr(GetParam().says));
  EXPECT_TRUE(header.error().message.starts_with("t: "));
}

INSTANTIATE_TEST_SUITE_P(
    Texts,
    HostileHeader,
    ::testing::Values(
        Hostile{"", 0, "not JSON"},
        Hostile{"[]", 0, "an array"},
        Hostile{"{", 0, "not JSON"},
        Hostile{"{} {}", 0, "not JSON"},
        Hostile{"\"x\"", 0, "a string"},
        Hostile{"{\"\xff\":1}", 0, "not JSON"},
        Hostile{
            R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
            8, "tensor a is repeated"},
        Hostile{R"({"a":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4,
                "repeats dtype"},
        Hostile{R"({"a":{"dtype":"U8","shape":[4],"shape":[4],"data_offsets":[0,4]}})", 4,
                "repeats shape"},
        Hostile{R"({"__metadata__":{"k":"1","k":"2"}})", 0, "metadata key is repeated"},
        Hostile{R"({"__metadata__":{},"__metadata__":{}})", 0, "__metadata__ is repeated"},
        Hostile{R"({"__metadata__":{"k":1}})", 0, "1 where it cannot stand"},
        Hostile{R"({"__metadata__":{"k":{}}})", 0, "an object"},
        Hostile{R"({"a":{"dtype":"U8","shape":[4]}})", 4, "lacks"},
        Hostile{R"({"a":{}})", 0, "lacks"},
        Hostile{R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"x":1}})", 4, "unknown key"},
        Hostile{R"({"a":{"dtype":"Q9","shape":[4],"data_offsets":[0,4]}})", 4, "dtype Q9"},
        Hostile{R"({"a":{"dtype":"U8","shape":[-4],"data_offsets":[0,4]}})", 4, "-4"},
        Hostile{R"({"a":{"dtype":"U8","shape":[4.0],"data_offsets":[0,4]}})", 4, "4.0"},
        Hostile{R"({"a":{"dtype":"U8","shape":[[4]],"data_offsets":[0,4]}})", 4, "an array"},
        Hostile{R"({"a":{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,4]}})", 4,
                "99999999999999999999"},
        Hostile{R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0]}})", 4, "fewer than 2"},
        Hostile{R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4,5]}})", 4, "5"},
        Hostile{R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,4]}})", 4, "has 4 bytes"},
        Hostile{R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}})", 1, "has 1 bytes"},
        Hostile{R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}})", 4,
                "expected it to begin at 0"},
        Hostile{R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[1,5]}})", 5,
                "expected it to begin at 0"},
        Hostile{
            R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}})",
            7, "expected it to begin at 4"},
        Hostile{
            R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[5,9]}})",
            9, "expected it to begin at 4"},
        Hostile{R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 3, "ends at byte 4"},
        Hostile{R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 5,
                "5 bytes of data, expected 4"},
        Hostile{R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
                "has 0 bytes"},
        Hostile{R"({"a":{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]}})", 0,
                "has 0 bytes"},
        Hostile{
            R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})",
            1, "more than 16 dimensions"}));

TEST(Safetensors, DeepNestingEndsAtOnce) {
  EXPECT_FALSE(parse(std::string(1 << 20, '['), 0));
  EXPECT_FALSE(parse(R"({"a":)" + std::string(1 << 20, '['), 0));
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += R"({"a":)";
  EXPECT_FALSE(parse(objects, 0));
}

std::unique_ptr<File> file_of(MemoryFs& fs, std::string_view bytes) {
  auto file = fs.create("f").value();
  EXPECT_TRUE(file->write_at(0, std::as_bytes(std::span(bytes))));
  return file;
}

TEST(Safetensors, AHeaderLengthBeyondTheFileOrTheLimitAllocatesNothing) {
  for (uint64_t claimed :
       {uint64_t{3}, uint64_t{1} << 20, kMaxHeaderBytes + 1, uint64_t{1} << 62, UINT64_MAX}) {
    MemoryFs fs;
    std::string bytes(10, '{');
    std::memcpy(bytes.data(), &claimed, 8);
    const auto header = read_safetensors(*file_of(fs, bytes));
    ASSERT_FALSE(header) << claimed;
    EXPECT_EQ(header.error().code, claimed > kMaxHeaderBytes ? Code::BadInput : Code::Corrupt);
  }
  MemoryFs fs;
  EXPECT_EQ(read_safetensors(*file_of(fs, "")).error().code, Code::Corrupt);
}

}  // namespace
}  // namespace cairn::testing
