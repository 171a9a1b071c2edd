// One slot's sequences on pages built by hand: what attention reads, without a session.
#ifndef CAIRN_TESTS_SUPPORT_PAGES_H_
#define CAIRN_TESTS_SUPPORT_PAGES_H_

#include <cstring>
#include <deque>
#include <string_view>
#include <vector>

#include "cairn/memory/memory.h"
#include "cairn/state/attend.h"
#include "cairn/state/page_layout.h"
#include "cairn/state/page_table.h"
#include "cairn/state/registry.h"

namespace cairn::testing {

struct PagesOptions {
  AttentionShape shape;
  std::string_view key = "f16";
  std::string_view value = "f16";
  uint32_t page_positions = 64;
};

class Pages {
 public:
  explicit Pages(const PagesOptions& options)
      : slot_(options.shape.window == 0 ? attention(options.shape) : window(options.shape)),
        layout_(make_layout(options)),
        pool_(&memory_.pool(layout_.page_bytes)) {}

  size_t start() {
    tables_.emplace_back();
    lengths_.push_back(0);
    return tables_.size() - 1;
  }

  // A sequence that begins as another one: on the same pages, but for the last one if it is not
  // full.
  size_t fork(size_t sequence) {
    const size_t made = start();
    for (const PageRef& page : tables_[sequence].tail) tables_[made].tail.push_back(page.share());
    lengths_[made] = lengths_[sequence];
    if (lengths_[made] % layout_.page_positions != 0) {
      PageRef copy = std::move(pool_->take().value());
      std::memcpy(copy.data(), tables_[sequence].tail.back().data(), layout_.page_bytes);
      tables_[made].tail.back() = std::move(copy);
    }
    return made;
  }

  Pos length(size_t sequence) const { return lengths_[sequence]; }

  // keys: [count, heads, head_dim], values: [count, heads, value_dim]. What lies beyond is NaN.
  void append(size_t sequence, Pos count, const float* keys, const float* values) {
    PageTable& table = tables_[sequence];
    for (Pos i = 0; i < count; ++i) {
      const Pos position = lengths_[sequence]++;
      const auto in_page = static_cast<uint32_t>(position % layout_.page_positions);
      if (in_page == 0) {
        table.tail.push_back(std::move(pool_->take().value()));
        std::memset(table.tail.back().data(), 0xff, layout_.page_bytes);
      }
      std::byte* page = table.tail.back().data();
      for (const FamilyPlace& place : layout_.slots[0].families) {
        const float* from = place.family->is_scored ? keys : values;
        for (uint32_t head = 0; head < place.heads; ++head)
          place.codec.encoding->functions().encode(
              place.codec, from + (i * place.heads + head) * place.codec.width,
              place.records(page, head, in_page, 1));
      }
    }
  }

  // A run over the newest `count` of the first `end` positions.
  RunView run(size_t sequence, Pos first, Pos count, Pos row = 0) const {
    return {.pages = {.table = &tables_[sequence]}, .first = first, .count = count, .row = row};
  }

  View view(std::span<const RunView> runs) {
    Pos rows = 0;
    for (const RunView& run : runs) rows += run.count;
    return {.slot = &layout_.slots[0],
            .retention = slot_.retention,
            .page_positions = layout_.page_positions,
            .runs = runs,
            .rows = rows,
            .workspace = &workspace_};
  }

  const PageLayout& layout() const { return layout_; }

 private:
  PageLayout make_layout(const PagesOptions& options) const {
    std::vector<Codec> codecs;
    for (const FamilySpec& family : slot_.families) {
      const auto choice =
          parse_encoding(builtin(), family.family->is_scored ? options.key : options.value).value();
      codecs.push_back(make_codec(*choice.encoding, choice.params, family.width).value());
    }
    const SlotSpec* slots[] = {&slot_};
    return make_page_layout(slots, {codecs}, options.page_positions);
  }

  SlotSpec slot_;
  Memory memory_;
  PageLayout layout_;
  PagePool* pool_;
  std::deque<PageTable> tables_;  // addresses stay
  std::vector<Pos> lengths_;
  AttendWorkspace workspace_;
};

}  // namespace cairn::testing

#endif  // CAIRN_TESTS_SUPPORT_PAGES_H_
