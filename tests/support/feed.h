// One sequence of one slot, fed with the same numbers in any way: what attention gives for every
// position, and the same for the last one in double precision.
#ifndef CAIRN_TESTS_SUPPORT_FEED_H_
#define CAIRN_TESTS_SUPPORT_FEED_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/session/session.h"
#include "cairn/state/sparse.h"
#include "tests/support/random.h"

namespace cairn::testing {

// Every slot of every kind's samples that attention reads.
inline std::vector<SlotSpec> attending_slots(const Registry& registry = builtin()) {
  std::vector<SlotSpec> slots;
  for (const StateKind* kind : registry.kinds)
    for (const SlotSpec& slot : kind->samples())
      if (!slot.families[0].family->is_fixed) slots.push_back(slot);
  return slots;
}

// Numbers per head that a query meets, and that a result has.
inline uint32_t query_width(const SlotSpec& slot) {
  uint32_t width = 0;
  for (const FamilySpec& family : slot.families)
    if (family.family->is_scored) width += family.width;
  return width;
}
inline uint32_t value_width(const SlotSpec& slot) {
  for (const FamilySpec& family : slot.families)
    if (family.family->is_accumulated) return family.width;
  return 0;
}

struct Fed {
  Pos attended_from = 0;         // what lies before is zero
  std::vector<float> out;        // [length, heads, value width]
  std::vector<float> lse;        // [length, heads]
  std::vector<uint32_t> chosen;  // [length, choose]
};

struct How {
  Pos length = 520;
  uint32_t heads = 4;     // of the queries
  std::vector<Pos> runs;  // the last one takes the rest; empty: all at once
  Pos attend_from = 0;    // where a run begins: those before it are only written
  uint32_t page_positions = 64;
  uint32_t parts = 1;
  bool beside_another = false;
  uint32_t choose = 0;  // positions per row; 0: dense
  const Registry* registry = &builtin();
};

class Feed {
 public:
  Feed(const SlotSpec& slot, std::string_view scheme, const How& how)
      : slot_(slot),
        how_(how),
        query_width_(query_width(slot)),
        value_width_(value_width(slot)),
        session_(open_session({.identity = sha256("model"), .slots = {slot}},
                              parse_scheme(scheme, *how.registry).value(),
                              memory_,
                              {.page_positions = how.page_positions},
                              *how.registry)
                     .value()),
        queries_(random_floats(77, how.length * how.heads * query_width_, 1.5f)) {
    for (const FamilySpec& family : slot.families)
      numbers_.push_back(
          random_floats(155 + family.family->id.value, how.length * family.heads * family.width));
  }

  Fed feed() {
    Fed fed{how_.attend_from, std::vector<float>(how_.length * how_.heads * value_width_),
            std::vector<float>(how_.length * how_.heads),
            std::vector<uint32_t>(how_.length * how_.choose)};
    const SeqId other = session_.start(), chat = session_.start();
    Pos done = 0;
    for (size_t i = 0; done < how_.length; ++i) {
      Pos run = i < how_.runs.size() ? how_.runs[i] : how_.length - done;
      while (run > 0) {
        const Pos count = std::min({run, how_.length - done, session_.max_run(chat)});
        step(chat, other, done, count, fed);
        done += count;
        run -= count;
      }
    }
    return fed;
  }

  // Everything the sequence holds now, decoded: [length, heads, width].
  std::vector<float> decoded(FamilyId family) const {
    const Snapshot snapshot = session_.snapshot(SeqId{1});
    const SlotId slot{0};
    const FamilyPlace& place = *snapshot.view(slot).slot->find(family);
    const size_t position = size_t{place.heads} * place.codec.width;
    std::vector<float> numbers(how_.length * position);
    const Pos kept = snapshot.first_kept(slot), sinks = slot_.retention.sinks;
    decode(snapshot.view(slot), 0, family, 0, std::min(kept, sinks), numbers.data());
    decode(snapshot.view(slot), 0, family, kept, how_.length - kept,
           numbers.data() + kept * position);
    return numbers;
  }

  // Attention of the last row in double precision, over the decoded numbers: [heads, value width].
  std::vector<double> last_row() const {
    std::vector<std::vector<float>> scored;
    std::vector<float> values;
    for (const FamilySpec& family : slot_.families) {
      if (family.family->is_scored) scored.push_back(decoded(family.family->id));
      if (family.family->is_accumulated) values = decoded(family.family->id);
    }
    const uint32_t key_heads = slot_.families[0].heads;
    const auto visible = slot_.retention.visible(how_.length - 1);
    std::vector<double> out;
    for (uint32_t head = 0; head < how_.heads; ++head) {
      const uint32_t key_head = head / (how_.heads / key_heads);
      const float* query = queries_.data() + ((how_.length - 1) * how_.heads + head) * query_width_;
      double largest = -INFINITY, total = 0;
      std::vector<double> scores(how_.length, -INFINITY), sum(value_width_);
      for (Range range : {visible.sinks, visible.recent})
        for (Pos p = range.begin; p < range.end; ++p) {
          double score = 0;
          size_t at = 0;
          for (const std::vector<float>& family : scored) {
            const size_t width = family.size() / how_.length / key_heads;
            for (size_t i = 0; i < width; ++i)
              score += double{query[at++]} * family[(p * key_heads + key_head) * width + i];
          }
          scores[p] = score / std::sqrt(static_cast<double>(query_width_));
          largest = std::max(largest, scores[p]);
        }
      for (Pos p = 0; p < how_.length; ++p) {
        const double weight = std::exp(scores[p] - largest);
        total += weight;
        for (uint32_t i = 0; weight > 0 && i < value_width_; ++i)
          sum[i] += weight * values[(p * key_heads + key_head) * value_width_ + i];
      }
      for (double s : sum) out.push_back(s / total);
    }
    return out;
  }

 private:
  void step(SeqId chat, SeqId other, Pos done, Pos count, Fed& fed) {
    std::vector<Run> batch;
    if (how_.beside_another) batch.push_back({other, 1 + done % 3});
    batch.push_back({chat, count});
    const size_t mine = batch.size() - 1;
    Step step = session_.plan(batch).value();
    for (size_t f = 0; f < numbers_.size(); ++f) {
      const FamilySpec& family = slot_.families[f];
      if (mine == 1) step.write_run(SlotId{0}, family.family->id, 0, numbers_[f].data());
      step.write_run(SlotId{0}, family.family->id, mine,
                     numbers_[f].data() + done * family.heads * family.width);
    }
    if (done >= how_.attend_from) attend_to(step.view(SlotId{0}), mine, fed);
    step.commit();
  }

  void attend_to(const View& view, size_t mine, Fed& fed) {
    const Pos row = view.runs[mine].row, done = view.runs[mine].first;
    const Pos count = view.runs[mine].count;
    const size_t of_queries = how_.heads * query_width_, of_out = how_.heads * value_width_;
    std::vector<float> queries(view.rows * of_queries, 0.1f);
    std::copy_n(queries_.data() + done * of_queries, count * of_queries,
                queries.data() + row * of_queries);
    std::vector<float> out(view.rows * of_out), lse(view.rows * how_.heads);
    std::vector<uint32_t> positions(view.rows * how_.choose), counts(view.rows);
    Queries asked{.data = queries.data(), .heads = how_.heads};
    const ChosenOut chosen{positions.data(), counts.data(), how_.choose};
    const Chosen given = chosen.view();
    if (how_.choose > 0) {
      choose_positions(view, chosen);
      asked.chosen = &given;
    }
    for (uint32_t part = how_.parts; part-- > 0;)
      attend(view, asked, {.data = out.data(), .log_sum_exp = lse.data()}, {part, how_.parts});
    std::copy_n(out.data() + row * of_out, count * of_out, fed.out.data() + done * of_out);
    std::copy_n(lse.data() + row * how_.heads, count * how_.heads,
                fed.lse.data() + done * how_.heads);
    std::copy_n(positions.data() + row * how_.choose, count * how_.choose,
                fed.chosen.data() + done * how_.choose);
  }

  void choose_positions(const View& view, const ChosenOut& out) {
    if (how_.choose >= how_.length) {  // a list of everything
      for (const RunView& run : view.runs)
        for (Pos i = 0; i < run.count; ++i) {
          out.counts[run.row + i] = static_cast<uint32_t>(run.first + i + 1);
          for (uint32_t p = 0; p <= run.first + i; ++p)
            out.positions[(run.row + i) * how_.choose + p] = p;
        }
      return;
    }
    const auto index = std::ranges::find_if(
        slot_.families, [](const FamilySpec& family) { return family.family->is_index; });
    // The index queries of a position must be the same in every run: by its number.
    std::vector<float> queries, weights;
    for (const RunView& run : view.runs)
      for (Pos i = 0; i < run.count; ++i) {
        const auto q = random_floats(1000 + run.first + i, 2 * index->width),
                   w = random_floats(run.first + i, 2);
        queries.insert(queries.end(), q.begin(), q.end());
        weights.insert(weights.end(), w.begin(), w.end());
      }
    for (uint32_t part = 0; part < how_.parts; ++part)
      choose(view, {.data = queries.data(), .weights = weights.data(), .heads = 2}, how_.choose,
             out, {part, how_.parts});
  }

  const SlotSpec slot_;
  const How how_;
  const uint32_t query_width_;
  const uint32_t value_width_;
  Memory memory_;
  Session session_;
  std::vector<float> queries_;
  std::vector<std::vector<float>> numbers_;  // per family
};

}  // namespace cairn::testing

#endif  // CAIRN_TESTS_SUPPORT_FEED_H_
