// SPDX-License-Identifier: Apache-2.0
// Turns a client's text, chat or token ids into the token ids that an engine gets.
//
//   ASSIGN_OR_RETURN(std::vector<int32_t> ids, PromptIds(*text, std::move(input), {}, max_model_len));
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "gateway/fleet/model_text.h"
#include "gateway/relay/relay.h"

namespace swiftcache::gateway::relay {

/// What errors call the ids of a prompt that came as ids; a door that calls them otherwise says so itself.
inline constexpr char kPromptIds[] = "token_ids";

/// OUT_OF_RANGE: no room for one new token in `max_model_len_tokens`.
absl::Status CheckLength(int64_t prompt_tokens, int64_t max_model_len_tokens);

/// The same without rendering or tokenising it, of what is too long for any tokenisation.
absl::Status CheckBytes(const fleet::ModelText& text, const std::variant<std::string, Chat>& input,
                        int64_t max_model_len_tokens);

/// Ids of a prompt. REQUIRES: the input passed CheckRequest. `of_text`: of a prompt that is a text, no chat.
/// Errors: INVALID_ARGUMENT (id outside the vocabulary; what the chat template says; the model has no usable chat
/// template), as CheckLength.
absl::StatusOr<std::vector<int32_t>> PromptIds(const fleet::ModelText& text, Input input,
                                               const text::EncodeOptions& of_text, int64_t max_model_len_tokens);

/// Messages to ids: the template's own markers are special tokens, and so is text of messages that looks like them,
/// unless chat.plain_content.
absl::StatusOr<std::vector<int32_t>> ChatIds(const fleet::ModelText& text, const Chat& chat);

}  // namespace swiftcache::gateway::relay
