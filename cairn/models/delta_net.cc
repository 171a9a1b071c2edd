#include "cairn/models/delta_net.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cairn/kernels/dispatch.h"
#include "cairn/kernels/softmax.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cairn/models/delta_net.cc"
#include "cairn/kernels/simd.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

// After highway.h, which opens the target.
#include "cairn/kernels/sums-inl.h"

// What the loops take. In a namespace of this file's own.
#ifndef CAIRN_MODELS_DELTA_NET_LOOPS_
#define CAIRN_MODELS_DELTA_NET_LOOPS_
namespace cairn::delta_net_loops {

inline constexpr size_t kSums = 16;  // by index mod 16; widths are multiples of it
inline constexpr size_t kMostWidth = 256;
inline constexpr size_t kMostTaps = 8;
inline constexpr float kLog2E = 1.44269504f;
inline constexpr float kSmall = 1e-6f;  // added to a sum of squares

// One position: rows[j] and taps + j * stride are the numbers of tap j.
struct Convolution {
  const float* const* rows;
  const float* taps;
  size_t stride;
  size_t tap_count;
  size_t channels;
  float* out;
};

// Some positions of one value head.
struct Recall {
  const float *keys, *queries;  // [count][key_dim]
  const float* values;          // [count][value_dim]
  const float *decays, *gates;  // [count]
  size_t key_dim, value_dim, count;
  const float* before;  // [value_dim][key_dim]; may be `matrix`
  float* matrix;
  float* out;  // null: nobody wants it
  size_t out_stride;
};

struct Loops {
  void (*convolve)(const Convolution&);
  float (*square)(const float* x, size_t width);  // the sum of squares
  void (*recall)(const Recall&);
};

}  // namespace cairn::delta_net_loops
#endif

HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {

#if CAIRN_NO_SIMD

const delta_net_loops::Loops* delta_net_table() { return nullptr; }

#else

namespace delta_net {  // other files of this target have functions of these names

namespace hn = hwy::HWY_NAMESPACE;
using namespace delta_net_loops;  // NOLINT: this file's own

using D = hn::CappedTag<float, kSums>;
using V = hn::Vec<D>;
constexpr D d;
constexpr size_t kLanes = hn::MaxLanes(D());
constexpr size_t kVectors = kSums / kLanes;
constexpr size_t kRows = 4;  // of a matrix that share the loads of a key

HWY_INLINE V silu(V x) {
  const V one = hn::Set(d, 1.f);
  const V e = exp2_nonpositive(d, hn::Mul(hn::Neg(hn::Abs(x)), hn::Set(d, kLog2E)));
  const V top = hn::IfThenElse(hn::Ge(x, hn::Zero(d)), one, e);
  return hn::Mul(x, hn::Div(top, hn::Add(one, e)));
}

void convolve(const Convolution& c) {
  for (size_t i = 0; i < c.channels; i += kLanes) {
    V sum = hn::Zero(d);
    for (size_t j = 0; j < c.tap_count; ++j)
      sum = hn::MulAdd(hn::LoadU(d, c.taps + j * c.stride + i), hn::LoadU(d, c.rows[j] + i), sum);
    hn::StoreU(silu(sum), d, c.out + i);
  }
}

struct Sums {
  V v[kVectors];
};

HWY_INLINE Sums zeros() {
  Sums sums;
  for (V& sum : sums.v) sum = hn::Zero(d);
  return sums;
}

HWY_INLINE float total(Sums& sums) {
  for (size_t half = kVectors / 2; half != 0; half /= 2)
    for (size_t j = 0; j < half; ++j) sums.v[j] = hn::Add(sums.v[j], sums.v[j + half]);
  return halving_sum(d, sums.v[0]);
}

float square(const float* x, size_t width) {
  Sums sums = zeros();
  for (size_t i = 0; i < width; i += kSums)
    for (size_t j = 0; j < kVectors; ++j) {
      const V v = hn::LoadU(d, x + i + j * kLanes);
      sums.v[j] = hn::MulAdd(v, v, sums.v[j]);
    }
  return total(sums);
}

// One position, kRows rows of the matrix.
HWY_INLINE void recall_rows(
    const Recall& r, size_t position, size_t row, const float* before, float* matrix) {
  const float* key = r.keys + position * r.key_dim;
  const float* query = r.queries + position * r.key_dim;
  const V decay = hn::Set(d, r.decays[position]);
  Sums sums[kRows];
  for (Sums& of_row : sums) of_row = zeros();
  for (size_t i = 0; i < r.key_dim; i += kSums)
    for (size_t j = 0; j < kVectors; ++j) {
      const size_t at = i + j * kLanes;
      const V k = hn::LoadU(d, key + at);
      for (size_t n = 0; n < kRows; ++n) {
        const V s = hn::Mul(hn::LoadU(d, before + n * r.key_dim + at), decay);
        hn::StoreU(s, d, matrix + n * r.key_dim + at);
        sums[n].v[j] = hn::MulAdd(s, k, sums[n].v[j]);
      }
    }
  V lacked[kRows];
  for (size_t n = 0; n < kRows; ++n) {
    const float value = r.values[position * r.value_dim + row + n];
    lacked[n] = hn::Set(d, (value - total(sums[n])) * r.gates[position]);
    sums[n] = zeros();
  }
  for (size_t i = 0; i < r.key_dim; i += kSums)
    for (size_t j = 0; j < kVectors; ++j) {
      const size_t at = i + j * kLanes;
      const V k = hn::LoadU(d, key + at), q = hn::LoadU(d, query + at);
      for (size_t n = 0; n < kRows; ++n) {
        float* s = matrix + n * r.key_dim + at;
        const V learned = hn::MulAdd(k, lacked[n], hn::LoadU(d, s));
        hn::StoreU(learned, d, s);
        sums[n].v[j] = hn::MulAdd(learned, q, sums[n].v[j]);
      }
    }
  if (r.out == nullptr) return;
  for (size_t n = 0; n < kRows; ++n) r.out[position * r.out_stride + row + n] = total(sums[n]);
}

// A few rows stay in the nearest cache while they go through all positions.
void recall(const Recall& r) {
  for (size_t row = 0; row < r.value_dim; row += kRows) {
    float* matrix = r.matrix + row * r.key_dim;
    for (size_t position = 0; position < r.count; ++position)
      recall_rows(r, position, row, position == 0 ? r.before + row * r.key_dim : matrix, matrix);
  }
}

constexpr Loops kTable = {convolve, square, recall};

}  // namespace delta_net

const delta_net_loops::Loops* delta_net_table() { return &delta_net::kTable; }

#endif

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cairn {
HWY_EXPORT(delta_net_table);

namespace {

using namespace delta_net_loops;  // NOLINT: this file's own

// --- the scalar definition

float sigmoid(float x) {
  const float e = exp2_nonpositive(-std::fabs(x) * kLog2E);
  return (x >= 0 ? 1.f : e) / (1.f + e);
}

void convolve_channels(const Convolution& c) {
  for (size_t i = 0; i < c.channels; ++i) {
    float sum = 0;
    for (size_t j = 0; j < c.tap_count; ++j)
      sum = std::fma(c.taps[j * c.stride + i], c.rows[j][i], sum);
    c.out[i] = sum * sigmoid(sum);
  }
}

float dot(const float* a, const float* b, size_t width) {
  float sums[kSums] = {};
  for (size_t i = 0; i < width; ++i) sums[i % kSums] = std::fma(a[i], b[i], sums[i % kSums]);
  for (size_t half = kSums / 2; half != 0; half /= 2)
    for (size_t j = 0; j < half; ++j) sums[j] += sums[j + half];
  return sums[0];
}

float square(const float* x, size_t width) { return dot(x, x, width); }

void recall(const Recall& r) {
  for (size_t position = 0; position < r.count; ++position) {
    const float* key = r.keys + position * r.key_dim;
    const float* before = position == 0 ? r.before : r.matrix;
    for (size_t row = 0; row < r.value_dim; ++row) {
      float* s = r.matrix + row * r.key_dim;
      for (size_t i = 0; i < r.key_dim; ++i)
        s[i] = before[row * r.key_dim + i] * r.decays[position];
      const float value = r.values[position * r.value_dim + row];
      const float lacked = (value - dot(s, key, r.key_dim)) * r.gates[position];
      for (size_t i = 0; i < r.key_dim; ++i) s[i] = std::fma(key[i], lacked, s[i]);
      if (r.out != nullptr)
        r.out[position * r.out_stride + row] = dot(s, r.queries + position * r.key_dim, r.key_dim);
    }
  }
}

constexpr Loops kScalarTable = {convolve_channels, square, recall};

const Loops& loops() {
  return use_scalar() ? kScalarTable : *HWY_DYNAMIC_DISPATCH(delta_net_table)();
}

// --- what every target shares

// log(1 + e^x), in double by + - * / alone; e^-|x| by E. With t = e / (2 + e), which is at most
// 1/3, log(1 + e) = 2 atanh(t).
float softplus(float x) {
  const double e = exp2_nonpositive(-std::fabs(x) * kLog2E);
  const double t = e / (2 + e), square_of_t = t * t;
  double series = 1.0 / 21;
  for (int k = 19; k >= 1; k -= 2) series = series * square_of_t + 1.0 / k;
  return static_cast<float>((x > 0 ? static_cast<double>(x) : 0.0) + 2 * t * series);
}

void make_unit(float* x, size_t width, float scale) {
  const float factor = 1.f / std::sqrt(loops().square(x, width) + kSmall) * scale;
  for (size_t i = 0; i < width; ++i) x[i] *= factor;
}

constexpr Pos kBlockPositions = 16;

}  // namespace

// Positions [first, first + count) of a run.
struct DeltaNet::Block {
  Pos first = 0;
  Pos count = 0;
};

Result<void> validate(const DeltaShape& shape, const std::string& path) {
  if (shape.key_heads == 0 || shape.value_heads == 0 || shape.value_heads % shape.key_heads != 0)
    return fail(Code::BadInput,
                "{}: linear attention of {} value heads over {} key heads, expected a multiple",
                path, shape.value_heads, shape.key_heads);
  for (const uint32_t width : {shape.key_dim, shape.value_dim})
    if (width == 0 || width % kSums != 0 || width > kMostWidth)
      return fail(Code::Unsupported,
                  "{}: linear attention with heads of {} numbers, expected a multiple of {} up to "
                  "{}",
                  path, width, kSums, kMostWidth);
  if (shape.taps < 2 || shape.taps > kMostTaps)
    return fail(Code::Unsupported, "{}: a convolution over {} positions, expected 2 to {}", path,
                shape.taps, kMostTaps);
  constexpr uint32_t kMostHeads = 4096;
  if (shape.value_heads > kMostHeads)
    return fail(Code::Unsupported, "{}: linear attention of {} value heads, expected at most {}",
                path, shape.value_heads, kMostHeads);
  return {};
}

DeltaNet::DeltaNet(const DeltaShape& shape,
                   std::span<const float> taps,
                   std::span<const float> decays,
                   std::span<const float> biases)
    : shape_(shape),
      taps_(taps.size()),
      decays_(decays.begin(), decays.end()),
      biases_(biases.begin(), biases.end()) {
  for (size_t channel = 0; channel < shape.channels(); ++channel)
    for (size_t tap = 0; tap < shape.taps; ++tap)
      taps_[tap * shape.channels() + channel] = taps[channel * shape.taps + tap];
}

// Channels [channel, channel + count) at the block's positions, dense.
void DeltaNet::convolve(uint32_t channel,
                        uint32_t count,
                        const float* previous,
                        const DeltaRows& rows,
                        Block block,
                        float* out) const {
  const Pos older = shape_.taps - 1;  // rows of `previous`
  for (Pos i = 0; i < block.count; ++i) {
    const float* seen[kMostTaps];
    for (Pos tap = 0; tap < shape_.taps; ++tap) {
      const Pos row = block.first + i + tap;  // counted from the oldest of `previous`
      seen[tap] = channel + (row < older ? previous + row * shape_.channels()
                                         : rows.mixed + (row - older) * rows.mixed_stride);
    }
    loops().convolve({.rows = seen,
                      .taps = taps_.data() + channel,
                      .stride = shape_.channels(),
                      .tap_count = shape_.taps,
                      .channels = count,
                      .out = out + i * count});
  }
}

void DeltaNet::keep_newest(uint32_t channel,
                           uint32_t count,
                           const float* previous,
                           const DeltaRows& rows,
                           float* next) const {
  const Pos older = shape_.taps - 1;
  for (Pos i = 0; i < older; ++i) {
    const Pos row = rows.count + i;
    const float* from = row < older ? previous + row * shape_.channels()
                                    : rows.mixed + (row - older) * rows.mixed_stride;
    std::memcpy(next + i * shape_.channels() + channel, from + channel, count * sizeof(float));
  }
}

void DeltaNet::advance(uint32_t head,
                       const DeltaState<const float>& previous,
                       const DeltaRows& rows,
                       const DeltaState<float>& next,
                       float* out,
                       size_t out_stride) const {
  const uint32_t key_head = head / shape_.sharers(), sharer = head % shape_.sharers();
  const uint32_t query_channel = key_head * shape_.key_dim;
  const uint32_t key_channel = shape_.keys() + query_channel;
  const uint32_t value_channel = 2 * shape_.keys() + head * shape_.value_dim;
  const size_t matrix = size_t{head} * shape_.value_dim * shape_.key_dim;
  const float query_scale = 1.f / std::sqrt(static_cast<float>(shape_.key_dim));

  alignas(64) float queries[kBlockPositions * kMostWidth];
  alignas(64) float keys[kBlockPositions * kMostWidth];
  alignas(64) float values[kBlockPositions * kMostWidth];
  float decays[kBlockPositions], gates[kBlockPositions];
  for (Block block; block.first < rows.count; block.first += kBlockPositions) {
    block.count = std::min(kBlockPositions, rows.count - block.first);
    convolve(query_channel, shape_.key_dim, previous.conv, rows, block, queries);
    convolve(key_channel, shape_.key_dim, previous.conv, rows, block, keys);
    convolve(value_channel, shape_.value_dim, previous.conv, rows, block, values);
    for (Pos i = 0; i < block.count; ++i) {
      make_unit(queries + i * shape_.key_dim, shape_.key_dim, query_scale);
      make_unit(keys + i * shape_.key_dim, shape_.key_dim, 1);
      const float* b = rows.gates + (block.first + i) * rows.gates_stride +
                       size_t{key_head} * 2 * shape_.sharers() + sharer;
      const float* a = b + shape_.sharers();
      gates[i] = sigmoid(*b);
      decays[i] = exp2_nonpositive(decays_[head] * softplus(*a + biases_[head]) * kLog2E);
    }
    loops().recall({.keys = keys,
                    .queries = queries,
                    .values = values,
                    .decays = decays,
                    .gates = gates,
                    .key_dim = shape_.key_dim,
                    .value_dim = shape_.value_dim,
                    .count = block.count,
                    .before = (block.first == 0 ? previous.matrices : next.matrices) + matrix,
                    .matrix = next.matrices + matrix,
                    .out = out == nullptr ? nullptr : out + block.first * out_stride,
                    .out_stride = out_stride});
  }
  keep_newest(value_channel, shape_.value_dim, previous.conv, rows, next.conv);
  if (sharer != 0) return;  // the first one keeps what all have in common
  keep_newest(query_channel, shape_.key_dim, previous.conv, rows, next.conv);
  keep_newest(key_channel, shape_.key_dim, previous.conv, rows, next.conv);
}

SlotSpec DeltaNet::slot(Pos max_positions) const {
  return recurrent({{&kConvFamily, shape_.taps - 1, shape_.channels()},
                    {&kRecurrentFamily, shape_.value_heads, shape_.value_dim * shape_.key_dim}},
                   {.function = replay,
                    .model = this,
                    .input_bytes = (uint64_t{shape_.channels()} + shape_.gates()) * sizeof(float)},
                   max_positions);
}

void DeltaNet::replay(const void* net,
                      const float* const* previous,
                      const std::byte* inputs,
                      Pos count,
                      float* const* next) {
  const DeltaNet& self = *static_cast<const DeltaNet*>(net);
  const size_t stride = size_t{self.shape_.channels()} + self.shape_.gates();
  const auto* mixed = reinterpret_cast<const float*>(inputs);
  const DeltaRows rows{.mixed = mixed,
                       .mixed_stride = stride,
                       .gates = mixed + self.shape_.channels(),
                       .gates_stride = stride,
                       .count = count};
  for (uint32_t head = 0; head < self.shape_.value_heads; ++head)
    self.advance(head, {previous[0], previous[1]}, rows, {next[0], next[1]}, nullptr, 0);
}

}  // namespace cairn
#endif  // HWY_ONCE
