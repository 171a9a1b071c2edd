// What a hostile header can make its readers allocate: never more than 32 times its own bytes,
// whatever it claims.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <new>

#include "cairn/format/json_fields.h"
#include "cairn/format/layout.h"
#include "cairn/format/safetensors.h"
#include "tests/support/sample_checkpoint.h"
#include "tests/support/scratch_folder.h"

namespace {

std::atomic<size_t> live_bytes = 0, peak_bytes = 0;

void* allocate(size_t bytes) {
  void* memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  const size_t live = live_bytes += malloc_usable_size(memory);
  if (live > peak_bytes) peak_bytes = live;
  return memory;
}

void release(void* memory) {
  if (memory != nullptr) live_bytes -= malloc_usable_size(memory);
  std::free(memory);
}

}  // namespace

// All forms but the over-aligned ones, which come in pairs of their own: a sanitizer has its own of
// each that is missing.
void* operator new(size_t bytes) { return allocate(bytes); }
void* operator new[](size_t bytes) { return allocate(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, size_t) noexcept { release(memory); }
void operator delete[](void* memory, size_t) noexcept { release(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { release(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { release(memory); }

namespace cairn::testing {
namespace {

template <class Call>
size_t peak_of(Call call) {
  const size_t before = live_bytes;
  peak_bytes = before;
  call();
  return peak_bytes - before;
}

std::string repeated(std::string_view start,
                     const std::function<std::string(size_t)>& item,
                     std::string_view end) {
  constexpr size_t kBytes = 1 << 20;
  std::string text(start);
  for (size_t i = 0; text.size() < kBytes; ++i) text += (i == 0 ? "" : ",") + item(i);
  return text.append(end);
}

void expect_bounded(const std::string& text, const std::function<void()>& read) {
  EXPECT_LE(peak_of(read), 32 * text.size()) << text.substr(0, 80);
}

TEST(Allocation, OfASafetensorsHeaderIsASmallMultipleOfIt) {
  const auto number = [](size_t i) { return fmt::format("{:x}", i); };
  const std::string texts[] = {
      repeated(
          "{",
          [&](size_t i) {
            return "\"" + number(i) + R"(":{"dtype":"U8","shape":[],"data_offsets":[0,1]})";
          },
          "}"),
      repeated(
          "{",
          [&](size_t i) {
            return "\"" + number(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
          },
          "}"),
      repeated(R"({"__metadata__":{)", [&](size_t i) { return "\"" + number(i) + R"(":"")"; },
               "}}"),
      repeated(R"({"a":{"dtype":"U8","shape":[)", [](size_t) { return std::string("1"); }, "]}}"),
      repeated(R"({"a":)", [](size_t) { return std::string("[]"); }, "}"),
      std::string(1 << 20, '['),
      "{\"" + std::string(1 << 20, 'x'),
      R"({"a":{"dtype":"F64","shape":[1099511627776,1024],"data_offsets":[0,9007199254740992]}})" +
          std::string(4096, ' '),
  };
  for (const std::string& text : texts)
    expect_bounded(text, [&] { (void)parse_safetensors("t", text, 8 + text.size()); });
}

TEST(Allocation, OfADescriptionIsASmallMultipleOfIt) {
  const std::string start = [] {
    const std::string json = to_json(CheckpointInfo{});
    return json.substr(0, json.size() - 2);  // without "]}"
  }();
  const std::string slot =
      R"({"kind":"","fixed":false,"window":0,"sinks":0,"rewind":0,"max_positions":0,"first_kept":0,"families":[)";
  const std::string family =
      R"({"name":"","encoding":"","heads":1,"width":1,"begin":0,"end":0,"planes":[)";
  const std::string texts[] = {
      repeated(
          start, [&](size_t) { return slot + "]}"; }, "]}"),
      repeated(
          start + slot, [&](size_t) { return family + "]}"; }, "]}]}"),
      repeated(
          start + slot + family,
          [](size_t) { return std::string(R"({"name":"","dtype":"","record_bytes":1})"); },
          "]}]}]}"),
  };
  for (const std::string& text : texts)
    expect_bounded(text, [&] {
      CheckpointInfo info;
      if (from_json(text, info)) (void)make_layout(info);
    });
}

TEST(Allocation, OfClaimedTerabytesIsNothing) {
  CheckpointInfo info;
  info.length = info.tokens = uint64_t{1} << 45;
  info.slots.push_back(
      {.kind = "attention",
       .families = {{.name = "key",
                     .encoding = "f32",
                     .heads = 1 << 10,
                     .width = 64,
                     .end = info.length,
                     .planes = {{.name = "values", .dtype = "F32", .record_bytes = 256}}}}});
  EXPECT_LT(peak_of([&] { EXPECT_FALSE(make_layout(info)); }), size_t{16} << 10);
}

// C78: a save holds a few writes' worth of bytes, not the file's.
TEST(Allocation, OfALargeSaveDoesNotGrowWithTheFile) {
  const ScratchFolder folder;
  const CheckpointInfo info = sample_checkpoint(500'000);
  const size_t peak = peak_of(
      [&] { ASSERT_TRUE(write_checkpoint(posix_fs(), folder / "a", info, sample_rows())); });
  EXPECT_GE(std::filesystem::file_size(folder / "a"), 16u << 20);
  EXPECT_LE(peak, 4u << 20);
}

}  // namespace
}  // namespace cairn::testing
