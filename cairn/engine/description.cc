#include "cairn/engine/description.h"

#include <algorithm>

#include "cairn/state/recurrent.h"

namespace cairn {
namespace {

CheckpointFamily describe_family(const FamilySpec& family, const Codec& codec, Pos begin, Pos end) {
  CheckpointFamily out{.name = std::string(family.family->name),
                       .encoding = codec.encoding->print(codec.params),
                       .heads = family.heads,
                       .width = family.width,
                       .begin = begin,
                       .end = end,
                       .planes = {}};
  for (const PlaneGeometry& plane : codec.geometry.planes)
    out.planes.push_back({.name = std::string(plane.name),
                          .dtype = std::string(plane.dtype),
                          .record_bytes = plane.record_bytes});
  return out;
}

// Of `length` positions those below this are exact.
Pos exact_end(const Scheme& scheme, Pos length) {
  return length < scheme.after ? length : std::min(length, scheme.keeps_exact());
}

CheckpointSlot describe_slot(const SlotSpec& slot,
                             const std::vector<Codec>& codecs,
                             const Scheme& scheme,
                             Pos length) {
  CheckpointSlot out{.kind = std::string(slot.kind->name),
                     .is_fixed = slot.families[0].family->is_fixed,
                     .window = slot.retention.window,
                     .sinks = slot.retention.sinks,
                     .rewind = slot.retention.rewind,
                     .max_positions = slot.max_positions,
                     .families = {}};
  const Pos end = out.is_fixed ? std::min<Pos>(1, length) : length;
  const bool has_exact_form = scheme.has_exact_form() && !out.is_fixed;
  const Pos split = has_exact_form ? exact_end(scheme, length) : 0;
  for (size_t i = 0; i < slot.families.size(); ++i) {
    const FamilySpec& family = slot.families[i];
    if (has_exact_form)
      out.families.push_back(describe_family(family, tensor_codec(family), 0, split));
    out.families.push_back(describe_family(family, codecs[i], split, end));
  }
  return out;
}

// A zero digest stands for "none".
std::string name_of(const Digest& digest) { return digest.is_zero() ? "none" : hex(digest); }

Result<void> check_equal(std::string_view what, const auto& found, const auto& expected) {
  if (found != expected) return fail(Code::Mismatch, "{} {}, expected {}", what, found, expected);
  return {};
}

Result<void> check_quoted(std::string_view what,
                          const std::string& found,
                          const std::string& expected) {
  if (found != expected)
    return fail(Code::Mismatch, "{} \"{}\", expected \"{}\"", what, found, expected);
  return {};
}

Result<void> check_known(const CheckpointSlot& slot, const Registry& registry) {
  if (registry.kind_named(slot.kind) == nullptr)
    return fail(Code::Unsupported, "kind \"{}\", unknown to the registry \"{}\"", slot.kind,
                registry.id);
  for (const CheckpointFamily& family : slot.families)
    if (!parse_encoding(registry, family.encoding))
      return fail(Code::Unsupported, "{} is encoded as \"{}\", unknown to the registry \"{}\"",
                  family.name, family.encoding, registry.id);
  return {};
}

Result<void> check_family(const CheckpointFamily& found, const CheckpointFamily& expected) {
  CAIRN_TRY(check_equal("family", found.name, expected.name));
  CAIRN_TRY(check_equal(found.name + " has heads:", found.heads, expected.heads));
  CAIRN_TRY(check_equal(found.name + " has width", found.width, expected.width));
  CAIRN_TRY(check_equal(found.name + " holds", found.encoding, expected.encoding));
  if (found.planes != expected.planes)
    return fail(Code::Mismatch, "{} holds {} with other planes than this build writes", found.name,
                found.encoding);
  CAIRN_TRY(check_equal(fmt::format("{} in {} from position", found.name, found.encoding),
                        found.begin, expected.begin));
  return check_equal(fmt::format("{} in {} up to position", found.name, found.encoding), found.end,
                     expected.end);
}

// Not rewind, which says how much more than the window is kept, and not max_positions, which the
// session checks itself.
Result<void> check_slot(const CheckpointSlot& found, const CheckpointSlot& expected) {
  CAIRN_TRY(check_equal("kind", found.kind, expected.kind));
  CAIRN_TRY(check_equal("window", found.window, expected.window));
  CAIRN_TRY(check_equal("sinks:", found.sinks, expected.sinks));
  if (found.is_fixed != expected.is_fixed)
    return fail(Code::Mismatch, "{}, expected {}",
                found.is_fixed ? "fixed tensors" : "records by position",
                expected.is_fixed ? "fixed tensors" : "records by position");
  CAIRN_TRY(check_equal("forms of records:", forms_of(found), forms_of(expected)));
  CAIRN_TRY(check_equal("families:", found.families.size(), expected.families.size()));
  for (size_t i = 0; i < found.families.size(); ++i)
    CAIRN_TRY(check_family(found.families[i], expected.families[i]));
  return {};
}

Result<SlotSpec> slot_of(const CheckpointSlot& slot, const Registry& registry) {
  SlotSpec out{.kind = registry.kind_named(slot.kind),
               .families = {},
               .retention = {.window = slot.window, .sinks = slot.sinks},
               .max_positions = slot.max_positions,
               .advance = {}};
  if (out.kind == nullptr)
    return fail(Code::Unsupported, "kind \"{}\", unknown to the registry \"{}\"", slot.kind,
                registry.id);
  if (slot.window != 0) out.retention.rewind = slot.rewind;
  for (size_t i = 0; i < slot.families.size(); i += forms_of(slot)) {
    const CheckpointFamily& family = slot.families[i];
    const auto known = std::ranges::find(out.kind->families, family.name, &Family::name);
    if (known == out.kind->families.end() || family.heads > UINT32_MAX || family.width > UINT32_MAX)
      return fail(Code::Unsupported, "family \"{}\" [{}, {}], unknown to the kind \"{}\"",
                  family.name, family.heads, family.width, slot.kind);
    out.families.push_back(
        {*known, static_cast<uint32_t>(family.heads), static_cast<uint32_t>(family.width)});
  }
  CAIRN_TRY(out.kind->validate(out));
  return out;
}

Result<void> in_slot(size_t index, Result<void> result) {
  if (!result) return fail(result.error().code, "slot {}: {}", index, result.error().message);
  return result;
}

}  // namespace

Result<CheckpointInfo> describe_session(const ModelSpec& spec,
                                        const Scheme& scheme,
                                        const Registry& registry,
                                        const std::string& name_space,
                                        Pos length) {
  const auto codecs = CAIRN_TRY(resolve(scheme, spec));
  CheckpointInfo info;
  info.registry = registry.id;
  info.identity = spec.identity;
  info.tokenizer = spec.tokenizer;
  info.adapter = spec.adapter;
  info.arithmetic = arithmetic_id(spec);
  info.name_space = name_space;
  info.scheme = print(scheme);
  info.encoded_after = scheme.after;
  info.length = length;
  for (size_t i = 0; i < spec.slots.size(); ++i)
    info.slots.push_back(describe_slot(spec.slots[i], codecs[i], scheme, length));
  return info;
}

Result<ModelSpec> model_of(const CheckpointInfo& file, const Registry& registry) {
  ModelSpec spec{.identity = file.identity,
                 .tokenizer = file.tokenizer,
                 .adapter = file.adapter,
                 .arithmetic = {},
                 .slots = {}};
  for (size_t i = 0; i < file.slots.size(); ++i) {
    auto slot = slot_of(file.slots[i], registry);
    if (!slot) return fail(slot.error().code, "slot {}: {}", i, slot.error().message);
    spec.slots.push_back(std::move(*slot));
  }
  return spec;
}

Result<void> check_fit(const CheckpointInfo& file,
                       const CheckpointInfo& session,
                       const Registry& registry) {
  for (size_t i = 0; i < file.slots.size(); ++i)
    CAIRN_TRY(in_slot(i, check_known(file.slots[i], registry)));
  CAIRN_TRY(check_quoted("registry", file.registry, session.registry));
  if (file.identity.is_zero())
    return fail(Code::Mismatch,
                "imported without a model, expected one of {}: cairn convert IN OUT --model MODEL "
                "gives it one",
                name_of(session.identity));
  CAIRN_TRY(check_equal("model", name_of(file.identity), name_of(session.identity)));
  CAIRN_TRY(check_equal("tokenizer", name_of(file.tokenizer), name_of(session.tokenizer)));
  CAIRN_TRY(check_equal("adapter", name_of(file.adapter), name_of(session.adapter)));
  CAIRN_TRY(check_quoted("namespace", file.name_space, session.name_space));
  CAIRN_TRY(check_equal("encoded after positions:", file.encoded_after, session.encoded_after));
  CAIRN_TRY(check_equal("slots:", file.slots.size(), session.slots.size()));
  for (size_t i = 0; i < file.slots.size(); ++i)
    CAIRN_TRY(in_slot(i, check_slot(file.slots[i], session.slots[i])));
  // Equal encodings may still come of different rules.
  return check_equal("scheme", file.scheme, session.scheme);
}

}  // namespace cairn
