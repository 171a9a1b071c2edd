#include "cairn/runtime/chat_template.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

namespace cairn {
namespace {

constexpr size_t kMaxTemplateBytes = 1 << 16;  // what is searched is a stranger's

std::string joined(std::initializer_list<std::string_view> parts) {
  std::string text;
  for (const std::string_view part : parts) text += part;
  return text;
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (size_t at = text.find(from); at != std::string_view::npos; at = text.find(from)) {
    out += text.substr(0, at);
    out += to;
    text.remove_prefix(at + from.size());
  }
  return out += text;
}

// A template's text in one spelling: no spaces, one kind of quotes and of member access, newlines
// as themselves, adjacent literals joined. So that what two authors write differently and mean
// alike is compared as equal.
std::string condensed(std::string_view template_text) {
  std::string text(template_text);
  for (const auto& [from, to] :
       std::initializer_list<std::pair<std::string_view, std::string_view>>{
           {" ", ""},
           {"\\n", "\n"},
           {"\"", "'"},
           {"message.role", "message['role']"},
           {"message.content", "message['content']"},
           {"'+'", ""}})
    text = replaced(text, from, to);
  return text;
}

bool holds_all(std::string_view text, std::initializer_list<std::string_view> parts) {
  for (const std::string_view part : parts)
    if (text.find(part) == std::string_view::npos) return false;
  return true;
}

// What the templates' trim does to ASCII.
std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\n\r\f\v";
  const size_t first = text.find_first_not_of(kBlank);
  return first == std::string_view::npos
             ? ""
             : text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

// --- ChatML ---

// Whether every system message that the template writes from a variable is one of the
// conversation's.
bool writes_given_system(std::string_view text) {
  constexpr std::string_view kStart = "<|im_start|>system\n'+";
  for (size_t at = text.find(kStart); at != std::string_view::npos;
       at = text.find(kStart, at + 1)) {
    const std::string_view written = text.substr(at + kStart.size());
    if (!written.starts_with("messages[0]['content']") &&
        !written.starts_with("messages[0].content"))
      return false;
  }
  return true;
}

bool is_chatml(std::string_view text) {
  return holds_all(text, {"'<|im_start|>'+message['role']+'\n'+message['content']+'<|im_end|>\n'",
                          "<|im_start|>assistant\n"}) &&
         writes_given_system(text);
}

Result<std::string> chatml_turn(const ChatTurn& turn, std::string_view default_system) {
  const auto written = [](std::string_view role, std::string_view content) {
    return joined({"<|im_start|>", role, "\n", content, "<|im_end|>\n"});
  };
  const bool needs_system = !turn.previous_role && turn.role != "system" && !default_system.empty();
  return (needs_system ? written("system", default_system) : "") + written(turn.role, turn.content);
}

// The text of a string literal from its opening quote's right on, up to `end`; none: the literal
// ends before. A `quote` that is no quotation mark: the text stands in the template itself, up to
// the next expression.
std::optional<std::string> literal_until(std::string_view text, char quote, std::string_view end) {
  const bool is_quoted = quote == '\'' || quote == '"';
  std::string literal;
  while (!text.empty() && !text.starts_with(end)) {
    if (is_quoted ? text[0] == quote : text[0] == '{') return std::nullopt;
    const bool is_escape = is_quoted && text[0] == '\\' && text.size() > 1;
    if (is_escape) text.remove_prefix(1);
    literal += is_escape && text[0] == 'n' ? '\n' : text[0];
    text.remove_prefix(1);
  }
  return text.empty() ? std::nullopt : std::optional(literal);
}

// The system message that a template holds as one literal: it stands in for a missing one.
std::string default_system_of(std::string_view template_text) {
  constexpr std::string_view kStart = "<|im_start|>system";
  for (size_t at = template_text.find(kStart); at != std::string_view::npos;
       at = template_text.find(kStart, at + 1)) {
    const char quote = at > 0 ? template_text[at - 1] : '\0';
    const auto literal =
        literal_until(template_text.substr(at + kStart.size()), quote, "<|im_end|>");
    if (literal && literal->starts_with('\n')) return literal->substr(1);
  }
  return "";
}

std::string no_default_system(std::string_view) { return ""; }

// --- Gemma ---

bool is_gemma_without_system(std::string_view text) {
  return holds_all(text, {"Systemrolenotsupported",
                          "'<start_of_turn>'+role+'\n'+message['content']|trim+'<end_of_turn>\n'",
                          "<start_of_turn>model\n"});
}

bool is_gemma(std::string_view text) {
  return holds_all(text, {"first_user_prefix=messages[0]['content']+'\n\n'", "first_user_prefix=''",
                          "message['content']|trim",
                          "'<start_of_turn>'+role+'\n'+(first_user_prefixifloop.firstelse'')",
                          "'<end_of_turn>\n'", "<start_of_turn>model\n"});
}

tl::unexpected<Error> misplaced(const ChatTurn& turn, std::string_view expected) {
  const std::string place =
      turn.previous_role ? joined({"after one of \"", *turn.previous_role, "\""}) : "first";
  return fail(Code::BadInput, "chat: found a turn of \"{}\" {}, expected one of \"{}\"", turn.role,
              place, expected);
}

// Users and the model take turns, the user first.
Result<std::string> gemma_turn_without_system(const ChatTurn& turn, std::string_view) {
  if (!turn.previous_role || *turn.previous_role != "user") {
    if (turn.role != "user") return misplaced(turn, "user");
    return joined({"<start_of_turn>user\n", trimmed(turn.content), "<end_of_turn>\n"});
  }
  if (turn.role != "assistant" && turn.role != "model") return misplaced(turn, "assistant");
  return joined({"<start_of_turn>model\n", trimmed(turn.content), "<end_of_turn>\n"});
}

// A system message has no turn: it opens the first user's.
Result<std::string> gemma_turn(const ChatTurn& turn, std::string_view) {
  if (turn.role == "system" && !turn.previous_role)
    return joined({"<start_of_turn>user\n", turn.content, "\n\n"});
  if (turn.previous_role != "system") return gemma_turn_without_system(turn, "");
  if (turn.role != "user") return misplaced(turn, "user");
  return joined({trimmed(turn.content), "<end_of_turn>\n"});
}

// --- Llama 3 (the form of 3.0; later ones write dates and tools) ---

bool is_llama3(std::string_view text) {
  return holds_all(text, {"'<|start_header_id|>'+message['role']+'<|end_header_id|>\n\n'+message['"
                          "content']|trim+'<|eot_id|>'"}) &&
         !holds_all(text, {"CuttingKnowledgeDate"});
}

Result<std::string> llama3_turn(const ChatTurn& turn, std::string_view) {
  return joined({"<|start_header_id|>", turn.role, "<|end_header_id|>\n\n", trimmed(turn.content),
                 "<|eot_id|>"});
}

constexpr ChatFormat kFormats[] = {
    {.name = "ChatML",
     .recognises = is_chatml,
     .architecture = "",
     .default_system = default_system_of,
     .turn = chatml_turn,
     .reply_start = "<|im_start|>assistant\n",
     .stop = "<|im_end|>",
     .turn_end = "<|im_end|>\n"},
    {.name = "Gemma without system messages",
     .recognises = is_gemma_without_system,
     .architecture = "",
     .default_system = no_default_system,
     .turn = gemma_turn_without_system,
     .reply_start = "<start_of_turn>model\n",
     .stop = "<end_of_turn>",
     .turn_end = "<end_of_turn>\n"},
    {.name = "Gemma",
     .recognises = is_gemma,
     .architecture = "gemma3",
     .default_system = no_default_system,
     .turn = gemma_turn,
     .reply_start = "<start_of_turn>model\n",
     .stop = "<end_of_turn>",
     .turn_end = "<end_of_turn>\n"},
    {.name = "Llama 3",
     .recognises = is_llama3,
     .architecture = "",
     .default_system = no_default_system,
     .turn = llama3_turn,
     .reply_start = "<|start_header_id|>assistant<|end_header_id|>\n\n",
     .stop = "<|eot_id|>",
     .turn_end = "<|eot_id|>"},
};

std::string known_names() {
  std::string names;
  for (const ChatFormat& format : kFormats)
    names += joined({names.empty() ? "" : ", ", format.name});
  return names;
}

std::string beginning(std::string_view template_text) {
  return replaced(template_text.substr(0, 60), "\n", " ");
}

}  // namespace

Result<ChatTemplate> choose_chat_template(std::string_view template_text,
                                          std::string_view architecture) {
  if (template_text.size() > kMaxTemplateBytes)
    return fail(Code::Unsupported, "chat template: found {} bytes, expected at most {}",
                template_text.size(), kMaxTemplateBytes);
  const std::string text = condensed(template_text);
  for (const ChatFormat& format : kFormats) {
    const bool fits = template_text.empty()
                          ? !architecture.empty() && format.architecture == architecture
                          : format.recognises(text);
    if (fits) return ChatTemplate(format, format.default_system(template_text));
  }
  if (template_text.empty())
    return fail(
        Code::Unsupported,
        "chat template: the file has none and architecture \"{}\" implies none, expected one of {}",
        architecture, known_names());
  return fail(Code::Unsupported, "chat template: found one that begins \"{}\", expected one of {}",
              beginning(template_text), known_names());
}

}  // namespace cairn
