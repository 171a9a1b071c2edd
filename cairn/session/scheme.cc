#include "cairn/session/scheme.h"

#include <charconv>

#include "cairn/state/recurrent.h"

namespace cairn {
namespace {

constexpr std::string_view kSlots = "slots";
constexpr std::string_view kKeep = "-keep", kAfter = "-after", kTurbo = "turbo-k";

std::optional<uint32_t> parse_number(std::string_view text) {
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() ||
      (text.size() > 1 && text[0] == '0'))
    return std::nullopt;
  return value;
}

// "slots3", "slots0-3" or a family's name.
Result<void> parse_selector(std::string_view text, Scheme::Rule& rule) {
  if (!text.starts_with(kSlots)) {
    rule.family = text;
    if (text.empty()) return fail(Code::BadInput, "no slots or family before the colon");
    return {};
  }
  text.remove_prefix(kSlots.size());
  const size_t dash = text.find('-');
  const auto first = parse_number(text.substr(0, dash));
  const auto last = dash == text.npos ? first : parse_number(text.substr(dash + 1));
  if (!first || !last || *last < *first)
    return fail(Code::BadInput, "\"slots{}\" is no range of slots, expected one like slots0-3",
                text);
  rule.first_slot = *first;
  rule.last_slot = *last;
  return {};
}

Result<Scheme::Rule> parse_rule(std::string_view text, const Registry& registry) {
  Scheme::Rule rule;
  const size_t colon = text.find(':');
  if (colon == text.npos)
    return fail(Code::BadInput, "\"{}\" has no colon, expected one like value:f32 or slots0-3:f32",
                text);
  CAIRN_TRY(parse_selector(text.substr(0, colon), rule));
  rule.encoding = CAIRN_TRY(parse_encoding(registry, text.substr(colon + 1)));
  return rule;
}

// Takes "-after512" or "-keep64" off the text's end.
Result<Pos> take_count(std::string_view& text, std::string_view name) {
  const size_t at = text.rfind(name);
  if (at == text.npos) return Pos{0};
  const auto count = parse_number(text.substr(at + name.size()));
  if (!count || *count == 0)
    return fail(Code::BadInput, "\"{}\" is no count of positions, expected one like {}64",
                text.substr(at), name);
  text = text.substr(0, at);
  return Pos{*count};
}

// "turbo-k8v3": an encoding for what is scored and one for what is only accumulated.
Result<void> parse_base(std::string_view text, const Registry& registry, Scheme& scheme) {
  const size_t v = text.find('v', kTurbo.size());
  if (text.starts_with(kTurbo) && text.size() > kTurbo.size() && v != text.npos &&
      parse_number(text.substr(kTurbo.size(), v - kTurbo.size()))) {
    const std::string key =
        fmt::format("turbo-key{}", text.substr(kTurbo.size(), v - kTurbo.size()));
    scheme.base = CAIRN_TRY(parse_encoding(registry, key));
    scheme.accumulated =
        CAIRN_TRY(parse_encoding(registry, fmt::format("turbo-value{}", text.substr(v + 1))));
    return {};
  }
  scheme.base = CAIRN_TRY(parse_encoding(registry, text));
  scheme.accumulated = scheme.base;
  return {};
}

std::string print_base(const Scheme& scheme) {
  std::string key = scheme.base.text();
  if (scheme.base == scheme.accumulated) return key;
  const auto bits = [](const std::string& text) {
    return text.substr(text.find_last_not_of("0123456789") + 1);
  };
  return fmt::format("{}{}v{}", kTurbo, bits(key), bits(scheme.accumulated.text()));
}

Result<Scheme> parse(std::string_view text, const Registry& registry) {
  Scheme scheme;
  size_t plus = text.find('+');
  std::string_view base = text.substr(0, plus);
  scheme.after = CAIRN_TRY(take_count(base, kAfter));
  scheme.keep = CAIRN_TRY(take_count(base, kKeep));
  CAIRN_TRY(parse_base(base, registry, scheme));
  while (plus != text.npos) {
    text.remove_prefix(plus + 1);
    plus = text.find('+');
    scheme.rules.push_back(CAIRN_TRY(parse_rule(text.substr(0, plus), registry)));
  }
  return scheme;
}

bool meets(const Scheme::Rule& rule, size_t slot, const FamilySpec& family) {
  return slot >= rule.first_slot && slot <= rule.last_slot &&
         (rule.family.empty() || rule.family == family.family->name);
}

std::string print_selector(const Scheme::Rule& rule) {
  if (!rule.family.empty()) return rule.family;
  if (rule.first_slot == rule.last_slot) return fmt::format("{}{}", kSlots, rule.first_slot);
  return fmt::format("{}{}-{}", kSlots, rule.first_slot, rule.last_slot);
}

Result<void> check_rules_are_met(const Scheme& scheme, const ModelSpec& spec) {
  for (const Scheme::Rule& rule : scheme.rules) {
    bool is_met = rule.family.empty() && rule.last_slot < spec.slots.size();
    for (const SlotSpec& slot : spec.slots)
      for (const FamilySpec& family : slot.families)
        is_met |= !rule.family.empty() && rule.family == family.family->name;
    if (!is_met)
      return fail(Code::BadInput, "scheme {}: \"{}\" names nothing that this model has ({} slots)",
                  print(scheme), print_selector(rule), spec.slots.size());
  }
  return {};
}

}  // namespace

Result<Scheme> parse_scheme(std::string_view text, const Registry& registry) {
  auto scheme = parse(text, registry);
  if (!scheme) return fail(scheme.error().code, "scheme \"{}\": {}", text, scheme.error().message);
  return scheme;
}

std::string print(const Scheme& scheme) {
  std::string text = print_base(scheme);
  if (scheme.keep != 0) text += fmt::format("{}{}", kKeep, scheme.keep);
  if (scheme.after != 0) text += fmt::format("{}{}", kAfter, scheme.after);
  for (const Scheme::Rule& rule : scheme.rules)
    text += fmt::format("+{}:{}", print_selector(rule), rule.encoding.text());
  return text;
}

Result<std::vector<std::vector<Codec>>> resolve(const Scheme& scheme, const ModelSpec& spec) {
  CAIRN_TRY(check_rules_are_met(scheme, spec));
  std::vector<std::vector<Codec>> codecs(spec.slots.size());
  for (size_t slot = 0; slot < spec.slots.size(); ++slot)
    for (const FamilySpec& family : spec.slots[slot].families) {
      if (family.family->is_fixed) {
        codecs[slot].push_back(tensor_codec(family));
        continue;
      }
      EncodingChoice choice = family.family->is_accumulated && !family.family->is_scored
                                  ? scheme.accumulated
                                  : scheme.base;
      for (const Scheme::Rule& rule : scheme.rules)
        if (meets(rule, slot, family)) choice = rule.encoding;
      if (choice.encoding->settle != nullptr)
        choice.params = choice.encoding->settle(
            choice.params, family.family->serves_all_heads ? Precision::fine : Precision::usual);
      auto codec = make_codec(*choice.encoding, choice.params, family.width);
      if (!codec)
        return fail(codec.error().code, "scheme {}: slot {}, {}: {}", print(scheme), slot,
                    family.family->name, codec.error().message);
      codecs[slot].push_back(std::move(*codec));
    }
  return codecs;
}

}  // namespace cairn
