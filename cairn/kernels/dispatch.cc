#include "cairn/kernels/dispatch.h"

#include <atomic>
#include <cstdlib>

#include "cairn/kernels/simd.h"
#include "hwy/highway.h"

namespace cairn {
namespace {

constexpr std::string_view kScalarName = "scalar";
constexpr int64_t kScalar = 0;  // in place of a Highway target

// Highway targets with code of ours that this machine can run, best first.
std::vector<int64_t> simd_targets() {
  constexpr int64_t kFallbacks = HWY_SCALAR | HWY_EMU128;
  std::vector<int64_t> targets;
  for (int64_t rest = hwy::SupportedTargets() & HWY_TARGETS & ~kFallbacks; rest != 0;
       rest &= rest - 1)
    targets.push_back(rest & -rest);
  return targets;
}

std::string names_of_all() {
  std::string names;
  for (const std::string& name : kernel_targets()) names += (names.empty() ? "" : ", ") + name;
  return names;
}

Result<int64_t> target_named(std::string_view name) {
  const std::vector<int64_t> targets = simd_targets();
  if (name.empty()) return targets.empty() ? kScalar : targets.front();
  if (name == kScalarName) return kScalar;
  for (const int64_t target : targets)
    if (name == hwy::TargetName(target)) return target;
  return fail(Code::BadInput, "kernels: {}, expected one of {}", name, names_of_all());
}

int64_t target_of_environment() {
  const char* name = std::getenv("CAIRN_KERNELS");
  const Result<int64_t> target = target_named(name == nullptr ? "" : name);
  CAIRN_CHECK(target.has_value(), "CAIRN_KERNELS: {}", target.error().message);
  return *target;
}

// Tells Highway too, whose dispatch tables are read at every call.
int64_t chosen(int64_t target) {
  if (target != kScalar) hwy::GetChosenTarget().Update(target);
  return target;
}

std::atomic<int64_t>& current() {
  static std::atomic<int64_t> target{chosen(target_of_environment())};
  return target;
}

}  // namespace

std::vector<std::string> kernel_targets() {
  std::vector<std::string> names;
  for (const int64_t target : simd_targets()) names.emplace_back(hwy::TargetName(target));
  names.emplace_back(kScalarName);
  return names;
}

std::string kernel_target() {
  const int64_t target = current();
  return target == kScalar ? std::string(kScalarName) : hwy::TargetName(target);
}

Result<void> use_kernel_target(std::string_view name) {
  // "" is the default of the process: the environment's choice.
  const int64_t target = name.empty() ? target_of_environment() : CAIRN_TRY(target_named(name));
  current() = chosen(target);
  return {};
}

bool use_scalar() { return current().load(std::memory_order_relaxed) == kScalar; }

// The modes' bits: x86 MXCSR has rounding control in bits 13-14 (0: nearest), flush-to-zero in bit
// 15 and denormals-are-zero in bit 6; AArch64 FPCR has FZ16 in bit 19, rounding in bits 22-23, FZ
// in bit 24, default NaN in bit 25. Exception masks and flags stay the caller's.
#if defined(__x86_64__)
namespace {
constexpr uint32_t kModeBits = 0xe040;
uint32_t read_mode() { return __builtin_ia32_stmxcsr(); }
void write_mode(uint32_t mode) { __builtin_ia32_ldmxcsr(mode); }
}  // namespace
#elif defined(__aarch64__)
namespace {
constexpr uint64_t kModeBits = 0x3c80000;
uint64_t read_mode() {
  uint64_t mode;
  __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
void write_mode(uint64_t mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode)); }
}  // namespace
#else
#error "RoundingScope: say how this machine sets its rounding mode and denormals"
#endif

RoundingScope::RoundingScope() : saved_(read_mode()) {
  if ((saved_ & kModeBits) != 0)
    write_mode(static_cast<decltype(read_mode())>(saved_ & ~kModeBits));
}

RoundingScope::~RoundingScope() {
  if ((saved_ & kModeBits) != 0) write_mode(static_cast<decltype(read_mode())>(saved_));
}

}  // namespace cairn
