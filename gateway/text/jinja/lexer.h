// SPDX-License-Identifier: Apache-2.0
// Splits template source into tokens, as jinja2 does with trim_blocks and lstrip_blocks on.
//
//   ASSIGN_OR_RETURN(std::vector<Token> tokens, Lex("{% if x %}yes{% endif %}"));
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace swiftcache::gateway::text::jinja {

enum class TokenKind {
  kText,  // outside of tags, white space control already applied
  kPrintBegin,
  kPrintEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;  // a string's value; the source of all others
  int line = 1;
  int column = 1;  // in bytes
};

/// INVALID_ARGUMENT "chat template, line L, column C: message".
absl::Status SyntaxError(int line, int column, std::string_view message);
/// UNIMPLEMENTED "chat template, line L: message".
absl::Status NotSupported(int line, std::string_view message);

/// The last token is kEnd. Errors: INVALID_ARGUMENT with line and column.
absl::StatusOr<std::vector<Token>> Lex(std::string_view source);

}  // namespace swiftcache::gateway::text::jinja
