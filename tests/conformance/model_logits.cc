// Logits of a model's forward pass over tokens, as raw f32: model_logits MODEL OUT TOKEN...
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "tests/models/passes.h"

int main(int count, char** words) {
  using namespace cairn;
  using namespace cairn::testing;
  if (count < 4) {
    std::fprintf(stderr, "usage: model_logits MODEL OUT TOKEN...\n");
    return 2;
  }
  const auto model = must(load_model(words[1], {}));
  std::vector<int32_t> tokens;
  for (int i = 3; i < count; ++i) tokens.push_back(std::atoi(words[i]));
  Passes passes(*model, "f32");
  const std::vector<float> logits = passes.run(passes.start(), tokens);
  std::ofstream out(words[2], std::ios::binary);
  out.write(reinterpret_cast<const char*>(logits.data()),
            static_cast<std::streamsize>(logits.size() * sizeof(float)));
  return out.good() ? 0 : 1;
}
