// SPDX-License-Identifier: Apache-2.0
// A model's chat template (Jinja), compiled once and rendered per request in a sandbox: bounded steps, bounded output,
// no access to anything but its inputs.
//
//   ASSIGN_OR_RETURN(auto chat, ChatTemplate::Create(card.chat_template, {.bos_token = "<s>", .eos_token = "</s>"}));
//   ASSIGN_OR_RETURN(std::string text, chat->Render(messages, /*add_generation_prompt=*/true, {}));
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/wall_time.h"

namespace swiftcache::gateway::text {

/// What a template is handed beside its usual inputs, as by transformers' chat_template_kwargs: "enable_thinking". A
/// std::monostate is None.
using TemplateVariable = std::variant<std::monostate, bool, int64_t, double, std::string>;
using TemplateVariables = std::map<std::string, TemplateVariable>;

struct ChatMessage {
  std::string role;
  std::string content;
};

/// Rendered text cut where message content begins and ends, so that content can be kept plain text.
struct RenderedPiece {
  std::string text;
  bool from_message = false;
};

/// Thread-safety: immutable after Create. Ownership: owns the syntax tree.
/// Errors: Create: INVALID_ARGUMENT (syntax; line and column), UNIMPLEMENTED (a construct, filter or test that is not
/// supported; names it and the line). Render: INVALID_ARGUMENT (the template raised an exception: its message; or
/// failed in a way that Python would: the line), RESOURCE_EXHAUSTED (too many steps, too much output, memory or
/// recursion).
class ChatTemplate {
 public:
  struct Options {
    std::string bos_token, eos_token;
    int64_t max_steps = 2'000'000;
    int64_t max_output_bytes = 64 << 20;
    int64_t max_memory_bytes = 512 << 20;                 // strings and lists that are alive at one time
    std::function<absl::Time()> wall_time = WallTimeNow;  // for strftime_now; not null
  };
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Create(const std::string& source, const Options& options);
  virtual ~ChatTemplate() = default;
  /// REQUIRES of `variables`: none IsReserved.
  virtual absl::StatusOr<std::string> Render(const std::vector<ChatMessage>& messages, bool add_generation_prompt,
                                             const TemplateVariables& variables) const = 0;
  /// The same text in pieces: what came out of a message's content, or of a text among the variables, is marked (also
  /// after trim and other filters).
  virtual absl::StatusOr<std::vector<RenderedPiece>> RenderPieces(const std::vector<ChatMessage>& messages,
                                                                  bool add_generation_prompt,
                                                                  const TemplateVariables& variables) const = 0;
  /// Whether a template has its own use of the name: "messages".
  static bool IsReserved(std::string_view name);
};

}  // namespace swiftcache::gateway::text
