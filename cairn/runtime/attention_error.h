// How far attention's answers are off where a state lies under another scheme: the same queries
// over the same keys and values, layer by layer, so that nothing is in it but what the encoding
// itself costs. (A model's own pass under the scheme has other queries from its second layer on.)
//
//   AttentionProbe probe(model);
//   const Snapshot before = reference.snapshot(seq);      // of a session in f32
//   Step step = CAIRN_TRY(reference.plan(...));
//   probe.watch(); CAIRN_TRY(model.forward(step, ...)); probe.finish(step);
//   step.commit();
//   CAIRN_TRY(probe.measure(session, before, error));     // of a session under a scheme
#ifndef CAIRN_RUNTIME_ATTENTION_ERROR_H_
#define CAIRN_RUNTIME_ATTENTION_ERROR_H_

#include <span>
#include <vector>

#include "cairn/models/model.h"

namespace cairn {

// |output - reference| / |reference| of a layer and a row, all heads together.
class AttentionError {
 public:
  double mean() const;  // over the rows, then over the layers; 0: there were none

 private:
  friend class AttentionProbe;
  struct Layer {
    double sum = 0;
    uint64_t rows = 0;
  };
  std::vector<Layer> layers_;
};

// The queries of one pass, and what they were answered.
class AttentionProbe {
 public:
  explicit AttentionProbe(Model& model) : model_(model) {}  // which outlives it
  ~AttentionProbe() { model_.watch_queries({}); }
  AttentionProbe(const AttentionProbe&) = delete;
  AttentionProbe& operator=(const AttentionProbe&) = delete;

  // Before and after the forward pass of a step, which is not committed yet. REQUIRES: the step has
  // one run, of a state in f32.
  void watch();
  void finish(const Step& step);

  // Asks the same of `session`, as if it held `before` and then the step's numbers, and adds up
  // what differs. Leaves no trace in it. NoSpace.
  Result<void> measure(Session& session, const Snapshot& before, AttentionError& error) const;

 private:
  struct Layer {
    SlotId slot;
    std::vector<float> queries;  // dense
    uint32_t heads = 0;
    float scale = 0;
    std::vector<uint32_t> positions, counts;  // chosen ones; counts empty: no choice
    size_t chosen_stride = 0;
    std::vector<float> answers;  // [rows, width]
  };
  void keep(SlotId slot, const Queries& queries);
  Result<void> compare(Session& session, SeqId seq, AttentionError& error) const;
  std::vector<float> answers_of(const Layer& layer, const View& view) const;
  std::span<const FamilySpec> families(SlotId slot) const;
  size_t width(SlotId slot, bool Family::*property) const;  // numbers of a head

  Model& model_;
  Pos rows_ = 0;  // of the pass
  std::vector<Layer> layers_;
  std::vector<std::vector<std::vector<float>>> numbers_;  // [slot][family][rows, heads, width]; of
                                                          // a slot that nobody asks: empty
};

}  // namespace cairn

#endif  // CAIRN_RUNTIME_ATTENTION_ERROR_H_
