// SPDX-License-Identifier: Apache-2.0
// Small tokenizers for tests, written by hand.
//
//   TokenizerSpec spec = ByteLevelSpec({"h e", "he y"});   // 256 letters, "he", "hey"
//   auto tokenizer = Build(std::move(spec));
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gateway/text/byte_alphabet.h"
#include "gateway/text/tokenizer.h"
#include "gateway/text/utf8.h"

namespace swiftcache::gateway::text {

inline constexpr char kGpt2Regex[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr char kLlama3Regex[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

inline PreTokenizerStep Regex(const std::string& regex) { return {PreTokenizerStep::Kind::kSplitRegex, regex}; }

inline std::unique_ptr<Tokenizer> Build(TokenizerSpec spec) {
  auto tokenizer = Tokenizer::Create(std::move(spec));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

inline int32_t AddToken(TokenizerSpec* spec, const std::string& text, TokenType type, float score = 0) {
  spec->tokens.push_back(text);
  spec->token_types.push_back(type);
  if (!spec->scores.empty()) spec->scores.push_back(score);
  return static_cast<int32_t>(spec->tokens.size()) - 1;
}

inline int32_t IdOf(const TokenizerSpec& spec, std::string_view token) {
  return static_cast<int32_t>(std::find(spec.tokens.begin(), spec.tokens.end(), token) - spec.tokens.begin());
}

/// Adds each merge ("left right", spelled in the vocabulary's letters) and, where it is new, the token that it gives.
inline void AddMerges(TokenizerSpec* spec, const std::vector<std::string>& merges) {
  for (const std::string& merge : merges) {
    const size_t space = merge.find(' ');
    const std::string left = merge.substr(0, space), right = merge.substr(space + 1);
    if (IdOf(*spec, left + right) == spec->tokens.size()) AddToken(spec, left + right, TokenType::kNormal);
    spec->merges.emplace_back(IdOf(*spec, left), IdOf(*spec, right));
  }
}

/// Id of a byte = the byte; then one token for each merge.
inline TokenizerSpec ByteLevelSpec(const std::vector<std::string>& merges) {
  TokenizerSpec spec;
  for (int byte = 0; byte < 256; ++byte) {
    std::string letter;
    AppendUtf8(ByteToLetter(static_cast<uint8_t>(byte)), &letter);
    AddToken(&spec, letter, TokenType::kNormal);
  }
  AddMerges(&spec, merges);
  return spec;
}

/// <unk> <s> </s>, 256 byte tokens (3 to 258), then `pieces` with falling scores -1, -2, ...
inline TokenizerSpec ScoredSpec(const std::vector<std::string>& pieces) {
  TokenizerSpec spec;
  spec.kind = TokenizerKind::kSentencePieceBpe;
  spec.add_space_prefix = spec.escape_whitespaces = spec.byte_fallback = true;
  spec.scores = {0};
  spec.tokens = {"<unk>"};
  spec.token_types = {TokenType::kUnknown};
  AddToken(&spec, "<s>", TokenType::kControl);
  AddToken(&spec, "</s>", TokenType::kControl);
  constexpr char kHex[] = "0123456789ABCDEF";
  for (int byte = 0; byte < 256; ++byte) {
    AddToken(&spec, {'<', '0', 'x', kHex[byte / 16], kHex[byte % 16], '>'}, TokenType::kByte);
  }
  float score = 0;
  for (const std::string& piece : pieces) AddToken(&spec, piece, TokenType::kNormal, score -= 1);
  spec.unk_id = 0;
  spec.bos_id = 1;
  spec.eos_id = 2;
  return spec;
}

inline std::vector<std::string> Pieces(const Tokenizer& tokenizer, std::string_view text, EncodeOptions options = {}) {
  std::vector<std::string> pieces;
  for (const int32_t id : tokenizer.Encode(text, options)) pieces.push_back(tokenizer.spec().tokens[id]);
  return pieces;
}

}  // namespace swiftcache::gateway::text
