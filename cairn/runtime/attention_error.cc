#include "cairn/runtime/attention_error.h"

#include <cmath>

#include "cairn/state/attend.h"

namespace cairn {
namespace {

double norm(std::span<const float> numbers) {
  double sum = 0;
  for (const float number : numbers) sum += static_cast<double>(number) * number;
  return std::sqrt(sum);
}

double distance(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - b[i];
    sum += difference * difference;
  }
  return std::sqrt(sum);
}

}  // namespace

double AttentionError::mean() const {
  double sum = 0;
  for (const Layer& layer : layers_)
    if (layer.rows > 0) sum += layer.sum / static_cast<double>(layer.rows);
  return layers_.empty() ? 0 : sum / static_cast<double>(layers_.size());
}

void AttentionProbe::watch() {
  layers_.clear();
  model_.watch_queries([this](SlotId slot, const Queries& queries, Pos rows) {
    rows_ = rows;
    keep(slot, queries);
  });
}

void AttentionProbe::keep(SlotId slot, const Queries& queries) {
  const size_t count = rows_ * queries.heads * width(slot, &Family::is_scored);
  Layer layer{.slot = slot,
              .queries = {queries.data, queries.data + count},
              .heads = queries.heads,
              .scale = queries.scale};
  if (const Chosen* chosen = queries.chosen; chosen != nullptr) {
    layer.chosen_stride = chosen->row_stride;
    layer.positions.assign(chosen->positions, chosen->positions + rows_ * chosen->row_stride);
    layer.counts.assign(chosen->counts, chosen->counts + rows_);
  }
  layers_.push_back(std::move(layer));
}

std::span<const FamilySpec> AttentionProbe::families(SlotId slot) const {
  return model_.spec().slots[slot.value].families;
}

size_t AttentionProbe::width(SlotId slot, bool Family::*property) const {
  size_t width = 0;
  for (const FamilySpec& family : families(slot))
    if (family.family->*property) width += family.width;
  return width;
}

std::vector<float> AttentionProbe::answers_of(const Layer& layer, const View& view) const {
  const Chosen chosen{.positions = layer.positions.data(),
                      .counts = layer.counts.data(),
                      .row_stride = layer.chosen_stride};
  std::vector<float> answers(rows_ * layer.heads * width(layer.slot, &Family::is_accumulated));
  attend(view,
         {.data = layer.queries.data(),
          .heads = layer.heads,
          .scale = layer.scale,
          .chosen = layer.counts.empty() ? nullptr : &chosen},
         {.data = answers.data()});
  return answers;
}

void AttentionProbe::finish(const Step& step) {
  model_.watch_queries({});
  numbers_.assign(model_.spec().slots.size(), {});
  for (Layer& layer : layers_) {
    const View view = step.view(layer.slot);
    layer.answers = answers_of(layer, view);
    auto& numbers = numbers_[layer.slot.value];
    if (!numbers.empty()) continue;  // of an earlier layer that asked the same slot
    for (const FamilySpec& family : families(layer.slot)) {
      numbers.emplace_back(rows_ * family.heads * family.width);
      decode(view, 0, family.family->id, view.runs[0].first, rows_, numbers.back().data());
    }
  }
}

Result<void> AttentionProbe::measure(Session& session,
                                     const Snapshot& before,
                                     AttentionError& error) const {
  if (layers_.empty()) return {};
  const SeqId seq = CAIRN_TRY(session.adopt(before));
  Result<void> compared = compare(session, seq, error);
  session.drop(seq);
  return compared;
}

// The step is dropped: it lacks the slots that nobody asks.
Result<void> AttentionProbe::compare(Session& session, SeqId seq, AttentionError& error) const {
  Step step = CAIRN_TRY(session.plan({{.seq = seq, .count = rows_}}));
  for (uint32_t slot = 0; slot < numbers_.size(); ++slot)
    for (size_t i = 0; i < numbers_[slot].size(); ++i)
      step.write({slot}, families({slot})[i].family->id, numbers_[slot][i].data());
  error.layers_.resize(layers_.size());
  for (size_t i = 0; i < layers_.size(); ++i) {
    const std::vector<float> answers = answers_of(layers_[i], step.view(layers_[i].slot));
    const size_t width = answers.size() / rows_;
    for (Pos row = 0; row < rows_; ++row) {
      const auto expected = std::span(layers_[i].answers).subspan(row * width, width);
      const double length = norm(expected);
      if (length == 0) continue;
      error.layers_[i].sum +=
          distance(std::span(answers).subspan(row * width, width), expected) / length;
      ++error.layers_[i].rows;
    }
  }
  return {};
}

}  // namespace cairn
