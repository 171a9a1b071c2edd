#include "cairn/runtime/chat_template.h"

#include <gtest/gtest.h>

#include <vector>

namespace cairn {
namespace {

// As SmolLM2-135M-Instruct's file holds it.
constexpr std::string_view kSmolLm2 =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ "
    "'<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n"
    "' + message['content'] + '<|im_end|>' + '\n"
    "'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n"
    "' }}{% endif %}";

// Forms in which templates are found, reduced to the expressions that matter.
constexpr std::string_view kPlainChatMl =
    "{% for m in messages %}{{ \"<|im_start|>\" + message.role + \"\\n\" + message.content + "
    "\"<|im_end|>\\n\" }}{% endfor %}"
    "{% if add_generation_prompt %}{{ \"<|im_start|>assistant\\n\" }}{% endif %}";
constexpr std::string_view kChatMlWithEscapes =
    "{%- if messages[0]['role'] == 'system' %}{{- '<|im_start|>system\\n' + messages[0]['content'] "
    "+ '<|im_end|>\\n' }}"
    "{%- else %}{{- '<|im_start|>system\\nI\\'m {terse}.<|im_end|>\\n' }}{%- endif %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}{{- "
    "'<|im_start|>assistant\\n' }}";
constexpr std::string_view kGemma3 =
    "{{ bos_token }}{%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}{%- set "
    "first_user_prefix = \"\" -%}{{ "
    "'<start_of_turn>' + role + '\n' + "
    "(first_user_prefix if loop.first else \"\") }}{{ message['content'] | trim }}{{ "
    "'<end_of_turn>\n' }}"
    "{{'<start_of_turn>model\n'}}";
constexpr std::string_view kGemma2 =
    "{{ raise_exception('System role not supported') }}{{ '<start_of_turn>' + role + '\n' + "
    "message['content'] | trim + "
    "'<end_of_turn>\n' }}{{'<start_of_turn>model\n'}}";
constexpr std::string_view kLlama3 =
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ "
    "message['content'] | trim + "
    "'<|eot_id|>' %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}";

struct Said {
  std::string_view role, content;
};

// A whole conversation, as the template programs write it, the request for an answer included.
std::string conversation(const ChatTemplate& chat, const std::vector<Said>& turns) {
  std::string text;
  std::optional<std::string_view> previous;
  for (const Said& said : turns) {
    const auto turn =
        chat.turn({.role = said.role, .content = said.content, .previous_role = previous});
    EXPECT_TRUE(turn) << turn.error().message;
    text += *turn;
    previous = said.role;
  }
  return text + std::string(chat.reply_start());
}

ChatTemplate chosen(std::string_view template_text, std::string_view architecture = "llama") {
  const auto chat = choose_chat_template(template_text, architecture);
  EXPECT_TRUE(chat) << chat.error().message;
  return *chat;
}

TEST(ChatTemplate, WritesSmolLm2sDefaultSystemMessage) {
  EXPECT_EQ(conversation(chosen(kSmolLm2), {{"user", "Hi"}}),
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
            "Face<|im_end|>\n"
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTemplate, LeavesOutTheDefaultWhenASystemMessageIsGiven) {
  EXPECT_EQ(conversation(
                chosen(kSmolLm2),
                {{"system", "Be brief."}, {"user", " Hi\n"}, {"assistant", "Hello"}, {"user", ""}}),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi\n<|im_end|>\n"
            "<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\n<|im_end|>\n<|im_start|>"
            "assistant\n");
}

TEST(ChatTemplate, ReadsOtherSpellingsOfChatMl) {
  EXPECT_EQ(conversation(chosen(kPlainChatMl), {{"user", "Hi"}}),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(conversation(chosen(kChatMlWithEscapes), {{"user", "Hi"}}),
            "<|im_start|>system\nI'm "
            "{terse}.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTemplate, PutsGemmasSystemMessageIntoTheFirstUserTurn) {
  const std::vector<Said> turns = {
      {"system", "Be brief."}, {"user", " Hi "}, {"assistant", "Hello\n"}, {"user", "Bye"}};
  const std::string text =
      "<start_of_turn>user\nBe "
      "brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello<end_of_turn>\n"
      "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n";
  EXPECT_EQ(conversation(chosen(kGemma3, "gemma3"), turns), text);
  EXPECT_EQ(conversation(chosen("", "gemma3"), turns), text);
}

TEST(ChatTemplate, RefusesTurnsInPlacesThatGemmaDoesNotKnow) {
  const ChatTemplate chat = chosen("", "gemma3");
  for (const ChatTurn& turn :
       {ChatTurn{"assistant", "x", {}}, ChatTurn{"user", "x", "user"},
        ChatTurn{"system", "x", "user"}, ChatTurn{"tool", "x", "user"},
        ChatTurn{"system", "x", "assistant"}, ChatTurn{"model", "x", "system"}}) {
    const auto text = chat.turn(turn);
    ASSERT_FALSE(text) << turn.role;
    EXPECT_EQ(text.error().code, Code::BadInput);
  }
  EXPECT_EQ(chat.turn({"tool", "x", "user"}).error().message,
            "chat: found a turn of \"tool\" after one of \"user\", expected one of \"assistant\"");
  EXPECT_EQ(chosen(kGemma2).turn({"system", "x", {}}).error().message,
            "chat: found a turn of \"system\" first, expected one of \"user\"");
}

TEST(ChatTemplate, KnowsGemma2AndLlama3) {
  EXPECT_EQ(conversation(chosen(kGemma2), {{"user", "Hi"}}),
            "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n");
  EXPECT_EQ(conversation(chosen(kLlama3), {{"user", " Hi"}}),
            "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|"
            "end_header_id|>\n\n");
}

TEST(ChatTemplate, SaysHowAnAnswerEnds) {
  for (const std::string_view text : {kSmolLm2, kGemma3, kGemma2, kLlama3}) {
    const ChatTemplate chat = chosen(text);
    EXPECT_EQ(std::string(chat.stop()) + std::string(chat.after_stop()), chat.turn_end());
    const std::string whole =
        *chat.turn({.role = "assistant", .content = "x", .previous_role = "user"});
    EXPECT_EQ(whole, std::string(chat.reply_start()) + "x" + std::string(chat.turn_end()))
        << chat.name();
  }
}

TEST(ChatTemplate, RefusesWhatItDoesNotKnow) {
  const auto foreign = choose_chat_template("{% for m in messages %}\n[INST] {{ m }}", "gemma3");
  ASSERT_FALSE(foreign);
  EXPECT_EQ(foreign.error().code, Code::Unsupported);
  EXPECT_EQ(foreign.error().message,
            "chat template: found one that begins \"{% for m in messages %} [INST] {{ m }}\", "
            "expected one of ChatML, Gemma without "
            "system messages, Gemma, Llama 3");
  const auto none = choose_chat_template("", "llama");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Code::Unsupported);
  EXPECT_NE(none.error().message.find("the file has none and architecture \"llama\" implies none"),
            std::string::npos);
  // Defaults that stand in a variable are not followed, so they are not passed over either.
  EXPECT_FALSE(choose_chat_template(
      std::string(kPlainChatMl) + "{{ '<|im_start|>system\\n' + default_system + '<|im_end|>' }}",
      ""));
  std::string gemma(kGemma3);
  gemma.replace(gemma.find("prefix = \"\""), 11, "prefix = default_system");
  EXPECT_FALSE(choose_chat_template(gemma, "gemma3"));
  EXPECT_FALSE(choose_chat_template("", ""));
  EXPECT_EQ(choose_chat_template(std::string(70000, ' '), "").error().message,
            "chat template: found 70000 bytes, expected at most 65536");
  EXPECT_FALSE(choose_chat_template(std::string(kLlama3) + "Cutting Knowledge Date", "llama"));
}

}  // namespace
}  // namespace cairn
