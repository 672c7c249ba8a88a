// SPDX-License-Identifier: Apache-2.0
// The parser's position in the list of tokens.
//
//   if (stream.SkipOperator(",")) ...
//   RETURN_IF_ERROR(stream.Expect(TokenKind::kBlockEnd, "%}"));
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gateway/text/jinja/lexer.h"

namespace swiftcache::gateway::text::jinja {

/// Thread-safety: none. Ownership: owns the tokens. Errors: INVALID_ARGUMENT with line and column of the current token.
class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  int line() const { return current().line; }
  void Next() { at_ += at_ + 1 < tokens_.size(); }

  bool Is(TokenKind kind) const { return current().kind == kind; }
  bool IsOperator(std::string_view op) const { return Is(TokenKind::kOperator) && current().text == op; }
  bool IsName(std::string_view name) const { return Is(TokenKind::kName) && current().text == name; }
  bool SkipOperator(std::string_view op) { return Skip(IsOperator(op)); }
  bool SkipName(std::string_view name) { return Skip(IsName(name)); }

  absl::Status Expect(TokenKind kind, std::string_view wanted) {
    return Skip(Is(kind)) ? absl::OkStatus() : Unexpected(wanted);
  }
  absl::Status ExpectOperator(std::string_view op) { return SkipOperator(op) ? absl::OkStatus() : Unexpected(op); }
  absl::Status Unexpected(std::string_view wanted) const;
  absl::Status Error(std::string_view message) const { return SyntaxError(current().line, current().column, message); }

 private:
  bool Skip(bool yes) {
    if (yes) Next();
    return yes;
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
};

}  // namespace swiftcache::gateway::text::jinja
