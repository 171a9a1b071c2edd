#include "cairn/engine/workers.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

namespace cairn {
namespace {

class Jobs {
 public:
  Jobs(size_t count, const std::function<Result<void>(size_t, uint32_t)>& work)
      : count_(count), work_(work) {}

  void run(uint32_t worker) {
    for (size_t job; !has_failed_ && (job = next_++) < count_;)
      if (auto result = work_(job, worker); !result) keep(job, std::move(result.error()));
  }

  Result<void> result() {
    if (has_failed_) return tl::unexpected<Error>(std::move(error_));
    return {};
  }

 private:
  void keep(size_t job, Error error) {
    const std::lock_guard lock(mutex_);
    if (has_failed_ && failed_job_ < job) return;
    error_ = std::move(error);
    failed_job_ = job;
    has_failed_ = true;
  }

  const size_t count_;
  const std::function<Result<void>(size_t, uint32_t)>& work_;
  std::atomic<size_t> next_ = 0;
  std::atomic<bool> has_failed_ = false;
  std::mutex mutex_;  // guards what follows
  size_t failed_job_ = 0;
  Error error_{};
};

}  // namespace

Result<void> run_jobs(size_t count,
                      uint32_t threads,
                      const std::function<Result<void>(size_t job, uint32_t worker)>& work) {
  Jobs jobs(count, work);
  {
    std::vector<std::jthread> others;  // joined at the end of the scope
    for (uint32_t worker = 1; worker < std::min<size_t>(threads, count); ++worker)
      others.emplace_back([&jobs, worker] { jobs.run(worker); });
    jobs.run(0);
  }
  return jobs.result();
}

}  // namespace cairn
