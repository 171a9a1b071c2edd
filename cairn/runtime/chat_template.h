// How a chat model wants a conversation written down.
//
// Model files carry a template program (Jinja). It is not run here: it is recognised, by the
// expressions that write a turn, and what it writes is then written by a row of a table. An unknown
// template is an error, never a guess: a model that is addressed in the wrong form answers, only
// worse.
//
// Text is made turn by turn, so that a conversation can grow in a saved state. A turn's text holds
// names of control tokens: encode it with Specials::Parse. What begins a text (BOS) is the
// tokenizer's matter.
#ifndef CAIRN_RUNTIME_CHAT_TEMPLATE_H_
#define CAIRN_RUNTIME_CHAT_TEMPLATE_H_

#include <optional>
#include <string>
#include <string_view>

#include "cairn/core/error.h"

namespace cairn {

struct ChatTurn {
  std::string_view role;  // "system", "user", "assistant"
  std::string_view content;
  std::optional<std::string_view> previous_role;  // none: this is the conversation's first turn
};

// A row of the table.
struct ChatFormat {
  std::string_view name;
  bool (*recognises)(
      std::string_view condensed);  // a template's text, as condensed() in the .cc file leaves it
  std::string_view
      architecture;  // whose files have this form when they carry no template; may be empty
  std::string (*default_system)(std::string_view template_text);  // empty: none
  Result<std::string> (*turn)(const ChatTurn& turn, std::string_view default_system);
  std::string_view reply_start;  // what the model's answer follows
  std::string_view stop;         // the name of the token by which the model ends its answer
  std::string_view turn_end;     // stop, and what stands between it and the next turn
};

class ChatTemplate {
 public:
  ChatTemplate(const ChatFormat& format, std::string default_system)
      : format_(&format), default_system_(std::move(default_system)) {}

  std::string_view name() const { return format_->name; }

  // The whole text of a turn, its end included, and before a first turn what the template puts
  // there on its own. BadInput: the template has no such role, or not in this place.
  Result<std::string> turn(const ChatTurn& turn) const {
    return format_->turn(turn, default_system_);
  }

  std::string_view reply_start() const { return format_->reply_start; }
  std::string_view stop() const { return format_->stop; }

  // What to append to the model's answer before the next turn: turn_end() to one without its stop
  // token, after_stop() to one that the stop token already follows.
  std::string_view turn_end() const { return format_->turn_end; }
  std::string_view after_stop() const { return format_->turn_end.substr(format_->stop.size()); }

 private:
  const ChatFormat* format_;    // a row of the table
  std::string default_system_;  // the system message that stands in for a missing one; empty: none
};

// By the file's template, or where it has none (empty) by its architecture. Unsupported: neither is
// known.
Result<ChatTemplate> choose_chat_template(std::string_view template_text,
                                          std::string_view architecture);

}  // namespace cairn

#endif  // CAIRN_RUNTIME_CHAT_TEMPLATE_H_
