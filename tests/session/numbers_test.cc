// The number matrix: for every kind that attends, in every encoding that the registry lists and in
// both forms, what attention computes agrees with double precision on the decoded numbers, and not
// a bit of it depends on runs, pages, parts, batch mates or targets.
#include <gtest/gtest.h>

#include <cmath>

#include "cairn/session/session.h"
#include "cairn/state/sparse.h"
#include "tests/support/random.h"
#include "tests/support/targets.h"

namespace cairn::testing {
namespace {

constexpr Pos kLength = 520;
constexpr uint32_t kHeads = 4;  // of the queries

// A slot of one kind, and the widths that attention meets.
struct Kind {
  const char* name;
  SlotSpec slot;
  uint32_t query_width = 0;
  uint32_t value_width = 0;
};

std::vector<Kind> kinds() {
  return {
      {"attention", attention({.heads = 2, .head_dim = 128, .value_dim = 64}), 128, 64},
      {"window", window({.heads = 1, .head_dim = 64, .window = 300, .sinks = 5}), 64, 64},
      {"latent", latent({.latent_dim = 128, .rope_dim = 64, .index_dim = 64}), 192, 128},
      {"latent-draft", latent_draft({.latent_dim = 64, .rope_dim = 64}), 128, 64},
  };
}

std::vector<float> numbers_of(const FamilySpec& family, uint64_t seed) {
  return random_floats(seed * 31 + family.family->id.value, kLength * family.heads * family.width);
}

// One sequence fed with the same numbers in runs of the given lengths; the outputs of all rows.
struct Fed {
  std::vector<float> out;        // [kLength, kHeads, value width]
  std::vector<float> lse;        // [kLength, kHeads]
  std::vector<uint32_t> chosen;  // [kLength, k] when asked for
};

struct How {
  std::vector<Pos> runs = {kLength};
  uint32_t page_positions = 64;
  uint32_t parts = 1;
  bool beside_another = false;
  uint32_t choose = 0;  // positions per row; 0: dense
};

class Feed {
 public:
  Feed(const Kind& kind, std::string_view scheme, const How& how)
      : kind_(kind),
        how_(how),
        session_(open_session({.identity = sha256("model"), .slots = {kind.slot}},
                              parse_scheme(scheme).value(),
                              memory_,
                              {.page_positions = how.page_positions})
                     .value()),
        queries_(random_floats(77, kLength * kHeads * kind.query_width, 1.5f)) {
    for (const FamilySpec& family : kind.slot.families) numbers_.push_back(numbers_of(family, 5));
  }

  Fed feed() {
    Fed fed{std::vector<float>(kLength * kHeads * kind_.value_width),
            std::vector<float>(kLength * kHeads),
            {}};
    fed.chosen.resize(kLength * how_.choose);
    const SeqId other = session_.start(), chat = session_.start();
    Pos done = 0;
    for (Pos run : how_.runs)
      while (run > 0) {
        const Pos count = std::min({run, kLength - done, session_.max_run(chat)});
        step(chat, other, done, count, fed);
        done += count;
        run -= count;
      }
    EXPECT_EQ(done, kLength);
    return fed;
  }

  // Everything the sequence holds now, decoded: [kLength, heads, width].
  std::vector<float> decoded(FamilyId family) {
    const Snapshot snapshot = session_.snapshot(SeqId{1});
    const SlotId slot{0};
    const FamilyPlace& place = *snapshot.view(slot).slot->find(family);
    const size_t position = size_t{place.heads} * place.codec.width;
    std::vector<float> numbers(kLength * position);
    const Pos kept = snapshot.first_kept(slot), sinks = kind_.slot.retention.sinks;
    decode(snapshot.view(slot), 0, family, 0, std::min(kept, sinks), numbers.data());
    decode(snapshot.view(slot), 0, family, kept, kLength - kept, numbers.data() + kept * position);
    return numbers;
  }

  const std::vector<float>& queries() const { return queries_; }

 private:
  void step(SeqId chat, SeqId other, Pos done, Pos count, Fed& fed) {
    std::vector<Run> batch;
    if (how_.beside_another) batch.push_back({other, 1 + done % 3});
    batch.push_back({chat, count});
    const size_t mine = batch.size() - 1;
    Step step = session_.plan(batch).value();
    const SlotId slot{0};
    for (size_t f = 0; f < numbers_.size(); ++f) {
      const FamilySpec& family = kind_.slot.families[f];
      if (mine == 1) step.write_run(slot, family.family->id, 0, numbers_[f].data());
      step.write_run(slot, family.family->id, mine,
                     numbers_[f].data() + done * family.heads * family.width);
    }
    const View view = step.view(slot);
    const Pos row = view.runs[mine].row;
    std::vector<float> queries(view.rows * kHeads * kind_.query_width, 0.1f);
    std::copy_n(queries_.data() + done * kHeads * kind_.query_width,
                count * kHeads * kind_.query_width,
                queries.data() + row * kHeads * kind_.query_width);
    std::vector<float> out(view.rows * kHeads * kind_.value_width), lse(view.rows * kHeads);
    std::vector<uint32_t> positions(view.rows * how_.choose), counts(view.rows);
    Queries asked{.data = queries.data(), .heads = kHeads};
    const ChosenOut chosen{positions.data(), counts.data(), how_.choose};
    const Chosen given = chosen.view();
    if (how_.choose > 0) {
      choose_positions(view, chosen);
      asked.chosen = &given;
    }
    for (uint32_t part = how_.parts; part-- > 0;)
      attend(view, asked, {.data = out.data(), .log_sum_exp = lse.data()}, {part, how_.parts});
    std::copy_n(out.data() + row * kHeads * kind_.value_width, count * kHeads * kind_.value_width,
                fed.out.data() + done * kHeads * kind_.value_width);
    std::copy_n(lse.data() + row * kHeads, count * kHeads, fed.lse.data() + done * kHeads);
    std::copy_n(positions.data() + row * how_.choose, count * how_.choose,
                fed.chosen.data() + done * how_.choose);
    step.commit();
  }

  void choose_positions(const View& view, const ChosenOut& out) {
    if (how_.choose >= kLength) {  // a list of everything
      for (const RunView& run : view.runs)
        for (Pos i = 0; i < run.count; ++i) {
          out.counts[run.row + i] = static_cast<uint32_t>(run.first + i + 1);
          for (uint32_t p = 0; p <= run.first + i; ++p)
            out.positions[(run.row + i) * how_.choose + p] = p;
        }
      return;
    }
    // The index queries of a position must be the same in every run: by its number.
    std::vector<float> queries, weights;
    for (const RunView& run : view.runs)
      for (Pos i = 0; i < run.count; ++i) {
        const auto q = random_floats(1000 + run.first + i, 2 * 64),
                   w = random_floats(run.first + i, 2);
        queries.insert(queries.end(), q.begin(), q.end());
        weights.insert(weights.end(), w.begin(), w.end());
      }
    for (uint32_t part = 0; part < how_.parts; ++part)
      choose(view, {.data = queries.data(), .weights = weights.data(), .heads = 2}, how_.choose,
             out, {part, how_.parts});
  }

  const Kind& kind_;
  const How how_;
  Memory memory_;
  Session session_;
  std::vector<float> queries_;
  std::vector<std::vector<float>> numbers_;
};

// Attention of the last row in double precision, over the decoded numbers.
std::vector<double> last_row(const Kind& kind, Feed& feed) {
  std::vector<std::vector<float>> scored;
  std::vector<float> values;
  for (const FamilySpec& family : kind.slot.families) {
    if (family.family->is_scored) scored.push_back(feed.decoded(family.family->id));
    if (family.family->is_accumulated) values = feed.decoded(family.family->id);
  }
  const uint32_t key_heads = kind.slot.families[0].heads;
  const auto visible = kind.slot.retention.visible(kLength - 1);
  std::vector<double> out;
  for (uint32_t head = 0; head < kHeads; ++head) {
    const uint32_t key_head = head / (kHeads / key_heads);
    const float* query = feed.queries().data() + ((kLength - 1) * kHeads + head) * kind.query_width;
    double largest = -INFINITY, total = 0;
    std::vector<double> scores(kLength, -INFINITY), sum(kind.value_width);
    for (Range range : {visible.sinks, visible.recent})
      for (Pos p = range.begin; p < range.end; ++p) {
        double score = 0;
        size_t at = 0;
        for (size_t s = 0; s < scored.size(); ++s) {
          const size_t width = scored[s].size() / kLength / key_heads;
          for (size_t i = 0; i < width; ++i)
            score += double{query[at++]} * scored[s][(p * key_heads + key_head) * width + i];
        }
        scores[p] = score / std::sqrt(static_cast<double>(kind.query_width));
        largest = std::max(largest, scores[p]);
      }
    for (Pos p = 0; p < kLength; ++p) {
      const double weight = std::exp(scores[p] - largest);
      total += weight;
      for (uint32_t i = 0; weight > 0 && i < kind.value_width; ++i)
        sum[i] += weight * values[(p * key_heads + key_head) * kind.value_width + i];
    }
    for (double s : sum) out.push_back(s / total);
  }
  return out;
}

class EveryScheme : public ::testing::TestWithParam<std::string> {};

std::vector<std::string> schemes() {
  std::vector<std::string> schemes;
  for (const Encoding* encoding : builtin().encodings)
    for (std::string_view sample : encoding->samples) schemes.emplace_back(sample);
  for (const char* form : {"f16-keep64", "bf16-after300", "f16-keep100-after512"})
    schemes.emplace_back(form);
  return schemes;
}
INSTANTIATE_TEST_SUITE_P(Schemes,
                         EveryScheme,
                         ::testing::ValuesIn(schemes()),
                         [](const ::testing::TestParamInfo<std::string>& scheme) {
                           std::string name = scheme.param;
                           for (char& c : name) c = std::isalnum(c) ? c : '_';
                           return name;
                         });

TEST_P(EveryScheme, AgreeWithDoublePrecisionForEveryKind) {
  for (const Kind& kind : kinds()) {
    Feed feed(kind, GetParam(), {});
    const Fed fed = feed.feed();
    const std::vector<double> expected = last_row(kind, feed);
    const float* got = fed.out.data() + (kLength - 1) * kHeads * kind.value_width;
    for (size_t i = 0; i < expected.size(); ++i)
      ASSERT_NEAR(got[i], expected[i], 2e-3) << kind.name << " " << i;
  }
}

TEST_P(EveryScheme, KeepEveryBitHoweverTheyAreComputed) {
  const std::vector<How> ways = {
      {.runs = {1, 7, 64, 200, 248}, .page_positions = 16, .parts = 3},
      {.runs = {301, 1, 1, 217}, .page_positions = 1, .parts = 2, .beside_another = true},
  };
  for (const Kind& kind : kinds()) {
    const Fed whole = Feed(kind, GetParam(), {}).feed();
    for (const How& how : ways) {
      const Fed other = Feed(kind, GetParam(), how).feed();
      ASSERT_EQ(std::memcmp(whole.out.data(), other.out.data(), whole.out.size() * 4), 0)
          << kind.name;
      ASSERT_EQ(whole.lse, other.lse) << kind.name;
    }
    for (const std::string& target : kernel_targets()) {
      const TargetScope forced(target);
      const Fed other = Feed(kind, GetParam(), ways[0]).feed();
      ASSERT_EQ(std::memcmp(whole.out.data(), other.out.data(), whole.out.size() * 4), 0)
          << kind.name << " " << target;
    }
  }
}

TEST_P(EveryScheme, AListOfEverythingIsDenseAttention) {
  for (const Kind& kind : kinds()) {
    if (!kind.slot.retention.keeps_all()) continue;
    const Fed dense = Feed(kind, GetParam(), {}).feed();
    const Fed listed = Feed(kind, GetParam(), {.choose = kLength}).feed();
    ASSERT_EQ(std::memcmp(dense.out.data(), listed.out.data(), dense.out.size() * 4), 0)
        << kind.name;
  }
}

TEST_P(EveryScheme, AChoiceDoesNotDependOnRunsPagesPartsOrTargets) {
  const Kind kind = kinds()[2];
  const Fed whole = Feed(kind, GetParam(), {.choose = 48}).feed();
  const Fed cut =
      Feed(kind, GetParam(), {.runs = {1, 99, 420}, .page_positions = 4, .parts = 3, .choose = 48})
          .feed();
  EXPECT_EQ(whole.chosen, cut.chosen);
  ASSERT_EQ(std::memcmp(whole.out.data(), cut.out.data(), whole.out.size() * 4), 0);
  for (const std::string& target : kernel_targets()) {
    const TargetScope forced(target);
    EXPECT_EQ(whole.chosen, Feed(kind, GetParam(), {.choose = 48}).feed().chosen) << target;
  }
}

TEST(Choosing, TakesTheBestAndTheEarlierOfEqualOnes) {
  Memory memory;
  Session session =
      open_session({.identity = sha256("model"),
                    .slots = {latent({.latent_dim = 8, .rope_dim = 8, .index_dim = 8})}},
                   parse_scheme("f32").value(), memory)
          .value();
  const float ranks[] = {1, 5, 5, 2, 5, NAN, 4, -3};  // of the positions' index keys
  std::vector<float> keys, zeros(8 * 8);
  for (float rank : ranks) keys.insert(keys.end(), {rank, 0, 0, 0, 0, 0, 0, 0});
  const SeqId seq = session.start();
  Step step = session.plan({{seq, 8}}).value();
  const SlotId slot{0};
  step.write(slot, kLatent, zeros.data());
  step.write(slot, kRope, zeros.data());
  step.write(slot, kIndex, keys.data());
  std::vector<float> queries(8 * 8), weights(8, 1);
  for (int row = 0; row < 8; ++row) queries[row * 8] = 1;
  std::vector<uint32_t> positions(8 * 3), counts(8);
  choose(step.view(slot), {.data = queries.data(), .weights = weights.data(), .heads = 1}, 3,
         {positions.data(), counts.data(), 3});
  EXPECT_EQ(counts, (std::vector<uint32_t>{1, 2, 3, 3, 3, 3, 3, 3}));
  EXPECT_EQ((std::vector<uint32_t>(positions.end() - 3, positions.end())),
            (std::vector<uint32_t>{1, 2, 4}));
  EXPECT_EQ((std::vector<uint32_t>(positions.begin() + 9, positions.begin() + 12)),
            (std::vector<uint32_t>{1, 2, 3}));
}

}  // namespace
}  // namespace cairn::testing
