// SPDX-License-Identifier: Apache-2.0
// Hugging Face's tokenizer.json (BPE models, byte-level or SentencePiece-style) as a TokenizerSpec.
//
//   ASSIGN_OR_RETURN(TokenizerSpec spec, ParseHfTokenizer(text, "model/tokenizer.json", config.vocab_size));
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/loader/model_card.h"

namespace swiftcache::engine::loader {

/// Ids must be below `vocab_size`; ids that no token has become UNUSED tokens.
/// Errors: INVALID_ARGUMENT names file, key, found and wanted; UNIMPLEMENTED names the part that is not supported.
absl::StatusOr<TokenizerSpec> ParseHfTokenizer(std::string_view text, const std::string& file, int64_t vocab_size);

}  // namespace swiftcache::engine::loader
