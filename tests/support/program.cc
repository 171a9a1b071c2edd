#include "tests/support/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/support/random.h"

namespace cairn::testing {
namespace {

constexpr size_t kMostSequences = 6;
constexpr Pos kLongest = 400;

// A small whole number: exact in every encoding of at least 8 significant bits.
float number_of(uint64_t stamp, size_t slot, size_t family, uint32_t head, uint32_t dim) {
  const uint64_t mixed = scatter(stamp * 1000003 + slot * 10007 + family * 1009 + head * 101 + dim);
  return static_cast<float>(static_cast<int>(mixed % 255) - 127);
}

// One sequence as plain data.
struct Plain {
  std::vector<uint64_t> stamps;     // per position
  std::vector<std::set<Pos>> held;  // per slot
};

void keep_only_retained(Plain& plain, const ModelSpec& spec) {
  for (size_t slot = 0; slot < spec.slots.size(); ++slot) {
    const Retention& r = spec.slots[slot].retention;
    if (r.window == 0) continue;
    const Pos length = plain.stamps.size();
    std::erase_if(plain.held[slot],
                  [&](Pos p) { return p >= r.sinks && p + r.window + r.rewind < length; });
  }
}

bool can_cut(const Plain& plain, const ModelSpec& spec, Pos length) {
  if (length > plain.stamps.size()) return false;
  if (length == plain.stamps.size()) return true;
  for (size_t slot = 0; slot < spec.slots.size(); ++slot) {
    const Retention& r = spec.slots[slot].retention;
    for (Pos p = 0; p < length; ++p) {
      const bool is_needed = r.window == 0 || p < r.sinks || p + r.window > length;
      if (is_needed && !plain.held[slot].contains(p)) return false;
    }
  }
  return true;
}

class Runner {
 public:
  explicit Runner(const Program& program)
      : program_(program), memory_({.max_bytes = program.max_bytes}) {
    for (int i = 0; i < 2; ++i)
      sessions_.push_back(open_session(program.spec, parse_scheme(program.scheme).value(), memory_,
                                       {.page_positions = program.page_positions})
                              .value());
  }

  std::optional<std::string> run() {
    for (size_t i = 0; i < program_.ops.size() && !wrong_; ++i) {
      op_ = i;
      apply(program_.ops[i]);
      check_all();
    }
    if (!wrong_) check_end();
    return wrong_;
  }

 private:
  using Key = std::pair<size_t, SeqId>;  // session, sequence

  void expect(bool holds, const std::string& what) {
    if (!holds && !wrong_) wrong_ = fmt::format("operation {}: {}", op_, what);
  }

  std::optional<Key> pick(uint32_t which) const {
    if (plains_.empty()) return std::nullopt;
    auto it = plains_.begin();
    std::advance(it, which % plains_.size());
    return it->first;
  }

  void apply(const Op& op) {
    const std::optional<Key> key = pick(op.which);
    if (op.verb == Op::Verb::start) {
      if (plains_.size() >= kMostSequences) return;
      Plain plain;
      plain.held.resize(program_.spec.slots.size());
      const size_t session = op.which % sessions_.size();
      plains_.emplace(Key{session, sessions_[session].start()}, std::move(plain));
      return;
    }
    if (!key) return;
    switch (op.verb) {
      case Op::Verb::append:
        return step(*key, op, Outcome::commit);
      case Op::Verb::append_part:
        return step(*key, op, Outcome::keep);
      case Op::Verb::drop_step:
        return step(*key, op, Outcome::drop);
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

  enum class Outcome { commit, keep, drop };

  // Two of the session's sequences at most, ragged.
  std::vector<Run> batch_of(Key key, const Op& op) {
    const Pos counts[] = {1 + op.amount % 3, 1 + op.amount % 37, op.amount % 5 ? 1u : 90u};
    std::vector<Run> batch = {{key.second, counts[op.amount % 3]}};
    for (const auto& [other, plain] : plains_)
      if (other.first == key.first && other.second != key.second &&
          batch.size() < 1 + op.amount % 3)
        batch.push_back({other.second, counts[(op.amount + batch.size()) % 3]});
    for (Run& run : batch) {
      const Pos length = plains_.at({key.first, run.seq}).stamps.size();
      run.count = length >= kLongest ? 0 : std::min(run.count, kLongest - length);
    }
    return batch;
  }

  void step(Key key, const Op& op, Outcome outcome) {
    Session& session = sessions_[key.first];
    const std::vector<Run> batch = batch_of(key, op);
    auto step = session.plan(batch, outcome == Outcome::keep ? Round::yes : Round::no);
    if (!step) {
      expect(step.error().code == Code::NoSpace, "plan: " + step.error().message);
      return;  // check_all sees that nothing has changed
    }
    std::vector<std::vector<uint64_t>> stamps;
    for (const Run& run : batch) {
      stamps.push_back(plains_.at({key.first, run.seq}).stamps);
      for (Pos i = 0; i < run.count; ++i) stamps.back().push_back(++stamp_);
    }
    if (outcome == Outcome::drop && op.amount % 2) return;  // not even written
    write(session, *step, batch, stamps, op.amount);
    for (size_t run = 0; run < batch.size(); ++run)
      check_view(session, *step, key.first, batch, stamps, run);
    if (outcome == Outcome::drop) return;
    std::vector<Pos> keep;
    for (const Run& run : batch)
      keep.push_back(outcome == Outcome::keep ? scatter(op.amount + keep.size()) % (run.count + 1)
                                              : run.count);
    if (outcome == Outcome::keep)
      step->commit(keep);
    else
      step->commit();
    for (size_t run = 0; run < batch.size(); ++run) {
      Plain& plain = plains_.at({key.first, batch[run].seq});
      const Pos length = plain.stamps.size();
      plain.stamps.assign(stamps[run].begin(),
                          stamps[run].begin() + static_cast<ptrdiff_t>(length + keep[run]));
      for (auto& held : plain.held)
        for (Pos p = length; p < length + keep[run]; ++p) held.insert(p);
      if (keep[run] > 0) keep_only_retained(plain, program_.spec);
    }
  }

  // Numbers as f32 with strides, whole batches or run by run, in one part or several.
  void write(Session& session,
             Step& step,
             const std::vector<Run>& batch,
             const std::vector<std::vector<uint64_t>>& stamps,
             uint32_t amount) {
    for (SlotId slot : session.slots())
      for (size_t f = 0; f < program_.spec.slots[slot.value].families.size(); ++f) {
        const FamilySpec& family = program_.spec.slots[slot.value].families[f];
        const ptrdiff_t head_stride = family.width + 3,
                        position_stride = head_stride * family.heads + 1;
        std::vector<float> numbers(
            static_cast<size_t>(step.rows()) * static_cast<size_t>(position_stride), 1e9f);
        size_t row = 0;
        for (size_t run = 0; run < batch.size(); ++run)
          for (Pos i = 0; i < batch[run].count; ++i, ++row)
            for (uint32_t head = 0; head < family.heads; ++head)
              for (uint32_t dim = 0; dim < family.width; ++dim)
                numbers[row * static_cast<size_t>(position_stride) +
                        head * static_cast<size_t>(head_stride) + dim] =
                    number_of(stamps[run][stamps[run].size() - batch[run].count + i], slot.value, f,
                              head, dim);
        const uint32_t parts = 1 + amount % 3;
        for (uint32_t part = 0; part < parts; ++part)
          step.write(slot, family.family->id,
                     Numbers(numbers.data(), DType::F32, position_stride, head_stride),
                     {part, parts});
      }
  }

  void check_numbers(const View& view,
                     size_t run,
                     SlotId slot,
                     Pos first,
                     Pos count,
                     const std::vector<uint64_t>& stamps) {
    for (size_t f = 0; f < view.slot->families.size() && !wrong_; ++f) {
      const FamilyPlace& family = view.slot->families[f];
      std::vector<float> numbers(count * family.heads * family.codec.width);
      decode(view, run, family.family->id, first, count, numbers.data());
      size_t i = 0;
      for (Pos p = first; p < first + count; ++p)
        for (uint32_t head = 0; head < family.heads; ++head)
          for (uint32_t dim = 0; dim < family.codec.width; ++dim, ++i)
            if (numbers[i] != number_of(stamps[p], slot.value, f, head, dim))
              return expect(
                  false, fmt::format("slot {} {} position {} head {} dim {} reads {}, expected {}",
                                     slot.value, family.family->name, p, head, dim, numbers[i],
                                     number_of(stamps[p], slot.value, f, head, dim)));
    }
  }

  // In an open step every new position's query finds what it sees.
  void check_view(Session& session,
                  Step& step,
                  size_t which,
                  const std::vector<Run>& batch,
                  const std::vector<std::vector<uint64_t>>& stamps,
                  size_t run) {
    if (batch[run].count == 0) return;
    (void)which;
    for (SlotId slot : session.slots()) {
      const View view = step.view(slot);
      const Pos length = stamps[run].size(), first = length - batch[run].count;
      for (Pos p : {first, length - 1}) {
        const auto visible = view.retention.visible(p);
        for (Range range : {visible.sinks, visible.recent})
          if (!range.empty())
            check_numbers(view, run, slot, range.begin, range.end - range.begin, stamps[run]);
      }
    }
  }

  void fork(Key key) {
    if (plains_.size() >= kMostSequences) return;
    const uint64_t live = memory_.use().live_bytes;
    const SeqId copy = sessions_[key.first].fork(key.second);
    expect(memory_.use().live_bytes == live, "a fork copied pages");
    plains_.emplace(Key{key.first, copy}, Plain(plains_.at(key)));
  }

  void truncate(Key key, const Op& op) {
    Plain& plain = plains_.at(key);
    const Pos length = op.amount % (plain.stamps.size() + 2);
    const bool can = can_cut(plain, program_.spec, length);
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
    if (plains_.size() >= kMostSequences) return;
    const uint64_t live = memory_.use().live_bytes;
    const size_t to = 1 - key.first;
    auto seq = sessions_[to].adopt(sessions_[key.first].snapshot(key.second));
    expect(seq.has_value(), "adopt");
    if (!seq) return;
    expect(memory_.use().live_bytes == live, "adopting within one memory and scheme copied pages");
    plains_.emplace(Key{to, *seq}, Plain(plains_.at(key)));
  }

  void check_all() {
    for (const auto& [key, plain] : plains_) {
      const Session& session = sessions_[key.first];
      expect(session.length(key.second) == plain.stamps.size(), "length");
      if (wrong_ || scatter(op_ * 31 + key.second.value) % 8 != 0)
        continue;  // an eighth of them per operation
      const Snapshot snapshot = session.snapshot(key.second);
      for (SlotId slot : session.slots()) check_held(snapshot, slot, plain);
    }
    if (op_ % 8 != 0) return;
    uint64_t most = 0;
    for (const Session& session : sessions_) most += session.use().live_bytes;
    expect(memory_.use().live_bytes <= most, "pages are live that no sequence holds");
  }

  void check_held(const Snapshot& snapshot, SlotId slot, const Plain& plain) {
    const std::set<Pos>& held = plain.held[slot.value];
    const Pos kept = snapshot.first_kept(slot);
    const Pos sinks = std::min<Pos>(kept, program_.spec.slots[slot.value].retention.sinks);
    expect(held.size() == sinks + plain.stamps.size() - kept,
           fmt::format("slot {} holds {} sinks and from {} of {}, expected {} positions",
                       slot.value, sinks, kept, plain.stamps.size(), held.size()));
    if (wrong_) return;
    check_numbers(snapshot.view(slot), 0, slot, 0, sinks, plain.stamps);
    check_numbers(snapshot.view(slot), 0, slot, kept, plain.stamps.size() - kept, plain.stamps);
  }

  void check_end() {
    for (const auto& [key, plain] : plains_) sessions_[key.first].drop(key.second);
    expect(memory_.use().live_pages == 0, "pages are live when every sequence is dropped");
  }

  const Program& program_;
  Memory memory_;
  std::vector<Session> sessions_;
  std::map<Key, Plain> plains_;
  uint64_t stamp_ = 0;
  size_t op_ = 0;
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

std::optional<std::string> run(const Program& program) { return Runner(program).run(); }

Program shrink(Program failing) {
  for (size_t chunk = failing.ops.size() / 2; chunk > 0; chunk /= 2)
    for (size_t begin = 0; begin < failing.ops.size();) {
      Program smaller = failing;
      const auto first = smaller.ops.begin() + static_cast<ptrdiff_t>(begin);
      smaller.ops.erase(
          first, first + static_cast<ptrdiff_t>(std::min(chunk, smaller.ops.size() - begin)));
      if (run(smaller))
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
