// The loop over what queries see: which part does what of it (attend_plan.h says what there is to
// do, attend_worker.h how a block is done).
//
// Of an item that is in several shares, segments (and the blocks of a split one) go to the
// workspace, and whoever adds the last one joins them in order. Nobody waits for anybody.
#include "cairn/state/attend.h"

#include <algorithm>
#include <atomic>

#include "cairn/kernels/dispatch.h"
#include "cairn/state/attend_plan.h"
#include "cairn/state/attend_worker.h"
#include "cairn/state/workspace.h"

namespace cairn {

AttendWorkspace::AttendWorkspace() : state_(std::make_unique<State>()) {}
AttendWorkspace::~AttendWorkspace() = default;

namespace attending {
namespace {

// The workspace of a call: scratch for every part, then results that shares keep for each other.
class Workspace {
 public:
  Workspace(AttendWorkspace::State& state, const Call& call, const Plan& plan)
      : call_(call), plan_(plan) {
    Carver scratch(nullptr), partials(nullptr);
    take_scratch(scratch, call, plan.most_rows);
    take_partials(partials, call, plan.most_rows);
    scratch_bytes_ = scratch.used();
    partials_bytes_ = partials.used();
    bytes_ = state.reserve(scratch_bytes_ * plan.parts + partials_bytes_ * plan.kept_results,
                           plan.share_count());
  }

  Scratch scratch(uint32_t part) const {
    Carver carver(bytes_ + part * scratch_bytes_);
    return take_scratch(carver, call_, plan_.most_rows);
  }
  Partials kept(uint64_t index) const {
    Carver carver(bytes_ + scratch_bytes_ * plan_.parts + index * partials_bytes_);
    return take_partials(carver, call_, plan_.most_rows);
  }

 private:
  const Call& call_;
  const Plan& plan_;
  std::byte* bytes_ = nullptr;
  uint64_t scratch_bytes_ = 0, partials_bytes_ = 0;
};

// The shares that one part takes: in ascending order, each the first that nobody has.
class Shares {
 public:
  explicit Shares(std::atomic<uint32_t>& next) : next_(next) {}
  // Whether `share`, which is not below the last one asked for, is this part's.
  bool take(uint32_t share) {
    if (share == mine_) return true;
    uint32_t next = next_.load(std::memory_order_relaxed);
    while (next <= share)
      if (next_.compare_exchange_weak(next, share + 1, std::memory_order_relaxed)) {
        mine_ = share;
        return true;
      }
    return false;
  }
  // Whether others have all of [first, last], of which none is below the last one asked for.
  bool are_gone(uint32_t first, uint32_t last) const {
    return first != mine_ && last < next_.load(std::memory_order_relaxed);
  }

 private:
  std::atomic<uint32_t>& next_;
  uint32_t mine_ = kNoShare;
};

// One part's way through the items of a plan.
class Traversal {
 public:
  Traversal(const Call& call,
            const Plan& plan,
            const Workspace& workspace,
            AttendWorkspace::State& state,
            Part part)
      : call_(call),
        plan_(plan),
        workspace_(workspace),
        state_(state),
        part_(part),
        scratch_(workspace.scratch(part.index)),
        shares_(state.next_share),
        worker_(call, scratch_) {}

  // Items come in order.
  void attend(const Item& item) {
    const Extent extent = extent_of(call_, plan_, item, cost_);
    if (extent.blocks == 0) {  // a chosen list of nothing: somebody writes the zeros
      if (part_.index == 0) {
        worker_.start(item);
        worker_.finish();
      }
    } else if (!shares_.are_gone(extent.first_share, extent.last_share)) {
      attend_shares(item, extent);
    }
    cost_ = extent.cost_after;
    kept_ += extent.kept_results();
  }

 private:
  void attend_shares(const Item& item, const Extent& extent) {
    uint64_t joined = 0;  // blocks of segments that this part finished
    uint64_t kept_blocks = kept_ + extent.segments;
    has_started_ = false;
    each_segment(call_, plan_, item, cost_, [&](const Segment& segment) {
      const bool is_first = segment.place == 0;
      const Partials whole = extent.is_split() ? workspace_.kept(kept_ + segment.place)
                             : is_first        ? scratch_.running
                                               : scratch_.segment;
      if (segment.is_split()) {
        joined += attend_split(item, segment, whole, kept_blocks);
        kept_blocks += kMostBlocksApart;
        return;
      }
      if (!shares_.take(segment.share[0])) return;
      attend_whole(item, segment, whole);
      joined += segment.blocks;
      if (!extent.is_split() && !is_first) worker_.join(scratch_.running, whole);
    });
    if (joined == 0) return;
    if (extent.is_split()) {
      if (!completes(blocks_done(extent.first_share, false), joined, extent.blocks)) return;
      worker_.clear(scratch_.running);
      for (uint64_t i = 0; i < extent.segments; ++i)
        worker_.join(scratch_.running, workspace_.kept(kept_ + i));
    }
    worker_.finish();
  }

  void attend_block(const Item& item, Pos block, const Partials& result) {
    if (!has_started_) worker_.start(item);
    has_started_ = true;
    worker_.attend_block(block, result);
  }

  void attend_whole(const Item& item, const Segment& segment, const Partials& whole) {
    attend_block(item, segment.block[0], whole);
    for (uint32_t i = 1; i < segment.blocks; ++i) {
      attend_block(item, segment.block[i], scratch_.block);
      worker_.join(whole, scratch_.block);
    }
  }

  // Takes what is left of a segment in several shares. Who does the last block joins all of them
  // and returns how many they are; others return 0.
  uint32_t attend_split(const Item& item,
                        const Segment& segment,
                        const Partials& whole,
                        uint64_t kept_blocks) {
    const auto place_of = [&](uint32_t i) {
      return i == 0 ? whole : workspace_.kept(kept_blocks + i - 1);
    };
    uint32_t done = 0;
    for (uint32_t i = 0; i < segment.blocks; ++i) {
      if (!shares_.take(segment.share[i])) continue;
      attend_block(item, segment.block[i], place_of(i));
      ++done;
    }
    if (done == 0 || !completes(blocks_done(segment.share[0], true), done, segment.blocks))
      return 0;
    for (uint32_t i = 1; i < segment.blocks; ++i) worker_.join(whole, place_of(i));
    return segment.blocks;
  }

  // Blocks done of the item, or of the segment, that begins in a share and goes on beyond it.
  std::atomic<uint64_t>& blocks_done(uint32_t first_share, bool is_segment) const {
    return state_.done[2 * first_share + (is_segment ? 1 : 0)];
  }

  // Whether what this part did was the last of it; the count is then 0 for the next call.
  static bool completes(std::atomic<uint64_t>& done, uint64_t mine, uint64_t all) {
    if (done.fetch_add(mine, std::memory_order_acq_rel) + mine != all) return false;
    done.store(0, std::memory_order_relaxed);
    return true;
  }

  const Call& call_;
  const Plan& plan_;
  const Workspace& workspace_;
  AttendWorkspace::State& state_;
  Part part_;
  Scratch scratch_;
  Shares shares_;
  Worker worker_;
  uint64_t cost_ = 0, kept_ = 0;  // of the items before this one
  bool has_started_ = false;      // the worker, with this one
};

}  // namespace
}  // namespace attending

void attend(const View& view, const Queries& queries, const Attended& out, Part part) {
  using namespace attending;  // NOLINT: this file's own
  CAIRN_CHECK(part.index < part.count, "attend: part {} of {}", part.index, part.count);
  if (view.rows == 0) return;
  const RoundingScope rounding;
  const Call call = make_call(view, queries, out);
  const Plan plan = make_plan(call, part.count);

  AttendWorkspace::State& state = view.workspace->state();
  const AttendWorkspace::State::Visit visit(state, part.count);
  const Workspace workspace(state, call, plan);
  Traversal traversal(call, plan, workspace, state, part);
  each_item(call, [&](const Item& item) { traversal.attend(item); });
}

void decode(const View& view, size_t run, FamilyId family, Pos first, Pos count, float* out) {
  const RoundingScope rounding;
  std::vector<float> records;
  for (Pos position = first; position < first + count;) {
    const FamilyPlace* place = view.place(view.runs[run], position).find(family);
    CAIRN_CHECK(place != nullptr, "decode: the slot has no family {}", family.value);
    const uint32_t width = place->codec.width;
    records.resize(uint64_t{view.page_positions} * width);
    const auto begin = static_cast<uint32_t>(position % view.page_positions);
    const auto part =
        static_cast<uint32_t>(std::min<Pos>(first + count - position, view.page_positions - begin));
    std::byte* page = view.runs[run].pages.page(position / view.page_positions);
    for (uint32_t head = 0; head < place->heads; ++head) {
      place->codec.encoding->functions().decode(
          place->codec, place->records(page, head, begin, part), records.data());
      for (uint32_t i = 0; i < part; ++i)
        std::copy_n(records.data() + uint64_t{i} * width, width,
                    out + ((position - first + i) * place->heads + head) * width);
    }
    position += part;
  }
}

}  // namespace cairn
