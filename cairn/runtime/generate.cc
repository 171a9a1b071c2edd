#include "cairn/runtime/generate.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <span>

#include "cairn/runtime/answering.h"

namespace cairn {
namespace {

// Rows of a step that checks drafts or goes on by a token. Beyond some dozens a row costs what it
// costs alone, and the logits of each take a vocabulary.
constexpr size_t kMostRounds = 64;

// What all texts begin with is worth a step of its own from so many tokens on.
constexpr Pos kWorthSharing = 32;

// The next tokens of one answer, and of which of them logits are needed.
struct Part {
  Answering* who;
  std::span<const int32_t> tokens;
  enum class Logits { none, last, all } wanted = Logits::none;
};

// One call of generate_together().
class Generation {
 public:
  Generation(Model& model, Session& session, std::span<const Asked> asked)
      : model_(model), session_(session), asked_(asked) {
    for (const Asked& each : asked) answers_.emplace_back(model, session, each);
  }

  Result<std::vector<Generated>> run() {
    CAIRN_TRY(check());
    for (Answering& each : answers_) CAIRN_TRY(each.leave_one_to_compute());
    CAIRN_TRY(read_beginning());
    while (is_any(Answering::Phase::reading)) CAIRN_TRY(read());
    for (Answering& each : answers_) each.start_decoding();
    while (is_any(Answering::Phase::choosing) || is_any(Answering::Phase::finishing))
      CAIRN_TRY(go_on());
    std::vector<Generated> results;
    for (Answering& each : answers_) results.push_back(each.take_result());
    return results;
  }

 private:
  bool is_any(Answering::Phase phase) const {
    return std::ranges::any_of(answers_, [&](const Answering& a) { return a.phase() == phase; });
  }

  Result<void> check() const {
    for (size_t i = 0; i < answers_.size(); ++i) {
      Result<void> result = answers_[i].check();
      if (result) continue;
      if (answers_.size() > 1)
        result.error().message = fmt::format("text {}: {}", i + 1, result.error().message);
      return result;
    }
    return {};
  }

  // What all texts begin with, but for a token of each, which gives it logits.
  Pos shared_beginning() const {
    const auto& first = asked_.front().conversation->tokens;
    Pos shared = first.size() - 1;
    for (const Asked& each : asked_) {
      const auto& tokens = each.conversation->tokens;
      if (session_.length(each.conversation->seq) > 0) return 0;
      const auto differs = std::ranges::mismatch(tokens, first).in1;
      shared =
          std::min<Pos>({shared, static_cast<Pos>(differs - tokens.begin()), tokens.size() - 1});
    }
    return shared;
  }

  // Starts all answers. What their texts begin with is computed once: a fork shares every page.
  Result<void> read_beginning() {
    answers_.front().start();
    const Pos shared = asked_.size() == 1 ? 0 : shared_beginning();
    Answering& first = answers_.front();
    while (shared >= kWorthSharing && first.length() < shared) {
      const Pos count = first.next_part(shared - first.length());
      if (count == 0) break;
      CAIRN_TRY(read_parts({next_of(first, count)}));
    }
    for (size_t i = 1; i < answers_.size(); ++i) {
      if (first.length() > 0 && shared >= kWorthSharing) {
        SeqId& seq = asked_[i].conversation->seq;
        session_.drop(std::exchange(seq, session_.fork(asked_.front().conversation->seq)));
        answers_[i].after_step();
      }
      answers_[i].start();
    }
    return {};
  }

  // The next `count` tokens of its prompt.
  static Part next_of(Answering& who, Pos count) {
    return {.who = &who,
            .tokens = std::span(who.conversation().tokens).subspan(who.length(), count),
            .wanted = who.ends_with(count) ? Part::Logits::last : Part::Logits::none};
  }

  // A step over the next tokens of as many prompts as it has room for.
  Result<void> read() {
    std::vector<Part> parts;
    Pos room = asked_.front().options.chunk;
    for (Answering& each : answers_) {
      if (each.phase() != Answering::Phase::reading || room == 0) continue;
      const Pos count = each.next_part(room);
      if (count == 0) continue;
      parts.push_back(next_of(each, count));
      room -= count;
    }
    return parts.empty() ? Result<void>() : read_parts(parts);
  }

  Result<void> read_parts(const std::vector<Part>& parts) {
    Step step = CAIRN_TRY(plan_needed(parts));
    CAIRN_TRY(forward(step, parts));
    step.commit();
    for (const Part& part : parts) part.who->after_step();
    size_t row = 0;
    for (const Part& part : parts)
      CAIRN_TRY(part.who->read(part.wanted == Part::Logits::last ? logits(row++, 1)
                                                                 : std::span<const float>()));
    return {};
  }

  // Every answer that is not done goes on by a step, its drafts included.
  Result<void> go_on() {
    std::vector<Part> parts;
    size_t rows = 0;
    for (Answering& each : answers_) {
      const bool chooses = each.phase() == Answering::Phase::choosing;
      if (!chooses && each.phase() != Answering::Phase::finishing) continue;
      const auto tokens = each.next_round();
      if (rows > 0 && rows + tokens.size() > kMostRounds) {
        CAIRN_TRY(round(parts));
        parts.clear();
        rows = 0;
      }
      parts.push_back({.who = &each,
                       .tokens = tokens,
                       .wanted = chooses ? Part::Logits::all : Part::Logits::none});
      rows += tokens.size();
    }
    return round(parts);
  }

  // Computes the last token of each and the drafts after it, chooses as long as the drafts are
  // right, and keeps the state of all tokens but the last chosen one, which no draft needs to be.
  Result<void> round(std::vector<Part>& parts) {
    std::optional<Step> planned = plan_drafts(parts);
    const bool has_drafts = planned.has_value();
    if (!planned) {  // there may be memory for a token, though not for drafts
      leave_out_drafts(parts);
      planned = CAIRN_TRY(plan_needed(parts));
    }
    CAIRN_TRY(forward(*planned, parts));
    std::vector<Pos> kept;
    size_t row = 0;
    for (const Part& part : parts) {
      kept.push_back(1);
      if (part.wanted == Part::Logits::none) continue;
      kept.back() = CAIRN_TRY(part.who->choose_all(logits(row, part.tokens.size())));
      row += part.tokens.size();
    }
    if (has_drafts)
      planned->commit(kept);
    else
      planned->commit();
    for (size_t i = 0; i < parts.size(); ++i) parts[i].who->end_round(kept[i]);
    return {};
  }

  static std::vector<Run> runs_of(const std::vector<Part>& parts) {
    std::vector<Run> runs;
    for (const Part& part : parts)
      runs.push_back({.seq = part.who->conversation().seq, .count = part.tokens.size()});
    return runs;
  }

  // A round over tokens and drafts; none: there are no drafts, or there is no room for them.
  std::optional<Step> plan_drafts(const std::vector<Part>& parts) {
    if (std::ranges::none_of(parts, [](const Part& part) { return part.tokens.size() > 1; }))
      return std::nullopt;
    Result<Step> step = session_.plan(runs_of(parts), Round::yes);
    if (!step) return std::nullopt;
    return std::move(*step);
  }

  static void leave_out_drafts(std::vector<Part>& parts) {
    for (Part& part : parts) {
      part.who->leave_out_drafts();
      part.tokens = part.tokens.first(1);
    }
  }

  // A step that the answers cannot go on without. A guess may not cost it: where memory is short,
  // the drafters' state makes room.
  Result<Step> plan_needed(const std::vector<Part>& parts) {
    const std::vector<Run> runs = runs_of(parts);
    Result<Step> step = session_.plan(runs);
    for (Answering& each : answers_) {
      if (step || step.error().code != Code::NoSpace) break;
      if (each.give_way()) step = session_.plan(runs);
    }
    return step;
  }

  // Rows of the last forward pass.
  std::span<const float> logits(size_t first, size_t count) const {
    const size_t vocabulary = model_.vocabulary();
    return std::span(logits_).subspan(first * vocabulary, count * vocabulary);
  }

  Result<void> forward(Step& step, const std::vector<Part>& parts) {
    std::vector<int32_t> tokens;
    std::vector<uint32_t> wanted;
    std::vector<float*> hidden;
    for (const Part& part : parts) {
      const auto first = static_cast<uint32_t>(tokens.size());
      tokens.insert(tokens.end(), part.tokens.begin(), part.tokens.end());
      const auto end = static_cast<uint32_t>(tokens.size());
      const uint32_t from = part.wanted == Part::Logits::all    ? first
                            : part.wanted == Part::Logits::last ? end - 1
                                                                : end;
      for (uint32_t row = from; row < end; ++row) wanted.push_back(row);
      hidden.push_back(part.who->hidden_for(part.tokens.size()));
    }
    logits_.resize(wanted.size() * model_.vocabulary());
    if (parts.size() == 1)
      return model_.forward(step, tokens, wanted, logits_.data(), hidden.front());
    const bool wants_hidden = std::ranges::any_of(hidden, [](float* to) { return to != nullptr; });
    if (wants_hidden) hidden_.resize(tokens.size() * model_.hidden_width());
    CAIRN_TRY(model_.forward(step, tokens, wanted, logits_.data(),
                             wants_hidden ? hidden_.data() : nullptr));
    const float* from = hidden_.data();
    for (size_t i = 0; wants_hidden && i < parts.size(); ++i) {
      const size_t count = parts[i].tokens.size() * model_.hidden_width();
      if (hidden[i] != nullptr) std::memcpy(hidden[i], from, count * sizeof(float));
      from += count;
    }
    return {};
  }

  Model& model_;
  Session& session_;
  const std::span<const Asked> asked_;
  std::deque<Answering> answers_;  // one for each of asked_
  std::vector<float> logits_;      // of the last pass, [wanted rows, vocabulary]
  std::vector<float> hidden_;      // of it, where it had several parts
};

}  // namespace

Result<std::vector<Generated>> generate_together(Model& model,
                                                 Session& session,
                                                 std::span<const Asked> asked) {
  if (asked.empty()) return std::vector<Generated>();
  return Generation(model, session, asked).run();
}

Result<Generated> generate(Model& model,
                           Session& session,
                           Conversation& conversation,
                           Sampler& sampler,
                           const GenerateOptions& options) {
  const Asked asked{.conversation = &conversation, .sampler = &sampler, .options = options};
  std::vector<Generated> results =
      CAIRN_TRY(generate_together(model, session, std::span(&asked, 1)));
  return std::move(results.front());
}

}  // namespace cairn
