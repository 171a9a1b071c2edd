// What this machine can do at most, measured beside every benchmark, in the same run: a ratio to
// these travels from machine to machine, a time does not.
#ifndef CAIRN_BENCH_CEILINGS_H_
#define CAIRN_BENCH_CEILINGS_H_

#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace cairn::bench {

double seconds_now();  // of a steady clock

// Threads pinned to the processor's cores 0, 1, ..; between jobs they spin for about 100
// microseconds, as a model's threads do, then sleep. The caller's thread, which is the first, is
// let go at the end: threads that it starts later would share its core.
class Threads {
 public:
  explicit Threads(uint32_t count);
  ~Threads();
  uint32_t count() const { return static_cast<uint32_t>(threads_.size()) + 1; }
  // Calls job(index) for every index below count() at once, one of them on the caller's thread.
  void run(const std::function<void(uint32_t)>& job);

 private:
  void serve(uint32_t index);

  cpu_set_t callers_cores_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<uint64_t> round_{0};
  std::atomic<uint32_t> working_{0};
  const std::function<void(uint32_t)>* job_ = nullptr;
  std::atomic<bool> is_over_{false};
};

// Four times the last cache, and no less than 256 MiB.
size_t more_than_caches_hold();

// Bytes that no cache holds, in huge pages where the system gives them.
class ColdBytes {
 public:
  explicit ColdBytes(size_t bytes);
  ~ColdBytes();
  std::span<std::byte> span() const { return {data_, bytes_}; }

 private:
  std::byte* data_;
  size_t bytes_;
};

double read_bandwidth(Threads& threads, const ColdBytes& bytes);  // bytes per second

// Reading cold bytes and multiplying them at once, as plainly as it can be written: each line of 16
// numbers meets `times` (6, 12 or 18) multiply-adds, while the line 8 KiB ahead is asked for. Shows
// what it costs this machine to do both at once.
struct Mixed {
  double bytes, operations, seconds;
};
Mixed read_and_multiply(Threads& threads, const ColdBytes& bytes, size_t times);

double copy_bandwidth(Threads& threads, const ColdBytes& bytes);  // memcpy: bytes copied per second
double fma_peak(Threads& threads);  // f32 operations per second (a fused multiply-add is two)
// Operations per second of products of 16-bit numbers that are summed in 32 bits (a product and its
// sum are two), and 32-bit whole numbers made f32 per second.
double integer_peak(Threads& threads);
double convert_peak(Threads& threads);

}  // namespace cairn::bench

#endif  // CAIRN_BENCH_CEILINGS_H_
