// What affine groups promise beyond what every encoding does: MLX's own bits, and the cases that
// broke comparable systems.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <set>
#include <stdexcept>

#include "cairn/core/half.h"
#include "cairn/encodings/registry.h"
#include "tests/support/pages.h"
#include "tests/support/random.h"
#include "tests/support/targets.h"

namespace cairn {
namespace {

using testing::Pages;
using testing::PagesOptions;
using testing::random_floats;
using testing::same_bytes;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr uint32_t kBits[] = {2, 3, 4, 5, 6, 8};
constexpr uint32_t kGroups[] = {32, 64, 128};
constexpr std::string_view kDtypes[] = {"f16", "f32", "bf16"};

std::string text_of(uint32_t bits, uint32_t group, std::string_view dtype = "f16") {
  return "affine" + std::to_string(bits) + "-g" + std::to_string(group) + "-" + std::string(dtype);
}

Codec codec_of(std::string_view text, uint32_t width) {
  return make_codec(kAffine, kAffine.parse(text).value(), width).value();
}

// Records by position of one head, each plane exactly as long as it must be.
struct Encoded {
  Encoded(const Codec& codec_, const std::vector<float>& x)
      : codec(codec_), count(static_cast<uint32_t>(x.size()) / codec.width) {
    for (const PlaneGeometry& plane : codec.geometry.planes)
      planes.emplace_back(uint64_t{plane.record_bytes} * count, std::byte{0xee});
    misfits = kAffine.functions().encode(codec, x.data(), records());
  }
  Records records() {
    Records run{.first = 0, .count = count, .capacity = count};
    for (size_t i = 0; i < planes.size(); ++i)
      run.planes[i] = {.data = planes[i].data(),
                       .position_stride = codec.geometry.planes[i].record_bytes,
                       .word_stride = codec.geometry.planes[i].word_bytes};
    return run;
  }
  std::vector<float> decoded() {
    std::vector<float> y(uint64_t{count} * codec.width);
    kAffine.functions().decode(codec, records(), y.data());
    return y;
  }
  uint32_t code(uint32_t p, uint32_t i) const {
    const uint32_t bits = static_cast<uint32_t>(codec.params.values[0]);
    const std::byte* record = planes[0].data() + p * codec.geometry.planes[0].record_bytes;
    uint32_t code = 0;
    for (uint32_t b = 0; b < bits; ++b) {
      const uint32_t at = i * bits + b;
      code |= (std::to_integer<uint32_t>(record[at / 8]) >> (at % 8) & 1) << b;
    }
    return code;
  }
  float number(size_t plane, uint32_t p, uint32_t group) const {
    const PlaneGeometry& geometry = codec.geometry.planes[plane];
    const std::byte* from =
        planes[plane].data() + p * geometry.record_bytes + group * geometry.word_bytes;
    if (geometry.dtype == "F32") {
      float x;
      std::memcpy(&x, from, 4);
      return x;
    }
    uint16_t x;
    std::memcpy(&x, from, 2);
    return geometry.dtype == "F16" ? f32_from_f16(x) : f32_from_bf16(x);
  }
  std::vector<uint32_t> words(uint32_t p) const {
    std::vector<uint32_t> words(codec.geometry.planes[0].record_bytes / 4);
    std::memcpy(words.data(), planes[0].data() + p * words.size() * 4, words.size() * 4);
    return words;
  }

  Codec codec;
  uint32_t count;
  std::vector<std::vector<std::byte>> planes;
  uint64_t misfits = 0;
};

// MLX's numbers: a safetensors file, of which only the byte ranges are looked up.
class Oracle {
 public:
  Oracle() {
    std::ifstream file("tests/oracles/mlx_affine.safetensors", std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
    uint64_t length = 0;
    if (bytes_.size() < sizeof(length)) throw std::runtime_error("no mlx_affine.safetensors");
    std::memcpy(&length, bytes_.data(), sizeof(length));
    header_ = std::string_view(bytes_).substr(8, length);
    data_ = 8 + length;
  }
  std::span<const std::byte> tensor(const std::string& name) const {
    constexpr std::string_view kOffsets = "\"data_offsets\":[";
    size_t at = header_.find("\"" + name + "\":");
    if (at != header_.npos) at = header_.find(kOffsets, at);
    if (at == header_.npos) throw std::runtime_error("no tensor " + name);
    const char* text = header_.data() + at + kOffsets.size();
    const char* end = header_.data() + header_.size();
    uint64_t from = 0, to = 0;
    text = std::from_chars(text, end, from).ptr;
    std::from_chars(text + 1, end, to);
    return std::as_bytes(std::span(bytes_)).subspan(data_ + from, to - from);
  }

  static constexpr uint32_t kRows = 47, kWidth = 256;

 private:
  std::string bytes_;
  std::string_view header_;
  uint64_t data_ = 0;
};

// A number as it is after a stay in a dtype.
float rounded(std::string_view dtype, float x) {
  if (dtype == "f16") return f32_from_f16(f16_from_f32(x));
  return dtype == "bf16" ? f32_from_bf16(bf16_from_f32(x)) : x;
}

std::vector<float> floats_of(std::string_view dtype, std::span<const std::byte> bytes) {
  const size_t size = dtype == "f32" ? 4 : 2;
  std::vector<float> x(bytes.size() / size);
  for (size_t i = 0; i < x.size(); ++i) {
    uint32_t word = 0;
    std::memcpy(&word, bytes.data() + i * size, size);
    if (dtype == "f32") x[i] = std::bit_cast<float>(word);
    if (dtype == "f16") x[i] = f32_from_f16(static_cast<uint16_t>(word));
    if (dtype == "bf16") x[i] = f32_from_bf16(static_cast<uint16_t>(word));
  }
  return x;
}

TEST(Affine, GivesMlxsBits) {
  const Oracle oracle;
  for (const std::string& target : kernel_targets())
    for (const std::string_view dtype : kDtypes)
      for (const uint32_t bits : kBits)
        for (const uint32_t group : kGroups) {
          const testing::TargetScope scope(target);
          const Codec codec = codec_of(text_of(bits, group, dtype), Oracle::kWidth);
          SCOPED_TRACE(kAffine.print(codec.params) + " on " + target);
          const std::string prefix =
              std::string(dtype) + ".b" + std::to_string(bits) + ".g" + std::to_string(group) + ".";
          const std::vector<float> x =
              floats_of(dtype, oracle.tensor("input." + std::string(dtype)));
          ASSERT_EQ(x.size(), size_t{Oracle::kRows} * Oracle::kWidth);
          Encoded encoded(codec, x);
          EXPECT_EQ(encoded.misfits, 0u);
          for (size_t plane = 0; plane < 3; ++plane) {
            const std::string name(codec.geometry.planes[plane].name);
            EXPECT_TRUE(same_bytes<std::byte>(encoded.planes[plane], oracle.tensor(prefix + name)))
                << name;
          }
          // MLX rounds the product and the sum to the scales' dtype; here both stay f32.
          const std::vector<float> expected = floats_of(dtype, oracle.tensor(prefix + "values"));
          const std::vector<float> decoded = encoded.decoded();
          for (uint32_t i = 0; i < x.size(); ++i) {
            const uint32_t p = i / Oracle::kWidth, in_row = i % Oracle::kWidth;
            const float scale = encoded.number(1, p, in_row / group);
            const float bias = encoded.number(2, p, in_row / group);
            const float product = static_cast<float>(encoded.code(p, in_row)) * scale;
            ASSERT_EQ(std::bit_cast<uint32_t>(decoded[i]), std::bit_cast<uint32_t>(product + bias));
            ASSERT_EQ(rounded(dtype, rounded(dtype, product) + bias), expected[i]) << i;
          }
        }
}

// Worked by hand from the rule.
TEST(Affine, GivesTheWorkedExamples) {
  std::vector<float> ramp(32), negative(32);
  for (uint32_t j = 0; j < 32; ++j) {
    ramp[j] = (static_cast<float>(j) - 10) * 0.25f;
    negative[j] = -2 + static_cast<float>(j) / 31;
  }
  const Encoded four(codec_of("affine4-g32-f32", 32), ramp);
  EXPECT_EQ(four.words(0), (std::vector<uint32_t>{0xbccddeef, 0x8899aaab, 0x44556677, 0x00112233}));
  EXPECT_EQ(four.number(1, 0, 0), -0.524999976f);
  EXPECT_EQ(four.number(2, 0, 0), 5.25f);
  const Encoded eight(codec_of("affine8-g32-f32", 32), ramp);
  EXPECT_EQ(eight.words(0),
            (std::vector<uint32_t>{0xe7eff7ff, 0xc6ced6de, 0xa5adb5bd, 0x848c949d, 0x636b737c,
                                   0x424a525b, 0x2129313a, 0x00081019}));
  EXPECT_EQ(eight.number(1, 0, 0), -0.0303468201f);
  const Encoded below(codec_of("affine4-g32-f32", 32), negative);
  EXPECT_EQ(below.words(0),
            (std::vector<uint32_t>{0x33221100, 0x77665544, 0xbbaa9988, 0xffeeddcc}));
  EXPECT_EQ(below.number(1, 0, 0), 0.0666666701f);
  EXPECT_EQ(below.number(2, 0, 0), -2.f);
}

TEST(Affine, PrintsWhatUsersType) {
  for (const std::string_view text : {"affine8", "affine4-g128", "affine3-g64-bf16", "affine2-g32",
                                      "affine6-g128-f32", "affine5", "affine8-g64-f16"})
    EXPECT_EQ(kAffine.print(kAffine.parse(text).value()), text);
  EXPECT_EQ(kAffine.print(kAffine.parse("affine8-f32").value()), "affine8-g64-f32");
  for (const std::string_view text :
       {"affine", "affine1", "affine7", "affine9", "affine16", "affine08", "affine8g64",
        "affine8-g16", "affine8-g064", "affine8-g", "affine8-", "affine8-f64", "affine8-f16-g64",
        "affine8-g64-f16-f16", "affine8-g64 ", "affine4294967304"}) {
    const Result<Params> params = kAffine.parse(text);
    ASSERT_FALSE(params.has_value()) << text;
    EXPECT_EQ(params.error().code, Code::BadInput) << text;
    EXPECT_EQ(params.error().message.find(text), 0u) << params.error().message;
  }
}

TEST(Affine, TakesFineScalesForLatentsWhereTheTextLeavesThemOpen) {
  const auto settled = [](std::string_view text, Precision precision) {
    return kAffine.print(kAffine.settle(kAffine.parse(text).value(), precision));
  };
  EXPECT_EQ(settled("affine8", Precision::fine), "affine8-g64-f32");
  EXPECT_EQ(settled("affine3-g32", Precision::fine), "affine3-g32-f32");
  EXPECT_EQ(settled("affine8-g64-f16", Precision::fine), "affine8-g64-f16");
  EXPECT_EQ(settled("affine4-bf16", Precision::fine), "affine4-g64-bf16");
  // Equal records, equal params.
  EXPECT_EQ(settled("affine8", Precision::usual), "affine8");
  EXPECT_EQ(settled("affine8-g64-f16", Precision::usual), "affine8");
  EXPECT_EQ(settled("affine8-g64-f32", Precision::usual), "affine8-g64-f32");
}

// On N(0, 1), against figures of the field for the same bits and groups.
TEST(Affine, DistortsGaussiansAsItShould) {
  constexpr double kExpected[6][3] = {
      {.1310, .1556, .1797},       {.02932, .03625, .04288},       {.006563, .008270, .010003},
      {.001541, .001950, .002369}, {3.723e-4, 4.721e-4, 5.740e-4}, {2.268e-5, 2.880e-5, 3.508e-5}};
  const std::vector<float> x = random_floats(1, 1 << 20);
  const auto mean_square_error = [&](const std::string& text) {
    const std::vector<float> y = Encoded(codec_of(text, 256), x).decoded();
    double sum = 0;
    for (size_t i = 0; i < x.size(); ++i) sum += (double{x[i]} - y[i]) * (double{x[i]} - y[i]);
    return sum / static_cast<double>(x.size());
  };
  for (size_t b = 0; b < std::size(kBits); ++b)
    for (size_t g = 0; g < std::size(kGroups); ++g) {
      const double expected = kExpected[b][g];
      const std::string text = text_of(kBits[b], kGroups[g], "f32");
      EXPECT_NEAR(mean_square_error(text), expected, 0.01 * expected) << text;
      // Scales and biases of 11 bits cost something where codes have 8.
      const std::string half = text_of(kBits[b], kGroups[g], "f16");
      EXPECT_NEAR(mean_square_error(half), expected, (kBits[b] == 8 ? 0.025 : 0.01) * expected)
          << half;
    }
}

TEST(Affine, C15_AWidthThatTheGroupDoesNotDivideIsRefusedWithBothNumbers) {
  const auto error_of = [](std::string_view text, uint32_t width) {
    const Result<Codec> codec = make_codec(kAffine, kAffine.parse(text).value(), width);
    return codec.has_value() ? std::string() : codec.error().message;
  };
  const std::string message = error_of("affine4", 96);
  EXPECT_NE(message.find("96"), message.npos) << message;
  EXPECT_NE(message.find("64"), message.npos) << message;
  EXPECT_EQ(error_of("affine4-g32", 96), "");
  EXPECT_NE(error_of("affine4-g32", 80), "");
  EXPECT_EQ(error_of("affine4-g128", 96), "") << "the group becomes the vector";
  EXPECT_EQ(error_of("affine4-g32", 64), "");
}

// Centres of codes: each is its own code, and decodes to itself.
TEST(Affine, C21_EveryCodeOccursAndIsItsOwnCentre) {
  for (const std::string& target : kernel_targets())
    for (const uint32_t bits : kBits) {
      const testing::TargetScope scope(target);
      SCOPED_TRACE(::testing::Message() << bits << " bits on " << target);
      const uint32_t codes = 1u << bits, width = 128;
      // Both ends in every group, so that each group has scale 1/8 or -1/8 and the same centres.
      std::vector<float> x(uint64_t{codes} * width);
      for (uint32_t i = 0; i < x.size(); ++i)
        x[i] = static_cast<float>(i % 32 == 0   ? 0
                                  : i % 32 == 1 ? codes - 1
                                                : (i * 7 + i / 32) % codes) /
               8;
      for (const float sign : {1.f, -1.f}) {
        std::vector<float> signed_x = x;
        for (float& value : signed_x) value *= sign;
        Encoded encoded(codec_of(text_of(bits, 32), width), signed_x);
        EXPECT_TRUE(encoded.decoded() == signed_x);
        std::set<uint32_t> seen;
        for (uint32_t p = 0; p < encoded.count; ++p)
          for (uint32_t i = 0; i < width; ++i) seen.insert(encoded.code(p, i));
        EXPECT_EQ(seen.size(), codes);
      }
    }
}

TEST(Affine, C22_BytesAreCountedInWholeRecords) {
  for (const uint32_t bits : kBits)
    for (const uint32_t group : kGroups)
      for (const std::string_view dtype : kDtypes)
        for (const uint32_t width : {64u, 96u, 128u, 192u, 256u, 512u}) {
          const auto codec =
              make_codec(kAffine, kAffine.parse(text_of(bits, group, dtype)).value(), width);
          if (!codec) continue;
          const uint32_t groups = width / std::min(group, width);
          EXPECT_EQ(codec->geometry.record_bytes(),
                    width / 8 * bits + 2 * groups * (dtype == "f32" ? 4 : 2))
              << text_of(bits, group, dtype) << ", width " << width;
        }
  // A record's last byte is its last code's, for any number of records; nothing lies behind it.
  for (const uint32_t count : {1u, 31u, 32u, 33u}) {
    const std::vector<float> x = random_floats(count, count * 128);
    Encoded all(codec_of("affine4-g32", 128), x);
    EXPECT_EQ(all.planes[0].size(), count * 64u);
    const std::vector<float> last(x.end() - 128, x.end());
    const Encoded one(codec_of("affine4-g32", 128), last);
    EXPECT_TRUE(same_bytes<std::byte>(std::span(all.planes[0]).last(64), one.planes[0]));
  }
}

TEST(Affine, C24_ConstantAndTinyGroupsStayFinite) {
  for (const std::string_view dtype : kDtypes)
    for (const uint32_t bits : kBits) {
      SCOPED_TRACE(text_of(bits, 32, dtype));
      const Codec codec = codec_of(text_of(bits, 32, dtype), 32);
      for (const float constant : {0.f, 3.25f, -3.25f, -0.f, 1e-30f, 1e-40f, -3e4f, 1e-9f}) {
        Encoded encoded(codec, std::vector<float>(32, constant));
        // Below half of 1e-7 a group is nothing: no scale is smaller.
        const float expected = std::abs(constant) < 5e-8f ? 0.f : rounded(dtype, constant);
        EXPECT_TRUE(encoded.decoded() == std::vector<float>(32, expected)) << constant;
        EXPECT_EQ(encoded.misfits, 0u);
      }
      std::vector<float> one(32), ends(32);
      one[7] = 65504;
      for (uint32_t i = 0; i < 32; ++i) ends[i] = i % 2 == 0 ? 65504.f : -65504.f;
      for (const std::vector<float>& x : {one, ends}) {
        Encoded encoded(codec, x);
        const std::vector<float> y = encoded.decoded();
        // Half a step, the part of the range that a whole number of steps leaves over, and what
        // rounding does to scale and bias.
        const double top = (1u << bits) - 1, end = 65504;
        const double bound = 2 * end / (top + 1) + end * (dtype == "bf16" ? 0x1p-6 : 0x1p-9);
        for (uint32_t i = 0; i < 32; ++i) EXPECT_NEAR(y[i], x[i], bound) << i;
        EXPECT_EQ(encoded.misfits, 0u);
      }
    }
}

TEST(Affine, ANumberThatIsNoneStaysInItsGroup) {
  for (const std::string& target : kernel_targets())
    for (const uint32_t bits : kBits)
      for (const float strange : {kNan, kInfinity, -kInfinity}) {
        const testing::TargetScope scope(target);
        SCOPED_TRACE(::testing::Message() << bits << " bits, " << strange << " on " << target);
        const Codec codec = codec_of(text_of(bits, 32), 96);
        const std::vector<float> x = random_floats(bits, 3 * 96);
        std::vector<float> with = x;
        with[96 + 40] = strange;  // group 1 of record 1
        with[96 + 41] = strange;
        Encoded plain(codec, x), touched(codec, with);
        EXPECT_EQ(touched.misfits, 2u);
        const std::vector<float> expected = plain.decoded(), y = touched.decoded();
        for (uint32_t i = 0; i < x.size(); ++i)
          if (i / 32 == 4)
            EXPECT_TRUE(std::isnan(y[i])) << i;
          else
            EXPECT_EQ(y[i], expected[i]) << i;
      }
}

TEST(Affine, NumbersBeyondTheRangeSaturateAndAreCounted) {
  for (const std::string& target : kernel_targets()) {
    const testing::TargetScope scope(target);
    std::vector<float> x(64, 1.f), y;
    x[3] = 7e4f;
    x[5] = -1e30f;
    Encoded half(codec_of("affine8", 64), x);
    EXPECT_EQ(half.misfits, 2u);
    y = half.decoded();
    EXPECT_NEAR(y[3], 65504, 520);  // a step
    EXPECT_NEAR(y[5], -65504, 520);
    x[3] = 3e38f;
    x[5] = -3e38f;
    for (const std::string_view text : {"affine8-f32", "affine8-bf16", "affine2-bf16"}) {
      Encoded wide(codec_of(text, 64), x);
      EXPECT_EQ(wide.misfits, 2u);
      for (const float value : wide.decoded()) EXPECT_TRUE(std::isfinite(value)) << text;
    }
  }
}

TEST(Affine, AQueryThatIsNoneGivesNanAndATinyOneNothing) {
  const Codec codec = codec_of("affine8-g32", 64);
  Encoded encoded(codec, random_floats(1, 64 * 5));
  testing::expect_same_on_every_target([&] {
    std::vector<float> all;
    for (const float strange : {kNan, kInfinity, 0.f, 1e-40f, 1e-34f, 1e30f}) {
      std::vector<float> query(64, strange);
      alignas(64) std::byte prepared[512];
      EXPECT_LE(codec.geometry.prepared_bytes, sizeof(prepared));
      kAffine.functions().prepare(codec, query.data(), prepared);
      std::vector<float> scores(5);
      kAffine.functions().scores(codec, prepared, 1, encoded.records(), scores.data(), 5);
      for (const float score : scores) EXPECT_EQ(std::isnan(score), !std::isfinite(strange));
      all.insert(all.end(), scores.begin(), scores.end());
    }
    return testing::with_one_nan(all);
  });
}

// Attention over encoded pages: sequence lengths, pages, and how a prompt is cut.
struct Story {
  PagesOptions options;
  Pos length = 0;
  uint32_t group = 3;  // query heads per key head
  Pos silent = 0;      // positions that come before the first query

  uint32_t query_heads() const { return options.shape.heads * group; }
  uint32_t key_dim() const { return options.shape.head_dim; }
  uint32_t value_dim() const {
    return options.shape.value_dim != 0 ? options.shape.value_dim : key_dim();
  }
  std::vector<float> queries() const {
    return random_floats(3, length * query_heads() * key_dim());
  }
};

struct Told {
  explicit Told(const PagesOptions& options) : pages(options), sequence(pages.start()) {}
  Pages pages;
  size_t sequence;
  std::vector<float> out, log_sum_exp;
};

// Runs of these lengths, each in `parts` parts; the last one takes what is left.
std::unique_ptr<Told> tell(const Story& story, std::vector<Pos> runs = {}, uint32_t parts = 1) {
  auto told = std::make_unique<Told>(story.options);
  const uint32_t heads = story.options.shape.heads;
  const std::vector<float> keys = random_floats(1, story.length * heads * story.key_dim());
  const std::vector<float> values = random_floats(2, story.length * heads * story.value_dim());
  const std::vector<float> queries = story.queries();
  told->out.resize(story.length * story.query_heads() * story.value_dim());
  told->log_sum_exp.resize(story.length * story.query_heads());
  runs.push_back(story.length);
  told->pages.append(told->sequence, story.silent, keys.data(), values.data());
  Pos first = story.silent;
  for (const Pos wanted : runs) {
    const Pos count = std::min(wanted, story.length - first);
    if (count == 0) continue;
    told->pages.append(told->sequence, count, keys.data() + first * heads * story.key_dim(),
                       values.data() + first * heads * story.value_dim());
    const RunView run = told->pages.run(told->sequence, first, count);
    for (uint32_t part = 0; part < parts; ++part)
      attend(told->pages.view({&run, 1}),
             {.data = queries.data() + first * story.query_heads() * story.key_dim(),
              .heads = story.query_heads()},
             {.data = told->out.data() + first * story.query_heads() * story.value_dim(),
              .log_sum_exp = told->log_sum_exp.data() + first * story.query_heads()},
             {part, parts});
    first += count;
  }
  return told;
}

// The last row in double precision over the decoded numbers. The bound is what a 16-bit query
// costs at queries and keys of N(0, 1): half a step of the query is 5e-5 of its largest number.
void expect_near_double(const Story& story, Told& told, double bound) {
  const uint32_t heads = story.options.shape.heads;
  const RunView run = told.pages.run(told.sequence, 0, story.length);
  const View view = told.pages.view({&run, 1});
  std::vector<float> keys(story.length * heads * story.key_dim());
  std::vector<float> values(story.length * heads * story.value_dim());
  decode(view, 0, kKey, 0, story.length, keys.data());
  decode(view, 0, kValue, 0, story.length, values.data());
  const std::vector<float> queries = story.queries();
  const double factor = 1 / std::sqrt(static_cast<double>(story.key_dim()));
  for (uint32_t h = 0; h < story.query_heads(); ++h) {
    const uint64_t row = (story.length - 1) * story.query_heads() + h;
    const uint32_t head = h / story.group;
    std::vector<double> weights(story.length);
    double sum = 0;
    for (Pos t = 0; t < story.length; ++t) {
      double score = 0;
      for (uint32_t i = 0; i < story.key_dim(); ++i)
        score += double{keys[(t * heads + head) * story.key_dim() + i]} *
                 queries[row * story.key_dim() + i];
      sum += weights[t] = std::exp(score * factor);
    }
    EXPECT_NEAR(told.log_sum_exp[row], std::log(sum), bound) << "head " << h;
    for (uint32_t i = 0; i < story.value_dim(); ++i) {
      double exact = 0;
      for (Pos t = 0; t < story.length; ++t)
        exact += weights[t] / sum * values[(t * heads + head) * story.value_dim() + i];
      ASSERT_NEAR(told.out[row * story.value_dim() + i], exact, bound) << "head " << h;
    }
  }
}

TEST(Affine, AttentionOnEncodedPagesAgreesWithDoublePrecision) {
  for (const uint32_t bits : kBits)
    for (const uint32_t head_dim : {64u, 96u, 128u, 192u, 256u})
      for (const Pos length : {Pos{1}, Pos{63}, Pos{64}, Pos{65}, Pos{1000}, Pos{3000}}) {
        if (length >= 1000 && head_dim != 64 + bits % 2 * 64) continue;
        const std::string text = text_of(bits, 32, kDtypes[bits % 3]);
        SCOPED_TRACE(::testing::Message() << text << ", dim " << head_dim << ", length " << length);
        const Story story{
            .options = {.shape = {.heads = 2, .head_dim = head_dim}, .key = text, .value = text},
            .length = length,
            .silent = length - 1};
        expect_near_double(story, *tell(story), 1e-4);
      }
}

TEST(Affine, KeysAndValuesMayDifferInEncodingAndWidth) {
  for (const auto& [key, value] :
       {std::pair{"affine8", "affine3-g32"}, std::pair{"f16", "affine4-g32"},
        std::pair{"affine6-g32-f32", "f32"}}) {
    SCOPED_TRACE(::testing::Message() << key << ", " << value);
    const Story story{.options = {.shape = {.heads = 2, .head_dim = 64, .value_dim = 96},
                                  .key = key,
                                  .value = value},
                      .length = 300};
    expect_near_double(story, *tell(story), 1e-4);
  }
}

TEST(Affine, AttentionGivesTheScalarBitsForAnyPagesRunsAndParts) {
  uint32_t number = 0;
  for (const uint32_t bits : kBits)
    for (const uint32_t group : {32u, 64u}) {
      const std::string text = text_of(bits, group, kDtypes[bits % 3]);
      Story story{.options = {.shape = {.heads = 2, .head_dim = 64}, .key = text, .value = text},
                  .length = 290,
                  .group = std::array{1u, 3u, 8u}[number++ % 3],
                  .silent = 200};
      const auto expected = [&] {
        const testing::TargetScope scope("scalar");
        return tell(story);
      }();
      for (const std::string& target : kernel_targets())
        for (const uint32_t page_positions : {1u, 2u, 4u, 8u, 16u, 32u, 64u}) {
          if (target == "scalar") continue;
          const testing::TargetScope scope(target);
          SCOPED_TRACE(::testing::Message() << text << " x " << story.group << ", pages of "
                                            << page_positions << " on " << target);
          story.options.page_positions = page_positions;
          const auto told = tell(story, {1, 7, 64, 1, 1}, page_positions % 3 + 1);
          EXPECT_TRUE(same_bytes(told->out, expected->out));
          EXPECT_TRUE(same_bytes(told->log_sum_exp, expected->log_sum_exp));
        }
    }
}

TEST(Affine, AWindowThatBeginsInsideAPageGivesTheScalarBits) {
  for (const uint32_t bits : kBits) {
    const std::string text = text_of(bits, 64);
    const Story story{.options = {.shape = {.heads = 1, .head_dim = 64, .window = 70, .sinks = 3},
                                  .key = text,
                                  .value = text},
                      .length = 300};
    testing::expect_same_on_every_target([&] { return tell(story, {150, 1, 1, 1})->out; });
  }
}

}  // namespace
}  // namespace cairn
