// What a token costs the allocator: nothing, once a session has seen as much before. Counted are
// all forms of operator new, which is how everything from the session down allocates.
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <cstdlib>
#include <new>

#include "cairn/state/sparse.h"
#include "tests/support/must.h"
#include "tests/support/program.h"
#include "tests/support/random.h"

namespace {

std::atomic<bool> is_counting = false;
std::atomic<size_t> allocations = 0;

void* allocate(size_t bytes, size_t alignment) {
  if (is_counting) ++allocations;
  void* memory = alignment == 0 ? std::malloc(bytes)
                                : std::aligned_alloc(
                                      alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(size_t bytes) { return allocate(bytes, 0); }
void* operator new[](size_t bytes) { return allocate(bytes, 0); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes, 0); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes, 0); }
void* operator new(size_t bytes, std::align_val_t a) { return allocate(bytes, size_t(a)); }
void* operator new[](size_t bytes, std::align_val_t a) { return allocate(bytes, size_t(a)); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace cairn::testing {
namespace {

constexpr uint32_t kHeads = 4;    // of queries, per head of keys
constexpr uint32_t kChosen = 20;  // positions per row, where the slot has an indexer
constexpr Pos kMostRows = 16;     // of a step
constexpr uint32_t kParts = 2;    // of everything that can be done in parts

// Takes steps over all slots of a model, with numbers made beforehand, and counts what they
// allocate.
class Decoder {
 public:
  Decoder(const ModelSpec& spec, std::string_view scheme)
      : session_(
            must(open_session(spec, must(parse_scheme(scheme)), memory_, {.page_positions = 8}))) {
    size_t most = 0;
    for (const SlotSpec& slot : spec.slots) {
      size_t width = 0;
      for (const FamilySpec& family : slot.families) width += family.heads * family.width;
      most = std::max(most, width);
    }
    numbers_ = random_floats(1, kMostRows * kHeads * most);
    out_.resize(numbers_.size());
    log_sum_exp_.resize(numbers_.size());
    chosen_.resize(kMostRows * kChosen);
    counts_.resize(kMostRows);
  }

  Session& session() { return session_; }

  // Returns how often it allocated. `keep`: it is a round.
  size_t step(std::span<const Run> batch, std::span<const Pos> keep = {}) {
    const Round round = keep.empty() ? Round::no : Round::yes;
    allocations = 0;
    is_counting = true;
    {
      Step step = must(session_.plan(batch, round));
      for (const SlotId slot : session_.slots()) fill(step, slot, batch);
      if (keep.empty())
        step.commit();
      else
        step.commit(keep);
    }
    is_counting = false;
    return allocations;
  }
  size_t step(SeqId seq) {
    const Run batch[] = {{.seq = seq, .count = 1}};
    return step(batch);
  }

 private:
  void fill(Step& step, SlotId slot, std::span<const Run> batch) {
    const SlotSpec& spec = session_.spec().slots[slot.value];
    if (spec.families[0].family->is_fixed) {
      for (size_t run = 0; run < batch.size(); ++run) advance(step, slot, run, batch[run].count);
      return;
    }
    for (const FamilySpec& family : spec.families)
      for (uint32_t part = 0; part < kParts; ++part)
        step.write(slot, family.family->id, numbers_.data(), {part, kParts});
    attend_to(step.view(slot), spec);
  }

  void advance(Step& step, SlotId slot, size_t run, Pos count) {
    for (const FamilySpec& tensor : session_.spec().slots[slot.value].families)
      for (Pos i = step.holds_states(slot) ? 0 : count - 1; i < count; ++i)
        std::copy_n(step.previous(slot, tensor.family->id, run),
                    size_t{tensor.heads} * tensor.width,
                    step.next(slot, tensor.family->id, run, i));
    step.mark_written(slot, run);
  }

  void attend_to(const View& view, const SlotSpec& spec) {
    const bool is_sparse = std::ranges::any_of(
        spec.families, [](const FamilySpec& family) { return family.family->is_index; });
    const ChosenOut chosen{chosen_.data(), counts_.data(), kChosen};
    const Chosen given = chosen.view();
    const IndexQueries indexed{
        .data = numbers_.data(), .weights = numbers_.data(), .heads = kHeads};
    for (uint32_t part = 0; is_sparse && part < kParts; ++part)
      choose(view, indexed, kChosen, chosen, {part, kParts});
    const Queries queries{.data = numbers_.data(),
                          .heads = kHeads * spec.families[0].heads,
                          .chosen = is_sparse ? &given : nullptr};
    for (uint32_t part = 0; part < kParts; ++part)
      attend(view, queries, {.data = out_.data(), .log_sum_exp = log_sum_exp_.data()},
             {part, kParts});
  }

  Memory memory_;
  Session session_;
  std::vector<float> numbers_, out_, log_sum_exp_;
  std::vector<uint32_t> chosen_, counts_;
};

std::vector<std::string> schemes() {
  std::vector<std::string> schemes = {"turbo-k8v3", "affine8-keep64", "f16-after100",
                                      "turbo-k8v3-keep64-after100"};
  for (const Encoding* encoding : builtin().encodings)
    for (std::string_view sample : encoding->samples) schemes.emplace_back(sample);
  return schemes;
}

class EveryScheme : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Schemes,
                         EveryScheme,
                         ::testing::ValuesIn(schemes()),
                         [](const ::testing::TestParamInfo<std::string>& scheme) {
                           std::string name = scheme.param;
                           for (char& c : name) c = std::isalnum(c) ? c : '_';
                           return name;
                         });

TEST(Counting, SeesAnAllocation) {
  allocations = 0;
  is_counting = true;
  ::operator delete(::operator new(1));
  const AttendWorkspace workspace;
  is_counting = false;
  EXPECT_EQ(allocations, 2u);
}

// A table of pages of 8 positions grows at 64 of them, and then at 128.
constexpr Pos kWarm = 127, kFirstCounted = 66;

// Page borders, windows that slide and the commit that encodes (at 100) included.
TEST_P(EveryScheme, ADecodedTokenAllocatesNothing) {
  for (const KindModel& model : kind_models()) {
    Decoder decoder(model.spec, GetParam());
    const SeqId before = decoder.session().start();
    while (decoder.session().length(before) < kWarm) decoder.step(before);
    const SeqId seq = decoder.session().start();
    while (decoder.session().length(seq) < kFirstCounted) decoder.step(seq);
    while (decoder.session().length(seq) < kWarm)
      ASSERT_EQ(decoder.step(seq), 0u)
          << model.name << " at " << decoder.session().length(seq) << " positions";
  }
}

// Forks that copy the page they write, sequences of their own, and rounds of which a part is kept.
TEST_P(EveryScheme, NorDoBatchesAndRounds) {
  for (const KindModel& model : kind_models()) {
    Decoder decoder(model.spec, GetParam());
    Session& session = decoder.session();
    const auto story = [&](bool is_counted) {
      const SeqId first = session.start();
      while (session.length(first) < 80) decoder.step(first);
      const SeqId others[] = {session.fork(first), session.fork(first)};
      for (Pos i = 0; i < 20; ++i) {
        const Pos most = std::min<Pos>(5, session.max_run(others[0]));
        const cairn::Run batch[] = {{first, 1}, {others[0], most}, {others[1], i % 3}};
        const Pos keep[] = {1, std::min(most, i % 6), i % 3};
        const size_t count = decoder.step(batch, i % 2 == 0 ? keep : std::span<const Pos>());
        // At first the tables of the forks are as short as can be.
        if (is_counted && i > 2) {
          ASSERT_EQ(count, 0u) << model.name << ", step " << i;
        }
      }
      for (const SeqId seq : {first, others[0], others[1]}) session.drop(seq);
    };
    story(false);
    story(true);
    if (HasFatalFailure()) return;
  }
}

// Tables and scratch double, so that a sequence that nobody prepared for costs a few allocations
// per doubling of its length and no more.
TEST(Decode, AGrowingSequenceAllocatesAFewTimesPerDoubling) {
  const ModelSpec spec{.identity = sha256("model"),
                       .slots = {attention({.heads = 1, .head_dim = 64}),
                                 window({.heads = 1, .head_dim = 64, .window = 100})}};
  Decoder decoder(spec, "f16");
  const SeqId seq = decoder.session().start();
  decoder.step(seq);
  size_t count = 0;
  for (Pos length = 1; length < 2048; length *= 2) {
    count = 0;
    while (decoder.session().length(seq) < 2 * length) count += decoder.step(seq);
    EXPECT_LE(count, 4u) << "up to " << 2 * length << " positions";
  }
}

}  // namespace
}  // namespace cairn::testing
