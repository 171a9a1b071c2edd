#include "cairn/engine/workers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace cairn {
namespace {

TEST(Workers, DoEveryJobOnce) {
  for (size_t jobs : {0, 1, 2, 100})
    for (uint32_t threads : {0u, 1u, 2u, 7u}) {
      std::vector<std::atomic<int>> done(jobs);
      const auto result = run_jobs(jobs, threads, [&](size_t job, uint32_t worker) -> Result<void> {
        EXPECT_LT(worker, std::max(threads, 1u));
        ++done[job];
        return {};
      });
      EXPECT_TRUE(result);
      for (size_t job = 0; job < jobs; ++job) EXPECT_EQ(done[job], 1) << job;
    }
}

TEST(Workers, StopAfterAnErrorAndReturnTheEarliest) {
  std::atomic<int> done = 0;
  const auto one = run_jobs(100, 1, [&](size_t job, uint32_t) -> Result<void> {
    ++done;
    if (job == 3) return fail(Code::Io, "job {}", job);
    return {};
  });
  ASSERT_FALSE(one);
  EXPECT_EQ(one.error().message, "job 3");
  EXPECT_EQ(done, 4);
  const auto all = run_jobs(
      4, 4, [&](size_t job, uint32_t) -> Result<void> { return fail(Code::Io, "job {}", job); });
  ASSERT_FALSE(all);
  EXPECT_EQ(all.error().message, "job 0");
}

}  // namespace
}  // namespace cairn
