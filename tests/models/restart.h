// A long text that was read, saved and gone on with in another process, from a checkpoint file and
// from a store: the hash over all logits of what follows is that of the process that never ended.
#ifndef CAIRN_TESTS_MODELS_RESTART_H_
#define CAIRN_TESTS_MODELS_RESTART_H_

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "cairn/engine/prefix.h"
#include "cairn/engine/snapshot.h"
#include "tests/models/passes.h"
#include "tests/support/hybrid_file.h"
#include "tests/support/scratch_folder.h"

namespace cairn::testing {

inline constexpr const char* kRealGemma = "models/gemma3.gguf";
inline constexpr const char* kMadeHybrid = "hybrid";  // see tests/support/hybrid_file.h

// One process's end of it.
class LongText {
 public:
  static constexpr size_t kRest = 24;  // tokens after the saved ones

  LongText(const std::string& model, size_t tokens, uint32_t threads)
      : model_(must(load_model(model, {.threads = threads, .cache_folder = {}}))),
        passes_(*model_, "f16"),
        tokens_(licence(tokens)) {}

  Session& session() { return passes_.session(); }
  SeqId start() { return passes_.start(); }
  Tokens all() const { return tokens_; }
  Tokens saved() const { return all().first(tokens_.size() - kRest); }

  void read(SeqId seq) {
    for (size_t first = 0; first < saved().size();) {
      const Tokens part = saved().subspan(first, std::min<size_t>(256, saved().size() - first));
      Step step = must(session().plan({{.seq = seq, .count = part.size()}}));
      must(model_->forward(step, part, {}, nullptr));
      step.commit();
      first += part.size();
    }
  }
  std::string hash_of_rest(SeqId seq, size_t chunk) {
    return hex(hash_of(passes_.run_in_chunks(seq, all().last(kRest), chunk)));
  }

 private:
  // Over and over, as far as it is needed.
  std::vector<int32_t> licence(size_t count) const {
    std::ifstream in("LICENSE", std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    const std::vector<int32_t> once = model_->tokenizer()->encode(text, Specials::AsText);
    std::vector<int32_t> tokens;
    while (tokens.size() < count) tokens.push_back(once[tokens.size() % once.size()]);
    return tokens;
  }

  std::unique_ptr<Model> model_;
  Passes passes_;
  std::vector<int32_t> tokens_;
};

// What the child is told.
inline constexpr const char* kRestartFolder = "CAIRN_TEST_RESTART_FOLDER";
inline constexpr const char* kRestartModel = "CAIRN_TEST_RESTART_MODEL";
inline constexpr const char* kRestartTokens = "CAIRN_TEST_RESTART_TOKENS";

// A store, as a session sees it.
struct Remembered {
  Remembered(const std::string& folder, Session& session)
      : store(must(Store::open(folder))),
        tiers(memory, store.get()),
        prefixes(must(Prefixes::make(session, tiers))) {}
  Memory memory;
  std::unique_ptr<Store> store;
  Tiers tiers;
  Prefixes prefixes;
};

inline void expect_a_restart_changes_no_bit(std::string model, size_t tokens) {
  const ScratchFolder folder;
  if (model == kMadeHybrid) {
    model = folder / "hybrid.gguf";
    write_hybrid_model(model, real_hybrid_shape(), 1);
  }
  std::string expected;
  {
    LongText text(model, tokens, 2);
    const SeqId seq = text.start();
    text.read(seq);
    must(save(text.session(), seq, text.saved(), folder / "state.cairn"));
    Remembered remembered(folder / "store", text.session());
    Published published;
    remembered.prefixes.mark(text.session(), seq, text.saved(), published);
    ASSERT_TRUE(remembered.tiers.flush().is_durable);
    expected = text.hash_of_rest(seq, LongText::kRest);
  }
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv(kRestartFolder, (folder / "").c_str(), 1);
    ::setenv(kRestartModel, model.c_str(), 1);
    ::setenv(kRestartTokens, std::to_string(tokens).c_str(), 1);
    ::execl("/proc/self/exe", "child", "--gtest_filter=RestartChild.GoesOn", nullptr);
    ::_exit(127);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  for (const char* from : {"state", "store"}) {
    std::string hash;
    std::ifstream(folder / (std::string(from) + ".hash")) >> hash;
    EXPECT_EQ(hash, expected) << "from a " << from;
  }
}

// The child's test, which each program that calls the above has as RestartChild.GoesOn; alone it
// has nothing to do.
inline void go_on_as_a_child() {
  const char* folder = std::getenv(kRestartFolder);
  if (folder == nullptr) GTEST_SKIP() << "runs as a child only";
  const std::string in = folder;
  LongText text(std::getenv(kRestartModel), std::stoul(std::getenv(kRestartTokens)), 1);
  const Loaded loaded = must(load(text.session(), in + "state.cairn"));
  EXPECT_EQ(text.session().length(loaded.seq), text.saved().size());
  std::ofstream(in + "state.hash") << text.hash_of_rest(loaded.seq, 7);

  Remembered remembered(in + "store", text.session());
  const Found found = remembered.prefixes.find(text.session(), text.all());
  EXPECT_EQ(found.length, text.saved().size());
  std::ofstream(in + "store.hash") << text.hash_of_rest(found.seq, 7);
}

}  // namespace cairn::testing

#endif  // CAIRN_TESTS_MODELS_RESTART_H_
