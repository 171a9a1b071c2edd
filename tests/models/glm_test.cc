// The tiny DeepSeek-V3 and GLM with sparse attention: their numbers, the latents they end with, and
// which positions their indexers choose.
#include "cairn/models/glm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <set>

#include "tests/apps/tiny_chat_model.h"
#include "tests/models/gguf_file.h"
#include "tests/models/latent_file.h"
#include "tests/models/tiny_oracle.h"
#include "tests/support/scratch_folder.h"

namespace cairn {
namespace {

using ::testing::HasSubstr;
using testing::must;
using testing::worst_difference;
using Floats = std::vector<float>;

// Both models have these shapes.
constexpr size_t kLatentDim = 64, kRopeDim = 32, kPlainDim = 32, kValueDim = 32, kHeads = 4;

class TinyLatents : public testing::TinyOracle {
 protected:
  using TinyOracle::TinyOracle;

  // A family's numbers after row `index`'s text, [kLength, width].
  Floats state_of(size_t index, SlotId slot, FamilyId family, size_t width) {
    const SeqId seq = passes_.start();
    passes_.run_in_chunks(seq, row(index), kPrefill);
    Floats numbers(kLength * width);
    decode(passes_.session().snapshot(seq).view(slot), 0, family, 0, kLength, numbers.data());
    return numbers;
  }

  // Row `index` of a tensor of the oracle's cache.
  Floats cached(size_t index, SlotId slot, std::string_view name) {
    const Floats all = oracle_.floats(fmt::format("oracle.cache.{}.{}", slot.value, name));
    const size_t count = all.size() / kRows;
    const auto begin = all.begin() + static_cast<ptrdiff_t>(index * count);
    return {begin, begin + static_cast<ptrdiff_t>(count)};
  }

  // The library moves the two of a rotary pair half of the rotated numbers apart, which are the
  // first of each vector.
  static Floats as_halves(const Floats& adjacent, size_t width) {
    Floats halves = adjacent;
    for (size_t first = 0; first < adjacent.size(); first += width)
      for (size_t j = 0; j < kRopeDim; ++j)
        halves[first + j % 2 * (kRopeDim / 2) + j / 2] = adjacent[first + j];
    return halves;
  }
};

class TinyDeepseek : public TinyLatents {
 protected:
  TinyDeepseek() : TinyLatents("tests/oracles/deepseek_v3.safetensors") {}
};

class TinyGlm : public TinyLatents {
 protected:
  static constexpr size_t kIndexDim = 64;
  static constexpr size_t kChosen = 24;

  TinyGlm() : TinyLatents("tests/oracles/glm_moe_dsa.safetensors") {}

  bool has_indexer(SlotId slot) const {
    return model_->spec().slots[slot.value].families.size() == 3;
  }

  // Per layer and position: what its query attended to in a full forward of row `index`.
  std::map<uint32_t, std::vector<std::set<uint32_t>>> choices(size_t index) {
    std::map<uint32_t, std::vector<std::set<uint32_t>>> seen;
    model_->watch_queries([&](SlotId slot, const Queries& queries, Pos rows) {
      for (Pos i = 0; i < rows; ++i) {
        const auto positions = queries.chosen->of(i);
        seen[slot.value].emplace_back(positions.begin(), positions.end());
      }
    });
    passes_.run(passes_.start(), row(index));
    model_->watch_queries({});
    return seen;
  }
};

TEST_F(TinyDeepseek, AFullForwardGivesTheOraclesLogits) { expect_the_logits_of_a_full_forward(); }

TEST_F(TinyDeepseek, APrefillAndThenSingleTokensGiveTheOraclesLogits) {
  expect_the_logits_of_a_prefill_and_single_tokens();
}

TEST_F(TinyDeepseek, RaggedBatchesOfBothRowsGiveTheOraclesLogits) {
  expect_the_logits_of_ragged_batches();
}

TEST_F(TinyDeepseek, TheStateHoldsTheOraclesLatentsAndRotaryKeys) {
  for (size_t i = 0; i < kRows; ++i)
    for (const SlotId slot : passes_.session().slots()) {
      EXPECT_LT(worst_difference(state_of(i, slot, kLatent, kLatentDim), cached(i, slot, "keys")),
                kTolerance)
          << "layer " << slot.value;
      EXPECT_LT(worst_difference(as_halves(state_of(i, slot, kRope, kRopeDim), kRopeDim),
                                 cached(i, slot, "values")),
                kTolerance)
          << "layer " << slot.value;
    }
}

TEST_F(TinyGlm, AFullForwardGivesTheOraclesLogits) { expect_the_logits_of_a_full_forward(); }

TEST_F(TinyGlm, APrefillAndThenSingleTokensGiveTheOraclesLogits) {
  expect_the_logits_of_a_prefill_and_single_tokens();
}

TEST_F(TinyGlm, RaggedBatchesOfBothRowsGiveTheOraclesLogits) {
  expect_the_logits_of_ragged_batches();
}

// The library keeps what our latents become: each head's keys and values.
TEST_F(TinyGlm, TheStateHoldsTheOraclesKeysValuesAndIndexKeys) {
  for (size_t i = 0; i < kRows; ++i)
    for (const SlotId slot : passes_.session().slots()) {
      SCOPED_TRACE(fmt::format("row {}, layer {}", i, slot.value));
      const Floats latents = state_of(i, slot, kLatent, kLatentDim);
      const Floats ropes = as_halves(state_of(i, slot, kRope, kRopeDim), kRopeDim);
      const Floats up =
          oracle_.floats(fmt::format("model.layers.{}.self_attn.kv_b_proj.weight", slot.value));
      Floats keys, values;
      for (size_t head = 0; head < kHeads; ++head)
        for (size_t position = 0; position < kLength; ++position) {
          const auto raised = [&](size_t out) {  // number `out` of the head's key and value
            double sum = 0;
            for (size_t j = 0; j < kLatentDim; ++j)
              sum += double{up[(head * (kPlainDim + kValueDim) + out) * kLatentDim + j]} *
                     latents[position * kLatentDim + j];
            return static_cast<float>(sum);
          };
          for (size_t out = 0; out < kPlainDim; ++out) keys.push_back(raised(out));
          for (size_t j = 0; j < kRopeDim; ++j) keys.push_back(ropes[position * kRopeDim + j]);
          for (size_t out = 0; out < kValueDim; ++out) values.push_back(raised(kPlainDim + out));
        }
      EXPECT_LT(worst_difference(keys, cached(i, slot, "keys")), kTolerance);
      EXPECT_LT(worst_difference(values, cached(i, slot, "values")), kTolerance);
      if (!has_indexer(slot)) continue;
      EXPECT_LT(worst_difference(as_halves(state_of(i, slot, kIndex, kIndexDim), kIndexDim),
                                 cached(i, slot, "indexer_keys")),
                kTolerance);
    }
}

TEST_F(TinyGlm, TwoLayersHaveNoIndexKeysOfTheirOwn) {
  std::vector<bool> has;
  for (const SlotId slot : passes_.session().slots()) has.push_back(has_indexer(slot));
  EXPECT_THAT(has, ::testing::ElementsAre(true, true, false, false, true));
}

TEST_F(TinyGlm, EachQueryAttendsToWhatTheOraclesIndexersChoose) {
  for (size_t i = 0; i < kRows; ++i) {
    const auto chosen = choices(i);
    ASSERT_EQ(chosen.size(), 5u);
    for (const uint32_t layer : {0u, 1u, 4u}) {
      const std::vector<int32_t> theirs = oracle_.ids(fmt::format("oracle.indexer.{}", layer));
      for (size_t row = 0; row < kLength; ++row) {
        std::set<uint32_t> expected;  // of what they list, later positions are padding
        for (size_t j = 0; j < kChosen; ++j) {
          const auto position = static_cast<uint32_t>(theirs[((i * kLength) + row) * kChosen + j]);
          if (position <= row) expected.insert(position);
        }
        ASSERT_EQ(chosen.at(layer)[row], expected) << "layer " << layer << ", row " << row;
      }
    }
    EXPECT_EQ(chosen.at(2), chosen.at(1)) << "shared";
    EXPECT_EQ(chosen.at(3), chosen.at(1)) << "shared";
    EXPECT_NE(chosen.at(4), chosen.at(1));
  }
}

// Kullback-Leibler divergence of a scheme's predictions from those over f32 state, in nats, of each
// token.
std::vector<double> divergences(Model& model,
                                const std::string& scheme,
                                std::span<const int32_t> tokens) {
  const size_t vocabulary = model.vocabulary();
  const auto log_shares = [&](const std::string& text) {
    testing::Passes passes(model, text);
    const Floats logits = passes.run_in_chunks(passes.start(), tokens, 16);
    std::vector<double> out(logits.begin(), logits.end());
    for (size_t first = 0; first < out.size(); first += vocabulary) {
      double sum = 0;
      for (size_t i = 0; i < vocabulary; ++i) sum += std::exp(out[first + i]);
      for (size_t i = 0; i < vocabulary; ++i) out[first + i] -= std::log(sum);
    }
    return out;
  };
  const std::vector<double> exact = log_shares("f32"), other = log_shares(scheme);
  std::vector<double> sums(tokens.size());
  for (size_t i = 0; i < exact.size(); ++i)
    sums[i / vocabulary] += std::exp(exact[i]) * (exact[i] - other[i]);
  return sums;
}

double median(std::vector<double> numbers) {
  std::ranges::sort(numbers);
  return numbers[numbers.size() / 2];
}

// Of a typical prediction of both of the oracle's sequences. In a mean over all of them it is 31
// times: this model's random weights have near ties, and where an error of either encoding makes a
// row choose another expert or position, that costs 0.01 to 0.4 nats, much more than the error.
TEST_F(TinyGlm, LatentsInThreeBitsCostFiftyTimesWhatEightBitsDo) {
  const size_t length = ids_.size() / 2;
  for (size_t sequence = 0; sequence < 2; ++sequence) {
    SCOPED_TRACE(sequence);
    const auto ids = std::span(ids_).subspan(sequence * length, length);
    const double eight = median(divergences(*model_, "f32+latent:turbo-key8", ids));
    EXPECT_GT(eight, 0);
    EXPECT_GT(median(divergences(*model_, "f32+latent:turbo-value3", ids)), 50 * eight) << eight;
  }
}

struct Case {
  const char* model;
  const char* scheme;
  double most;  // nats, of a typical prediction; other models' are about 1 apart
};

class LatentSchemes : public ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Usual,
                         LatentSchemes,
                         ::testing::Values(Case{"deepseek_v3", "f16", 1e-5},
                                           Case{"deepseek_v3", "bf16", 1e-4},
                                           Case{"deepseek_v3", "affine8", 1e-3},
                                           Case{"deepseek_v3", "affine4-g32", 0.1},
                                           Case{"deepseek_v3", "turbo-k8v4", 1e-3},
                                           Case{"deepseek_v3", "turbo-k8v3-keep16", 1e-3},
                                           Case{"glm_moe_dsa", "f16", 1e-5},
                                           Case{"glm_moe_dsa", "bf16", 0.05},
                                           Case{"glm_moe_dsa", "affine8", 0.05},
                                           Case{"glm_moe_dsa", "affine4-g32", 0.6},
                                           Case{"glm_moe_dsa", "turbo-k8v4", 0.05},
                                           Case{"glm_moe_dsa", "turbo-k8v3-after32", 0.05},
                                           Case{"glm_moe_dsa", "turbo-k4v4", 0.6},
                                           Case{"glm_moe_dsa", "affine4+index:f32", 0.5}),
                         [](const auto& scheme) {
                           std::string name =
                               scheme.param.model + ("_" + std::string(scheme.param.scheme));
                           std::ranges::replace_if(
                               name,
                               [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); },
                               '_');
                           return name;
                         });

TEST_P(LatentSchemes, PredictNearlyWhatExactStateDoes) {
  const std::string path = std::string("tests/oracles/") + GetParam().model + ".safetensors";
  const auto model =
      must(load_model(path, {.threads = 1, .expand = Expand::no, .cache_folder = {}}));
  const std::vector<int32_t> ids = testing::OracleFile(path).ids("oracle.input_ids");
  const double cost = median(divergences(*model, GetParam().scheme, ids));
  EXPECT_GT(cost, 0);
  EXPECT_LT(cost, GetParam().most);
}

// The same weights in a GGUF file.
class LatentGguf : public TinyDeepseek {
 protected:
  Result<std::unique_ptr<Model>> load() {
    const std::string path = folder_ / "latent.gguf";
    file_.write(path);
    return load_model(path, {.threads = 2, .expand = Expand::no, .cache_folder = {}});
  }
  uint64_t hash_of_a_row(Model& model) {
    testing::Passes passes(model, "f32");
    return testing::hash_of(passes.run(passes.start(), row(0)));
  }
  void expect_the_oracles_bits() {
    const auto model = must(load());
    EXPECT_EQ(hash_of_a_row(*model), hash_of_a_row(*model_));
  }
  std::string error() {
    const auto loaded = load();
    return loaded ? "it was loaded" : loaded.error().message;
  }
  void set(const char* key, uint32_t value) {
    gguf_set_val_u32(file_.pairs(), (std::string("deepseek2.") + key).c_str(), value);
  }

  testing::ScratchFolder folder_;
  testing::LatentFile file_;
};

TEST_F(LatentGguf, IsTheSameModel) { expect_the_oracles_bits(); }

TEST_F(LatentGguf, MayHaveTheProjectionsOfKeysAndValuesApart) {
  constexpr size_t kEach = kPlainDim + kValueDim;
  for (size_t layer = 0; layer < 2; ++layer) {
    const std::string prefix = testing::LatentFile::prefix(layer);
    const Floats both = file_[prefix + "attn_kv_b.weight"];
    file_.tensors().erase(prefix + "attn_kv_b.weight");
    Floats keys, values;
    for (size_t head = 0; head < kHeads; ++head) {
      for (size_t j = 0; j < kLatentDim; ++j)
        for (size_t i = 0; i < kPlainDim; ++i)
          keys.push_back(both[(head * kEach + i) * kLatentDim + j]);
      const auto begin =
          both.begin() + static_cast<ptrdiff_t>((head * kEach + kPlainDim) * kLatentDim);
      values.insert(values.end(), begin, begin + kValueDim * kLatentDim);
    }
    file_.add(prefix + "attn_k_b.weight", {kPlainDim, kLatentDim, kHeads}, keys);
    file_.add(prefix + "attn_v_b.weight", {kLatentDim, kValueDim, kHeads}, values);
  }
  expect_the_oracles_bits();
}

TEST_F(LatentGguf, MayHaveTheTwoHalvesOfAnExpertApart) {
  constexpr size_t kHalf = 64 * 128;
  const std::string prefix = testing::LatentFile::prefix(1);
  const Floats both = file_[prefix + "ffn_gate_up_exps.weight"];
  file_.tensors().erase(prefix + "ffn_gate_up_exps.weight");
  Floats halves[2];
  for (size_t i = 0; i < both.size(); ++i) halves[i / kHalf % 2].push_back(both[i]);
  file_.add(prefix + "ffn_gate_exps.weight", {128, 64, 8}, halves[0]);
  file_.add(prefix + "ffn_up_exps.weight", {128, 64, 8}, halves[1]);
  expect_the_oracles_bits();
}

TEST_F(LatentGguf, ThatDoesNotFitTogetherIsRefused) {
  set("rope.dimension_count", 31);
  EXPECT_THAT(error(), HasSubstr("31 rotated numbers of a key, expected an even number"));
  set("rope.dimension_count", 64);
  EXPECT_THAT(error(), HasSubstr("keys of 0 and values of 32 numbers"));
  set("rope.dimension_count", 32);
  set("attention.kv_lora_rank", 1u << 30);
  EXPECT_THAT(error(), HasSubstr("a dimension of 1073741824, expected at most 16777216"));
  set("attention.kv_lora_rank", 48);
  EXPECT_THAT(error(), HasSubstr("attn_kv_a_mqa.weight has shape [96, 128], expected [80, 128]"));
  set("attention.kv_lora_rank", 64);
  set("expert_used_count", 5);
  EXPECT_THAT(error(), HasSubstr("5 experts used, expected no more than 1 groups of 4 have"));
  set("expert_used_count", 2);
  set("block_count", 4);
  EXPECT_THAT(error(), HasSubstr("tensor blk.3.attn_norm.weight is missing"));
  set("block_count", UINT32_MAX);
  EXPECT_THAT(error(), HasSubstr("tensor blk.3.attn_norm.weight is missing"));
  set("block_count", 2);
  EXPECT_THAT(error(), HasSubstr("has no place in this architecture"));
  set("block_count", 3);
  gguf_set_val_str(file_.pairs(), "deepseek2.rope.scaling.type", "linear");
  EXPECT_THAT(error(), HasSubstr("deepseek2.rope.scaling.type is linear, expected none or yarn"));
}

TEST_F(LatentGguf, ALayerWithoutAnIndexerNeedsOneBeforeIt) {
  set("attention.indexer.head_count", 4);
  set("attention.indexer.key_length", 16);
  set("attention.indexer.top_k", 8);
  EXPECT_THAT(error(), HasSubstr("an indexer of 4 heads of 16 numbers"));
  set("attention.indexer.key_length", 32);
  EXPECT_THAT(error(), HasSubstr("layer 0 has no indexer"));
  constexpr int8_t kShared[] = {0, 1};
  gguf_set_arr_data(file_.pairs(), "deepseek2.attention.indexer.shared", GGUF_TYPE_BOOL, kShared,
                    2);
  EXPECT_THAT(error(), HasSubstr("has 2 elements, expected one for each of 3 layers"));
}

// The output matrix makes logits of them.
TEST_F(LatentGguf, GivesTheHiddenStatesOfAllRowsWhereTheyAreWanted) {
  const auto model = must(load());
  ASSERT_EQ(model->hidden_width(), 128u);
  Memory memory;
  Session session = must(open_session(model->spec(), must(parse_scheme("f32")), memory));
  const std::vector<uint32_t> wanted = {3, 1};
  const auto run = [&](float* hidden) {
    Step step = must(session.plan({{.seq = session.start(), .count = 5}}));
    Floats logits(wanted.size() * model->vocabulary());
    must(model->forward(step, row(0).first(5), wanted, logits.data(), hidden));
    step.commit();
    return logits;
  };
  const Floats plain = run(nullptr);
  Floats hidden(size_t{5} * 128);
  EXPECT_EQ(run(hidden.data()), plain);
  EXPECT_EQ(run(nullptr), plain);
  const Floats& output = file_["output.weight"];
  for (size_t i = 0; i < wanted.size(); ++i)
    for (size_t token = 0; token < model->vocabulary(); ++token) {
      double sum = 0;
      for (size_t j = 0; j < 128; ++j)
        sum += double{output[token * 128 + j]} * hidden[wanted[i] * 128 + j];
      ASSERT_NEAR(sum, plain[i * model->vocabulary() + token], 1e-5);
    }
}

TEST_F(LatentGguf, HasADraftHeadOnlyWhereTheFileHasOne) {
  EXPECT_EQ(must(load())->draft_head(), nullptr);
  file_.add_head(2, testing::LatentFile::join(1, 0));
  const auto model = must(load());
  ASSERT_NE(model->draft_head(), nullptr);
  EXPECT_EQ(model->spec().slots.size(), 3u);
  const ModelSpec& spec = model->draft_head()->spec();
  ASSERT_EQ(spec.slots.size(), 1u);
  EXPECT_EQ(spec.slots[0].kind->name, "latent-draft");
  EXPECT_EQ(hash_of_a_row(*model), hash_of_a_row(*model_)) << "the model itself is as it was";
}

// Of embeddings whose norm is that of their norm, a model of one layer makes what a head with the
// same layer makes of them, whether it gets them as tokens or as hidden states.
TEST_F(LatentGguf, ADraftHeadRunsItsLayerOverWhatItJoins) {
  Floats& embedding = file_["token_embd.weight"];
  for (size_t first = 0; first < embedding.size(); first += 128) {
    double sum = 0;
    for (size_t i = 0; i < 128; ++i) sum += double{embedding[first + i]} * embedding[first + i];
    for (size_t i = 0; i < 128; ++i)
      embedding[first + i] = static_cast<float>(embedding[first + i] / std::sqrt(sum / 128));
  }
  const Floats given = [&] {
    Floats rows;
    for (const int32_t token : row(0)) {
      const auto begin = embedding.begin() + ptrdiff_t{token} * 128;
      rows.insert(rows.end(), begin, begin + 128);
    }
    return rows;
  }();
  testing::LatentFile one;
  one.tensors() = file_.tensors();
  for (auto it = one.tensors().begin(); it != one.tensors().end();)
    it = it->first.starts_with("blk.") ? one.tensors().erase(it) : std::next(it);
  for (const auto& [name, tensor] : file_.tensors())
    if (name.starts_with("blk.2.")) one.tensors()["blk.0." + name.substr(6)] = tensor;
  gguf_set_val_u32(one.pairs(), "deepseek2.block_count", 1);
  gguf_set_val_u32(one.pairs(), "deepseek2.leading_dense_block_count", 0);
  one.write(folder_ / "one.gguf");
  const auto layer = must(load_model(folder_ / "one.gguf", {.threads = 1}));
  testing::Passes passes(*layer, "f32");
  const Floats expected = passes.run(passes.start(), row(0));

  std::vector<uint32_t> wanted(kLength);
  for (uint32_t i = 0; i < kLength; ++i) wanted[i] = i;
  const std::vector<int32_t> others(kLength, 7);
  const Floats nothing(given.size());
  for (const bool as_tokens : {true, false}) {
    testing::LatentFile with_head;
    with_head.tensors() = file_.tensors();
    with_head.add_head(2, testing::LatentFile::join(as_tokens ? 1 : 0, as_tokens ? 0 : 1));
    with_head.write(folder_ / "head.gguf");
    const auto model = must(load_model(folder_ / "head.gguf", {.threads = 1}));
    DraftHead& head = *model->draft_head();
    Memory memory;
    Session session = must(open_session(head.spec(), must(parse_scheme("f32")), memory));
    Step step = must(session.plan({{.seq = session.start(), .count = kLength}}));
    Floats logits(expected.size()), hidden(given.size());
    must(head.forward(step, as_tokens ? row(0) : testing::Tokens(others),
                      as_tokens ? nothing.data() : given.data(), wanted, logits.data(),
                      hidden.data()));
    step.commit();
    EXPECT_LT(worst_difference(logits, expected), kTolerance) << as_tokens;
  }
}

// With an indexer, experts and a draft head.
TEST(DamagedGlm, WithAnyChangeOfItsHeaderIsRefusedOrRuns) {
  const testing::ScratchFolder folder;
  const std::string path = folder / "damaged.gguf";
  testing::write_tiny_latent_model(path, 1);
  const std::string sound = testing::read_bytes(path);
  const size_t header = sound.rfind("nextn.shared_head_norm");
  const std::vector<int32_t> tokens = {0};
  testing::Random random(1);
  size_t ran = 0;
  for (size_t trial = 0; trial < 1500; ++trial) {
    // Half of the changes are where the tensors are, after the long vocabulary.
    const size_t place = trial % 2 == 0 ? random.below(header) : header - random.below(8000);
    std::string bytes = sound;
    bytes[place] = static_cast<char>(bytes[place] ^ static_cast<char>(1 + random.below(255)));
    testing::write_bytes(path, bytes);
    const auto model = load_model(path, {.threads = 1, .expand = Expand::no, .cache_folder = {}});
    if (!model) continue;
    Memory memory({.max_bytes = uint64_t{1} << 30});
    auto session = open_session((*model)->spec(), must(parse_scheme("f16")), memory);
    if (!session) continue;
    auto step = session->plan({{.seq = session->start(), .count = 1}});
    if (step && (*model)->forward(*step, tokens, {}, nullptr)) ++ran;
  }
  EXPECT_GT(ran, 0u);
  EXPECT_LT(ran, 1500u);
}

}  // namespace
}  // namespace cairn
