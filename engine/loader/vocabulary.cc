// SPDX-License-Identifier: Apache-2.0
#include "engine/loader/vocabulary.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "common/base/utf8.h"
#include "engine/loader/errors.h"

namespace swiftcache::engine::loader {
namespace {

void MarkSpecial(int32_t id, TokenizerSpec& spec) {
  spec.token_types[static_cast<size_t>(id)] = TokenType::kControl;
  bool listed = false;
  for (AddedToken& token : spec.added_tokens) {
    if (token.id != id) continue;
    token.special = listed = true;
  }
  if (!listed) spec.added_tokens.push_back({.id = id, .special = true});
}

}  // namespace

TokenIds::TokenIds(const std::vector<std::string>& tokens) {
  ids_.reserve(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) ids_.emplace(tokens[i], static_cast<int32_t>(i));
}

std::optional<int32_t> TokenIds::Find(std::string_view token) const {
  const auto it = ids_.find(token);
  if (it == ids_.end()) return std::nullopt;
  return it->second;
}

absl::StatusOr<std::pair<int32_t, int32_t>> TokenIds::Merge(const std::string& file, int64_t index,
                                                            std::string_view left, std::string_view right) const {
  const std::optional<int32_t> left_id = Find(left), right_id = Find(right);
  if (!left_id || !right_id) {
    return Malformed(file, "merge ", index, ": part ", Quoted(left_id ? right : left),
                     " is not in the vocabulary, want two tokens");
  }
  const std::string whole = std::string(left) + std::string(right);
  if (!Find(whole)) {
    return Malformed(file, "merge ", index, " of ", Quoted(left), " and ", Quoted(right), ": the result ",
                     Quoted(whole), " is not in the vocabulary, want a token");
  }
  return std::pair(*left_id, *right_id);
}

std::optional<std::pair<std::string_view, std::string_view>> SplitMerge(std::string_view merge) {
  const size_t space = merge.find(' ');
  if (space == std::string_view::npos || space == 0 || space + 1 == merge.size()) return std::nullopt;
  if (merge.find(' ', space + 1) != std::string_view::npos) return std::nullopt;
  return std::pair(merge.substr(0, space), merge.substr(space + 1));
}

bool IsByteToken(std::string_view token) {
  return token.size() == 6 && token.substr(0, 3) == "<0x" &&
         absl::ascii_isxdigit(static_cast<unsigned char>(token[3])) &&
         absl::ascii_isxdigit(static_cast<unsigned char>(token[4])) && token[5] == '>';
}

void AddEndOfSequence(int32_t id, std::vector<int32_t>& eos_ids) {
  if (std::find(eos_ids.begin(), eos_ids.end(), id) == eos_ids.end()) eos_ids.push_back(id);
}

void MarkEndOfSequence(const std::vector<int32_t>& eos_ids, TokenizerSpec& spec) {
  for (const int32_t id : eos_ids) {
    const auto at = static_cast<size_t>(id);
    if (at >= spec.tokens.size() || CountCharacters(spec.tokens[at]) < 2) continue;  // the embedding may have more rows
    const TokenType type = spec.token_types[at];
    if (type == TokenType::kControl || type == TokenType::kUnknown || type == TokenType::kByte) continue;
    MarkSpecial(id, spec);
  }
}

}  // namespace swiftcache::engine::loader
