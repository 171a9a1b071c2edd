// What every row of the registry promises, for every sample of its parameters.
#include "cairn/encodings/encoding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "cairn/core/bytes.h"
#include "cairn/encodings/registry.h"
#include "tests/support/random.h"
#include "tests/support/targets.h"

namespace cairn {
namespace {

using testing::expect_same_on_every_target;
using testing::random_floats;
using testing::with_one_nan;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr uint32_t kWidths[] = {8, 64, 72, 80, 96, 128, 192, 256, 576};

// One head's planes of one page, by records or by words. What is not written is NaN (0xff bytes).
class Page {
 public:
  Page(const Codec& codec, uint32_t capacity, bool by_words) : capacity_(capacity) {
    for (const PlaneGeometry& plane : codec.geometry.planes) {
      bytes_.emplace_back(uint64_t{plane.record_bytes} * capacity + 64, std::byte{0xff});
      strides_.push_back(by_words ? PlaneRun{.position_stride = plane.word_bytes,
                                             .word_stride = uint64_t{capacity} * plane.word_bytes}
                                  : PlaneRun{.position_stride = plane.record_bytes,
                                             .word_stride = plane.word_bytes});
    }
  }

  Records records(uint32_t first, uint32_t count) {
    Records run{.first = first, .count = count, .capacity = capacity_};
    for (size_t i = 0; i < bytes_.size(); ++i) {
      run.planes[i] = strides_[i];
      const auto address = reinterpret_cast<uintptr_t>(bytes_[i].data());
      run.planes[i].data = bytes_[i].data() + (round_up(address, 64) - address);
    }
    return run;
  }

  std::vector<std::byte> bytes() {
    std::vector<std::byte> all;
    for (size_t i = 0; i < bytes_.size(); ++i) {
      const std::byte* data = records(0, 0).planes[i].data;
      all.insert(all.end(), data, data + bytes_[i].size() - 64);
    }
    return all;
  }

 private:
  uint32_t capacity_;
  std::vector<std::vector<std::byte>> bytes_;
  std::vector<PlaneRun> strides_;
};

bool has_words(const Codec& codec) {
  return std::all_of(codec.geometry.planes.begin(), codec.geometry.planes.end(),
                     [](const PlaneGeometry& plane) { return plane.order != PlaneOrder::Records; });
}

class EveryEncoding : public ::testing::TestWithParam<const Encoding*> {
 protected:
  const Encoding& encoding() const { return *GetParam(); }
  const RecordFunctions& functions() const { return encoding().functions(); }

  // Calls f(codec) for every sample and width that fit.
  template <class F>
  void each_codec(F f) const {
    for (const std::string_view sample : encoding().samples)
      for (const uint32_t width : kWidths) {
        const Result<Params> params = encoding().parse(sample);
        ASSERT_TRUE(params.has_value()) << sample;
        const Result<Codec> codec = make_codec(encoding(), *params, width);
        if (!codec) continue;
        SCOPED_TRACE(::testing::Message() << sample << ", width " << width);
        f(*codec);
        if (::testing::Test::HasFatalFailure()) return;
      }
  }
  // Calls f(page) for both layouts, where both are possible.
  template <class F>
  static void each_layout(const Codec& codec, uint32_t capacity, F f) {
    for (const bool by_words : {false, true}) {
      if (by_words && !has_words(codec)) continue;
      SCOPED_TRACE(by_words ? "words by position" : "records by position");
      Page page(codec, capacity, by_words);
      f(page);
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Registered,
                         EveryEncoding,
                         ::testing::ValuesIn(kEncodings),
                         [](const auto& row) {
                           std::string name(row.param->name);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(Encodings, HaveIdsAndNamesOfTheirOwn) {
  std::set<EncodingId> ids;
  std::set<std::string_view> names;
  for (const Encoding* encoding : kEncodings) {
    EXPECT_TRUE(ids.insert(encoding->id).second) << encoding->name;
    EXPECT_TRUE(names.insert(encoding->name).second) << encoding->name;
  }
}

TEST_P(EveryEncoding, ParsesWhatItPrints) {
  for (const std::string_view sample : encoding().samples) {
    const Params params = encoding().parse(sample).value();
    EXPECT_EQ(encoding().parse(encoding().print(params)).value(), params) << sample;
  }
  const Result<Params> other = encoding().parse("no-such-encoding");
  ASSERT_FALSE(other.has_value());
  EXPECT_EQ(other.error().code, Code::NotFound);
}

TEST_P(EveryEncoding, SamplesOfOneRowAreNoOthers) {
  for (const Encoding* other : kEncodings)
    for (const std::string_view sample : other->samples)
      EXPECT_EQ(encoding().parse(sample).has_value(), other == &encoding()) << sample;
}

TEST_P(EveryEncoding, StatesAGeometryThatHolds) {
  each_codec([&](const Codec& codec) {
    const Geometry& geometry = codec.geometry;
    ASSERT_GE(geometry.planes.size(), 1u);
    ASSERT_LE(geometry.planes.size(), kMaxPlanes);
    for (const PlaneGeometry& plane : geometry.planes) {
      EXPECT_GT(plane.record_bytes, 0u);
      EXPECT_GT(plane.word_bytes, 0u);
      EXPECT_EQ(plane.record_bytes % plane.word_bytes, 0u);
    }
    EXPECT_EQ(geometry.prepared_bytes % 64, 0u);
    EXPECT_EQ(geometry.partial_floats % 16, 0u);
    EXPECT_GE(geometry.partial_floats, codec.width);
  });
}

TEST_P(EveryEncoding, RefusesAWidthThatDoesNotFit) {
  const Params params = encoding().parse(encoding().samples[0]).value();
  for (const uint32_t width : {0u, 1u, 7u, 65u}) {
    const Result<Codec> codec = make_codec(encoding(), params, width);
    ASSERT_FALSE(codec.has_value()) << width;
    EXPECT_EQ(codec.error().code, Code::BadInput);
  }
}

TEST_P(EveryEncoding, RoundTripStaysWithinTheBoundItStates) {
  each_codec([&](const Codec& codec) {
    for (uint64_t seed = 1; seed <= 20; ++seed)
      for (const float scale : {1e-3f, 1.f, 1e3f}) {
        const std::vector<float> x = random_floats(seed, codec.width, scale);
        std::vector<float> y(codec.width);
        Page page(codec, 1, false);
        EXPECT_EQ(functions().encode(codec, x.data(), page.records(0, 1)), 0u);
        functions().decode(codec, page.records(0, 1), y.data());
        double largest = 0;
        for (const float value : x) largest = std::max<double>(largest, std::abs(value));
        for (uint32_t i = 0; i < codec.width; ++i)
          ASSERT_LE(std::abs(double{x[i]} - y[i]), codec.geometry.error_bound * largest)
              << "seed " << seed << ", element " << i;
      }
  });
}

std::vector<float> awkward_floats(uint64_t seed, size_t count) {
  std::vector<float> x = random_floats(seed, count);
  testing::Random random(seed);
  const float awkward[] = {
      0.f,        -0.f,     kInf,     -kInf,   kNan,     -kNan,       1e-45f,
      -1e-40f,    65504.f,  65519.9f, 65520.f, -70000.f, 3.4e38f,     -3.4e38f,
      6e-8f,      2.98e-8f, 2.99e-8f, 5.9e-5f, 6.1e-5f,  0x1.fep127f, 0x1.fefffep127f,
      0x1.ffp127f};
  for (float& value : x)
    if (random.one_in(3)) value = awkward[random.below(std::size(awkward))];
  return x;
}

TEST_P(EveryEncoding, EncodesToTheSameBytesOnEveryTarget) {
  each_codec([&](const Codec& codec) {
    for (uint64_t seed = 0; seed < 10; ++seed) {
      const std::vector<float> x = awkward_floats(seed, codec.width * 5 + 1);
      each_layout(codec, 7, [&](Page& page) {
        expect_same_on_every_target([&] {
          const uint64_t saturated = functions().encode(codec, x.data() + 1, page.records(1, 5));
          std::vector<std::byte> bytes = page.bytes();
          bytes.push_back(static_cast<std::byte>(saturated));
          return bytes;
        });
      });
    }
  });
}

TEST_P(EveryEncoding, DecodesToTheSameBitsOnEveryTarget) {
  each_codec([&](const Codec& codec) {
    const std::vector<float> x = awkward_floats(codec.width, codec.width * 5);
    each_layout(codec, 6, [&](Page& page) {
      functions().encode(codec, x.data(), page.records(0, 5));
      expect_same_on_every_target([&] {
        std::vector<float> y(codec.width * 4 + 1, 7.f);
        functions().decode(codec, page.records(1, 4), y.data() + 1);
        return with_one_nan(y);
      });
    });
  });
}

// The prepared form, 64-byte aligned, of rows of queries that are not aligned at all.
struct Prepared {
  Prepared(const Codec& codec, const std::vector<float>& queries, uint32_t rows)
      : bytes(uint64_t{codec.geometry.prepared_bytes} * rows + 64) {
    data = bytes.data() + (64 - reinterpret_cast<uintptr_t>(bytes.data()) % 64);
    std::vector<float> query(codec.width + 1);
    for (uint32_t row = 0; row < rows; ++row) {
      std::copy_n(queries.data() + row * codec.width, codec.width, query.data() + 1);
      codec.encoding->functions().prepare(codec, query.data() + 1,
                                          data + uint64_t{row} * codec.geometry.prepared_bytes);
    }
  }
  std::vector<std::byte> bytes;
  std::byte* data;
};

struct Piece {
  uint32_t capacity, first, count;
};
constexpr Piece kPieces[] = {{1, 0, 1},   {2, 1, 1},    {4, 0, 3},   {7, 2, 5},   {8, 0, 8},
                             {8, 3, 5},   {16, 0, 16},  {16, 9, 7},  {16, 1, 3},  {32, 0, 31},
                             {64, 0, 64}, {64, 0, 61},  {64, 63, 1}, {64, 5, 33}, {64, 40, 24},
                             {64, 0, 0},  {64, 17, 15}, {64, 0, 9}};
constexpr uint32_t kRowCounts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 24};

TEST_P(EveryEncoding, ScoresTheSameOnEveryTarget) {
  each_codec([&](const Codec& codec) {
    for (const Piece& piece : kPieces)
      each_layout(codec, piece.capacity, [&](Page& page) {
        SCOPED_TRACE(::testing::Message() << piece.count << " positions from " << piece.first
                                          << " of " << piece.capacity);
        const std::vector<float> x = random_floats(piece.first, codec.width * piece.count);
        functions().encode(codec, x.data(), page.records(piece.first, piece.count));
        for (const uint32_t rows : kRowCounts) {
          if (rows > 3 && codec.width > 128) continue;
          const std::vector<float> queries = random_floats(rows, codec.width * rows);
          expect_same_on_every_target([&] {
            const Prepared prepared(codec, queries, rows);
            const size_t stride = piece.count + 1;
            std::vector<float> scores(rows * stride + 1, 7.f);  // what is not written stays 7
            functions().scores(codec, prepared.data, rows, page.records(piece.first, piece.count),
                               scores.data() + 1, stride);
            return scores;
          });
        }
      });
  });
}

TEST_P(EveryEncoding, AccumulatesTheSameOnEveryTarget) {
  each_codec([&](const Codec& codec) {
    for (const Piece& piece : kPieces)
      each_layout(codec, piece.capacity, [&](Page& page) {
        const std::vector<float> x = random_floats(piece.first, codec.width * piece.count);
        functions().encode(codec, x.data(), page.records(piece.first, piece.count));
        for (const uint32_t rows : kRowCounts) {
          if (rows > 3 && codec.width > 128) continue;
          const size_t stride = piece.count + 3;
          std::vector<float> weights = random_floats(rows, rows * stride + 1);
          const size_t partial_floats = codec.geometry.partial_floats;
          const std::vector<float> before = random_floats(rows + 1, partial_floats * rows);
          expect_same_on_every_target([&] {
            std::vector<float> partial = before;
            functions().accumulate(codec, weights.data() + 1, stride, rows, 128,
                                   page.records(piece.first, piece.count), partial.data());
            if (functions().finish_block != nullptr)
              functions().finish_block(codec, rows, partial.data());
            return partial;
          });
        }
      });
  });
}

TEST_P(EveryEncoding, ScoresAndSumsAgreeWithDecodedNumbers) {
  each_codec([&](const Codec& codec) {
    constexpr uint32_t kCount = 64;
    const std::vector<float> x = random_floats(3, codec.width * kCount);
    const std::vector<float> query = random_floats(4, codec.width);
    const std::vector<float> weights = random_floats(5, kCount);
    each_layout(codec, kCount, [&](Page& page) {
      functions().encode(codec, x.data(), page.records(0, kCount));
      std::vector<float> y(x.size());
      functions().decode(codec, page.records(0, kCount), y.data());
      const Prepared prepared(codec, query, 1);
      std::vector<float> scores(kCount), partial(codec.geometry.partial_floats);
      functions().scores(codec, prepared.data, 1, page.records(0, kCount), scores.data(), kCount);
      functions().accumulate(codec, weights.data(), kCount, 1, 0, page.records(0, kCount),
                             partial.data());
      if (functions().finish_block != nullptr) functions().finish_block(codec, 1, partial.data());
      if (functions().finish != nullptr) functions().finish(codec, partial.data());
      for (uint32_t p = 0; p < kCount; ++p) {
        double exact = 0;
        for (uint32_t i = 0; i < codec.width; ++i)
          exact += double{y[p * codec.width + i]} * query[i];
        ASSERT_NEAR(scores[p], exact, 2e-3) << p;  // a query may have become 16-bit
      }
      for (uint32_t i = 0; i < codec.width; ++i) {
        double exact = 0;
        for (uint32_t p = 0; p < kCount; ++p) exact += double{y[p * codec.width + i]} * weights[p];
        ASSERT_NEAR(partial[i], exact, 1e-3) << i;
      }
    });
  });
}

TEST_P(EveryEncoding, MeetsNoPositionThatItWasNotGiven) {
  each_codec([&](const Codec& codec) {
    for (const std::string& target : kernel_targets()) {
      const testing::TargetScope scope(target);
      each_layout(codec, 16, [&](Page& page) {  // everything but positions 3 to 7 is NaN
        const std::vector<float> x = random_floats(3, codec.width * 5);
        functions().encode(codec, x.data(), page.records(3, 5));
        const Prepared prepared(codec, x, 2);
        std::vector<float> scores(32), partial(codec.geometry.partial_floats);
        functions().scores(codec, prepared.data, 2, page.records(3, 5), scores.data(), 16);
        functions().accumulate(codec, x.data(), 5, 1, 0, page.records(3, 5), partial.data());
        for (const float value : scores) ASSERT_FALSE(std::isnan(value)) << target;
        for (const float value : partial) ASSERT_FALSE(std::isnan(value)) << target;
      });
    }
  });
}

}  // namespace
}  // namespace cairn
