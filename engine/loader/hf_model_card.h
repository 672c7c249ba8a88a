// SPDX-License-Identifier: Apache-2.0
// The text side of a Hugging Face folder: tokenizer.json, tokenizer_config.json, chat_template.jinja.
//
//   ASSIGN_OR_RETURN(ModelCard card, ReadHfModelCard("/models/Qwen3-0.6B", config));
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/loader/model_card.h"
#include "engine/loader/model_config.h"

namespace swiftcache::engine::loader {

/// Errors: NOT_FOUND (no tokenizer.json), INVALID_ARGUMENT, UNIMPLEMENTED; names file, key, found and wanted.
absl::StatusOr<ModelCard> ReadHfModelCard(const std::string& folder, const ModelConfig& config);

/// Adds special tokens, the settings for BOS and EOS, and the chat template of a tokenizer_config.json.
/// REQUIRES: card.tokenizer is read.
absl::Status AddTokenizerConfig(std::string_view text, const std::string& file, ModelCard& card);

}  // namespace swiftcache::engine::loader
