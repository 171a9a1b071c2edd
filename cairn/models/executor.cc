#include "cairn/models/executor.h"

#include "cairn/kernels/dispatch.h"

namespace cairn {

Result<std::unique_ptr<Executor>> Executor::make(uint32_t threads) {
  if (threads == 0 || threads > kMaxThreads)
    return fail(Code::BadInput, "threads: {}, expected 1 to {}", threads, kMaxThreads);
  const RoundingScope rounding;  // new threads inherit the mode
  ggml_cpu_init();
  ggml_threadpool_params params = ggml_threadpool_params_default(static_cast<int>(threads));
  ggml_threadpool* pool = ggml_threadpool_new(&params);
  if (pool == nullptr) return fail(Code::NoSpace, "threads: {} could not be started", threads);
  return std::unique_ptr<Executor>(new Executor(threads, pool));
}

Executor::~Executor() { ggml_threadpool_free(pool_); }

ggml_cplan Executor::plan(ggml_cgraph* graph) {
  return ggml_graph_plan(graph, static_cast<int>(threads_), pool_);
}

Result<void> Executor::run(ggml_cgraph* graph, ggml_cplan plan) {
  const RoundingScope rounding;
  if (work_.size() < plan.work_size) work_.resize(plan.work_size);
  plan.work_data = work_.data();
  if (const ggml_status status = ggml_graph_compute(graph, &plan); status != GGML_STATUS_SUCCESS)
    return fail(Code::NoSpace, "ggml: {}", ggml_status_to_string(status));
  return {};
}

}  // namespace cairn
