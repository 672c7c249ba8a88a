// SPDX-License-Identifier: Apache-2.0
#include "gateway/relay/validate.h"

#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"

namespace swiftcache::gateway::relay {
namespace {

absl::string_view Absl(std::string_view text) { return absl::string_view(text.data(), text.size()); }

absl::Status CheckUtf8(std::string_view field, std::string_view text) {
  const std::optional<size_t> at = FindInvalidUtf8(text);
  if (!at.has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(Absl(field), " is not valid UTF-8: byte 0x",
                                                 absl::Hex(static_cast<unsigned char>(text[*at]), absl::kZeroPad2),
                                                 " at offset ", *at, "; send text encoded as UTF-8"));
}

absl::Status CheckSize(std::string_view field, int64_t size, int64_t limit, std::string_view unit) {
  if (size <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(Absl(field), " has ", size, " ", Absl(unit), ", wants at most ", limit, ": shorten it"));
}

struct Range {
  double low, high;
  bool low_is_open = false;
};

absl::Status CheckNumber(std::string_view field, std::optional<double> value, Range range) {
  if (!value.has_value()) return absl::OkStatus();
  const bool above = range.low_is_open ? *value > range.low : *value >= range.low;
  if (above && *value <= range.high) return absl::OkStatus();  // false for NaN
  const std::string high = std::isfinite(range.high) ? absl::StrFormat("%.10g]", range.high) : "unbounded)";
  return absl::InvalidArgumentError(absl::StrCat("sampling.", Absl(field), " is ", *value, ", wants a number in ",
                                                 range.low_is_open ? "(" : "[", range.low, ", ", high,
                                                 ": correct it or leave it out"));
}

template <typename T>
std::optional<double> Wide(const std::optional<T>& value) {
  return value.has_value() ? std::optional<double>(*value) : std::nullopt;
}

absl::Status CheckStop(std::span<const std::string> stop, const Limits& limits) {
  for (size_t i = 0; i < stop.size(); ++i) {
    const std::string field = absl::StrCat("sampling.stop[", i, "]");
    if (stop[i].empty()) return absl::InvalidArgumentError(field + " is empty, wants text: leave it out");
    RETURN_IF_ERROR(CheckSize(field, stop[i].size(), limits.max_stop_bytes, "bytes"));
    RETURN_IF_ERROR(CheckUtf8(field, stop[i]));
  }
  return absl::OkStatus();
}

absl::Status CheckRequestId(const std::string& id, const Limits& limits) {
  RETURN_IF_ERROR(CheckSize("request_id", id.size(), limits.max_request_id_bytes, "bytes"));
  for (size_t i = 0; i < id.size(); ++i) {
    if (id[i] >= 0x21 && id[i] <= 0x7E) continue;
    return absl::InvalidArgumentError(absl::StrCat("request_id has byte 0x",
                                                   absl::Hex(static_cast<unsigned char>(id[i]), absl::kZeroPad2),
                                                   " at offset ", i, ", wants printable ASCII without spaces"));
  }
  return absl::OkStatus();
}

absl::Status CheckTemplateVariables(const text::TemplateVariables& variables, const Limits& limits) {
  constexpr char kField[] = "chat_template_kwargs";
  int64_t bytes = 0;
  for (const auto& [name, value] : variables) {
    RETURN_IF_ERROR(CheckSize("a name in chat_template_kwargs", name.size(), limits.max_label_bytes, "bytes"));
    RETURN_IF_ERROR(CheckUtf8("a name in chat_template_kwargs", name));
    if (text::ChatTemplate::IsReserved(name)) {
      return absl::InvalidArgumentError(
          absl::StrCat(kField, ".", name, " is set, wants to be left out: templates have it from elsewhere"));
    }
    bytes += static_cast<int64_t>(name.size()) + 1;
    const auto* text = std::get_if<std::string>(&value);
    if (text == nullptr) continue;
    RETURN_IF_ERROR(CheckUtf8(absl::StrCat(kField, ".", name), *text));
    bytes += static_cast<int64_t>(text->size());
  }
  return CheckSize(kField, bytes, limits.max_template_bytes, "bytes");
}

}  // namespace

absl::Status CheckSizes(const RequestSizes& sizes, const Limits& limits) {
  RETURN_IF_ERROR(CheckSize("prompt", sizes.prompt_bytes, limits.max_prompt_bytes, "bytes"));
  RETURN_IF_ERROR(CheckSize("chat.messages", sizes.messages, limits.max_messages, "messages"));
  // A name takes a byte at least.
  RETURN_IF_ERROR(CheckSize("chat_template_kwargs", sizes.template_variables, limits.max_template_bytes, "names"));
  RETURN_IF_ERROR(CheckSize("sampling.stop", sizes.stop_strings, limits.max_stop_strings, "strings"));
  return CheckSize("sampling.stop_token_ids", sizes.stop_token_ids, limits.max_stop_token_ids, "ids");
}

absl::Status CheckSampling(const fleet::Sampling& s, const Limits& limits) {
  constexpr double kInt = std::numeric_limits<int32_t>::max();
  RETURN_IF_ERROR(CheckNumber("max_tokens", Wide(s.max_tokens), {1, kInt}));
  RETURN_IF_ERROR(CheckNumber("temperature", Wide(s.temperature), {0, 2}));
  RETURN_IF_ERROR(CheckNumber("top_p", Wide(s.top_p), {0, 1, true}));
  RETURN_IF_ERROR(CheckNumber("top_k", Wide(s.top_k), {-1, kInt}));
  RETURN_IF_ERROR(CheckNumber("min_p", Wide(s.min_p), {0, 1}));
  RETURN_IF_ERROR(CheckNumber("repetition_penalty", Wide(s.repetition_penalty), {0, 10, true}));
  RETURN_IF_ERROR(CheckNumber("presence_penalty", Wide(s.presence_penalty), {-2, 2}));
  RETURN_IF_ERROR(CheckNumber("frequency_penalty", Wide(s.frequency_penalty), {-2, 2}));
  RETURN_IF_ERROR(CheckNumber("logprobs", Wide(s.logprobs), {0, kMaxLogprobs}));
  RETURN_IF_ERROR(CheckNumber("n", Wide(s.n), {1, kMaxContinuations}));
  RETURN_IF_ERROR(CheckSizes({.stop_strings = static_cast<int64_t>(s.stop.list().size()),
                              .stop_token_ids = static_cast<int64_t>(s.stop_token_ids.size())},
                             limits));
  return CheckStop(s.stop.list(), limits);
}

absl::Status CheckChat(const Chat& chat, const Limits& limits) {
  if (chat.messages.empty()) {
    return absl::InvalidArgumentError("chat.messages is empty, wants at least one message: add one with role \"user\"");
  }
  RETURN_IF_ERROR(CheckSizes({.messages = static_cast<int64_t>(chat.messages.size())}, limits));
  int64_t bytes = 0;
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    const text::ChatMessage& message = chat.messages[i];
    const std::string field = absl::StrCat("chat.messages[", i, "]");
    if (message.role.empty()) {
      return absl::InvalidArgumentError(field + ".role is empty, wants a role such as \"user\": set it");
    }
    RETURN_IF_ERROR(CheckSize(field + ".role", message.role.size(), limits.max_role_bytes, "bytes"));
    RETURN_IF_ERROR(CheckUtf8(field + ".role", message.role));
    RETURN_IF_ERROR(CheckUtf8(field + ".content", message.content));
    bytes += message.content.size();
  }
  RETURN_IF_ERROR(CheckSize("chat.messages", bytes, limits.max_prompt_bytes, "bytes"));
  return CheckTemplateVariables(chat.template_variables, limits);
}

absl::Status CheckPrompt(std::string_view prompt, const Limits& limits) {
  if (prompt.empty()) return absl::InvalidArgumentError("prompt is empty, wants text: send at least one character");
  RETURN_IF_ERROR(CheckSizes({.prompt_bytes = static_cast<int64_t>(prompt.size())}, limits));
  return CheckUtf8("prompt", prompt);
}

absl::Status CheckIds(std::string_view field, std::span<const int32_t> ids, int64_t vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab_size) continue;
    return absl::InvalidArgumentError(absl::StrCat(Absl(field), "[", i, "] is ", ids[i], ", wants 0..", vocab_size - 1,
                                                   ", the model's vocabulary: tokenise with this model"));
  }
  return absl::OkStatus();
}

absl::Status CheckIdCount(std::span<const int32_t> ids, const Limits& limits) {
  return CheckSize("token_ids", static_cast<int64_t>(ids.size()), limits.max_detokenize_ids, "ids");
}

absl::Status CheckRequest(const GenerateRequest& request, const Limits& limits) {
  RETURN_IF_ERROR(CheckRequestId(request.request_id, limits));
  RETURN_IF_ERROR(CheckSize("cache_salt", request.cache_salt.size(), limits.max_label_bytes, "bytes"));
  if (const auto* prompt = std::get_if<std::string>(&request.input)) RETURN_IF_ERROR(CheckPrompt(*prompt, limits));
  if (const auto* chat = std::get_if<Chat>(&request.input)) RETURN_IF_ERROR(CheckChat(*chat, limits));
  if (const auto* ids = std::get_if<std::vector<int32_t>>(&request.input); ids != nullptr && ids->empty()) {
    return absl::InvalidArgumentError("token_ids is empty, wants at least one id");
  }
  return CheckSampling(request.sampling, limits);
}

}  // namespace swiftcache::gateway::relay
