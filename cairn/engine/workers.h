// A few threads that take jobs until none are left.
#ifndef CAIRN_ENGINE_WORKERS_H_
#define CAIRN_ENGINE_WORKERS_H_

#include <cstddef>
#include <cstdint>
#include <functional>

#include "cairn/core/error.h"

namespace cairn {

// Calls work(job, worker) once for every job in [0, jobs), on up to `threads` threads of which the
// caller's is one; workers count from 0. After an error no further jobs begin; of several errors
// the earliest job's is returned.
Result<void> run_jobs(size_t jobs,
                      uint32_t threads,
                      const std::function<Result<void>(size_t job, uint32_t worker)>& work);

}  // namespace cairn

#endif  // CAIRN_ENGINE_WORKERS_H_
