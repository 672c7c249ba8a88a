// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/token_table.h"

#include <charconv>
#include <optional>
#include <string_view>

#include "absl/strings/str_replace.h"
#include "gateway/text/byte_alphabet.h"
#include "gateway/text/normalizer.h"

namespace swiftcache::gateway::text {
namespace {

/// The byte of "<0xNN>".
std::optional<char> ByteOf(std::string_view token) {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return std::nullopt;
  unsigned value = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
  if (error != std::errc() || end != token.data() + 5) return std::nullopt;
  return static_cast<char>(value);
}

std::string DecodeToken(const TokenizerSpec& spec, const std::string& token, TokenType type, bool spelled_out) {
  const bool special = type == TokenType::kControl || type == TokenType::kUnknown;
  if (spec.kind == TokenizerKind::kByteLevelBpe) {
    if (special || spelled_out) return token;
    return LettersToBytes(token).value_or(token);
  }
  if (type == TokenType::kByte) {
    const std::optional<char> byte = ByteOf(token);
    return byte ? std::string(1, *byte) : token;
  }
  return special ? token : absl::StrReplaceAll(token, {{kSpaceMark.data(), " "}});
}

}  // namespace

TokenTable::TokenTable(const TokenizerSpec& spec) : special_(spec.tokens.size()) {
  CollectAdded(spec);
  std::vector<bool> spelled_out(spec.tokens.size());
  for (const AddedToken& token : added_) spelled_out[token.id] = true;
  bytes_.reserve(spec.tokens.size());
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    bytes_.push_back(DecodeToken(spec, spec.tokens[id], spec.token_types[id], spelled_out[id]));
  }
}

void TokenTable::CollectAdded(const TokenizerSpec& spec) {
  std::vector<bool> listed(spec.tokens.size());
  added_ = spec.added_tokens;
  for (const AddedToken& token : added_) listed[token.id] = true;
  for (int32_t id = 0; id < spec.tokens.size(); ++id) {
    const TokenType type = spec.token_types[id];
    special_[id] = type == TokenType::kControl || type == TokenType::kUnknown;
    const bool added = special_[id] || type == TokenType::kUserDefined;
    if (added && !listed[id] && !spec.tokens[id].empty()) added_.push_back({.id = id, .special = special_[id]});
  }
  for (const AddedToken& token : added_) special_[token.id] = special_[token.id] || token.special;
}

}  // namespace swiftcache::gateway::text
