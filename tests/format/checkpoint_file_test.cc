// Checkpoint files against a hostile world: every byte, every length, every failing call.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "cairn/format/safetensors.h"
#include "cairn/io/faulty_fs.h"
#include "cairn/io/memory_fs.h"
#include "cairn/io/replacement.h"
#include "tests/support/sample_checkpoint.h"

namespace cairn::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string written(const CheckpointInfo& info, uint64_t salt = 0) {
  MemoryFs fs;
  EXPECT_TRUE(write_checkpoint(fs, "a", info, sample_rows(salt)));
  return file_bytes(fs, "a");
}

Result<std::string> read(std::string_view bytes) {
  MemoryFs fs;
  put_file(fs, "a", bytes);
  return read_everything(fs, "a");
}

std::string replaced(std::string bytes, std::string_view from, std::string_view to) {
  const size_t at = bytes.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  EXPECT_EQ(from.size(), to.size());
  return with_header_checksum(bytes.replace(at, from.size(), to)).value();
}

TEST(CheckpointFile, GivesBackWhatWasWritten) {
  for (Pos length : {0, 1, 12, 14, 15, 63, 64, 65, 300, 20000}) {
    SCOPED_TRACE(length);
    const CheckpointInfo info = sample_checkpoint(length);
    MemoryFs fs;
    ASSERT_TRUE(write_checkpoint(fs, "a", info, sample_rows()));
    const CheckpointReader reader = CheckpointReader::open(fs, "a").value();
    EXPECT_EQ(reader.info(), info);
    AlignedBuffer buffer;
    uint64_t rows = 0;
    for (size_t job = 0; job < reader.jobs(); ++job) {
      const auto damaged =
          reader.read_job(job, buffer, [&](const Chunk& chunk, std::span<const std::byte> bytes) {
            const CheckpointTensor& tensor = reader.layout().tensors[chunk.tensor];
            for (uint64_t i = 0; i < bytes.size(); ++i)
              ASSERT_EQ(bytes[i], sample_byte(tensor, chunk.first_row + i / tensor.row_bytes,
                                              i % tensor.row_bytes));
            rows += chunk.rows;
          });
      ASSERT_TRUE(damaged && damaged->empty());
    }
    uint64_t expected = 0;
    for (const CheckpointTensor& tensor : reader.layout().tensors) expected += tensor.rows;
    EXPECT_EQ(rows, expected);
  }
}

TEST(CheckpointFile, IsASafetensorsFile) {
  MemoryFs fs;
  const CheckpointInfo info = sample_checkpoint(100);
  ASSERT_TRUE(write_checkpoint(fs, "a", info, sample_rows()));
  const SafetensorsHeader header = read_safetensors(*fs.open_read("a").value()).value();
  EXPECT_THAT(header.find("tokens")->shape, ElementsAre(101));
  EXPECT_EQ(header.find("tokens")->dtype, "I32");
  EXPECT_THAT(header.find("slot0.key.exact.values")->shape, ElementsAre(4, 2, 8));
  EXPECT_THAT(header.find("slot0.key.values")->shape, ElementsAre(96, 2, 8));
  EXPECT_THAT(header.find("slot0.value.codes")->shape, ElementsAre(96, 1, 2));
  EXPECT_THAT(header.find("slot1.key.exact.values")->shape, ElementsAre(2, 2, 8));
  EXPECT_THAT(header.find("slot1.key.values")->shape, ElementsAre(12, 2, 8));
  EXPECT_THAT(header.find("slot2.conv.values")->shape, ElementsAre(1, 3, 5));
  EXPECT_EQ(header.data_offset % 4096, 0u);
}

TEST(CheckpointFile, DependsOnTheContentAlone) {
  EXPECT_EQ(written(sample_checkpoint(100)), written(sample_checkpoint(100)));
}

TEST(CheckpointFile, EveryChangedBitIsFound) {
  const std::string good = written(sample_checkpoint(15));
  ASSERT_TRUE(read(good));
  for (size_t i = 0; i < good.size(); ++i)
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
      ASSERT_FALSE(read(bad)) << "byte " << i << ", bit " << bit;
    }
}

TEST(CheckpointFile, EveryCutAndEveryExtraByteIsFound) {
  const std::string good = written(sample_checkpoint(15));
  for (size_t bytes = 0; bytes < good.size(); ++bytes) {
    const auto result = read(std::string_view(good).substr(0, bytes));
    ASSERT_FALSE(result) << bytes;
    ASSERT_EQ(result.error().code, Code::Corrupt) << bytes << ": " << result.error().message;
  }
  EXPECT_EQ(read(good + '\0').error().code, Code::Corrupt);
  EXPECT_FALSE(read(good + std::string(4096, ' ')));
}

TEST(CheckpointFile, DamageHasAnAddress) {
  std::string bytes = written(sample_checkpoint(100));
  bytes.back() ^= 1;  // the tensors with the least alignment come last: the ids, then 60 bytes of
                      // fixed tensors
  const auto result = read(bytes);
  EXPECT_EQ(result.error().code, Code::Corrupt);
  EXPECT_EQ(result.error().message,
            "a: slot 2, conv, values: the bytes are not those that were written");
}

TEST(CheckpointFile, ANewerFormatIsUnsupportedAndNamed) {
  const auto result =
      read(replaced(written(sample_checkpoint(3)), R"(\"format\":1)", R"(\"format\":2)"));
  EXPECT_EQ(result.error().code, Code::Unsupported);
  EXPECT_EQ(result.error().message, "a: format version 2, expected 1");
  EXPECT_EQ(read(replaced(written(sample_checkpoint(3)), R"(\"format\":1)", R"(\"format\":0)"))
                .error()
                .code,
            Code::BadInput);
}

TEST(CheckpointFile, OnlyOneSpellingIsValid) {
  const std::string good = written(sample_checkpoint(100));
  const auto refused = [&](std::string_view from, std::string_view to) {
    const auto result = read(replaced(good, from, to));
    EXPECT_FALSE(result) << to;
    return result ? Code::Io : result.error().code;
  };
  EXPECT_EQ(refused(R"("dtype":"F16","shape":[96,2,8],)", R"("shape":[96,2,8],"dtype":"F16",)"),
            Code::BadInput);
  EXPECT_EQ(refused(R"([96,2,8])", R"([96,8,2])"), Code::BadInput);
  EXPECT_EQ(refused(R"("dtype":"F16")", R"("dtype":"I16")"), Code::BadInput);
  EXPECT_EQ(refused(R"(  )", " \n"), Code::BadInput);
  EXPECT_EQ(refused(R"(slot0.key.values)", R"(slot0.key.valueS)"), Code::BadInput);
  EXPECT_EQ(refused(R"(\"derived\":false)", R"(\"derived\":fal5e)"), Code::BadInput);
  EXPECT_EQ(refused(R"(\"scheme\":\"f16)", R"(\"scheme\":\"f17)"),
            Code::Corrupt);                               // the fingerprint
  EXPECT_TRUE(read(replaced(good, "tenant", "Tenant")));  // a sound file, of another namespace
}

TEST(CheckpointFile, ASafetensorsFileOfSomebodyElseIsNoCheckpoint) {
  const std::string json = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(json.size());
  EXPECT_EQ(read(bytes + json + "x").error().code, Code::BadInput);
  EXPECT_EQ(read("GGUF and then some more text that is long enough").error().code, Code::BadInput);
}

Result<void> save(FileSystem& fs, uint64_t salt) {
  return write_checkpoint(fs, "d/a", sample_checkpoint(40), sample_rows(salt));
}

void expect_one_of(MemoryFs& disk, const std::string& old_data, const std::string& new_data) {
  const auto data = read_everything(disk, "d/a");
  ASSERT_TRUE(data) << data.error().message;
  EXPECT_TRUE(*data == old_data || *data == new_data);
}

class EveryCall : public ::testing::TestWithParam<std::tuple<Fault, UnsyncedNames>> {};
INSTANTIATE_TEST_SUITE_P(Faults,
                         EveryCall,
                         ::testing::Combine(::testing::Values(Fault::once, Fault::from_then_on),
                                            ::testing::Values(UnsyncedNames::lost,
                                                              UnsyncedNames::kept)));

TEST_P(EveryCall, OfASaveMayFailAndOneWholeFileSurvivesAPowerCut) {
  const auto [fault, names] = GetParam();
  for (uint64_t call = 1;; ++call) {
    SCOPED_TRACE(call);
    MemoryFs disk;
    ASSERT_TRUE(save(disk, 1));
    const std::string old_data = read_everything(disk, "d/a").value();
    FaultyFs fs(disk);
    fs.fail_call(call, fault);
    const bool is_saved = save(fs, 2).has_value();
    if (fault == Fault::once) {
      EXPECT_THAT(disk.list("d").value(), ElementsAre("a"));
    }
    disk.power_cut(names);
    MemoryFs other;
    ASSERT_TRUE(save(other, 2));
    const std::string new_data = read_everything(other, "d/a").value();
    expect_one_of(disk, is_saved ? new_data : old_data, new_data);

    // The next save works and leaves nothing of the failed one.
    ASSERT_TRUE(save(disk, 3));
    EXPECT_THAT(disk.list("d").value(), ElementsAre("a"));
    if (fs.calls() < call) return;
    ASSERT_LT(call, 100u);
  }
}

TEST(CheckpointFile, AFullDiskIsSaidAndLeavesTheOldFile) {
  const uint64_t file_bytes = written(sample_checkpoint(40)).size();
  for (uint64_t room : {uint64_t{0}, uint64_t{1}, file_bytes / 2, file_bytes - 1}) {
    MemoryFs disk;
    ASSERT_TRUE(save(disk, 1));
    const std::string old_data = read_everything(disk, "d/a").value();
    FaultyFs fs(disk);
    fs.limit_bytes(room);
    const auto result = save(fs, 2);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, Code::NoSpace);
    EXPECT_EQ(read_everything(disk, "d/a").value(), old_data);
    EXPECT_THAT(disk.list("d").value(), ElementsAre("a"));
  }
}

TEST(CheckpointFile, SavesOfOnePathDoNotMix) {
  MemoryFs fs;
  Replacement first = Replacement::make(fs, "d/a").value();
  ASSERT_TRUE(save(fs, 2));  // while another is being written: it is not taken for a leftover
  put_file(fs, "d/a.12-x.tmp", "not ours");
  ASSERT_TRUE(first.file().write_at(0, std::as_bytes(std::span("the first"))));
  ASSERT_TRUE(first.commit());
  EXPECT_TRUE(file_bytes(fs, "d/a").starts_with("the first"));
  EXPECT_THAT(fs.list("d").value(), ElementsAre("a", "a.12-x.tmp"));
}

std::string golden(const std::string& name) {
  std::ifstream file("tests/golden/" + name);
  std::stringstream digits;
  digits << file.rdbuf();
  std::string bytes;
  std::string line;
  while (std::getline(digits, line)) {
    if (line.starts_with('#')) continue;
    for (size_t i = 0; i + 1 < line.size(); i += 2)
      bytes += static_cast<char>(std::stoi(line.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

TEST(CheckpointFile, VersionOneIsReadAndWrittenAsEver) {
  const std::string bytes = golden("checkpoint-1.hex");
  ASSERT_FALSE(bytes.empty());
  EXPECT_TRUE(read(bytes));
  EXPECT_TRUE(written(sample_checkpoint(15)) == bytes);
}

}  // namespace
}  // namespace cairn::testing
