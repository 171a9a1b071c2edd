// Prompt caches as mlx-lm fills them, in a file system in memory.
#ifndef CAIRN_TESTS_SUPPORT_PROMPT_CACHE_H_
#define CAIRN_TESTS_SUPPORT_PROMPT_CACHE_H_

#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cairn/format/prompt_cache.h"
#include "tests/support/must.h"
#include "tests/support/sample_checkpoint.h"

namespace cairn::testing {

inline TensorInfo array_like(std::string_view dtype, std::vector<uint64_t> shape) {
  return {.name = {}, .dtype = dtype, .shape = std::move(shape)};
}

inline PromptCache plain_cache(Pos offset, std::string_view dtype = "F32", uint64_t capacity = 0) {
  const TensorInfo array = array_like(dtype, {1, 2, capacity == 0 ? offset : capacity, 8});
  return {.class_name = "KVCache", .arrays = {{array}, {array}}, .offset = offset, .members = {}};
}

inline PromptCache quantized_cache(Pos offset) {
  const std::vector<TensorInfo> planes = {array_like("U32", {1, 2, offset, 16}),
                                          array_like("F16", {1, 2, offset, 2}),
                                          array_like("F16", {1, 2, offset, 2})};
  return {.class_name = "QuantizedKVCache",
          .arrays = {planes, planes},
          .offset = offset,
          .group_size = 32,
          .bits = 8,
          .members = {}};
}

inline PromptCache rotating_cache(Pos offset, Pos max_size, Pos keep) {
  PromptCache cache = plain_cache(offset, "F32", std::min(offset, max_size));
  cache.class_name = "RotatingKVCache";
  cache.keep = keep;
  cache.max_size = max_size;
  cache.index = cache.arrays[0][0].shape[2];
  return cache;
}

inline PromptCache arrays_cache() {
  return {.class_name = "ArraysCache",
          .arrays = {{array_like("F16", {1, 3, 8})}, {array_like("F32", {1, 2, 4, 4})}},
          .members = {}};
}

// Latents of width 16 with ropes of 8, and index keys of 8 beside zeros.
inline PromptCache list_cache(Pos offset) {
  PromptCache latents = plain_cache(offset), index = plain_cache(offset);
  latents.arrays = {{array_like("F32", {1, 1, offset, 16})},
                    {array_like("F32", {1, 1, offset, 8})}};
  index.arrays = {{array_like("F32", {1, 1, offset, 8})}, {array_like("F32", {1, 1, offset, 8})}};
  return {.class_name = "CacheList", .arrays = {}, .members = {latents, index}};
}

// One of everything.
inline PromptCacheFile sample_prompt_cache(Pos offset) {
  return {.about = {{"tokens", "[1, 2, 3]"}},
          .caches = {plain_cache(offset), rotating_cache(offset, offset, 1), arrays_cache(),
                     list_cache(offset), quantized_cache(offset)}};
}

// Says what an array's bytes are; its elements count from 0.
using ArrayFiller = std::function<void(const TensorInfo& array, std::span<std::byte> bytes)>;

inline void fill_arrays(const PromptCache& cache, std::string& file, const ArrayFiller& fill) {
  for (const std::vector<TensorInfo>& list : cache.arrays)
    for (const TensorInfo& array : list) {
      if (file.size() < array.end) file.resize(array.end, '\0');
      fill(array, std::as_writable_bytes(std::span(file)).subspan(array.begin, array.bytes()));
    }
  for (const PromptCache& member : cache.members) fill_arrays(member, file, fill);
}

// The file; without a filler all numbers are zero.
inline std::string prompt_cache_bytes(
    PromptCacheFile content,
    const ArrayFiller& fill = [](const TensorInfo&, std::span<std::byte>) {}) {
  std::string file = must(lay_out_prompt_cache(content));
  for (const PromptCache& cache : content.caches) fill_arrays(cache, file, fill);
  return file;
}

}  // namespace cairn::testing

#endif  // CAIRN_TESTS_SUPPORT_PROMPT_CACHE_H_
