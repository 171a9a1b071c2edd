#include "cairn/format/prompt_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cairn/io/memory_fs.h"
#include "tests/support/prompt_cache.h"

namespace cairn::testing {
namespace {

using ::testing::HasSubstr;

Result<PromptCacheFile> read_bytes(const std::string& bytes) {
  MemoryFs fs;
  put_file(fs, "p", bytes);
  return read_prompt_cache(*must(fs.open_read("p")));
}

TEST(PromptCache, ReadsWhatWasLaidOut) {
  PromptCacheFile content = sample_prompt_cache(5);
  content.caches[0].offset = uint64_t{1} << 40;  // a number that needs 64 bits
  content.about["a \"quoted\" key"] = "\n";
  const std::string bytes = prompt_cache_bytes(content);
  must(lay_out_prompt_cache(content));
  const PromptCacheFile read = must(read_bytes(bytes));
  EXPECT_EQ(read.about, content.about);
  ASSERT_EQ(read.caches.size(), content.caches.size());

  const std::function<void(const PromptCache&, const PromptCache&)> expect_equal =
      [&](const PromptCache& a, const PromptCache& b) {
        EXPECT_EQ(a.class_name, b.class_name);
        EXPECT_EQ(a.offset, b.offset);
        EXPECT_EQ(a.keep, b.keep);
        EXPECT_EQ(a.max_size, b.max_size);
        EXPECT_EQ(a.index, b.index);
        EXPECT_EQ(a.group_size, b.group_size);
        EXPECT_EQ(a.bits, b.bits);
        ASSERT_EQ(a.arrays.size(), b.arrays.size());
        for (size_t i = 0; i < a.arrays.size(); ++i) {
          ASSERT_EQ(a.arrays[i].size(), b.arrays[i].size());
          for (size_t j = 0; j < a.arrays[i].size(); ++j) {
            EXPECT_EQ(a.arrays[i][j].name, b.arrays[i][j].name);
            EXPECT_EQ(a.arrays[i][j].dtype, b.arrays[i][j].dtype);
            EXPECT_EQ(a.arrays[i][j].shape, b.arrays[i][j].shape);
            EXPECT_EQ(a.arrays[i][j].begin, b.arrays[i][j].begin);
            EXPECT_EQ(a.arrays[i][j].end, b.arrays[i][j].end);
          }
        }
        ASSERT_EQ(a.members.size(), b.members.size());
        for (size_t i = 0; i < a.members.size(); ++i) expect_equal(a.members[i], b.members[i]);
      };
  for (size_t i = 0; i < read.caches.size(); ++i) expect_equal(read.caches[i], content.caches[i]);
}

TEST(PromptCache, NamesArraysAsPythonsPathsDo) {
  PromptCacheFile content = sample_prompt_cache(5);
  must(lay_out_prompt_cache(content));
  EXPECT_EQ(content.caches[0].arrays[1][0].name, "0.1");
  EXPECT_EQ(content.caches[2].arrays[1][0].name, "2.0.1");
  EXPECT_EQ(content.caches[3].members[1].arrays[0][0].name, "3.1.0.0");
  EXPECT_EQ(content.caches[4].arrays[1][2].name, "4.1.2");
}

struct Refusal {
  const char* name;
  std::function<void(PromptCacheFile&)> spoil;
  Code code;
  const char* says;
};

TEST(PromptCache, RefusesWhatItDoesNotKnow) {
  for (const Refusal& refusal : std::vector<Refusal>{
           {"batch", [](auto& file) { file.caches[0].arrays[1][0].shape[0] = 2; },
            Code::Unsupported, "p: 0.1 is [2, 2, 5, 8], expected a batch of one"},
           {"batch of tensors", [](auto& file) { file.caches[2].arrays[0][0].shape[0] = 4; },
            Code::Unsupported, "a batch of one"},
           {"rank",
            [](auto& file) {
              file.caches[0].arrays[1][0].shape = {1, 5, 8};
            },
            Code::BadInput, "[1, heads, capacity, width]"},
           {"capacity", [](auto& file) { file.caches[0].arrays[1][0].shape[2] = 6; },
            Code::BadInput, "[1, heads, capacity, width]"},
           {"heads of scales", [](auto& file) { file.caches[4].arrays[1][2].shape[1] = 3; },
            Code::BadInput, "[1, heads, capacity, width]"},
       }) {
    PromptCacheFile content = sample_prompt_cache(5);
    refusal.spoil(content);
    const auto read = read_bytes(prompt_cache_bytes(content));
    ASSERT_FALSE(read) << refusal.name;
    EXPECT_EQ(read.error().code, refusal.code) << refusal.name;
    EXPECT_THAT(read.error().message, HasSubstr(refusal.says)) << refusal.name;
  }
}

struct Replacing {
  const char* old_text;
  const char* new_text;  // as long
  Code code;
  const char* says;
};

// Words of the header exchanged.
TEST(PromptCache, RefusesAHeaderThatContradictsItself) {
  const std::string sound = prompt_cache_bytes(sample_prompt_cache(5));
  for (const Replacing& text : std::vector<Replacing>{
           {R"("1.0":"KVCache")", R"("1.0":"XVCache")", Code::Unsupported, "cache 0 is a XVCache"},
           {R"("1.0":"KVCache")", R"("9.0":"KVCache")", Code::BadInput, "neither a checkpoint"},
           {R"("1.1":"Rot)", R"("9.1":"Rot)", Code::BadInput, "expected the"},
           {R"("2.0":"")", R"("3.0":"")", Code::BadInput, "neither a checkpoint"},
           {R"("2.1.0":"0.2")", R"("2.1.0":"0.9")", Code::BadInput, "0.2 is something else"},
           {R"("2.1.1":"scalar")", R"("2.1.1":"skalar")", Code::BadInput, "0.2 is something else"},
           {R"("0.2":{"dtype":"I32")", R"("0.2":{"dtype":"F32")", Code::BadInput, "a whole number"},
           {R"("3.0.1":{"dtype":"I32")", R"("3.0.1":{"dtype":"F32")", Code::BadInput,
            "letters of a name"},
           {R"("none")", R"("nine")", Code::Unsupported, "of a batch"},
       }) {
    std::string bytes = sound;
    const size_t at = bytes.find(text.old_text);
    ASSERT_NE(at, bytes.npos) << text.old_text;
    bytes.replace(at, std::strlen(text.old_text), text.new_text);
    const auto read = read_bytes(bytes);
    ASSERT_FALSE(read) << text.new_text;
    EXPECT_EQ(read.error().code, text.code) << text.new_text;
    EXPECT_THAT(read.error().message, HasSubstr(text.says)) << text.new_text;
  }
}

TEST(PromptCache, RefusesNegativeNumbers) {
  PromptCacheFile content{.about = {}, .caches = {plain_cache(5)}};
  std::string bytes = prompt_cache_bytes(content);
  const size_t number = must(lay_out_prompt_cache(content)).size() - sizeof(int32_t);
  bytes[number + 3] = '\xff';
  const auto read = read_bytes(bytes);
  ASSERT_FALSE(read);
  EXPECT_THAT(read.error().message, HasSubstr("not negative"));
}

TEST(PromptCache, KnowsFilesOfOlderVersions) {
  const std::string header = R"({"__metadata__":{"0.0":"","2.0":"KVCache"}})";
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(header.size());
  const auto read = read_bytes(bytes + header);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, Code::Unsupported);
  EXPECT_THAT(read.error().message, HasSubstr("before 0.32"));
}

}  // namespace
}  // namespace cairn::testing
