#include "bench/ceilings.h"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "cairn/kernels/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/ceilings.cc"
#include "cairn/kernels/simd.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

// After highway.h, which opens the target.
#include "cairn/kernels/pairs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cairn::bench::HWY_NAMESPACE {
using cairn::HWY_NAMESPACE::add_pairs;
using cairn::HWY_NAMESPACE::PairSum;
using cairn::HWY_NAMESPACE::total;
namespace hn = hwy::HWY_NAMESPACE;

// Four streams, so that the hardware has something to overlap.
uint64_t read_all(const std::byte* from, size_t bytes) {
  const hn::ScalableTag<uint64_t> d;
  constexpr size_t kStreams = 4;
  const size_t stream_bytes = bytes / kStreams / 4096 * 4096;
  auto sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  for (size_t i = 0; i < stream_bytes; i += hn::Lanes(d) * 8) {
    const auto at = [&](size_t stream) HWY_ATTR {
      return hn::LoadU(d, reinterpret_cast<const uint64_t*>(from + stream * stream_bytes + i));
    };
    sum0 = hn::Add(sum0, at(0));
    sum1 = hn::Add(sum1, at(1));
    sum2 = hn::Add(sum2, at(2));
    sum3 = hn::Add(sum3, at(3));
  }
  const auto sum = hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3));
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// Reads line after line, asks for the one 8 KiB ahead, and multiplies and adds kTimes times by
// each: what attention does, but for everything that is not that. Returns how many f32 operations
// it did.
template <size_t kTimes>
double read_and_multiply_times(const std::byte* from, size_t bytes, float* result) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  constexpr size_t kLine = 64, kAhead = 8192;
  constexpr size_t kLanes = hn::MaxLanes(hn::ScalableTag<float>()), kVectors = 16 / kLanes,
                   kSums = HWY_MAX(12, kVectors);
  static_assert(kSums % kVectors == 0);
  V sums[kSums];
  for (V& sum : sums) sum = hn::Set(d, 1.f);
  const V factor = hn::Set(d, 0.001f);
  for (size_t i = 0; i + kLine <= bytes; i += kLine) {
    __builtin_prefetch(from + i + kAhead, 0, 2);
    V line[kVectors];
    HWY_UNROLL(4)
    for (size_t v = 0; v < kVectors; ++v)
      line[v] = hn::LoadU(d, reinterpret_cast<const float*>(from + i) + v * kLanes);
    HWY_UNROLL(64)
    for (size_t k = 0; k < kTimes * kVectors; ++k)
      sums[k % kSums] = hn::MulAdd(line[k % kVectors], factor, sums[k % kSums]);
  }
  V all = sums[0];
  for (size_t k = 1; k < kSums; ++k) all = hn::Add(all, sums[k]);
  *result = hn::GetLane(all);
  return 32. * kTimes * static_cast<double>(bytes / kLine);
}

double read_and_multiply(size_t times, const std::byte* from, size_t bytes, float* result) {
  switch (times) {
    case 6:
      return read_and_multiply_times<6>(from, bytes, result);
    case 12:
      return read_and_multiply_times<12>(from, bytes, result);
    default:
      return read_and_multiply_times<18>(from, bytes, result);
  }
}

// Returns how many f32 operations it did.
double multiply_add(size_t rounds, float* result) {
  const hn::ScalableTag<float> d;
  const auto x = hn::Set(d, 0.999f), y = hn::Set(d, 0.001f);
  // Ten chains that the compiler cannot see to be one.
  const auto start = [&](float i) HWY_ATTR { return hn::Set(d, i); };
  auto a0 = start(0.f), a1 = start(1.f), a2 = start(2.f), a3 = start(3.f), a4 = start(4.f),
       a5 = start(5.f), a6 = start(6.f), a7 = start(7.f), a8 = start(8.f), a9 = start(9.f);
  for (size_t i = 0; i < rounds; ++i) {
    a0 = hn::MulAdd(a0, x, y);
    a1 = hn::MulAdd(a1, x, y);
    a2 = hn::MulAdd(a2, x, y);
    a3 = hn::MulAdd(a3, x, y);
    a4 = hn::MulAdd(a4, x, y);
    a5 = hn::MulAdd(a5, x, y);
    a6 = hn::MulAdd(a6, x, y);
    a7 = hn::MulAdd(a7, x, y);
    a8 = hn::MulAdd(a8, x, y);
    a9 = hn::MulAdd(a9, x, y);
  }
  const auto sum = hn::Add(hn::Add(hn::Add(a0, a1), hn::Add(a2, a3)),
                           hn::Add(hn::Add(hn::Add(a4, a5), hn::Add(a6, a7)), hn::Add(a8, a9)));
  *result = hn::GetLane(sum);
  return 20.0 * static_cast<double>(rounds * hn::Lanes(d));
}

// Returns how many operations on 16-bit numbers it did.
CAIRN_PAIRS_ATTR double multiply_pairs(size_t rounds, float* result) {
  const hn::ScalableTag<int16_t> pairs;
  const hn::RepartitionToWide<decltype(pairs)> d;
  using H = hn::Vec<decltype(pairs)>;
  using Z = hn::Vec<decltype(d)>;
  // Six sums, six factors and x: more would not stay in AVX2's registers.
  constexpr size_t kSums = 6, kSteps = 4;
  H factors[kSums];
  PairSum<Z> sums[kSums];
  for (size_t i = 0; i < kSums; ++i) {
    factors[i] = hn::Set(pairs, static_cast<int16_t>(static_cast<int16_t>(rounds) + 2 * i + 1));
    sums[i] = {hn::Zero(d), hn::Zero(d)};
  }
  H x = hn::Iota(pairs, 1);
  for (size_t i = 0; i < rounds; ++i) {
    HWY_UNROLL(4)
    for (size_t step = 0; step < kSteps; ++step) {
      HWY_UNROLL(6)
      for (size_t k = 0; k < kSums; ++k) add_pairs<kSums>(d, x, factors[k], step, sums[k]);
      x = hn::Add(x, factors[0]);
    }
  }
  Z sum = hn::Zero(d);
  for (const PairSum<Z>& some : sums) sum = hn::Add(sum, total(some));
  *result = static_cast<float>(hn::GetLane(hn::SumOfLanes(d, sum)));
  return 2.0 * kSums * kSteps * static_cast<double>(rounds * hn::Lanes(pairs));
}

// Returns how many numbers it converted.
double convert_numbers(size_t rounds, float* result) {
  const hn::ScalableTag<int32_t> integers;
  const hn::ScalableTag<float> d;
  auto x = hn::Iota(integers, 1);
  auto a0 = hn::Zero(d), a1 = a0, a2 = a0, a3 = a0;
  for (size_t i = 0; i < rounds; ++i) {
    const auto convert = [&](auto& any, int32_t by) HWY_ATTR {
      any = hn::Or(any, hn::ConvertTo(d, hn::Xor(x, hn::Set(integers, by))));
    };
    convert(a0, 0), convert(a1, 1), convert(a2, 2), convert(a3, 3);
    x = hn::Add(x, hn::Set(integers, 4));
  }
  *result = hn::GetLane(hn::MaxOfLanes(d, hn::Or(hn::Or(a0, a1), hn::Or(a2, a3))));
  return 4.0 * static_cast<double>(rounds * hn::Lanes(d));
}

}  // namespace cairn::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cairn::bench {
HWY_EXPORT(read_all);
HWY_EXPORT(read_and_multiply);
HWY_EXPORT(multiply_add);
HWY_EXPORT(multiply_pairs);
HWY_EXPORT(convert_numbers);

namespace {
volatile uint64_t sink;  // keeps results from being optimized away
void pin(uint32_t core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core % std::thread::hardware_concurrency(), &set);
  pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

// Whether something becomes true within about 100 microseconds.
template <class F>
bool spins_until(F is_true) {
  constexpr int kSpins = 1 << 17;
  for (int i = 0; i < kSpins; ++i)
    if (is_true()) return true;
  return false;
}

// What all threads do per second, together.
double peak(Threads& threads, double (*work)(size_t rounds, float* result)) {
  constexpr size_t kRounds = 2'000'000;
  std::vector<double> operations(threads.count());
  const double start = seconds_now();
  threads.run([&](uint32_t i) {
    float result = 0;
    operations[i] = work(kRounds, &result);
    sink = static_cast<uint64_t>(result);
  });
  const double seconds = seconds_now() - start;
  double sum = 0;
  for (const double count : operations) sum += count;
  return sum / seconds;
}
}  // namespace

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Threads::Threads(uint32_t count) {
  pthread_getaffinity_np(pthread_self(), sizeof(callers_cores_), &callers_cores_);
  pin(0);
  for (uint32_t i = 1; i < count; ++i) threads_.emplace_back([this, i] { serve(i); });
}

Threads::~Threads() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
    ++round_;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  pthread_setaffinity_np(pthread_self(), sizeof(callers_cores_), &callers_cores_);
}

void Threads::run(const std::function<void(uint32_t)>& job) {
  working_ = static_cast<uint32_t>(threads_.size());
  {
    const std::lock_guard lock(mutex_);
    job_ = &job;
    ++round_;
  }
  wake_.notify_all();
  job(0);
  const auto are_done = [&] { return working_.load(std::memory_order_acquire) == 0; };
  if (!spins_until(are_done))
    while (!are_done()) sched_yield();
}

void Threads::serve(uint32_t index) {
  pin(index);
  for (uint64_t seen = 0;;) {
    if (!spins_until([&] { return round_.load(std::memory_order_acquire) != seen; })) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return round_ != seen; });
    }
    seen = round_;
    if (is_over_) return;
    (*job_)(index);
    working_.fetch_sub(1, std::memory_order_release);
  }
}

size_t more_than_caches_hold() {
  constexpr size_t kLeast = size_t{256} << 20;
  const long last_cache = sysconf(_SC_LEVEL3_CACHE_SIZE);  // 0 or -1: unknown
  return last_cache > 0 ? std::max(kLeast, 4 * static_cast<size_t>(last_cache)) : kLeast;
}

ColdBytes::ColdBytes(size_t bytes) : bytes_(bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw std::runtime_error("cannot map memory for the benchmark");
  madvise(data, bytes, MADV_HUGEPAGE);
  std::memset(data, 1, bytes);
  data_ = static_cast<std::byte*>(data);
}
ColdBytes::~ColdBytes() { munmap(data_, bytes_); }

double read_bandwidth(Threads& threads, const ColdBytes& bytes) {
  const size_t part = bytes.span().size() / threads.count();
  const double start = seconds_now();
  threads.run([&](uint32_t i) {
    sink = HWY_DYNAMIC_DISPATCH(read_all)(bytes.span().data() + i * part, part);
  });
  return static_cast<double>(part * threads.count()) / (seconds_now() - start);
}

Mixed read_and_multiply(Threads& threads, const ColdBytes& bytes, size_t times) {
  const size_t part = bytes.span().size() / threads.count();
  std::vector<double> operations(threads.count());
  const double start = seconds_now();
  threads.run([&](uint32_t i) {
    float result = 0;
    operations[i] = HWY_DYNAMIC_DISPATCH(read_and_multiply)(times, bytes.span().data() + i * part,
                                                            part, &result);
    sink = static_cast<uint64_t>(result);
  });
  const double seconds = seconds_now() - start;
  return {.bytes = static_cast<double>(part * threads.count()),
          .operations = std::accumulate(operations.begin(), operations.end(), 0.),
          .seconds = seconds};
}

double copy_bandwidth(Threads& threads, const ColdBytes& bytes) {
  const size_t part = bytes.span().size() / 2 / threads.count();
  const double start = seconds_now();
  threads.run([&](uint32_t i) {
    std::byte* from = bytes.span().data() + 2 * i * part;
    std::memcpy(from + part, from, part);
  });
  return static_cast<double>(part * threads.count()) / (seconds_now() - start);
}

double fma_peak(Threads& threads) { return peak(threads, HWY_DYNAMIC_DISPATCH(multiply_add)); }
double integer_peak(Threads& threads) {
  return peak(threads, HWY_DYNAMIC_DISPATCH(multiply_pairs));
}
double convert_peak(Threads& threads) {
  return peak(threads, HWY_DYNAMIC_DISPATCH(convert_numbers));
}

}  // namespace cairn::bench
#endif  // HWY_ONCE
