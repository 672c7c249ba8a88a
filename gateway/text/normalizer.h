// SPDX-License-Identifier: Apache-2.0
// Prepares text before it is split into pieces: Unicode composition (NFC), and SentencePiece's spelling of spaces.
//
//   Normalize(spec, " a b");   // "▁▁a▁b" for Llama 2
#pragma once

#include <string>
#include <string_view>

#include "gateway/text/tokenizer_spec.h"

namespace swiftcache::gateway::text {

/// U+2581, which stands for a space in SentencePiece's vocabularies.
inline constexpr std::string_view kSpaceMark = "\xe2\x96\x81";

/// What stands between two added tokens, or one of these. REQUIRES: valid UTF-8.
std::string Normalize(const TokenizerSpec& spec, std::string_view text);

/// The prefix of space_prefix_first_only, before normalized text with which the whole text begins: as in tokenizer.json's
/// Metaspace, which comes when added tokens have been found, and only if there is no space anyway.
std::string_view FirstPrefix(const TokenizerSpec& spec, std::string_view normalized);

/// Whether decoded text loses a space at its beginning: the one that Normalize put there.
inline bool DropsLeadingSpace(const TokenizerSpec& spec) {
  return spec.kind == TokenizerKind::kSentencePieceBpe && spec.add_space_prefix;
}

}  // namespace swiftcache::gateway::text
