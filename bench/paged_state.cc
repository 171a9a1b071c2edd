#include "bench/paged_state.h"

#include <algorithm>
#include <cstring>

#include "bench/program.h"
#include "bench/random.h"
#include "cairn/session/scheme.h"

namespace cairn::bench {
namespace {

// Encoding takes longer than everything that is measured, and what numbers are does not matter.
constexpr uint64_t kSamplePages = 16;

bool is_raw(std::string_view scheme) {
  return scheme == "f32" || scheme == "f16" || scheme == "bf16";
}

void fill_page(const PageLayout& layout, std::byte* page, uint64_t seed) {
  Random random(seed);
  for (const SlotPlace& place : layout.slots)
    for (const FamilyPlace& family : place.families)
      for (uint32_t head = 0; head < family.heads; ++head) {
        const auto x = random.numbers(uint64_t{layout.page_positions} * family.codec.width);
        family.codec.encoding->functions().encode(
            family.codec, x.data(), family.records(page, head, 0, layout.page_positions));
      }
}

}  // namespace

Peaks measure_peaks(Threads& threads, const ColdBytes& cold) {
  return {.read = read_bandwidth(threads, cold),
          .fma = fma_peak(threads),
          .integer = integer_peak(threads),
          .convert = convert_peak(threads)};
}

double seconds_of(const std::function<void()>& work) {
  const double start = seconds_now();
  work();
  return seconds_now() - start;
}

PagedState::PagedState(const PagedShape& shape) : shape_(shape) {
  const std::vector<const SlotSpec*> slots(shape.layers, &shape_.slot);
  layout_ = make_page_layout(slots,
                             must(resolve(must(parse_scheme(shape.scheme)),
                                          {.slots = std::vector(shape.layers, shape_.slot)})),
                             shape.page_positions);
  const uint64_t shared_pages = shape.shared / shape.page_positions;
  const uint64_t pages = (shape.length + shape.page_positions - 1) / shape.page_positions;
  const uint64_t own_pages = pages - shared_pages;
  std::vector<PageRef> taken(shared_pages + own_pages * shape.sequences);
  for (PageRef& page : taken) page = must(memory_.pool(layout_.page_bytes).take());
  std::sort(taken.begin(), taken.end(),
            [](const PageRef& a, const PageRef& b) { return a.data() < b.data(); });
  if (shape.is_shuffled) Random(3).shuffle(taken);
  for (uint64_t i = 0; i < taken.size(); ++i)
    if (i < kSamplePages)
      fill_page(layout_, taken[i].data(), i);
    else
      std::memcpy(taken[i].data(), taken[i % kSamplePages].data(), layout_.page_bytes);

  tables_.resize(shape.sequences);
  for (uint32_t i = 0; i < shape.sequences; ++i) {
    for (uint64_t page = 0; page < shared_pages; ++page)
      tables_[i].tail.push_back(taken[page].share());
    for (uint64_t page = 0; page < own_pages; ++page)
      tables_[i].tail.push_back(std::move(taken[shared_pages + i * own_pages + page]));
    runs_.push_back({.pages = {.table = &tables_[i]},
                     .first = shape.length - shape.queries,
                     .count = shape.queries,
                     .row = i * shape.queries});
  }
  for (const FamilyPlace& family : layout_.slots[0].families) {
    if (family.family->is_scored) key_heads_ = family.heads;
    if (family.family->is_scored) scored_width_ += family.codec.width;
    if (family.family->is_accumulated) value_width_ = family.codec.width;
  }
  const uint64_t vectors = shape.sequences * shape.queries * shape.query_heads;
  queries_ = Random(2).numbers(vectors * scored_width_);
  out_.resize(vectors * value_width_);
}

View PagedState::view(size_t layer) {
  return {.slot = &layout_.slots[layer],
          .retention = {},
          .page_positions = shape_.page_positions,
          .runs = runs_,
          .rows = shape_.sequences * shape_.queries,
          .workspace = &workspace_};
}

void PagedState::attend_layer(Threads& threads, size_t layer, const Chosen* chosen) {
  threads.run([&](uint32_t i) {
    attend(view(layer), {.data = queries_.data(), .heads = shape_.query_heads, .chosen = chosen},
           {.data = out_.data()}, {i, threads.count()});
  });
}

void PagedState::step(Threads& threads) {
  for (size_t layer = 0; layer < layout_.slots.size(); ++layer) attend_layer(threads, layer);
}

double PagedState::bytes() const {
  return static_cast<double>(layout_.record_bytes * shape_.length * shape_.sequences);
}

double PagedState::operations() const {
  const double n = static_cast<double>(shape_.queries);
  const double pairs = n * static_cast<double>(shape_.length - shape_.queries) + n * (n + 1) / 2;
  return pairs * 2 * (scored_width_ + value_width_) * shape_.query_heads * shape_.layers *
         shape_.sequences;
}

double PagedState::limit(const Peaks& peaks) const {
  const double heads =
      static_cast<double>(shape_.length * shape_.sequences) * shape_.layers * key_heads_;
  const double group = shape_.query_heads / key_heads_;
  const double scored = heads * scored_width_, summed = heads * value_width_;
  const bool has_codes = !is_raw(shape_.scheme);
  const double converted = shape_.scheme == "f32" ? 0 : has_codes ? summed : scored + summed;
  const double f32 = 2 * group * (has_codes ? summed : scored + summed) / peaks.fma;
  const double integer = has_codes ? 2 * group * scored / peaks.integer : 0;
  return std::max(bytes() / peaks.read, f32 + integer + converted / peaks.convert);
}

}  // namespace cairn::bench
