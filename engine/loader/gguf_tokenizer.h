// SPDX-License-Identifier: Apache-2.0
// The tokenizer and chat template in a GGUF file's metadata (tokenizer.ggml.model "gpt2" and "llama").
//
//   ASSIGN_OR_RETURN(TokenizerSpec spec, ReadGgufTokenizer(gguf.metadata()));
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/loader/gguf_metadata.h"
#include "engine/loader/model_card.h"

namespace swiftcache::engine::loader {

/// Works on vocabulary-only files of any architecture too. Errors: INVALID_ARGUMENT names file, key, found and wanted;
/// UNIMPLEMENTED names the tokenizer model or pre-tokeniser that is not known.
absl::StatusOr<TokenizerSpec> ReadGgufTokenizer(const GgufMetadata& metadata);

/// Adds the control tokens, and user-defined ones, whose spelling says that they end an answer, as llama.cpp does: the
/// metadata mostly names one where the model's generation_config.json has more.
void AddEndsBySpelling(const TokenizerSpec& spec, std::vector<int32_t>& eos_ids);

/// "" where the file has none. INVALID_ARGUMENT: not UTF-8.
absl::StatusOr<std::string> ReadGgufChatTemplate(const GgufMetadata& metadata);

}  // namespace swiftcache::engine::loader
