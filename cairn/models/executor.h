// Runs ggml graphs: one persistent pool of threads, one work buffer that only grows.
//
// ggml's threads spin between the nodes of a graph and sleep soon after its end; the thread that
// calls run() is one of them. Everything runs with round-to-nearest and denormals on, whatever the
// host's mode is.
#ifndef CAIRN_MODELS_EXECUTOR_H_
#define CAIRN_MODELS_EXECUTOR_H_

#include <ggml-cpu.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "cairn/core/error.h"

namespace cairn {

inline constexpr uint32_t kMaxThreads = GGML_MAX_N_THREADS;

class Executor {
 public:
  static Result<std::unique_ptr<Executor>> make(uint32_t threads);  // 1 to kMaxThreads
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  uint32_t threads() const { return threads_; }

  // `plan` belongs to `graph`; it may be run any number of times, with the plans of other graphs
  // between.
  ggml_cplan plan(ggml_cgraph* graph);
  Result<void> run(ggml_cgraph* graph, ggml_cplan plan);

 private:
  Executor(uint32_t threads, ggml_threadpool* pool) : threads_(threads), pool_(pool) {}

  uint32_t threads_;
  ggml_threadpool* pool_;
  std::vector<uint8_t> work_;
};

}  // namespace cairn

#endif  // CAIRN_MODELS_EXECUTOR_H_
