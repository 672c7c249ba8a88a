// SPDX-License-Identifier: Apache-2.0
// Prepares text before it is split into pieces: Unicode composition (NFC), and SentencePiece's spelling of spaces.
//
//   Normalize(spec, " a b", /*begins_text=*/true);   // "▁▁a▁b" for Llama 2
#pragma once

#include <string>
#include <string_view>

#include "gateway/text/tokenizer_spec.h"

namespace swiftcache::gateway::text {

/// U+2581, which stands for a space in SentencePiece's vocabularies.
inline constexpr std::string_view kSpaceMark = "\xe2\x96\x81";

/// `begins_text`: nothing stands before `text` (with space_prefix_first_only only such text gets the prefix, and, as in
/// tokenizer.json's Metaspace, only if it does not begin with a space anyway). REQUIRES: valid UTF-8.
std::string Normalize(const TokenizerSpec& spec, std::string_view text, bool begins_text);

/// Whether decoded text loses a space at its beginning: the one that Normalize put there.
inline bool DropsLeadingSpace(const TokenizerSpec& spec) {
  return spec.kind == TokenizerKind::kSentencePieceBpe && spec.add_space_prefix;
}

}  // namespace swiftcache::gateway::text
