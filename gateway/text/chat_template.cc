// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/chat_template.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/base/status_macros.h"
#include "gateway/text/jinja/builders.h"
#include "gateway/text/jinja/template.h"

namespace swiftcache::gateway::text {
namespace {

using jinja::FreeText;
using jinja::Value;

struct ToValue {
  Value operator()(std::monostate) const { return Value(jinja::None{}); }
  Value operator()(bool flag) const { return Value::Bool(flag); }
  Value operator()(int64_t number) const { return Value::Int(number); }
  Value operator()(double number) const { return Value::Float(number); }
  Value operator()(const std::string& text) const { return Value::String(FreeText(text, /*marked=*/true)); }
};

class JinjaChatTemplate final : public ChatTemplate {
 public:
  JinjaChatTemplate(std::unique_ptr<jinja::Template> compiled, const Options& options)
      : compiled_(std::move(compiled)), options_(options) {}

  absl::StatusOr<std::string> Render(const std::vector<ChatMessage>& messages, bool add_generation_prompt,
                                     const TemplateVariables& variables) const override {
    ASSIGN_OR_RETURN(jinja::Rendered rendered, Run(messages, add_generation_prompt, variables));
    return std::move(rendered.text);
  }

  absl::StatusOr<std::vector<RenderedPiece>> RenderPieces(const std::vector<ChatMessage>& messages,
                                                          bool add_generation_prompt,
                                                          const TemplateVariables& variables) const override {
    ASSIGN_OR_RETURN(jinja::Rendered rendered, Run(messages, add_generation_prompt, variables));
    std::vector<RenderedPiece> pieces;
    size_t at = 0;
    auto add = [&](size_t end, bool from_message) {
      if (end > at) pieces.push_back({rendered.text.substr(at, end - at), from_message});
      at = end;
    };
    for (const jinja::Mark& mark : rendered.marks) {
      add(static_cast<size_t>(mark.begin), false);
      add(static_cast<size_t>(mark.end), true);
    }
    add(rendered.text.size(), false);
    return pieces;
  }

 private:
  /// Inputs are free of charge: the door has bounded them.
  static absl::StatusOr<Value> Messages(const std::vector<ChatMessage>& messages, jinja::Budget& budget) {
    jinja::ListBuilder list(budget);
    for (const ChatMessage& message : messages) {
      jinja::DictBuilder dict(budget);
      dict.Add("role", Value::String(FreeText(message.role)));
      dict.Add("content", Value::String(FreeText(message.content, /*marked=*/true)));
      ASSIGN_OR_RETURN(Value entry, dict.Finish());
      list.Add(std::move(entry));
    }
    return list.Finish();
  }

  /// The names that transformers hands to a template, which are IsReserved, and the variables.
  absl::StatusOr<jinja::Rendered> Run(const std::vector<ChatMessage>& messages, bool add_generation_prompt,
                                      const TemplateVariables& variables) const {
    jinja::Limits limits{.max_steps = options_.max_steps,
                         .max_output_bytes = options_.max_output_bytes,
                         .max_memory_bytes = options_.max_memory_bytes};
    jinja::Budget inputs(limits);
    ASSIGN_OR_RETURN(Value list, Messages(messages, inputs));
    jinja::Context context;
    for (const auto& [name, variable] : variables) context[name] = std::visit(ToValue(), variable);
    context["messages"] = std::move(list);
    context["tools"] = context["documents"] = Value(jinja::None{});
    context["add_generation_prompt"] = Value::Bool(add_generation_prompt);
    context["bos_token"] = Value::String(FreeText(options_.bos_token));
    context["eos_token"] = Value::String(FreeText(options_.eos_token));
    return compiled_->Render(context, limits, options_.wall_time());
  }

  const std::unique_ptr<jinja::Template> compiled_;
  const Options options_;
};

}  // namespace

bool ChatTemplate::IsReserved(std::string_view name) {
  constexpr std::string_view kReserved[] = {"messages",  "tools",    "documents", "add_generation_prompt",
                                            "bos_token", "eos_token"};
  return std::find(std::begin(kReserved), std::end(kReserved), name) != std::end(kReserved);
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Create(const std::string& source, const Options& options) {
  ASSIGN_OR_RETURN(auto compiled, jinja::Template::Compile(source));
  return std::unique_ptr<ChatTemplate>(std::make_unique<JinjaChatTemplate>(std::move(compiled), options));
}

}  // namespace swiftcache::gateway::text
