#include "tests/support/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <set>

#include "tests/support/random.h"

namespace cairn::testing {
namespace {

// The vectors that are written: stretches of one list of small whole numbers, which every raw
// encoding holds exactly. Few enough to remember what an encoding makes of each.
constexpr size_t kVectors = 4096, kBetween = 16, kWidest = 1024;

const float* vector_at(size_t index) {
  static const std::vector<float> numbers = [] {
    Random random(1);
    std::vector<float> list(kVectors * kBetween + kWidest);
    for (float& number : list) number = static_cast<float>(random.below(255)) - 127;
    return list;
  }();
  return numbers.data() + index * kBetween;
}

size_t index_of(uint64_t stamp, size_t slot, size_t family, uint32_t head) {
  return scatter(stamp * 1000003 + slot * 10007 + family * 1009 + head * 101) % kVectors;
}

// One vector as a place stores it: through encode and decode once.
std::vector<float> stored(const FamilyPlace& place, const float* numbers) {
  const Codec& codec = place.codec;
  std::vector<std::byte> bytes(codec.geometry.record_bytes() + 64);
  Records record{.count = 1, .capacity = 1};
  size_t offset = 0;
  for (size_t i = 0; i < codec.geometry.planes.size(); ++i) {
    const PlaneGeometry& plane = codec.geometry.planes[i];
    record.planes[i] = {.data = bytes.data() + offset,
                        .position_stride = plane.record_bytes,
                        .word_stride = plane.word_bytes};
    offset += plane.record_bytes;
  }
  std::vector<float> back(codec.width);
  codec.encoding->functions().encode(codec, numbers, record);
  codec.encoding->functions().decode(codec, record, back.data());
  return back;
}

// A recurrence on whole numbers below 2^20, exact in f32.
constexpr uint64_t kModulus = uint64_t{1} << 20;
uint64_t advance_chain(uint64_t h, uint64_t stamp) { return (31 * h + stamp + 1) % kModulus; }
float tensor_number(uint64_t h, size_t element) {
  return static_cast<float>((h + element) % kModulus);
}
uint64_t chain_of(const std::vector<uint64_t>& stamps, size_t count) {
  uint64_t h = 0;
  for (size_t i = 0; i < count; ++i) h = advance_chain(h, stamps[i]);
  return h;
}

size_t numbers_of(const FamilySpec& tensor) { return size_t{tensor.heads} * tensor.width; }

// Of a slot with the tensors that `families`, a std::vector<FamilySpec>, lists.
void replay_chain(const void* families,
                  const float* const* previous,
                  const std::byte* inputs,
                  Pos count,
                  float* const* next) {
  for (const FamilySpec& tensor : *static_cast<const std::vector<FamilySpec>*>(families)) {
    auto h = static_cast<uint64_t>((*previous++)[0]);
    for (Pos i = 0; i < count; ++i) {
      uint64_t stamp = 0;
      std::memcpy(&stamp, inputs + i * sizeof(stamp), sizeof(stamp));
      h = advance_chain(h, stamp);
    }
    float* numbers = *next++;
    for (size_t element = 0; element < numbers_of(tensor); ++element)
      numbers[element] = tensor_number(h, element);
  }
}

// The same slots, but that recurrent ones are replayed.
std::vector<SlotSpec> replayed(std::vector<SlotSpec> slots) {
  static std::deque<std::vector<FamilySpec>> families;  // for as long as sessions may point there
  for (SlotSpec& slot : slots)
    if (slot.families[0].family->is_fixed)
      slot.advance = {.function = replay_chain,
                      .model = &families.emplace_back(slot.families),
                      .input_bytes = sizeof(uint64_t)};
  return slots;
}

bool is_recurrent(const SlotSpec& slot) { return slot.families[0].family->is_fixed; }

// One sequence as plain data.
struct Plain {
  std::vector<uint64_t> stamps;     // per position
  std::vector<std::set<Pos>> held;  // per slot
};

class Runner {
 public:
  explicit Runner(const Program& program)
      : program_(program),
        scheme_(parse_scheme(program.scheme, *program.registry).value()),
        after_(std::ranges::all_of(program.spec.slots, is_recurrent) ? 0 : scheme_.after),
        memory_({.max_bytes = program.max_bytes}) {
    for (int i = 0; i < 2; ++i)
      sessions_.push_back(open_session(program.spec, scheme_, memory_,
                                       {.page_positions = program.page_positions},
                                       *program.registry)
                              .value());
  }

  Outcome run() {
    for (size_t i = 0; i < program_.ops.size() && !wrong_; ++i) {
      op_ = i;
      apply(program_.ops[i]);
      check_all();
    }
    if (!wrong_) check_end();
    return {wrong_, encodings_};
  }

 private:
  using Key = std::pair<size_t, SeqId>;  // session, sequence
  using Stamps = std::vector<uint64_t>;

  void expect(bool holds, const std::string& what) {
    if (!holds && !wrong_) wrong_ = fmt::format("operation {}: {}", op_, what);
  }
  const SlotSpec& spec(SlotId slot) const { return program_.spec.slots[slot.value]; }

  // --- the rules, told plainly ---

  void keep_only_retained(Plain& plain) const {
    for (size_t slot = 0; slot < program_.spec.slots.size(); ++slot) {
      const Retention& r = program_.spec.slots[slot].retention;
      if (r.window == 0) continue;
      const Pos length = plain.stamps.size();
      std::erase_if(plain.held[slot],
                    [&](Pos p) { return p >= r.sinks && p + r.window + r.rewind < length; });
    }
  }

  bool can_cut(const Plain& plain, Pos to) const {
    const Pos length = plain.stamps.size();
    if (to > length) return false;
    if (to == length || to == 0) return true;
    if (length >= after_ && to < after_) return false;
    for (size_t slot = 0; slot < program_.spec.slots.size(); ++slot) {
      if (is_recurrent(program_.spec.slots[slot])) return false;
      const Retention& r = program_.spec.slots[slot].retention;
      for (Pos p = 0; p < to; ++p) {
        const bool is_needed = r.window == 0 || p < r.sinks || p + r.window > to;
        if (is_needed && !plain.held[slot].contains(p)) return false;
      }
    }
    return true;
  }

  bool is_exact(Pos position, Pos length) const {
    return length < after_ || position < scheme_.keeps_exact();
  }

  // --- the operations ---

  std::optional<Key> pick(uint32_t which) const {
    if (plains_.empty()) return std::nullopt;
    auto it = plains_.begin();
    std::advance(it, which % plains_.size());
    return it->first;
  }

  void apply(const Op& op) {
    if (op.verb == Op::Verb::start) return start(op);
    const std::optional<Key> key = pick(op.which);
    if (!key) return;
    switch (op.verb) {
      case Op::Verb::append:
        return step(key->first, batch_of(*key, op), op.amount, End::commit);
      case Op::Verb::append_part:
        return step(key->first, batch_of(*key, op), op.amount, End::keep);
      case Op::Verb::drop_step:
        return step(key->first, batch_of(*key, op), op.amount, End::drop);
      case Op::Verb::fork:
        return fork(*key);
      case Op::Verb::truncate:
        return truncate(*key, op);
      case Op::Verb::drop:
        return drop(*key, op);
      case Op::Verb::adopt:
        return adopt(*key);
      default:
        return;
    }
  }

  void start(const Op& op) {
    if (plains_.size() >= program_.most_sequences) return;
    Plain plain;
    plain.held.resize(program_.spec.slots.size());
    const size_t session = op.which % sessions_.size();
    const SeqId seq = sessions_[session].start();
    plains_.emplace(Key{session, seq}, std::move(plain));
    // Short runs and cuts seldom come as far as the length at which a sequence is encoded.
    if (const Pos before = 1 + op.amount % 30; after_ > before && op.amount % 3 != 0)
      step(session, {{seq, after_ - before}}, op.amount, End::commit);
  }

  enum class End { commit, keep, drop };

  // Up to three of the session's sequences, ragged.
  std::vector<Run> batch_of(Key key, const Op& op) {
    const Pos counts[] = {1 + op.amount % 3, 1 + op.amount % 37, op.amount % 5 ? 1u : 90u};
    std::vector<Run> batch = {{key.second, counts[op.amount % 3]}};
    for (const auto& [other, plain] : plains_)
      if (other.first == key.first && other.second != key.second &&
          batch.size() < 1 + op.amount % 3)
        batch.push_back({other.second, counts[(op.amount + batch.size()) % 3]});
    for (Run& run : batch) {
      const Pos length = plains_.at({key.first, run.seq}).stamps.size();
      run.count = length >= program_.longest ? 0 : std::min(run.count, program_.longest - length);
      const Pos most = length < after_ ? after_ - length : UINT64_MAX;
      expect(sessions_[key.first].max_run(run.seq) == most, "max_run");
      if (run.count > most) {
        expect(!sessions_[key.first].plan({run}), "a run crosses the position of encoding");
        run.count = most;
      }
    }
    return batch;
  }

  void step(size_t owner, const std::vector<Run>& batch, uint32_t amount, End end) {
    Session& session = sessions_[owner];
    auto step = session.plan(batch, end == End::keep ? Round::yes : Round::no);
    if (!step) {
      expect(step.error().code == Code::NoSpace, "plan: " + step.error().message);
      return;  // check_all sees that nothing has changed
    }
    std::vector<Stamps> stamps;
    for (const Run& run : batch) {
      stamps.push_back(plains_.at({owner, run.seq}).stamps);
      for (Pos i = 0; i < run.count; ++i) stamps.back().push_back(++stamp_);
    }
    if (end == End::drop && amount % 2) return;  // not even written
    for (SlotId slot : session.slots()) {
      if (is_recurrent(spec(slot)))
        write_tensors(*step, slot, batch, stamps);
      else
        write_records(*step, slot, batch, stamps, amount);
    }
    for (size_t run = 0; run < batch.size(); ++run)
      if (batch[run].count > 0 && op_ % 8 == 0)
        check_view(session, *step, batch[run].count, stamps[run], run);
    if (end == End::drop) return;
    std::vector<Pos> keep;
    for (const Run& run : batch)
      keep.push_back(end == End::keep ? scatter(amount + keep.size()) % (run.count + 1)
                                      : run.count);
    if (end == End::keep)
      step->commit(keep);
    else
      step->commit();
    for (size_t run = 0; run < batch.size(); ++run)
      commit_plain(plains_.at({owner, batch[run].seq}), stamps[run], keep[run]);
  }

  void commit_plain(Plain& plain, const Stamps& stamps, Pos keep) {
    const Pos length = plain.stamps.size();
    encodings_ += length < after_ && length + keep >= after_;
    plain.stamps.assign(stamps.begin(), stamps.begin() + static_cast<ptrdiff_t>(length + keep));
    for (auto& held : plain.held)
      for (Pos p = length; p < length + keep; ++p) held.insert(p);
    if (keep > 0) keep_only_retained(plain);
  }

  // Numbers as f32 with strides, in one part or several.
  void write_records(Step& step,
                     SlotId slot,
                     const std::vector<Run>& batch,
                     const std::vector<Stamps>& stamps,
                     uint32_t amount) {
    for (size_t f = 0; f < spec(slot).families.size(); ++f) {
      const FamilySpec& family = spec(slot).families[f];
      const size_t head_stride = family.width + 3, position_stride = head_stride * family.heads + 1;
      std::vector<float> numbers(step.rows() * position_stride, 1e9f);
      size_t row = 0;
      for (size_t run = 0; run < batch.size(); ++run)
        for (Pos i = 0; i < batch[run].count; ++i, ++row)
          for (uint32_t head = 0; head < family.heads; ++head)
            std::copy_n(vector_at(index_of(stamps[run][stamps[run].size() - batch[run].count + i],
                                           slot.value, f, head)),
                        family.width, &numbers[row * position_stride + head * head_stride]);
      const uint32_t parts = 1 + amount % 3;
      for (uint32_t part = 0; part < parts; ++part)
        step.write(slot, family.family->id,
                   Numbers(numbers.data(), DType::F32, static_cast<ptrdiff_t>(position_stride),
                           static_cast<ptrdiff_t>(head_stride)),
                   {part, parts});
    }
  }

  void write_tensors(Step& step,
                     SlotId slot,
                     const std::vector<Run>& batch,
                     const std::vector<Stamps>& stamps) {
    for (size_t run = 0; run < batch.size(); ++run) {
      const Pos count = batch[run].count, before = stamps[run].size() - count;
      if (count == 0) continue;
      for (const FamilySpec& tensor : spec(slot).families) {
        check_tensor(step.previous(slot, tensor.family->id, run), slot, tensor, stamps[run], before,
                     "before the step");
        uint64_t h = chain_of(stamps[run], before);
        for (Pos i = 0; i < count; ++i) {
          h = advance_chain(h, stamps[run][before + i]);
          if (!step.holds_states(slot) && i + 1 < count) continue;
          float* next = step.next(slot, tensor.family->id, run, i);
          for (size_t element = 0; element < numbers_of(tensor); ++element)
            next[element] = tensor_number(h, element);
        }
      }
      if (std::byte* inputs = step.round_inputs(slot, run))
        std::memcpy(inputs, stamps[run].data() + before, count * sizeof(uint64_t));
      step.mark_written(slot, run);
    }
  }

  void check_tensor(const float* tensor,
                    SlotId slot,
                    const FamilySpec& shape,
                    const Stamps& stamps,
                    Pos length,
                    const char* when) {
    const uint64_t h = chain_of(stamps, length);
    for (size_t element = 0; element < numbers_of(shape); ++element)
      if (const float expected = length == 0 ? 0 : tensor_number(h, element);
          tensor[element] != expected)
        return expect(false,
                      fmt::format("slot {} {} element {} {} reads {}, expected {}", slot.value,
                                  shape.family->name, element, when, tensor[element], expected));
  }

  void check_numbers(
      const View& view, size_t run, SlotId slot, Range range, const Stamps& stamps, Pos length) {
    for (size_t f = 0; f < view.slot->families.size() && !wrong_; ++f) {
      const FamilyPlace& family = view.slot->families[f];
      const uint32_t width = family.codec.width;
      std::vector<float> numbers((range.end - range.begin) * family.heads * width);
      decode(view, run, family.family->id, range.begin, range.end - range.begin, numbers.data());
      const float* read = numbers.data();
      for (Pos p = range.begin; p < range.end; ++p)
        for (uint32_t head = 0; head < family.heads; ++head, read += width) {
          const size_t index = index_of(stamps[p], slot.value, f, head);
          const float* expected =
              is_exact(p, length) ? vector_at(index) : remembered(slot, f, family, index);
          if (std::memcmp(read, expected, width * sizeof(float)) != 0)
            return expect(false, fmt::format("slot {} {} position {} of {} head {} reads {} ..., "
                                             "expected {} ...",
                                             slot.value, family.family->name, p, length, head,
                                             read[0], expected[0]));
        }
    }
  }

  // What the slot's encoding makes of a vector.
  const float* remembered(SlotId slot, size_t f, const FamilyPlace& place, size_t index) {
    auto& vectors = remembered_[{slot, f}];
    vectors.resize(kVectors);
    if (vectors[index].empty()) vectors[index] = stored(place, vector_at(index));
    return vectors[index].data();
  }

  // In an open step every new position's query finds what it sees.
  void check_view(Session& session, Step& step, Pos count, const Stamps& stamps, size_t run) {
    for (SlotId slot : session.slots()) {
      if (is_recurrent(spec(slot))) continue;
      const View view = step.view(slot);
      const Pos last = stamps.size() - 1, first = stamps.size() - count;
      for (Pos p : {first, last}) {
        const auto visible = view.retention.visible(p);
        for (Range range : {visible.sinks, visible.recent})
          if (!range.empty()) check_numbers(view, run, slot, range, stamps, first);
      }
    }
  }

  void fork(Key key) {
    if (plains_.size() >= program_.most_sequences) return;
    const uint64_t live = memory_.use().live_bytes;
    const SeqId copy = sessions_[key.first].fork(key.second);
    expect(memory_.use().live_bytes == live, "a fork copied pages");
    plains_.emplace(Key{key.first, copy}, Plain(plains_.at(key)));
  }

  void truncate(Key key, const Op& op) {
    Plain& plain = plains_.at(key);
    const Pos length = op.amount % (plain.stamps.size() + 2);
    const bool can = can_cut(plain, length);
    expect(sessions_[key.first].can_truncate(key.second, length) == can,
           fmt::format("can_truncate({}) of {} is not {}", length, plain.stamps.size(), can));
    const auto cut = sessions_[key.first].truncate(key.second, length);
    expect(cut.has_value() == can, fmt::format("truncate({}) of {}", length, plain.stamps.size()));
    if (!cut) return;
    plain.stamps.resize(length);
    for (auto& held : plain.held) held.erase(held.lower_bound(length), held.end());
  }

  void drop(Key key, const Op& op) {
    if (op.amount % 3 != 0) return;  // keep programs populated
    sessions_[key.first].drop(key.second);
    plains_.erase(key);
  }

  void adopt(Key key) {
    if (plains_.size() >= program_.most_sequences) return;
    const uint64_t live = memory_.use().live_bytes;
    const size_t to = 1 - key.first;
    auto seq = sessions_[to].adopt(sessions_[key.first].snapshot(key.second));
    expect(seq.has_value(), "adopt");
    if (!seq) return;
    expect(memory_.use().live_bytes == live, "adopting within one memory and scheme copied pages");
    plains_.emplace(Key{to, *seq}, Plain(plains_.at(key)));
  }

  // --- after every operation ---

  void check_all() {
    for (const auto& [key, plain] : plains_) {
      const Session& session = sessions_[key.first];
      expect(session.length(key.second) == plain.stamps.size(), "length");
      if (wrong_ || scatter(op_ * 31 + key.second.value) % 16 != 0)
        continue;  // a sixteenth of them per operation
      const Snapshot snapshot = session.snapshot(key.second);
      for (SlotId slot : session.slots()) check_held(snapshot, slot, plain);
    }
    if (op_ % 8 != 0) return;
    uint64_t most = 0;
    for (const Session& session : sessions_) most += session.use().live_bytes;
    expect(memory_.use().live_bytes <= most, "pages are live that no sequence holds");
  }

  void check_held(const Snapshot& snapshot, SlotId slot, const Plain& plain) {
    const Pos length = plain.stamps.size();
    if (is_recurrent(spec(slot))) {
      for (const FamilySpec& tensor : spec(slot).families)
        check_tensor(snapshot.tensor(slot, tensor.family->id), slot, tensor, plain.stamps, length,
                     "at rest");
      return;
    }
    const std::set<Pos>& held = plain.held[slot.value];
    const Pos kept = snapshot.first_kept(slot);
    const Pos sinks = std::min<Pos>(kept, spec(slot).retention.sinks);
    expect(held.size() == sinks + length - kept,
           fmt::format("slot {} holds {} sinks and from {} of {}, expected {} positions",
                       slot.value, sinks, kept, length, held.size()));
    if (wrong_) return;
    check_numbers(snapshot.view(slot), 0, slot, {0, sinks}, plain.stamps, length);
    check_numbers(snapshot.view(slot), 0, slot, {kept, length}, plain.stamps, length);
  }

  void check_end() {
    for (const auto& [key, plain] : plains_) sessions_[key.first].drop(key.second);
    expect(memory_.use().live_pages == 0, "pages are live when every sequence is dropped");
  }

  const Program& program_;
  const Scheme scheme_;
  const Pos after_;  // fixed tensors are never encoded
  Memory memory_;
  std::vector<Session> sessions_;
  std::map<Key, Plain> plains_;
  std::map<std::pair<SlotId, size_t>, std::vector<std::vector<float>>> remembered_;  // per family
  uint64_t stamp_ = 0;
  size_t op_ = 0;
  size_t encodings_ = 0;
  std::optional<std::string> wrong_;
};

}  // namespace

std::vector<Op> random_ops(uint64_t seed, size_t count) {
  using Verb = Op::Verb;
  constexpr Verb kWeighted[] = {
      Verb::start,       Verb::append,      Verb::append,    Verb::append, Verb::append,
      Verb::append_part, Verb::append_part, Verb::drop_step, Verb::fork,   Verb::fork,
      Verb::truncate,    Verb::truncate,    Verb::drop,      Verb::adopt,
  };
  Random random(seed);
  std::vector<Op> ops(count);
  for (Op& op : ops)
    op = {.verb = kWeighted[random.below(std::size(kWeighted))],
          .which = static_cast<uint32_t>(random.below(1000)),
          .amount = static_cast<uint32_t>(random.below(1000))};
  return ops;
}

ModelSpec mixed_spec() {
  ModelSpec spec{.identity = sha256("mixed")};
  spec.slots = {
      attention({.heads = 2, .head_dim = 8}),
      window({.heads = 1, .head_dim = 16, .window = 8, .rewind = 0}),
      attention({.heads = 1, .head_dim = 8, .value_dim = 24}),
      window({.heads = 2, .head_dim = 8, .window = 20, .sinks = 3, .rewind = 10}),
      window({.heads = 1, .head_dim = 8, .window = 1, .sinks = 70, .rewind = 2}),
      window({.heads = 1, .head_dim = 16, .window = 8, .rewind = 0}),
  };
  return spec;
}

std::vector<KindModel> kind_models(const Registry& registry) {
  std::vector<KindModel> models;
  const auto add = [&](std::string name, std::vector<SlotSpec> slots) {
    models.push_back({name, {.identity = sha256(name), .slots = slots}});
    if (!std::ranges::any_of(slots, is_recurrent)) return;
    models.back().name += "_held";
    models.push_back({name + "_replayed", {.identity = sha256(name), .slots = replayed(slots)}});
  };
  std::vector<SlotSpec> all;
  for (const StateKind* kind : registry.kinds) {
    const std::vector<SlotSpec> samples = kind->samples();
    add(std::string(kind->name), samples);
    all.push_back(samples.back());
  }
  add("all", all);
  return models;
}

Outcome run(const Program& program) { return Runner(program).run(); }

Program shrink(Program failing) {
  for (size_t chunk = failing.ops.size() / 2; chunk > 0; chunk /= 2)
    for (size_t begin = 0; begin < failing.ops.size();) {
      Program smaller = failing;
      const auto first = smaller.ops.begin() + static_cast<ptrdiff_t>(begin);
      smaller.ops.erase(
          first, first + static_cast<ptrdiff_t>(std::min(chunk, smaller.ops.size() - begin)));
      if (run(smaller).wrong)
        failing = std::move(smaller);
      else
        begin += chunk;
    }
  return failing;
}

std::string describe(const Program& program) {
  constexpr const char* kNames[] = {"start", "append",   "append_part", "drop_step",
                                    "fork",  "truncate", "drop",        "adopt"};
  std::string text = fmt::format("scheme {}, pages of {}, at most {} bytes\n", program.scheme,
                                 program.page_positions, program.max_bytes);
  for (const Op& op : program.ops)
    text += fmt::format("  {} which {} amount {}\n", kNames[static_cast<size_t>(op.verb)], op.which,
                        op.amount);
  return text;
}

}  // namespace cairn::testing
