// c[row][column] += sum over steps of a[row][step] * b[step][column], in ascending steps: the inner
// loop of scores (steps are dimensions, columns positions) and of weighted sums (steps are
// positions, columns dimensions). Every element is one chain of fma, whatever the tiling.
//
// `Words` says what b is made of: kBytes per element (or kBits, where vectors of them fill whole
// bytes), and load(d, pointer) -> a vector of f32.
// Included once per target: between hwy/highway.h and the file's own HWY_NAMESPACE code.
#if defined(CAIRN_KERNELS_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef CAIRN_KERNELS_TILE_INL_H_
#undef CAIRN_KERNELS_TILE_INL_H_
#else
#define CAIRN_KERNELS_TILE_INL_H_
#endif

#include <cstddef>
#include <type_traits>

#include "hwy/highway.h"

#if !CAIRN_NO_SIMD
HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {

struct Product {
  const float* a;
  size_t a_stride;  // floats between rows; steps are adjacent
  size_t rows;
  const std::byte* b;
  size_t b_stride;  // bytes between steps; columns are adjacent
  size_t steps;
  const std::byte* next;  // as many bytes as b has here, wanted next time; null: unknown
  float* c;
  size_t c_stride;  // floats between rows
  bool from_zero;   // c is overwritten instead of added to
  // Of multiply_halves: floats from a to the factors of a tile's upper half.
  size_t a_upper = 0;
};

// Which part of a product's `next` is asked for: where rows take two tiles, half of it by each.
struct Share {
  size_t index, count;  // beyond the last one: nothing is left to ask for
};

// Of six rows of c that stay in registers: 12 of AVX2's 16, 24 of 32 elsewhere.
inline constexpr size_t kVectorsOfMany = HWY_TARGET == HWY_AVX2 ? 2 : 4;

template <class Words>
constexpr size_t bytes_of(size_t elements) {
  if constexpr (requires { Words::kBits; })
    return elements * Words::kBits / 8;
  else
    return elements * Words::kBytes;
}

struct Floats {
  static constexpr size_t kBytes = sizeof(float);
  template <class D>
  static HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> load(D d, const std::byte* from) {
    return hwy::HWY_NAMESPACE::LoadU(d, reinterpret_cast<const float*>(from));
  }
};

// One tile: kRows rows from `row`, kVectors vectors from `column`. kHalves: the upper half of the
// vectors has factors of its own.
template <size_t kRows, size_t kVectors, bool kPrefetch, class Words, bool kHalves = false, class D>
HWY_NOINLINE void multiply_tile(D d, const Product& p, Share share, size_t row, size_t column) {
  using V = hwy::HWY_NAMESPACE::Vec<D>;
  namespace hn = hwy::HWY_NAMESPACE;
  constexpr size_t kLanes = hn::MaxLanes(D());
  constexpr size_t kTileBytes = bytes_of<Words>(kVectors * kLanes);
  constexpr size_t kLine = 64;
  const float* HWY_RESTRICT a = p.a + row * p.a_stride;
  const std::byte* HWY_RESTRICT b = p.b + bytes_of<Words>(column);
  // Asked for line by line in ascending order, whatever order the tile reads: the memory's own
  // prefetch then helps (20 % more bytes per second in decode than the tile's order, Zen 3).
  const size_t next_step = kTileBytes / share.count;
  const std::byte* next = kPrefetch && share.index < share.count ? p.next : nullptr;
  if (next != nullptr)
    next += bytes_of<Words>(column * p.steps) + share.index * p.steps * next_step;
  float* HWY_RESTRICT c = p.c + row * p.c_stride + column;
  [[maybe_unused]] const size_t a_upper = p.a_upper;

  V sums[kRows][kVectors];
  HWY_UNROLL(8)
  for (size_t r = 0; r < kRows; ++r) HWY_UNROLL(8)
  for (size_t v = 0; v < kVectors; ++v)
    sums[r][v] = p.from_zero ? hn::Zero(d) : hn::LoadU(d, c + r * p.c_stride + v * kLanes);

  for (size_t step = 0; step < p.steps; ++step) {
    if (kPrefetch && next != nullptr) {
      HWY_UNROLL(4)
      for (size_t line = 0; line < kTileBytes; line += kLine) __builtin_prefetch(next + line, 0, 2);
      next += next_step;
    }
    // What is fewer is loaded first: the other order needs more registers than AVX2 has.
    if constexpr (kRows < kVectors && !kHalves) {
      V factors[kRows];
      HWY_UNROLL(8)
      for (size_t r = 0; r < kRows; ++r) factors[r] = hn::Set(d, a[r * p.a_stride + step]);
      HWY_UNROLL(8)
      for (size_t v = 0; v < kVectors; ++v) {
        const V x = Words::load(d, b + bytes_of<Words>(v * kLanes));
        HWY_UNROLL(8)
        for (size_t r = 0; r < kRows; ++r) sums[r][v] = hn::MulAdd(x, factors[r], sums[r][v]);
      }
    } else {
      V x[kVectors];
      HWY_UNROLL(8)
      for (size_t v = 0; v < kVectors; ++v) x[v] = Words::load(d, b + bytes_of<Words>(v * kLanes));
      HWY_UNROLL(8)
      for (size_t r = 0; r < kRows; ++r) {
        const V lower = hn::Set(d, a[r * p.a_stride + step]);
        const V upper = kHalves ? hn::Set(d, a[r * p.a_stride + step + a_upper]) : lower;
        HWY_UNROLL(8)
        for (size_t v = 0; v < kVectors; ++v)
          sums[r][v] = hn::MulAdd(x[v], v < kVectors / 2 ? lower : upper, sums[r][v]);
      }
    }
    b += p.b_stride;
  }
  HWY_UNROLL(8)
  for (size_t r = 0; r < kRows; ++r) HWY_UNROLL(8)
  for (size_t v = 0; v < kVectors; ++v) hn::StoreU(sums[r][v], d, c + r * p.c_stride + v * kLanes);
}

// kRows rows, columns [begin, end): a multiple of the lanes.
template <size_t kRows, size_t kVectors, bool kPrefetch, class Words, class D>
HWY_INLINE void multiply_rows(
    D d, const Product& p, Share share, size_t row, size_t begin, size_t end) {
  constexpr size_t kColumns = kVectors * hwy::HWY_NAMESPACE::MaxLanes(D());
  for (; begin + kColumns <= end; begin += kColumns)
    multiply_tile<kRows, kVectors, kPrefetch, Words>(d, p, share, row, begin);
  if constexpr (kVectors > 1)
    multiply_rows<kRows, kVectors / 2, kPrefetch, Words>(d, p, share, row, begin, end);
}

// Of `rows`, those that the next tile takes.
constexpr size_t rows_of_tile(size_t rows) {
  constexpr bool kHasManyRegisters = HWY_TARGET != HWY_AVX2;
  if (kHasManyRegisters && rows == 8) return 8;
  if (rows == 4 || rows == 7 || rows == 8) return 4;
  if (rows >= 6) return 6;
  return rows >= 3 ? 3 : rows;
}

// As b lies. Columns [begin, end): a multiple of the lanes. Tiles are at most kMost vectors wide: 1
// where columns are few, so that less code is made.
template <class Words, size_t kMost, class D>
void multiply_in_place(D d, const Product& p, size_t begin, size_t end) {
  constexpr bool kPrefetch = kMost > 1 && !std::is_same_v<Words, Floats>;  // these were just made
  constexpr size_t kMany = HWY_MIN(kMost, kVectorsOfMany), kFew = HWY_MIN(kMost, 4);
  Share share{0, rows_of_tile(p.rows) < p.rows ? 2u : 1u};
  for (size_t row = 0; row < p.rows; ++share.index) {
    const size_t rows = rows_of_tile(p.rows - row);
    if (rows == 8)
      multiply_rows<8, HWY_MIN(kMost, 2), kPrefetch, Words>(d, p, share, row, begin, end);
    else if (rows == 6)
      multiply_rows<6, kMany, kPrefetch, Words>(d, p, share, row, begin, end);
    else if (rows == 4)
      multiply_rows<4, kMany, kPrefetch, Words>(d, p, share, row, begin, end);
    else if (rows == 3)
      multiply_rows<3, kFew, kPrefetch, Words>(d, p, share, row, begin, end);
    else if (rows == 2)
      multiply_rows<2, kFew, kPrefetch, Words>(d, p, share, row, begin, end);
    else
      multiply_rows<1, kMost, kPrefetch, Words>(d, p, share, row, begin, end);
    row += rows;
  }
}

// The four vectors from `column` on, of which the upper two have factors of their own: one tile has
// twice as many chains as two, which hides the latency of few rows.
template <class Words, class D>
void multiply_halves(D d, const Product& p, size_t column) {
  Share share{0, rows_of_tile(p.rows) < p.rows ? 2u : 1u};
  for (size_t row = 0; row < p.rows; ++share.index) {
    const size_t rows = p.rows - row;
    const auto take = [&](auto tile, size_t taken) {
      tile(d, p, share, row, column);
      row += taken;
    };
    if (rows >= 6)
      take(multiply_tile<6, 4, true, Words, true, D>, 6);
    else if (rows >= 4)
      take(multiply_tile<4, 4, true, Words, true, D>, 4);
    else if (rows == 3)
      take(multiply_tile<3, 4, true, Words, true, D>, 3);
    else if (rows == 2)
      take(multiply_tile<2, 4, true, Words, true, D>, 2);
    else
      take(multiply_tile<1, 4, true, Words, true, D>, 1);
  }
}

// Many rows: a piece of b is read once, line after line, and made f32 in the order in which tiles
// read it; the tiles then find it in the first cache.
template <class Words, class D>
HWY_NOINLINE void multiply_packed(D d, const Product& p, size_t begin, size_t end) {
  namespace hn = hwy::HWY_NAMESPACE;
  constexpr size_t kLanes = hn::MaxLanes(D());
  constexpr size_t kTile = kVectorsOfMany * kLanes;
  constexpr size_t kColumns = 64, kSteps = 64, kLine = 64;
  static_assert(kColumns % kTile == 0);
  alignas(64) float packed[kColumns * kSteps];  // [tile][step][column of the tile]
  for (size_t column = begin; column < end; column += kColumns) {
    const size_t columns = HWY_MIN(kColumns, end - column);
    for (size_t step = 0; step < p.steps; step += kSteps) {
      const size_t steps = HWY_MIN(kSteps, p.steps - step);
      const size_t offset = step * p.b_stride + bytes_of<Words>(column);
      for (size_t s = 0; s < steps; ++s) {
        const std::byte* b = p.b + offset + s * p.b_stride;
        if (p.next != nullptr)
          for (size_t line = 0; line < bytes_of<Words>(columns); line += kLine)
            __builtin_prefetch(p.next + offset + s * p.b_stride + line, 0, 2);
        for (size_t i = 0; i < columns; i += kLanes)
          hn::Store(Words::load(d, b + bytes_of<Words>(i)), d,
                    packed + i / kTile * kTile * kSteps + s * kTile + i % kTile);
      }
      for (size_t i = 0; i < columns; i += kTile) {
        const Product tile{.a = p.a + step,
                           .a_stride = p.a_stride,
                           .rows = p.rows,
                           .b = reinterpret_cast<const std::byte*>(packed + i * kSteps),
                           .b_stride = kTile * sizeof(float),
                           .steps = steps,
                           .next = nullptr,
                           .c = p.c + column + i,
                           .c_stride = p.c_stride,
                           .from_zero = p.from_zero && step == 0};
        multiply_in_place<Floats, kVectorsOfMany>(d, tile, 0, HWY_MIN(kTile, columns - i));
      }
    }
  }
}

// Columns [begin, end): a multiple of the lanes.
template <class Words, size_t kMost = 8, class D>
void multiply(D d, const Product& p, size_t begin, size_t end) {
  constexpr size_t kManyRows = 12;
  if (kMost > 1 && p.rows >= kManyRows)
    multiply_packed<Words>(d, p, begin, end);
  else
    multiply_in_place<Words, kMost>(d, p, begin, end);
}

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // !CAIRN_NO_SIMD

#endif  // per-target include guard
