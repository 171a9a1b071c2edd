#include "cairn/engine/convert.h"

#include <fmt/format.h>

#include <algorithm>

#include "cairn/engine/description.h"

namespace cairn {
namespace {

// Tells how much of a sequence has been read.
class Counted final : public StoredSequence {
 public:
  Counted(StoredSequence& from, uint64_t total, const ConvertOptions& options)
      : from_(from), total_(total), options_(options) {}
  const CheckpointInfo& info() const override { return from_.info(); }
  Result<void> read(PlaneId plane,
                    uint64_t first_row,
                    uint64_t rows,
                    std::span<std::byte> out) override {
    CAIRN_TRY(from_.read(plane, first_row, rows, out));
    done_ += out.size();
    if (options_.progress) options_.progress(done_, total_);
    return {};
  }

 private:
  StoredSequence& from_;
  uint64_t done_ = 0, total_;
  const ConvertOptions& options_;
};

struct Source {
  std::unique_ptr<StoredSequence> sequence;
  FileKind kind = FileKind::checkpoint;
};

Result<Source> open_source(const std::string& path, const ConvertOptions& options) {
  auto checkpoint = open_checkpoint(*options.fs, path);
  if (checkpoint) return Source{std::move(*checkpoint), FileKind::checkpoint};
  if (checkpoint.error().code != Code::BadInput) return tl::unexpected<Error>(checkpoint.error());
  const ModelSpec* model = options.owner != nullptr ? &options.owner->spec : nullptr;
  auto prompt_cache = CAIRN_TRY(open_prompt_cache(*options.fs, path, model, *options.registry));
  return Source{std::move(prompt_cache), FileKind::prompt_cache};
}

// Position by position; a family that covers nothing says nothing.
bool is_all_exact(const CheckpointInfo& info) {
  for (const CheckpointSlot& slot : info.slots)
    for (const CheckpointFamily& family : slot.families)
      if (stored_rows(slot, family) > 0 && family.encoding != kF32.name) return false;
  return true;
}

bool has_same_records(const CheckpointInfo& a, const CheckpointInfo& b) {
  return std::ranges::equal(a.slots, b.slots, [](const auto& ours, const auto& theirs) {
    return ours.families == theirs.families;
  });
}

// Whether a run under the scheme of `to` would have stored other records than those that come of
// `from`. One that was exact when its last position was computed would not: it is encoded then.
bool is_derived(const CheckpointInfo& from, const CheckpointInfo& to) {
  if (from.is_derived) return true;
  if (has_same_records(from, to)) return false;
  return !is_all_exact(from) || !(is_all_exact(to) || to.length == to.encoded_after);
}

Result<CheckpointInfo> under_scheme(const CheckpointInfo& from,
                                    const Scheme& scheme,
                                    const Registry& registry) {
  const ModelSpec spec = CAIRN_TRY(model_of(from, registry));
  CheckpointInfo to =
      CAIRN_TRY(describe_session(spec, scheme, registry, from.name_space, from.length));
  to.arithmetic = from.arithmetic;
  to.tokens = from.tokens;
  for (size_t i = 0; i < to.slots.size(); ++i) {
    to.slots[i].rewind = from.slots[i].rewind;
    to.slots[i].first_kept = from.slots[i].first_kept;
  }
  to.is_derived = is_derived(from, to);
  return to;
}

// The owner's names, if the sequence can be its state.
Result<void> give_to(const StateOwner& owner, CheckpointInfo& info, const Registry& registry) {
  if (!info.identity.is_zero() && info.identity != owner.spec.identity)
    return fail(Code::Mismatch, "model {}, expected {}", hex(info.identity),
                hex(owner.spec.identity));
  info.identity = owner.spec.identity;
  info.tokenizer = owner.spec.tokenizer;
  ModelSpec spec = owner.spec;
  spec.adapter = info.adapter;
  const Scheme scheme = CAIRN_TRY(parse_scheme(info.scheme, registry));
  const CheckpointInfo expected =
      CAIRN_TRY(describe_session(spec, scheme, registry, info.name_space, info.length));
  for (size_t i = 0; i < std::min(info.slots.size(), spec.slots.size()); ++i)
    info.slots[i].max_positions = spec.slots[i].max_positions;
  return check_fit(info, expected, registry);
}

// Keys as numbers that can be put into another order.
CheckpointInfo with_plain_keys(CheckpointInfo info) {
  for (CheckpointSlot& slot : info.slots)
    for (CheckpointFamily& family : slot.families)
      if (family.name == kKeyFamily.name && !holds_plain_numbers(family))
        family = in_f32(std::move(family));
  return info;
}

// A sequence read as the target describes it.
struct Pipeline {
  std::unique_ptr<Recoded> plain;
  std::unique_ptr<Reordered> reordered;
  std::unique_ptr<Recoded> result;
};

Result<Pipeline> make_pipeline(StoredSequence& from,
                               const CheckpointInfo& to,
                               std::optional<PairOrder> order,
                               const ConvertOptions& options) {
  Pipeline pipeline;
  StoredSequence* last = &from;
  if (order) {
    pipeline.plain =
        CAIRN_TRY(Recoded::make(from, with_plain_keys(from.info()), *options.registry));
    pipeline.reordered =
        std::make_unique<Reordered>(*pipeline.plain, *order, options.owner->adjacent_pairs);
    last = pipeline.reordered.get();
  }
  pipeline.result = CAIRN_TRY(Recoded::make(*last, to, *options.registry));
  return pipeline;
}

// Which order the keys must be brought into; none: they are in it. Keys of no model's are in
// mlx-lm's.
Result<std::optional<PairOrder>> order_of(const CheckpointInfo& from,
                                          const ConvertOptions& options) {
  const bool is_foreign = from.identity.is_zero();
  if (options.owner == nullptr && !is_foreign && options.to == FileKind::prompt_cache)
    return fail(Code::BadInput,
                "the state of model {}, which must be named: it knows the order of its keys",
                hex(from.identity));
  const bool is_foreign_after = options.to == FileKind::prompt_cache || options.owner == nullptr;
  if (options.owner == nullptr || options.owner->adjacent_pairs == 0 ||
      is_foreign == is_foreign_after)
    return std::nullopt;
  return is_foreign_after ? PairOrder::halves : PairOrder::adjacent;
}

std::string families_text(const std::set<std::string>& families) {
  return fmt::format("{}", fmt::join(families, ", "));
}

std::vector<std::string> warnings_of(const Losses& lost,
                                     const Losses& unknown,
                                     uint64_t saturated) {
  std::vector<std::string> warnings;
  for (const auto& [encoding, families] : lost)
    warnings.push_back(fmt::format("{} from {}: what that encoding lost stays lost",
                                   families_text(families), encoding));
  for (const auto& [encoding, families] : unknown)
    warnings.push_back(fmt::format("{} in {}: mlx-lm cannot hold that, so they are f32 there",
                                   families_text(families), encoding));
  if (saturated > 0)
    warnings.push_back(
        fmt::format("{} numbers are beyond the range of their encoding: they saturate", saturated));
  return warnings;
}

Result<uint64_t> write(const std::string& path,
                       StoredSequence& sequence,
                       const ConvertOptions& options) {
  const CheckpointLayout layout = CAIRN_TRY(make_layout(sequence.info()));
  Counted counted(sequence, layout.file_bytes - layout.data_offset, options);
  if (options.to == FileKind::prompt_cache) return write_prompt_cache(*options.fs, path, counted);
  const auto rows = [&](const CheckpointTensor& tensor, uint64_t first_row, uint64_t count,
                        std::span<std::byte> out) {
    return counted.read({tensor.slot, tensor.family, tensor.plane}, first_row, count, out);
  };
  CAIRN_TRY(write_checkpoint(*options.fs, path, sequence.info(), rows));
  return layout.file_bytes;
}

}  // namespace

bool is_sequence_file(FileSystem& fs, const std::string& path) {
  const auto checkpoint = open_checkpoint(fs, path);
  if (checkpoint || checkpoint.error().code == Code::Unsupported ||
      checkpoint.error().code == Code::Corrupt)
    return true;
  return open_prompt_cache(fs, path, nullptr, builtin()).has_value();
}

Result<Conversion> convert(const std::string& in,
                           const std::string& out,
                           const ConvertOptions& options) {
  const Source source = CAIRN_TRY(open_source(in, options));
  const auto with_path = [&](const Error& error) {
    return fail(error.code, "{}: {}", in, error.message);
  };
  const CheckpointInfo& from = source.sequence->info();
  CheckpointInfo to = from;
  if (options.scheme) {
    auto described = under_scheme(from, *options.scheme, *options.registry);
    if (!described) return with_path(described.error());
    to = std::move(*described);
  }
  if (options.owner != nullptr)
    if (auto given = give_to(*options.owner, to, *options.registry); !given)
      return with_path(given.error());
  auto order = order_of(from, options);
  if (!order) return with_path(order.error());

  Losses lost = losses_of(from, to), unknown;
  if (options.to == FileKind::prompt_cache) {
    auto counterpart = as_mlx_lm(std::move(to), unknown);
    if (!counterpart) return with_path(counterpart.error());
    to = std::move(*counterpart);
  }
  if (*order)  // on the way to their new order keys are numbers
    for (const auto& [encoding, families] : losses_of(from, with_plain_keys(from)))
      if (!unknown.contains(encoding)) lost[encoding].insert(families.begin(), families.end());
  auto pipeline = make_pipeline(*source.sequence, to, *order, options);
  if (!pipeline) return with_path(pipeline.error());
  const uint64_t file_bytes = CAIRN_TRY(write(out, *pipeline->result, options));
  return Conversion{.from = from,
                    .to = std::move(to),
                    .from_kind = source.kind,
                    .file_bytes = file_bytes,
                    .warnings = warnings_of(lost, unknown, pipeline->result->saturated())};
}

}  // namespace cairn
