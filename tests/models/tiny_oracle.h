// A tiny model of Hugging Face transformers: its numbers, computed here in the ways in which the
// library computed them, over f32 state.
#ifndef CAIRN_TESTS_MODELS_TINY_ORACLE_H_
#define CAIRN_TESTS_MODELS_TINY_ORACLE_H_

#include <gtest/gtest.h>

#include <cmath>

#include "cairn/state/view.h"
#include "tests/models/oracle_file.h"
#include "tests/models/passes.h"

namespace cairn::testing {

inline float worst_difference(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return INFINITY;
  float worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const float difference = std::fabs(a[i] - b[i]);
    worst = difference > worst || std::isnan(difference) ? difference : worst;
  }
  return worst;
}

class TinyOracle : public ::testing::Test {
 protected:
  static constexpr float kTolerance = 1e-4f;  // the logits' standard deviation is about 1
  static constexpr size_t kRows = 2;
  static constexpr size_t kLength = 64;  // tokens of each row
  static constexpr size_t kPrefill = 40;

  explicit TinyOracle(const std::string& path)
      : oracle_(path),
        model_(must(load_model(path, {.threads = 2, .expand = Expand::no, .cache_folder = {}}))) {}

  Tokens row(size_t index) const { return Tokens(ids_).subspan(index * kLength, kLength); }

  void expect_the_logits_of_a_full_forward() {
    for (size_t i = 0; i < kRows; ++i)
      EXPECT_LT(worst_difference(passes_.run(passes_.start(), row(i)), of_row(full_, i)),
                kTolerance)
          << "row " << i;
  }

  void expect_the_logits_of_a_prefill_and_single_tokens() {
    for (size_t i = 0; i < kRows; ++i) {
      const SeqId seq = passes_.start();
      std::vector<float> logits = passes_.run(seq, row(i).first(kPrefill));
      const std::vector<float> rest = passes_.run_in_chunks(seq, row(i).subspan(kPrefill), 1);
      logits.insert(logits.end(), rest.begin(), rest.end());
      EXPECT_LT(worst_difference(logits, of_row(cached_, i)), kTolerance) << "row " << i;
    }
  }

  void expect_the_logits_of_ragged_batches() {
    for (size_t i = 0; i < kRows; ++i) {
      const std::vector<float> logits = ragged(i);
      EXPECT_LT(worst_difference(logits, of_row(full_, i)), kTolerance) << "row " << i;
      EXPECT_EQ(hash_of(logits), hash_of(passes_.run(passes_.start(), row(i)))) << "row " << i;
    }
  }

  // The oracle has the newest positions only where a layer sees a window, and nothing of recurrent
  // layers.
  void expect_the_keys_and_values() {
    for (size_t i = 0; i < kRows; ++i) {
      const SeqId seq = passes_.start();
      passes_.run_in_chunks(seq, row(i), kPrefill);
      const Snapshot snapshot = passes_.session().snapshot(seq);
      for (const SlotId slot : passes_.session().slots()) {
        if (passes_.session().is_recurrent(passes_.session().group_of(slot))) continue;
        for (const auto& [family, name] : {std::pair{kKey, ".keys"}, {kValue, ".values"}}) {
          const std::string tensor = "oracle.cache." + std::to_string(slot.value) + name;
          const std::vector<float> all = oracle_.floats(tensor);
          const auto expected = std::span(all).subspan(i * all.size() / kRows, all.size() / kRows);
          const std::vector<uint64_t> shape = oracle_.shape(tensor);
          EXPECT_LT(
              worst_difference(
                  heads_first(snapshot, slot, family, {shape.begin() + 1, shape.end()}), expected),
              kTolerance)
              << tensor << " row " << i;
        }
      }
    }
  }

  OracleFile oracle_;
  std::vector<int32_t> ids_ = oracle_.ids("oracle.input_ids");
  std::vector<float> full_ = oracle_.floats("oracle.logits");
  std::vector<float> cached_ = oracle_.floats("oracle.logits_cached");
  std::unique_ptr<Model> model_;
  Passes passes_{*model_, "f32"};

 private:
  std::span<const float> of_row(const std::vector<float>& logits, size_t index) const {
    const size_t count = kLength * model_->vocabulary();
    return std::span(logits).subspan(index * count, count);
  }

  // Both rows in one session, at different lengths; returns row `index`'s logits.
  std::vector<float> ragged(size_t index) {
    constexpr size_t kCuts[][kRows] = {
        {13, 40}, {1, 1}, {0, 7}, {49, 16}, {1, 0}};  // tokens of each row per batch
    const SeqId seqs[] = {passes_.start(), passes_.start()};
    std::vector<float> logits;
    size_t done[kRows] = {0, 0};
    for (const auto& cut : kCuts) {
      std::vector<Piece> pieces;
      for (size_t i = 0; i < kRows; ++i)
        if (cut[i] > 0) pieces.push_back({seqs[i], row(i).subspan(done[i], cut[i])});
      const std::vector<float> batch = passes_.run(pieces);
      const size_t first = index == 0 ? 0 : cut[0];
      const auto begin = batch.begin() + static_cast<ptrdiff_t>(first * passes_.vocabulary());
      logits.insert(logits.end(), begin,
                    begin + static_cast<ptrdiff_t>(cut[index] * passes_.vocabulary()));
      for (size_t i = 0; i < kRows; ++i) done[i] += cut[i];
    }
    return logits;
  }

  // The newest positions of a snapshot, [positions, heads, width], in the oracle's order, which is
  // `shape` = [heads, positions, width].
  static std::vector<float> heads_first(const Snapshot& snapshot,
                                        SlotId slot,
                                        FamilyId family,
                                        const std::vector<uint64_t>& shape) {
    const size_t heads = shape.at(0), positions = shape.at(1), width = shape.at(2);
    std::vector<float> ours(heads * positions * width), theirs(ours.size());
    decode(snapshot.view(slot), 0, family, kLength - positions, positions, ours.data());
    for (size_t position = 0; position < positions; ++position)
      for (size_t head = 0; head < heads; ++head)
        std::copy_n(&ours[(position * heads + head) * width], width,
                    &theirs[(head * positions + position) * width]);
    return theirs;
  }
};

}  // namespace cairn::testing

#endif  // CAIRN_TESTS_MODELS_TINY_ORACLE_H_
