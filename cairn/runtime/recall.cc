#include "cairn/runtime/recall.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

namespace cairn {
namespace {

constexpr std::string_view kSampler = "sampler";
constexpr uint32_t kRequestVersion = 1;

Attachment sampler_attachment(const SamplerState& state) {
  Attachment attachment{.name = std::string(kSampler), .bytes = std::vector<std::byte>(16)};
  std::memcpy(attachment.bytes.data(), &state.seed, sizeof(uint64_t));
  std::memcpy(attachment.bytes.data() + sizeof(uint64_t), &state.draws, sizeof(uint64_t));
  return attachment;
}

std::optional<SamplerState> sampler_of(const MarkNotes& notes) {
  const auto found = std::ranges::find(notes.attachments, kSampler, &Attachment::name);
  SamplerState state;
  if (found == notes.attachments.end() || found->bytes.size() != 2 * sizeof(uint64_t))
    return std::nullopt;
  std::memcpy(&state.seed, found->bytes.data(), sizeof(uint64_t));
  std::memcpy(&state.draws, found->bytes.data() + sizeof(uint64_t), sizeof(uint64_t));
  return state;
}

}  // namespace

Recall::Recall(Prefixes& prefixes,
               Session& session,
               Conversation& conversation,
               RecallOptions options)
    : prefixes_(prefixes), session_(session), conversation_(conversation), options_(options) {}

// Keys in order and every number exact, so that equal requests have equal texts.
Digest Recall::name_of(const Request& request) const {
  const SamplingOptions& sampling = request.sampling;
  nlohmann::json text = {{"version", kRequestVersion},
                         {"prompt", conversation_.tokens},
                         {"max_tokens", request.max_tokens},
                         {"temperature", sampling.temperature},
                         {"top_k", sampling.top_k},
                         {"top_p", sampling.top_p},
                         {"min_p", sampling.min_p},
                         {"repetition_penalty", sampling.repetition_penalty},
                         {"repetition_window", sampling.repetition_window},
                         {"stops", request.stops}};
  if (request.has_seed) text["seed"] = sampling.seed;
  return sha256(text.dump());
}

// An interrupted answer to this very request.
bool Recall::resume_answer(Recalled& recalled) {
  auto generation = prefixes_.find_generation(session_, generation_);
  if (!generation) return false;
  const auto& prompt = conversation_.tokens;
  const auto& tokens = generation->tokens;
  const bool fits = generation->notes.pending && tokens.size() >= prompt.size() &&
                    std::equal(prompt.begin(), prompt.end(), tokens.begin());
  if (!fits) {
    session_.drop(generation->found.seq);
    return false;
  }
  session_.drop(std::exchange(conversation_.seq, generation->found.seq));
  recalled.answered.assign(tokens.begin() + static_cast<ptrdiff_t>(prompt.size()), tokens.end());
  recalled.answered.push_back(*generation->notes.pending);
  recalled.sampler = sampler_of(generation->notes);
  conversation_.tokens = std::move(generation->tokens);
  conversation_.tokens.push_back(*generation->notes.pending);
  recalled.from_ram = generation->found.from_ram;
  recalled.from_disk = generation->found.from_disk;
  published_ = std::move(generation->found.published);
  return true;
}

Recalled Recall::begin(const Request& request) {
  Recalled recalled;
  generation_ = name_of(request);
  prompt_tokens_ = conversation_.tokens.size();
  const bool is_resumed = options_.checkpoint_every > 0 && resume_answer(recalled);
  if (!is_resumed && prefixes_.longest(conversation_.tokens) > session_.length(conversation_.seq)) {
    Found found = prefixes_.find(session_, conversation_.tokens);
    if (found.length > session_.length(conversation_.seq)) {
      session_.drop(std::exchange(conversation_.seq, found.seq));
      published_ = std::move(found.published);
      recalled.from_ram = found.from_ram;
      recalled.from_disk = found.from_disk;
    } else {
      session_.drop(found.seq);
    }
  }
  recalled.reused = session_.length(conversation_.seq);
  checkpointed_ = conversation_.tokens.size();
  return recalled;
}

std::vector<Pos> Recall::cuts() const {
  std::vector<Pos> cuts;
  const bool needs_marks = std::ranges::any_of(session_.slots(), [&](SlotId slot) {
    return session_.is_recurrent(session_.group_of(slot));
  });
  if (!needs_marks || prompt_tokens_ == 0) return cuts;
  // All but the last token is what the same prompt can reuse.
  for (Pos cut = options_.boundary_every; cut + 1 < prompt_tokens_; cut += options_.boundary_every)
    cuts.push_back(cut);
  cuts.push_back(prompt_tokens_ - 1);
  return cuts;
}

void Recall::after_step(const Sampler& sampler) {
  const Pos length = session_.length(conversation_.seq);
  const std::vector<Pos> marks = cuts();
  if (std::ranges::binary_search(marks, length))
    prefixes_.mark(session_, conversation_.seq, conversation_.tokens, published_,
                   MarkUse::Boundary);
  else
    prefixes_.publish(session_, conversation_.seq, conversation_.tokens, published_);
  // What an answer goes on from: a token whose state is not there yet, and the sampler that chose
  // it.
  if (length + 1 == conversation_.tokens.size()) checkpoint(sampler);
}

void Recall::checkpoint(const Sampler& sampler) {
  const size_t tokens = conversation_.tokens.size();
  if (options_.checkpoint_every == 0 || tokens - checkpointed_ < options_.checkpoint_every) return;
  checkpointed_ = tokens;
  MarkNotes notes{.pending = conversation_.tokens.back(),
                  .attachments = {sampler_attachment(sampler.state())}};
  prefixes_.save_generation(session_, conversation_.seq, conversation_.tokens, published_,
                            generation_, std::move(notes));
}

void Recall::end(Finish finish) {
  prefixes_.mark(session_, conversation_.seq, conversation_.tokens, published_);
  if (finish != Finish::cancelled && options_.checkpoint_every > 0)
    prefixes_.finish_generation(generation_);
}

}  // namespace cairn
