// Rectangles in and out. The worked numbers are those of rules that the system before this one
// followed with stored padding (BAT, BMASK, PRE, SPEC); here they must come out without any.
#include "cairn/session/padded.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cairn/core/half.h"
#include "cairn/state/attend.h"
#include "tests/support/must.h"
#include "tests/support/random.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::must;
using testing::Random;
using testing::random_floats;

using Runs = std::vector<Run>;  // ::testing::Test has a Run of its own

std::vector<Pos> offsets(const Padded& shape) {
  std::vector<Pos> offsets;
  for (const PaddedRow& row : shape.rows) offsets.push_back(row.offset);
  return offsets;
}

std::vector<Pos> pads(const Padded& shape) {
  std::vector<Pos> pads;
  for (const PaddedRow& row : shape.rows) pads.push_back(row.pad);
  return pads;
}

Padded padded_to(std::vector<Pos> lengths, Pos count = 0) { return padded({}, lengths, count); }

// One line of ones and zeros for each query of each row.
std::vector<std::string> mask(const Padded& shape, const MaskQueries& queries) {
  const size_t numbers = shape.rows.size() * queries.count * shape.width;
  const auto seen = std::make_unique<bool[]>(numbers);
  fill_mask(shape, queries, seen.get());
  std::vector<float> added(numbers);
  fill_mask(shape, queries, added.data());
  std::vector<std::string> lines(shape.rows.size() * queries.count);
  for (size_t i = 0; i < numbers; ++i) {
    EXPECT_EQ(added[i], seen[i] ? 0.f : -std::numeric_limits<float>::infinity());
    lines[i / shape.width] += seen[i] ? '1' : '0';
  }
  return lines;
}

// x_t = t + 1 in every family at position t, so that padding differs from a number; the recurrent
// slot is h' = h / 2 + x with the last three x beside it.
constexpr FamilySpec kStateOfOne{.family = &kRecurrentFamily, .heads = 1, .width = 1};
constexpr FamilySpec kLastThree{.family = &kConvFamily, .heads = 3, .width = 1};
constexpr SlotId kPlain{0}, kSliding{1}, kLatents{2}, kDecay{3};
constexpr uint32_t kWidth = 8;

struct PaddedSession : ::testing::Test {
  explicit PaddedSession(const char* scheme = "f32")
      : session(must(open_session(
            {.identity = sha256("padded"),
             .slots = {attention({.heads = 2, .head_dim = kWidth}),
                       window({.heads = 1, .head_dim = kWidth, .window = 4, .sinks = 2}),
                       latent({.latent_dim = 16, .rope_dim = kWidth, .index_dim = kWidth}),
                       recurrent({kLastThree, kStateOfOne})}},
            must(parse_scheme(scheme)),
            memory,
            {.page_positions = 4}))) {}

  // Writes what the sequences' next positions hold; the model's recurrence included.
  void write(Step& step, const Runs& runs) {
    for (size_t run = 0; run < runs.size(); ++run) {
      const Pos first = session.length(runs[run].seq);
      std::vector<float> x;
      for (Pos i = 0; i < runs[run].count; ++i)
        x.insert(x.end(), 2 * kWidth, static_cast<float>(first + i + 1));
      for_each_family([&](SlotId slot, const FamilySpec& family) {
        step.write_run(slot, family.family->id, run,
                       {x.data(), DType::F32, 2 * kWidth, family.heads > 1 ? kWidth : 0});
      });
      advance(step, run, x.data(), 2 * kWidth, runs[run].count);
    }
  }

  void append(const Runs& runs) {
    Step step = must(session.plan(runs));
    write(step, runs);
    step.commit();
  }

  void round(const Runs& runs, const std::vector<Pos>& keep) {
    Step step = must(session.plan(runs, Round::yes));
    write(step, runs);
    step.commit(keep);
  }

  SeqId start(Pos length) {
    const SeqId seq = session.start();
    append({{seq, length}});
    return seq;
  }

  template <class F>
  void for_each_family(F f) {
    for (const SlotId slot : {kPlain, kSliding, kLatents})
      for (const FamilySpec& family : session.spec().slots[slot.value].families) f(slot, family);
  }

  // A round that holds states wants the one after every position.
  void advance(Step& step, size_t run, const float* x, ptrdiff_t stride, Pos count) {
    if (count == 0) return;
    float h = *step.previous(kDecay, kRecurrentTensor, run);
    const float* before = step.previous(kDecay, kConv, run);
    std::vector<float> last(before, before + 3);
    for (Pos i = 0; i < count; ++i) {
      const float number = x[static_cast<ptrdiff_t>(i) * stride];
      h = h / 2 + number;
      last = {last[1], last[2], number};
      if (i + 1 < count && !step.holds_states(kDecay)) continue;
      *step.next(kDecay, kRecurrentTensor, run, i) = h;
      std::copy(last.begin(), last.end(), step.next(kDecay, kConv, run, i));
    }
    step.mark_written(kDecay, run);
  }

  float h(SeqId seq) const { return *session.snapshot(seq).tensor(kDecay, kRecurrentTensor); }
  std::vector<float> last_three(SeqId seq) const {
    const Snapshot snapshot = session.snapshot(seq);
    const float* last = snapshot.tensor(kDecay, kConv);
    return {last, last + 3};
  }

  Padded shape(const std::vector<SeqId>& seqs, SlotId slot = kPlain) {
    return padded(look(seqs).view(slot));
  }

  Step look(const std::vector<SeqId>& seqs) {
    Runs runs;
    for (const SeqId seq : seqs) runs.push_back({.seq = seq});
    return must(session.plan(runs));
  }

  // The first number of every column, row by row; all heads and numbers of a column are alike.
  std::vector<std::vector<int>> columns(const Step& step, SlotId slot, FamilyId family) {
    const View view = step.view(slot);
    const Padded shape = padded(view);
    const FamilyPlace& place = *view.slot->find(family);
    const size_t column = size_t{place.heads} * place.codec.width;
    std::vector<float> numbers(shape.rows.size() * shape.width * column, -1);
    read_padded(view, family, numbers.data());
    std::vector<std::vector<int>> rows(shape.rows.size());
    for (size_t i = 0; i < numbers.size(); ++i) {
      EXPECT_EQ(numbers[i], numbers[i / column * column]);
      if (i % column == 0) rows[i / column / shape.width].push_back(static_cast<int>(numbers[i]));
    }
    return rows;
  }
  std::vector<std::vector<int>> columns(const std::vector<SeqId>& seqs,
                                        SlotId slot,
                                        FamilyId family) {
    return columns(look(seqs), slot, family);
  }

  // A prefill of rows through a rectangle whose padding is NaN, in chunks of these columns.
  void prefill(const std::vector<PrefillRow>& rows, Pos& first, Pos columns) {
    const PrefillChunk chunk = prefill_chunk(rows, first, columns);
    std::vector<float> rectangle(rows.size() * columns * 2 * kWidth,
                                 std::numeric_limits<float>::quiet_NaN());
    for (size_t b = 0; b < rows.size(); ++b)
      for (Pos i = 0; i < chunk.runs[b].count; ++i)
        std::fill_n(rectangle.begin() + static_cast<ptrdiff_t>(
                                            (b * columns + chunk.tokens[b].begin + i) * 2 * kWidth),
                    2 * kWidth, static_cast<float>(session.length(rows[b].seq) + i + 1));
    Step step = must(session.plan(chunk.runs));
    const Numbers numbers(rectangle.data(), DType::F32, 2 * kWidth, kWidth);
    for_each_family([&](SlotId slot, const FamilySpec& family) {
      write_padded(step, slot, family.family->id, chunk, numbers);
    });
    for (size_t b = 0; b < rows.size(); ++b)
      advance(step, b, rectangle.data() + (b * columns + chunk.tokens[b].begin) * 2 * kWidth,
              2 * kWidth, chunk.runs[b].count);
    step.commit();
    first += columns;
  }

  Memory memory;
  Session session;
};

TEST_F(PaddedSession, Bat2MergesRowsOfTwoAndThreeBehindZeros) {  // oracle 59
  const SeqId two = start(2), three = start(3);
  const Padded merged = shape({two, three}, kLatents);
  EXPECT_EQ(merged.width, 3u);
  EXPECT_THAT(offsets(merged), ElementsAre(2, 3));
  EXPECT_THAT(pads(merged), ElementsAre(1, 0));
  for (const FamilyId family : {kLatent, kRope, kIndex})
    EXPECT_THAT(columns({two, three}, kLatents, family),
                ElementsAre(ElementsAre(0, 1, 2), ElementsAre(1, 2, 3)));
  EXPECT_THAT(columns({two}, kLatents, kLatent), ElementsAre(ElementsAre(1, 2)));  // filtered
}

TEST(Padded, Bat5RowsThatStayShareNoPadding) {
  EXPECT_THAT(pads(padded_to({1, 2, 3})), ElementsAre(2, 1, 0));
  const Padded kept = padded_to({1, 2});
  EXPECT_EQ(kept.width, 2u);
  EXPECT_THAT(pads(kept), ElementsAre(1, 0));
}

TEST(Padded, Bat3EmptyRowsArePaddingAndNoRowsAreNothing) {
  EXPECT_THAT(pads(padded_to({0, 4})), ElementsAre(4, 0));
  EXPECT_EQ(padded_to({0, 0}).width, 0u);
  EXPECT_EQ(padded_to({}).width, 0u);
}

TEST(Mask, Bmask1HidesThePaddingOfAShorterRow) {  // oracle 46
  const Padded shape = padded_to({5, 3}, 1);
  EXPECT_EQ(shape.width, 6u);
  EXPECT_THAT(mask(shape, {.count = 1}), ElementsAre("111111", "001111"));
  EXPECT_EQ(mask_need(shape, {.count = 1}), MaskNeed::array);
  EXPECT_THAT(offsets(padded_to({5, 3})), ElementsAre(5, 3));  // the positions of the new tokens
}

TEST(Mask, Bmask1IsCausalAndSlides) {
  EXPECT_THAT(mask(padded_to({3, 1}, 2), {.count = 2, .window = 3}),
              ElementsAre("01110", "00111", "00110", "00111"));
}

TEST(Mask, Bmask2EqualRowsNeedNoArray) {  // oracles 46 and 74
  EXPECT_EQ(mask_need(padded_to({4, 4}, 1), {.count = 1}), MaskNeed::none);
  EXPECT_EQ(mask_need(padded_to({4, 4}, 3), {.count = 3}), MaskNeed::causal);
  EXPECT_THAT(mask(padded_to({1, 1}, 2), {.count = 2}), ElementsAre("110", "111", "110", "111"));
}

TEST(Mask, Bmask3FollowsRowsThatEndWhereTheyLike) {
  // Offsets [3,5] in 5 columns, four more, of which [1,3] stay: the framework's rows end at [6,8]
  // of 8 columns. Two new positions go to columns 6, 7 and 8, 9 of 10.
  const Padded ragged{.width = 10,
                      .rows = {{.pad = 2, .offset = 4 + 2}, {.pad = 0, .offset = 8 + 2}}};
  EXPECT_EQ(ragged.rows[0].end(), 8u);
  EXPECT_EQ(ragged.rows[1].end(), 10u);
  EXPECT_THAT(mask(ragged, {.count = 2}),
              ElementsAre("0011111000", "0011111100", "1111111110", "1111111111"));
  EXPECT_EQ(mask_need({.width = 4, .rows = {{.offset = 3}}}, {.count = 1}), MaskNeed::array);
}

TEST(Mask, Bmask4AWindowsHistoryIsWhatTheFirstQuerySees) {
  const Retention ring{.window = 4};  // c = min(W - 1, o), S = c + N
  for (const auto& [length, columns] : {std::pair<Pos, Pos>{0, 3}, {2, 5}, {3, 6}, {4, 6}, {9, 6}})
    EXPECT_EQ(padded(ring, std::vector{length}, 3).width, columns) << length;
  EXPECT_THAT(mask(padded(ring, std::vector<Pos>{9, 1}, 3), {.count = 3, .window = 4}),
              ElementsAre("111100", "011110", "001111", "001100", "001110", "001111"));
}

TEST(Mask, OfLatentsIsAnArrayOnlyWhereAWindowSlides) {  // oracle 57
  EXPECT_EQ(mask_need(padded_to({0}, 2), {.count = 2}), MaskNeed::causal);
  EXPECT_EQ(mask_need(padded_to({0}, 2), {.count = 2, .window = 2}), MaskNeed::causal);
  EXPECT_EQ(mask_need(padded_to({7}, 1), {.count = 1}), MaskNeed::none);
  const Padded shape = padded_to({2}, 2);
  EXPECT_EQ(mask_need(shape, {.count = 2, .window = 2}), MaskNeed::array);
  EXPECT_THAT(mask(shape, {.count = 2, .window = 2}), ElementsAre("0110", "0011"));
  EXPECT_THROW(mask_need(shape, {.count = 0}), ContractError);
  EXPECT_THROW(mask(shape, {.count = 1, .tokens = std::vector<Range>(2)}), ContractError);
}

TEST(Mask, AQueryThatIsPaddingSeesNothing) {
  // Chunks of four columns: two tokens in front after 4 positions, three at the end after 3.
  const std::vector<Range> tokens{{0, 2}, {1, 4}};
  const Padded shape = padded_to({6, 6});
  EXPECT_THAT(mask(shape, {.count = 4, .tokens = tokens}),
              ElementsAre("111110", "111111", "000000", "000000",  //
                          "000000", "111100", "111110", "111111"));
  EXPECT_EQ(mask_need(shape, {.count = 4, .tokens = tokens}), MaskNeed::array);
}

TEST(Mask, ShowsEveryQueryWhatItsSlotsRetentionShowsIt) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    const Pos sliding = random.below(3) * random.below(9);
    const Retention retention{.window = sliding, .sinks = sliding == 0 ? 0 : random.below(4)};
    const Pos count = 1 + random.below(5);
    const std::vector<Pos> lengths{random.below(20), random.below(20), random.below(20)};
    const Padded shape = padded(retention, lengths, count);
    const auto lines = mask(shape, {.count = count, .window = sliding});
    for (size_t b = 0; b < lengths.size(); ++b)
      for (Pos i = 0; i < count; ++i) {
        const auto visible = retention.visible(lengths[b] + i);
        const PaddedRow& row = shape.rows[b];
        std::string expected(row.pad, '0');
        Pos seen = 0;
        for (Pos column = 0; column < shape.width - row.pad; ++column) {
          const Pos position = column < row.sinks ? column : row.first + column - row.sinks;
          const bool sees = (position >= visible.sinks.begin && position < visible.sinks.end) ||
                            (position >= visible.recent.begin && position < visible.recent.end);
          expected += sees ? '1' : '0';
          seen += sees;
        }
        ASSERT_EQ(lines[b * count + i], expected);
        // Nothing that it sees is missing.
        ASSERT_EQ(seen, visible.sinks.end - visible.sinks.begin + visible.recent.end -
                            visible.recent.begin);
      }
  }
}

TEST_F(PaddedSession, WindowsShowTheirSinksAndWhatTheNextTokenSees) {
  const SeqId slid = start(9), young = start(1);
  EXPECT_THAT(columns({slid, young}, kSliding, kKey),
              ElementsAre(ElementsAre(1, 2, 7, 8, 9), ElementsAre(0, 0, 0, 0, 1)));
  const Retention retention = session.spec().slots[kSliding.value].retention;
  const Padded rows = padded(retention, std::vector<Pos>{9, 1}, 2);
  EXPECT_EQ(rows.rows[0].first, 6u);
  EXPECT_THAT(pads(rows), ElementsAre(0, 4));
  EXPECT_THAT(mask(rows, {.count = 2, .window = 4}),
              ElementsAre("1111110", "1101111", "0000110", "0000111"));
  EXPECT_EQ(mask_need(padded(retention, std::vector<Pos>{5}, 1), {.count = 1, .window = 4}),
            MaskNeed::none);  // the window touches the sinks
}

TEST_F(PaddedSession, Spec4RoundsLeaveRowsRightJustified) {
  struct Case {
    std::vector<Pos> keep, offsets, pads;
    Pos width;
  };
  for (const Case& c : {Case{{1, 3}, {4, 8}, {4, 0}, 8}, Case{{2, 2}, {5, 7}, {2, 0}, 7},
                        Case{{4, 0}, {7, 5}, {0, 2}, 7}, Case{{4, 4}, {7, 9}, {2, 0}, 9}}) {
    const SeqId a = start(3), b = start(5);
    round({{a, 4}, {b, 4}}, c.keep);
    const Padded rows = shape({a, b});
    EXPECT_EQ(rows.width, c.width);
    EXPECT_THAT(offsets(rows), c.offsets);
    EXPECT_THAT(pads(rows), c.pads);
    const auto keys = columns({a, b}, kPlain, kKey);
    for (size_t row = 0; row < 2; ++row)
      for (Pos column = 0; column < c.width; ++column)  // zeros, not what was rejected
        EXPECT_EQ(keys[row][column],
                  std::max<int>(0, static_cast<int>(column + 1) - static_cast<int>(c.pads[row])));
  }
}

TEST_F(PaddedSession, Spec7RejectedPositionsGiveTheirPagesBack) {
  const SeqId a = start(3), b = start(5);
  const uint64_t pages_of_three_and_five = session.use().live_bytes;
  round({{a, 4}, {b, 4}}, {1, 3});  // pages of 4: 4 and 8 positions fill 1 and 2
  EXPECT_EQ(session.use().live_bytes, pages_of_three_and_five);
  const Padded rows = shape({a, b}, kLatents);
  EXPECT_EQ(rows.width, 8u);
  EXPECT_THAT(pads(rows), ElementsAre(4, 0));
}

struct EncodedRows : PaddedSession {
  EncodedRows() : PaddedSession("affine8") {}
};

TEST_F(EncodedRows, Oracle49GoOnWhereTheyEnd) {
  const SeqId a = start(3), b = start(7);
  EXPECT_THAT(pads(shape({a, b})), ElementsAre(4, 0));
  round({{a, 3}, {b, 3}}, {1, 3});
  EXPECT_THAT(offsets(shape({a, b})), ElementsAre(4, 10));
  const Runs runs{{a, 2}, {b, 2}};
  Step step = must(session.plan(runs));
  write(step, runs);
  const Padded rows = padded(step.view(kPlain));
  EXPECT_EQ(rows.width, 12u);
  EXPECT_THAT(mask(rows, {.count = 2}),
              ElementsAre("000000111110", "000000111111", "111111111110", "111111111111"));
  EXPECT_THAT(columns(step, kPlain, kValue)[0],
              ElementsAre(0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6));  // the new ones included
}

TEST_F(PaddedSession, Pre4RightPaddingIsNeverStored) {
  const SeqId a = session.start(), b = session.start();
  Pos first = 0;
  prefill({{a, 0, 3}, {b, 0, 5}}, first, 5);
  EXPECT_THAT(offsets(shape({a, b})), ElementsAre(3, 5));
  EXPECT_THAT(pads(shape({a, b})), ElementsAre(2, 0));
  EXPECT_THAT(columns({a, b}, kPlain, kKey),
              ElementsAre(ElementsAre(0, 0, 1, 2, 3), ElementsAre(1, 2, 3, 4, 5)));
  EXPECT_THAT(columns({b, a}, kLatents, kIndex),  // oracle 62: another order
              ElementsAre(ElementsAre(1, 2, 3, 4, 5), ElementsAre(0, 0, 1, 2, 3)));
  EXPECT_THAT(pads(shape({b, a})), ElementsAre(0, 2));
}

TEST_F(PaddedSession, Pre2LeftPaddingIsNeverStored) {
  const SeqId a = session.start(), b = session.start();
  Pos first = 0;
  prefill({{a, 2, 5}, {b, 0, 5}}, first, 5);
  const Padded rows = shape({a, b});
  EXPECT_EQ(rows.width, 5u);
  EXPECT_THAT(offsets(rows), ElementsAre(3, 5));
  EXPECT_THAT(pads(rows), ElementsAre(2, 0));
}

TEST_F(PaddedSession, Pre5ACohortThatStopsEarlyKeepsItsTokensOnly) {  // oracle 69
  const SeqId a = start(11), b = start(11), c = start(11);
  const std::vector<PrefillRow> rows{{a, 0, 2}, {b, 0, 10}, {c, 0, 4}};
  Pos first = 0;
  prefill(rows, first, 5);
  EXPECT_THAT(offsets(shape({c, a})), ElementsAre(15, 13));  // b has left
  EXPECT_THAT(pads(shape({c, a})), ElementsAre(0, 2));       // common padding does not exist
  EXPECT_EQ(session.length(b), 16u);
  prefill({rows[2], rows[0]}, first, 3);  // nothing of theirs is left: again is the same
  EXPECT_THAT(offsets(shape({c, a})), ElementsAre(15, 13));
}

TEST_F(PaddedSession, Oracle70AnEarlyCheckpointMovesNothingAndASegmentGoesOn) {
  const SeqId a = session.start(), b = session.start();
  Pos first = 0;
  prefill({{a, 0, 5}, {b, 0, 7}}, first, 3);
  EXPECT_THAT(offsets(shape({a, b})), ElementsAre(3, 3));
  EXPECT_THAT(pads(shape({a, b})), ElementsAre(0, 0));
  first = 0;
  prefill({{a, 0, 5}, {b, 0, 7}}, first, 7);
  EXPECT_THAT(offsets(shape({a, b})), ElementsAre(8, 10));
  EXPECT_THAT(pads(shape({a, b})), ElementsAre(2, 0));
}

TEST_F(PaddedSession, Oracle71RowsBeforeAnyWorkAreWhereTheyWere) {
  const SeqId a = start(3), b = session.start();
  Pos first = 0;
  prefill({{a, 4, 9}, {b, 4, 9}}, first, 4);  // padding only
  EXPECT_THAT(offsets(shape({a, b})), ElementsAre(3, 0));
  must(session.truncate(a, 0));  // cleared
  EXPECT_EQ(shape({a, b}).width, 0u);
}

TEST_F(PaddedSession, Oracle73RowsRetireDuringAPrefill) {
  const SeqId a = start(20), b = start(40), c = session.start();
  const std::vector<PrefillRow> rows{{a, 0, 5}, {b, 0, 9}, {c, 0, 0}};
  Pos first = 0;
  prefill(rows, first, 3);
  EXPECT_THAT(offsets(shape({a, b, c})), ElementsAre(23, 43, 0));
  EXPECT_THAT(offsets(shape({c, a})), ElementsAre(0, 23));
  prefill({rows[2], rows[0]}, first, 4);
  EXPECT_THAT(offsets(shape({c, a})), ElementsAre(0, 25));
  append({{c, 1}, {a, 1}});
  EXPECT_THAT(offsets(shape({c, a})), ElementsAre(1, 26));
  EXPECT_THAT(offsets(shape({})), IsEmpty());
}

TEST(PrefillChunk, Pre8CountsTheTokensOfEveryChunk) {  // oracle 72
  struct Case {
    std::vector<PrefillRow> rows;
    std::vector<Pos> columns;
    std::vector<std::vector<Pos>> counts, ends;  // ends: of what a convolution has seen
  };
  const std::vector<PrefillRow> left{{{0}, 4, 9}, {{1}, 0, 9}, {{2}, 6, 9}};
  const std::vector<PrefillRow> right{{{0}, 0, 5}, {{1}, 0, 9}, {{2}, 0, 0}};
  for (const Case& c :
       {Case{left, {3, 3, 3}, {{0, 3, 0}, {2, 3, 0}, {3, 3, 3}}, {{3, 3, 3}, {3, 3, 3}, {3, 3, 3}}},
        Case{right,
             {3, 4, 2},
             {{3, 3, 0}, {2, 4, 0}, {0, 2, 0}},
             {{3, 3, 0}, {2, 4, 0}, {0, 2, 0}}}}) {
    Pos first = 0;
    for (size_t i = 0; i < c.columns.size(); ++i) {
      const PrefillChunk chunk = prefill_chunk(c.rows, first, c.columns[i]);
      first += c.columns[i];
      for (size_t row = 0; row < 3; ++row) {
        EXPECT_EQ(chunk.runs[row].seq, c.rows[row].seq);
        EXPECT_EQ(chunk.runs[row].count, c.counts[i][row]);
        EXPECT_EQ(chunk.tokens[row], (Range{c.ends[i][row] - c.counts[i][row], c.ends[i][row]}));
      }
    }
  }
}

TEST(PrefillChunk, ARowOfPaddingOnlyHasNoTokens) {
  const PrefillChunk chunk =
      prefill_chunk(std::vector<PrefillRow>{{{0}, 9, 5}, {{1}, 0, 0}}, 0, 10);
  EXPECT_EQ(chunk.runs[0].count, 0u);
  EXPECT_EQ(chunk.runs[1].count, 0u);
}

TEST(PrefillChunk, Oracle74UniformRowsHaveNoPadding) {
  const PrefillChunk chunk = prefill_chunk(std::vector<PrefillRow>{{{0}, 0, 7}, {{1}, 0, 7}}, 3, 4);
  EXPECT_THAT(chunk.tokens, ElementsAre(Range{0, 4}, Range{0, 4}));
  EXPECT_EQ(mask_need(padded_to({3, 3}, 4), {.count = 4, .tokens = chunk.tokens}),
            MaskNeed::causal);
}

TEST_F(PaddedSession, C39PaddingEntersNoRecurrence) {
  for (const Pos step : {1, 2, 3, 6})
    for (const bool is_left : {false, true}) {
      const SeqId six = session.start(), four = session.start();
      for (Pos first = 0; first < 6;)
        prefill({{six, 0, 6}, is_left ? PrefillRow{four, 2, 6} : PrefillRow{four, 0, 4}}, first,
                step);
      EXPECT_EQ(h(six), 10.03125f);
      EXPECT_EQ(h(four), 6.125f);
      EXPECT_THAT(last_three(six), ElementsAre(4, 5, 6));
      EXPECT_THAT(last_three(four), ElementsAre(2, 3, 4));
    }
}

struct AfterEight : PaddedSession {
  AfterEight() : PaddedSession("affine8-after8") {}
};

TEST_F(AfterEight, Pre9TheBoundaryCountsTokensNotColumns) {
  const SeqId a = start(2), b = start(4), c = start(7);
  const std::vector<PrefillRow> rows{{a, 5, 25}, {b, 0, 20}, {c, 0, 1}};
  EXPECT_EQ(longest_chunk(session, rows, 0), 4u);  // c ends at 8, b may have 4 of its 20
  EXPECT_EQ(longest_chunk(session, std::vector{rows[0]}, 0), 5u + 6u);
  EXPECT_EQ(longest_chunk(session, std::vector{rows[2]}, 0), UINT64_MAX);
  EXPECT_FALSE(session.plan(prefill_chunk(rows, 0, 5).runs));
  Pos first = 0;
  while (first < 25)
    prefill(rows, first, std::min<Pos>(25 - first, longest_chunk(session, rows, first)));
  EXPECT_THAT(offsets(shape({a, b, c})), ElementsAre(22, 24, 8));
  for (const SlotId slot : {kPlain, kLatents}) {
    const auto rows_of_slot =
        columns({c, a}, slot, session.spec().slots[slot.value].families[1].family->id);
    EXPECT_THAT(rows_of_slot[0],
                ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8));
    EXPECT_EQ(rows_of_slot[1].back(), 22);
  }
}

// One row as a framework would compute it: decoded keys and values, a mask, softmax in doubles.
std::vector<double> dense_attention(
    const float* query, const float* keys, const float* values, const float* mask, Pos columns) {
  std::vector<double> weights(columns), out(kWidth);
  double sum = 0;
  for (Pos j = 0; j < columns; ++j) {
    double score = 0;
    for (uint32_t k = 0; k < kWidth; ++k) score += double{query[k]} * keys[j * kWidth + k];
    weights[j] = std::exp(score / std::sqrt(double{kWidth}) + mask[j]);
    sum += weights[j];
  }
  for (Pos j = 0; j < columns; ++j)
    for (uint32_t k = 0; k < kWidth; ++k) out[k] += weights[j] / sum * values[j * kWidth + k];
  return out;
}

TEST(Padded, DenseAttentionOverARectangleIsAttention) {
  Memory memory;
  Session session = must(
      open_session({.identity = sha256("padded"),
                    .slots = {attention({.heads = 1, .head_dim = kWidth}),
                              window({.heads = 1, .head_dim = kWidth, .window = 6, .sinks = 2})}},
                   must(parse_scheme("f16")), memory, {.page_positions = 4}));
  const std::vector<PrefillRow> rows{{session.start(), 3, 21}, {session.start(), 0, 13}};
  constexpr Pos kColumns = 7;
  for (Pos first = 0; first < 21; first += kColumns) {
    const PrefillChunk chunk = prefill_chunk(rows, first, kColumns);
    Step step = must(session.plan(chunk.runs));
    for (const SlotId slot : session.slots()) {
      // A transposed rectangle in f16: [columns, rows, width].
      std::vector<uint16_t> rectangle;
      for (const float x : random_floats(first * 2 + slot.value, 2 * kColumns * kWidth))
        rectangle.push_back(f16_from_f32(x));
      for (const FamilyId family : {kKey, kValue})
        for (uint32_t part = 0; part < 3; ++part)
          write_padded(step, slot, family, chunk, {rectangle.data(), DType::F16, 2 * kWidth},
                       kWidth, {part, 3});
      const View view = step.view(slot);
      const std::vector<float> queries = random_floats(first, view.rows * kWidth);
      std::vector<float> attended(view.rows * kWidth);
      attend(view, {.data = queries.data(), .heads = 1}, {.data = attended.data()});

      const Padded shape = padded(view);
      std::vector<float> keys(2 * shape.width * kWidth), values(keys.size());
      read_padded(view, kKey, keys.data());
      read_padded(view, kValue, values.data());
      std::vector<float> mask(2 * kColumns * shape.width);
      fill_mask(shape, {kColumns, view.retention.window, chunk.tokens}, mask.data());
      for (size_t b = 0; b < 2; ++b)
        for (Pos i = 0; i < chunk.runs[b].count; ++i) {
          const Pos row = view.runs[b].row + i;
          const auto dense = dense_attention(
              &queries[row * kWidth], &keys[b * shape.width * kWidth],
              &values[b * shape.width * kWidth],
              &mask[(b * kColumns + chunk.tokens[b].begin + i) * shape.width], shape.width);
          for (uint32_t k = 0; k < kWidth; ++k)
            ASSERT_NEAR(attended[row * kWidth + k], dense[k], 1e-5) << "row " << b << ", " << i;
        }
    }
    step.commit();
  }
}

TEST_F(PaddedSession, AFamilyWithoutPositionsHasNoRectangle) {
  const Step step = look({start(3)});
  std::vector<float> out(1000);
  EXPECT_THROW(read_padded(step.view(kPlain), kRope, out.data()), ContractError);
  EXPECT_THROW(read_padded(step.view(kDecay), kConv, out.data()), ContractError);
}

TEST_F(PaddedSession, AChunkOfOtherRunsIsRefused) {
  const SeqId a = start(3), b = start(5);
  Step step = must(session.plan({{a, 2}, {b, 1}}));
  const std::vector<float> numbers(100);
  for (const auto& rows : {std::vector<PrefillRow>{{a, 0, 2}}, {{a, 0, 2}, {b, 0, 2}}})
    EXPECT_THROW(write_padded(step, kPlain, kKey, prefill_chunk(rows, 0, 2), numbers.data()),
                 ContractError);
}

}  // namespace
}  // namespace cairn
