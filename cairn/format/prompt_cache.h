// Prompt-cache files of mlx-lm: what its save_prompt_cache() writes and load_prompt_cache() reads
// (version 0.32).
//
// A safetensors file. Per layer there is one cache, an object of a Python class, and its state is a
// tuple of arrays and numbers, which lie under their paths:
//
//   metadata "0.<key>"              what the caller of save_prompt_cache() added
//   metadata "1.<i>"                the class of cache i
//   metadata "2.<j>.0", "2.<j>.1"   j from 1: the path of a tensor that is none to Python, and what
//                                   it is: "scalar", "string" or "none"
//
//   class             state
//   KVCache           keys, values, offset
//   QuantizedKVCache  keys and values of (codes, scales, biases) each, offset, group size, bits
//   RotatingKVCache   keys, values, offset, keep, max size, index
//   ArraysCache       a list of arrays, left padding, lengths (the last two are of batches)
//   CacheList         per member its state and the name of its class
//
// Keys and values are [batch, heads, capacity, width]. What lies in them at or beyond the offset is
// arbitrary. This reader knows the paths and checks the shapes; what the arrays mean to a state is
// the engine's business.
#ifndef CAIRN_FORMAT_PROMPT_CACHE_H_
#define CAIRN_FORMAT_PROMPT_CACHE_H_

#include <map>
#include <string>
#include <vector>

#include "cairn/core/ids.h"
#include "cairn/format/safetensors.h"

namespace cairn {

struct PromptCache {
  std::string class_name;
  // Keys and values, each one array or codes, scales and biases; of an ArraysCache one list per
  // array; empty: nothing was cached yet. Names and offsets are of the file.
  std::vector<std::vector<TensorInfo>> arrays;
  Pos offset = 0;           // positions that went in
  uint64_t group_size = 0;  // of a QuantizedKVCache
  uint64_t bits = 0;
  Pos keep = 0;                      // of a RotatingKVCache: the first positions, which stay
  Pos max_size = 0;                  // and how many it wants to hold, those included
  Pos index = 0;                     // and where the next position goes
  std::vector<PromptCache> members;  // of a CacheList; no lists themselves
};

struct PromptCacheFile {
  std::map<std::string, std::string, std::less<>> about;  // the caller's metadata
  std::vector<PromptCache> caches;                        // in model order
};

// Header and numbers; the arrays are left where they are. BadInput for what is no prompt cache or
// contradicts itself, Unsupported for classes that are not listed above, batches, and files of
// mlx-lm before 0.32, Corrupt for a file that ends early.
Result<PromptCacheFile> read_prompt_cache(File& file);

// Gives every array of `content` (whose dtype and shape are set) its name and its place, and
// returns the bytes in front of the arrays: the header and the numbers. BadInput when the header
// would be larger than a reader accepts.
Result<std::string> lay_out_prompt_cache(PromptCacheFile& content);

}  // namespace cairn

#endif  // CAIRN_FORMAT_PROMPT_CACHE_H_
