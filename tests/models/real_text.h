// The text that the real model's reuse is tested with, as tokens.
#ifndef CAIRN_TESTS_MODELS_REAL_TEXT_H_
#define CAIRN_TESTS_MODELS_REAL_TEXT_H_

#include <vector>

#include "tests/models/oracle_file.h"

namespace cairn::testing {

inline constexpr const char* kRealModel = "models/smollm2.gguf";

// The first `length` (up to 919) tokens of a licence and of what the model says after it.
inline std::vector<int32_t> real_text(size_t length) {
  OracleFile oracle("tests/oracles/real/smollm2.safetensors");
  std::vector<int32_t> ids = oracle.ids("gpl3_4000.ids");
  const std::vector<int32_t> more = oracle.ids("gpl3_4000.greedy");
  ids.insert(ids.end(), more.begin(), more.end());
  ids.resize(length);
  return ids;
}

}  // namespace cairn::testing

#endif  // CAIRN_TESTS_MODELS_REAL_TEXT_H_
