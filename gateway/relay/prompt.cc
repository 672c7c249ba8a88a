// SPDX-License-Identifier: Apache-2.0
#include "gateway/relay/prompt.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "gateway/relay/validate.h"

namespace swiftcache::gateway::relay {
namespace {

constexpr text::EncodeOptions kPlain{.add_special = false, .parse_special = false};
constexpr text::EncodeOptions kWithSpecial{.add_special = false, .parse_special = true};

// The model has no chat template, or one that is not supported: clients can send text or token ids instead.
absl::Status Unusable(const absl::Status& status) {
  return absl::InvalidArgumentError(
      absl::StrCat("chat.messages cannot be used with this model: ", status.message(), "; prompts and token ids can"));
}

absl::Status RenderError(const absl::Status& status) {
  return absl::InvalidArgumentError(absl::StrCat("chat.messages: ", status.message()));
}

bool LooksSpecial(const text::Tokenizer& tokenizer, const std::string& text) {
  return tokenizer.Encode(text, kPlain) != tokenizer.Encode(text, kWithSpecial);
}

// The template does not treat a role as message text, so a role must not contain what plain_content keeps out.
absl::Status CheckRoles(const text::Tokenizer& tokenizer, const Chat& chat) {
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    if (!LooksSpecial(tokenizer, chat.messages[i].role)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("chat.messages[", i, "].role looks like a special token, which plain_content forbids"));
  }
  return absl::OkStatus();
}

std::vector<text::RenderedPiece> Joined(std::vector<text::RenderedPiece> pieces) {
  std::vector<text::RenderedPiece> joined;
  for (text::RenderedPiece& piece : pieces) {
    if (!joined.empty() && joined.back().from_message == piece.from_message) {
      joined.back().text += piece.text;
    } else {
      joined.push_back(std::move(piece));
    }
  }
  return joined;
}

// Splits the text only if a message really contains text that looks special: otherwise the ids are those of the whole
// text.
absl::StatusOr<std::vector<int32_t>> PlainContentIds(const fleet::ModelText& text, const Chat& chat) {
  const text::Tokenizer& tokenizer = text.tokenizer();
  RETURN_IF_ERROR(CheckRoles(tokenizer, chat));
  auto rendered = text.chat().RenderPieces(chat.messages, chat.add_generation_prompt, chat.template_variables);
  if (!rendered.ok()) return RenderError(rendered.status());
  const std::vector<text::RenderedPiece> pieces = Joined(*std::move(rendered));
  std::string whole;
  bool special = false;
  for (const text::RenderedPiece& piece : pieces) {
    whole += piece.text;
    special = special || (piece.from_message && LooksSpecial(tokenizer, piece.text));
  }
  if (!special) return tokenizer.Encode(whole, kWithSpecial);
  std::vector<int32_t> ids;
  for (const text::RenderedPiece& piece : pieces) {
    std::vector<int32_t> part = tokenizer.Encode(piece.text, piece.from_message ? kPlain : kWithSpecial);
    ids.insert(ids.end(), part.begin(), part.end());
  }
  return ids;
}

// Clients know it by "This model's maximum context length is", which other servers say.
absl::Status TooLong(absl::string_view found, int64_t max_model_len_tokens) {
  return absl::OutOfRangeError(
      absl::StrCat("prompt has ", found, " tokens, wants at most ", max_model_len_tokens - 1,
                   ": shorten it. This model's maximum context length is ", max_model_len_tokens,
                   " tokens, one of them for the answer (max_model_len is ", max_model_len_tokens, " tokens)"));
}

int64_t ContentBytes(const Chat& chat) {
  int64_t bytes = 0;
  for (const text::ChatMessage& message : chat.messages) bytes += static_cast<int64_t>(message.content.size());
  return bytes;
}

absl::Status CheckBytes(const fleet::ModelText& text, int64_t bytes, int64_t max_model_len_tokens) {
  if (text.max_token_bytes() == 0) return absl::OkStatus();
  const int64_t at_least = bytes / text.max_token_bytes();
  return at_least < max_model_len_tokens ? absl::OkStatus()
                                         : TooLong(absl::StrCat("at least ", at_least), max_model_len_tokens);
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> ChatIds(const fleet::ModelText& text, const Chat& chat) {
  if (!text.chat_status().ok()) return Unusable(text.chat_status());
  if (chat.plain_content) return PlainContentIds(text, chat);
  auto rendered = text.chat().Render(chat.messages, chat.add_generation_prompt, chat.template_variables);
  if (!rendered.ok()) return RenderError(rendered.status());
  return text.tokenizer().Encode(*rendered, kWithSpecial);
}

absl::Status CheckLength(int64_t prompt_tokens, int64_t max_model_len_tokens) {
  return prompt_tokens < max_model_len_tokens ? absl::OkStatus()
                                              : TooLong(absl::StrCat(prompt_tokens), max_model_len_tokens);
}

absl::Status CheckBytes(const fleet::ModelText& text, const std::variant<std::string, Chat>& input,
                        int64_t max_model_len_tokens) {
  const auto* chat = std::get_if<Chat>(&input);
  const int64_t bytes =
      chat != nullptr ? ContentBytes(*chat) : static_cast<int64_t>(std::get<std::string>(input).size());
  return CheckBytes(text, bytes, max_model_len_tokens);
}

absl::StatusOr<std::vector<int32_t>> PromptIds(const fleet::ModelText& text, Input input,
                                               const text::EncodeOptions& of_text, int64_t max_model_len_tokens) {
  std::vector<int32_t> ids;
  if (const auto* prompt = std::get_if<std::string>(&input)) {
    RETURN_IF_ERROR(CheckBytes(text, static_cast<int64_t>(prompt->size()), max_model_len_tokens));
    ids = text.tokenizer().Encode(*prompt, of_text);
  } else if (const auto* chat = std::get_if<Chat>(&input)) {
    RETURN_IF_ERROR(CheckBytes(text, ContentBytes(*chat), max_model_len_tokens));
    ASSIGN_OR_RETURN(ids, ChatIds(text, *chat));
  } else {
    ids = std::get<std::vector<int32_t>>(std::move(input));
    RETURN_IF_ERROR(CheckIds(kPromptIds, ids, text.vocab_size()));
  }
  if (ids.empty()) return absl::InvalidArgumentError("prompt has no tokens, wants at least one: send some text");
  RETURN_IF_ERROR(CheckLength(static_cast<int64_t>(ids.size()), max_model_len_tokens));
  return ids;
}

}  // namespace swiftcache::gateway::relay
