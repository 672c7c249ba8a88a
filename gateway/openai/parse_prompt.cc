// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gateway/openai/parse_request.h"

namespace swiftcache::gateway::openai {
namespace {

using nlohmann::json;
using relay::Input;

constexpr char kPrompt[] = "prompt";
constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(), kMost = std::numeric_limits<int64_t>::max();

std::optional<Input> ParseText(const json& value, const std::string& name, Fields& fields, int64_t max_bytes) {
  const auto& text = value.get_ref<const std::string&>();
  if (text.empty()) {
    fields.Fail(name, "is empty, wants text: send at least one character");
    return std::nullopt;
  }
  if (static_cast<int64_t>(text.size()) > max_bytes) {
    fields.Fail(name, absl::StrCat("has ", text.size(), " bytes, wants at most ", max_bytes));
    return std::nullopt;
  }
  return text;
}

std::optional<Input> ParseIds(const json& value, const std::string& name, Fields& fields) {
  std::vector<int32_t> ids;
  ids.reserve(value.size());
  for (size_t i = 0; i < value.size(); ++i) {
    const std::optional<int64_t> id = WholeNumber(value[i], 0, std::numeric_limits<int32_t>::max());
    if (!id) {
      fields.Fail(absl::StrCat(name, "[", i, "]"),
                  absl::StrCat("is ", ShownWithoutText(value[i]), ", wants a token id"));
      return std::nullopt;
    }
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

std::optional<Input> ParseOne(const json& value, const std::string& name, Fields& fields, int64_t max_bytes) {
  if (value.is_string()) return ParseText(value, name, fields, max_bytes);
  if (value.is_array() && !value.empty() && value[0].is_number()) return ParseIds(value, name, fields);
  fields.Fail(name, absl::StrCat("is ", ShownWithoutText(value), ", wants text or a list of token ids"));
  return std::nullopt;
}

void AddPart(const json& part, const std::string& name, Fields& fields, std::string& text) {
  const auto type = part.is_object() ? part.find("type") : part.end();
  const bool is_text = part.is_object() && type != part.end() && *type == "text";
  const auto content = is_text ? part.find("text") : part.end();
  if (!is_text || content == part.end() || !content->is_string()) {
    const std::string found = part.is_object() && type != part.end() ? "type " + Shown(*type) : ShownWithoutText(part);
    return fields.Fail(name,
                       absl::StrCat("is ", found, R"(, wants {"type":"text","text":"..."}, the only kind of part)"));
  }
  if (!text.empty()) text += '\n';
  text += content->get_ref<const std::string&>();
}

// Of a message that has a role.
std::string ParseContent(const json& message, const std::string& name, Fields& fields) {
  const auto content = message.find("content");
  if (content == message.end() || content->is_null()) {  // an assistant's message may have none
    if (message.at("role") != "assistant") fields.Fail(name, "is missing, wants a string or a list of text parts");
    return "";
  }
  if (content->is_string()) return content->get<std::string>();
  std::string text;
  if (!content->is_array()) {
    fields.Fail(name, absl::StrCat("is ", ShownWithoutText(*content), ", wants a string or a list of text parts"));
    return text;
  }
  for (size_t i = 0; i < content->size(); ++i) {
    AddPart((*content)[i], absl::StrCat(name, "[", i, "]"), fields, text);
  }
  return text;
}

std::optional<text::ChatMessage> ParseMessage(const json& message, const std::string& name, Fields& fields) {
  if (!message.is_object()) {
    fields.Fail(name, absl::StrCat("is ", ShownWithoutText(message), ", wants an object with role and content"));
    return std::nullopt;
  }
  const auto role = message.find("role");
  if (role == message.end() || !role->is_string() || role->get_ref<const std::string&>().empty()) {
    fields.Fail(name + ".role", absl::StrCat("is ", role == message.end() ? "missing" : ShownWithoutText(*role),
                                             ", wants a role such as \"user\""));
    return std::nullopt;
  }
  for (const char* calls : {"tool_calls", "function_call"}) {
    const auto found = message.find(calls);
    if (found == message.end() || found->is_null() || *found == json::array()) continue;
    fields.Fail(absl::StrCat(name, ".", calls), absl::StrCat("is ", ShownWithoutText(*found),
                                                             ", wants to be left out: calling tools is not supported"));
  }
  // Newer clients call the system's role "developer"; templates know only the old name.
  const std::string& name_of_role = role->get_ref<const std::string&>();
  return text::ChatMessage{name_of_role == "developer" ? "system" : name_of_role,
                           ParseContent(message, name + ".content", fields)};
}

// As vLLM: any effort but "none" is thinking, for templates that know the variable; one that is set stays.
void AddThinking(const Fields& fields, text::TemplateVariables& variables) {
  const json* effort = fields.Find("reasoning_effort");
  if (effort != nullptr && effort->is_string()) variables.emplace("enable_thinking", *effort != "none");
}

}  // namespace

std::vector<Input> ParsePrompts(Fields& fields, const HttpRequestLimits& limits) {
  std::vector<Input> prompts;
  const json* prompt = fields.Find(kPrompt);
  if (prompt == nullptr) {
    fields.Fail(kPrompt, "is missing, wants text or token ids");
    return prompts;
  }
  const bool many = prompt->is_array() && !prompt->empty() && !(*prompt)[0].is_number();
  if (many && static_cast<int64_t>(prompt->size()) > limits.max_prompts) {
    fields.Fail(kPrompt, absl::StrCat("has ", prompt->size(), " prompts, wants at most ", limits.max_prompts));
    return prompts;
  }
  for (size_t i = 0; i < (many ? prompt->size() : 1); ++i) {
    std::optional<Input> one =
        many ? ParseOne((*prompt)[i], absl::StrCat("prompt[", i, "]"), fields, limits.request.max_prompt_bytes)
             : ParseOne(*prompt, kPrompt, fields, limits.request.max_prompt_bytes);
    if (!one) return prompts;
    prompts.push_back(*std::move(one));
  }
  return prompts;
}

text::TemplateVariables ParseTemplateVariables(Fields& fields, const HttpRequestLimits& limits) {
  text::TemplateVariables variables;
  const json* object = fields.Find("chat_template_kwargs");
  if (object == nullptr) return variables;
  Fields inside(*object, "chat_template_kwargs.");
  fields.Adopt(inside.status());
  if (!inside.status().ok()) return variables;
  for (const auto& [name, value] : object->items()) {
    if (static_cast<int64_t>(name.size()) > limits.request.max_label_bytes) {
      fields.Fail("chat_template_kwargs", absl::StrCat("has a name of ", name.size(), " bytes, wants at most ",
                                                       limits.request.max_label_bytes));
      return variables;
    }
    text::TemplateVariable& variable = variables[name];
    if (value.is_boolean()) {
      variable = value.get<bool>();
    } else if (value.is_number_integer() && WholeNumber(value, kLeast, kMost)) {
      variable = value.get<int64_t>();
    } else if (value.is_number()) {
      variable = value.get<double>();
    } else if (value.is_string()) {
      variable = value.get<std::string>();
    } else if (!value.is_null()) {
      inside.Fail(name, absl::StrCat("is ", Shown(value), ", wants a text, a number, true, false or null"));
    }
  }
  fields.Adopt(inside.status());
  return variables;
}

relay::Chat ParseChat(Fields& fields, const HttpRequestLimits& limits) {
  relay::Chat chat;
  chat.add_generation_prompt = fields.Bool("add_generation_prompt").value_or(true);
  chat.plain_content = fields.Bool("plain_content").value_or(false);
  chat.template_variables = ParseTemplateVariables(fields, limits);
  AddThinking(fields, chat.template_variables);
  const json* messages = fields.Find("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    fields.Fail("messages", absl::StrCat("is ", messages == nullptr ? "missing" : ShownWithoutText(*messages),
                                         ", wants a list of at least one message"));
    return chat;
  }
  if (static_cast<int64_t>(messages->size()) > limits.request.max_messages) {
    fields.Fail("messages",
                absl::StrCat("has ", messages->size(), " messages, wants at most ", limits.request.max_messages));
    return chat;
  }
  int64_t bytes = 0;
  for (size_t i = 0; i < messages->size() && fields.status().ok(); ++i) {
    std::optional<text::ChatMessage> message = ParseMessage((*messages)[i], absl::StrCat("messages[", i, "]"), fields);
    if (!message) return chat;
    bytes += static_cast<int64_t>(message->content.size());
    chat.messages.push_back(*std::move(message));
  }
  if (bytes > limits.request.max_prompt_bytes) {
    fields.Fail("messages",
                absl::StrCat("have ", bytes, " bytes of text, wants at most ", limits.request.max_prompt_bytes));
  }
  return chat;
}

}  // namespace swiftcache::gateway::openai
