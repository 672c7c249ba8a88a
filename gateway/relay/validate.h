// SPDX-License-Identifier: Apache-2.0
// Checks of what clients send. Each message names the field, the value found, the limit and the remedy.
//
//   RETURN_IF_ERROR(CheckRequest(request, limits));            // what needs no model
//   RETURN_IF_ERROR(CheckIds("token_ids", ids, vocab_size));   // what does
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "gateway/relay/relay.h"

namespace swiftcache::gateway::relay {

inline constexpr int32_t kMaxLogprobs = 20;
inline constexpr int32_t kMaxContinuations = 128;  // of one prompt: n

/// Units: as named. All inclusive.
struct Limits {
  int64_t max_prompt_bytes = int64_t{16} << 20;
  int64_t max_messages = 4096;
  int64_t max_role_bytes = 64;
  int64_t max_template_bytes = int64_t{64} << 10;  // names and texts of a chat's template variables
  int64_t max_request_id_bytes = 256;
  int64_t max_label_bytes = 256;  // cache_salt, names of template variables
  int64_t max_stop_strings = 16;
  int64_t max_stop_bytes = 1024;
  int64_t max_stop_token_ids = 128;
  int64_t max_detokenize_ids = int64_t{1} << 20;  // of one Detokenize: each id may stand for a long text
};

/// Numbers of parts, and the bytes of a prompt. Errors: INVALID_ARGUMENT.
absl::Status CheckSizes(const RequestSizes& sizes, const Limits& limits);

/// Everything about a request that needs no model. Errors: INVALID_ARGUMENT.
absl::Status CheckRequest(const GenerateRequest& request, const Limits& limits);

/// Ranges as in proto Sampling; NaN and infinity are out of every range. Errors: INVALID_ARGUMENT.
absl::Status CheckSampling(const fleet::Sampling& sampling, const Limits& limits);

/// Messages, roles, template variables and sizes of a chat. Errors: INVALID_ARGUMENT.
absl::Status CheckChat(const Chat& chat, const Limits& limits);

/// Not empty, not too long, valid UTF-8. Errors: INVALID_ARGUMENT.
absl::Status CheckPrompt(std::string_view prompt, const Limits& limits);

/// Each in 0..vocab_size-1. Errors: INVALID_ARGUMENT.
absl::Status CheckIds(std::string_view field, std::span<const int32_t> ids, int64_t vocab_size);

/// Not more ids than one Detokenize takes. Errors: INVALID_ARGUMENT.
absl::Status CheckIdCount(std::span<const int32_t> ids, const Limits& limits);

}  // namespace swiftcache::gateway::relay
