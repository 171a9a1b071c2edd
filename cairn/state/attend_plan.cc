#include "cairn/state/attend_plan.h"

#include <cmath>

#include "cairn/core/bytes.h"

namespace cairn::attending {
namespace {

AttendForm make_form(const SlotPlace& slot) {
  AttendForm form;
  uint32_t query_offset = 0;
  for (const FamilyPlace& place : slot.families) {
    const RecordFunctions& functions = place.codec.encoding->functions();
    if (place.family->is_scored) {
      CAIRN_CHECK(form.scored_count < kMostScored, "attend: more than {} scored families",
                  kMostScored);
      form.scored[form.scored_count++] = {&place, &functions, query_offset};
      query_offset += place.codec.width;
    }
    if (place.family->is_accumulated) {
      form.value = &place;
      form.value_functions = &functions;
    }
  }
  CAIRN_CHECK(form.scored_count > 0 && form.value != nullptr,
              "attend: the slot has no family to attend to");
  return form;
}

Retention::Visible seen_by(const Retention& retention, Pos first, Pos last) {
  const Retention::Visible early = retention.visible(first);
  const Retention::Visible late = retention.visible(last);
  // The window's low end rises with the query, and ranges merge where they touch.
  const Range recent{early.recent.begin, late.recent.end};
  const Pos sinks_end = std::max(early.sinks.end, late.sinks.end);
  if (recent.begin <= sinks_end) return {{0, 0}, {0, recent.end}};
  return {{0, sinks_end}, recent};
}

}  // namespace

Call make_call(const View& view, const Queries& queries, const Attended& out) {
  Call call{.view = view, .softmax = softmax_functions(), .queries = queries, .out = out};
  call.forms[0] = make_form(*view.slot);
  call.value_width = call.forms[0].value_codec().width;
  if (view.exact != nullptr) call.forms[call.form_count++] = make_form(*view.exact);
  for (uint32_t i = 0; i < call.forms[0].scored_count; ++i)
    call.query_width += call.forms[0].scored[i].place->codec.width;
  call.key_heads = call.forms[0].scored[0].place->heads;
  CAIRN_CHECK(queries.heads != 0 && queries.heads % call.key_heads == 0,
              "attend: {} query heads, expected a multiple of {} key heads", queries.heads,
              call.key_heads);
  const auto dense = [](ptrdiff_t& stride, uint64_t floats) {
    if (stride == 0) stride = static_cast<ptrdiff_t>(floats);
  };
  dense(call.queries.head_stride, call.query_width);
  dense(call.queries.row_stride, uint64_t{queries.heads} * call.query_width);
  dense(call.out.head_stride, call.value_width);
  dense(call.out.row_stride, uint64_t{queries.heads} * call.value_width);
  if (call.queries.scale == 0)
    call.queries.scale = 1.f / std::sqrt(static_cast<float>(call.query_width));
  call.group = queries.heads / call.key_heads;
  call.step_queries = static_cast<uint32_t>(ceil_div(kStepRows, call.group));
  call.tile_queries =
      std::max(1u, kTileRows / (call.step_queries * call.group)) * call.step_queries;
  if (queries.chosen != nullptr) call.tile_queries = call.step_queries = 1;
  return call;
}

Retention::Visible seen_by(const Retention& retention, const Item& item) {
  if (item.is_sparse()) return {{0, 0}, {0, item.chosen.size()}};
  return seen_by(retention, item.first, item.last);
}

uint32_t runs_together(const Call& call, std::span<const RunView> runs) {
  uint32_t count = 1;
  if (call.queries.chosen != nullptr || !call.view.retention.keeps_all()) return count;
  const auto can_share = [&](const RunView& run) {
    return run.count == 1 && run.first >= call.view.page_positions;
  };
  if (!can_share(runs[0])) return count;
  while (count < std::min<size_t>(runs.size(), call.tile_queries) && can_share(runs[count]) &&
         runs[count].pages.page(0) == runs[0].pages.page(0))
    ++count;
  return count;
}

Plan make_plan(const Call& call, uint32_t parts) {
  Plan plan{.parts = parts};
  each_item(call, [&](const Item& item) {
    each_block(seen_by(call.view.retention, item),
               [&](Pos, Pos positions) { plan.total_cost += cost_of(call, item, positions); });
    plan.most_rows = std::max(plan.most_rows, rows_of(call, item));
  });
  if (parts == 1) return plan;
  uint64_t cost = 0;
  each_item(call, [&](const Item& item) {
    const Extent extent = extent_of(call, plan, item, cost);
    plan.kept_results += extent.kept_results();
    cost = extent.cost_after;
  });
  return plan;
}

}  // namespace cairn::attending
