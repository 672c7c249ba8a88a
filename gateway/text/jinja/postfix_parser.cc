// SPDX-License-Identifier: Apache-2.0
// What follows a value in an expression: attributes, subscripts, calls, filters and tests.
#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "gateway/text/jinja/expression_parser.h"
#include "gateway/text/jinja/filters.h"
#include "gateway/text/jinja/methods.h"
#include "gateway/text/jinja/value_tests.h"

namespace swiftcache::gateway::text::jinja {

absl::StatusOr<ExprPtr> ExpressionParser::ParsePostfix(ExprPtr value) {
  while (true) {
    absl::StatusOr<ExprPtr> next = ExprPtr();
    if (stream_.IsOperator(".")) {
      next = ParseAttribute(std::move(value));
    } else if (stream_.IsOperator("[")) {
      next = ParseSubscript(std::move(value));
    } else if (stream_.IsOperator("(")) {
      next = ParseCall(std::move(value));
    } else {
      return value;
    }
    RETURN_IF_ERROR(next.status());
    value = *std::move(next);
  }
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseFilters(ExprPtr value) {
  while (true) {
    absl::StatusOr<ExprPtr> next = ExprPtr();
    if (stream_.SkipOperator("|")) {
      next = ParseFilter(std::move(value));
    } else if (stream_.SkipName("is")) {
      next = ParseTest(std::move(value));
    } else if (stream_.IsOperator("(")) {
      next = ParseCall(std::move(value));
    } else {
      return value;
    }
    RETURN_IF_ERROR(next.status());
    value = *std::move(next);
  }
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseFilterChain() {
  ASSIGN_OR_RETURN(ExprPtr value, ParseFilter(nullptr));
  while (stream_.SkipOperator("|")) {
    ASSIGN_OR_RETURN(value, ParseFilter(std::move(value)));
  }
  return value;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseAttribute(ExprPtr value) {
  stream_.Next();
  if (stream_.Is(TokenKind::kInteger)) {
    auto node = New(ExprKind::kItem);
    RETURN_IF_ERROR(Adopt(*node, std::move(value)));
    ASSIGN_OR_RETURN(ExprPtr index, ParseNumber());
    RETURN_IF_ERROR(Adopt(*node, std::move(index)));
    return node;
  }
  auto node = New(ExprKind::kAttribute);
  node->name = stream_.current().text;
  RETURN_IF_ERROR(stream_.Expect(TokenKind::kName, "an attribute's name"));
  RETURN_IF_ERROR(Adopt(*node, std::move(value)));
  return node;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseSubscript(ExprPtr value) {
  auto node = New(ExprKind::kItem);
  stream_.Next();
  ExprPtr first;
  if (!stream_.IsOperator(":")) {
    ASSIGN_OR_RETURN(first, ParseExpression());
  }
  if (stream_.IsOperator(":")) return ParseSlice(std::move(value), std::move(first));
  if (stream_.IsOperator(",")) return NotSupported(stream_.line(), "a subscript of several parts is not supported");
  RETURN_IF_ERROR(stream_.ExpectOperator("]"));
  RETURN_IF_ERROR(Adopt(*node, std::move(value)));
  RETURN_IF_ERROR(Adopt(*node, std::move(first)));
  return node;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseSlicePart() {
  if (!stream_.SkipOperator(":") || stream_.IsOperator(":") || stream_.IsOperator("]")) return ExprPtr();
  return ParseExpression();
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseSlice(ExprPtr value, ExprPtr first) {
  auto node = New(ExprKind::kSlice);
  RETURN_IF_ERROR(Adopt(*node, std::move(value)));
  RETURN_IF_ERROR(Adopt(*node, std::move(first)));
  for (int part = 0; part < 2; ++part) {
    ASSIGN_OR_RETURN(ExprPtr bound, ParseSlicePart());
    RETURN_IF_ERROR(Adopt(*node, std::move(bound)));
  }
  if (stream_.IsOperator(",")) return NotSupported(stream_.line(), "a subscript of several parts is not supported");
  RETURN_IF_ERROR(stream_.ExpectOperator("]"));
  return node;
}

absl::Status ExpressionParser::ParseArgument(Expr& call) {
  if (stream_.IsOperator("*") || stream_.IsOperator("**")) {
    return NotSupported(stream_.line(), absl::StrCat("an argument with ", stream_.current().text, " is not supported"));
  }
  std::string name;
  if (stream_.Is(TokenKind::kName) && stream_.ahead().kind == TokenKind::kOperator && stream_.ahead().text == "=") {
    name = stream_.current().text;
    stream_.Next();
    stream_.Next();
  } else if (!call.named.empty()) {
    return stream_.Error("a positional argument behind a named one");
  }
  ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
  if (name.empty()) return Adopt(call, std::move(value));
  RETURN_IF_ERROR(Adopt(call, std::move(value)));
  call.named.emplace_back(std::move(name), std::move(call.children.back()));
  call.children.pop_back();
  return absl::OkStatus();
}

absl::Status ExpressionParser::ParseArguments(Expr& call) {
  RETURN_IF_ERROR(stream_.ExpectOperator("("));
  for (bool first = true; !stream_.IsOperator(")"); first = false) {
    if (!first) RETURN_IF_ERROR(stream_.ExpectOperator(","));
    if (stream_.IsOperator(")")) break;
    RETURN_IF_ERROR(ParseArgument(call));
  }
  stream_.Next();
  return absl::OkStatus();
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseCall(ExprPtr callee) {
  auto node = New(ExprKind::kCall);
  if (callee->kind == ExprKind::kName) called_.emplace_back(callee->name, callee->line);
  if (callee->kind == ExprKind::kAttribute && !IsMethodName(callee->name)) {
    return NotSupported(callee->line, absl::StrCat("the method '", callee->name, "' is not supported"));
  }
  RETURN_IF_ERROR(Adopt(*node, std::move(callee)));
  RETURN_IF_ERROR(ParseArguments(*node));
  return node;
}

absl::StatusOr<std::string> ExpressionParser::ParseDottedName(std::string_view wanted) {
  std::string name = stream_.current().text;
  RETURN_IF_ERROR(stream_.Expect(TokenKind::kName, wanted));
  while (stream_.SkipOperator(".")) {
    absl::StrAppend(&name, ".", stream_.current().text);
    RETURN_IF_ERROR(stream_.Expect(TokenKind::kName, wanted));
  }
  return name;
}

/// map('filter') and select('test') name what they use in a string: known when it is a constant.
absl::Status ExpressionParser::CheckNestedName(const Expr& filter) const {
  bool map = filter.name == "map";
  bool by_attribute = filter.name == "selectattr" || filter.name == "rejectattr";
  if (!map && !by_attribute && filter.name != "select" && filter.name != "reject") return absl::OkStatus();
  size_t position = by_attribute ? 2 : 1;
  if (filter.children.size() <= position) return absl::OkStatus();
  const Text* name = filter.children[position]->constant.AsText();
  if (name == nullptr || (map ? IsFilterName(name->bytes) : IsTestName(name->bytes))) return absl::OkStatus();
  return NotSupported(filter.line,
                      absl::StrCat("the ", map ? "filter" : "test", " '", name->bytes, "' is not supported"));
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseFilter(ExprPtr input) {
  auto node = New(ExprKind::kFilter);
  ASSIGN_OR_RETURN(node->name, ParseDottedName("a filter's name"));
  if (!IsFilterName(node->name)) {
    return NotSupported(node->line, absl::StrCat("the filter '", node->name, "' is not supported"));
  }
  RETURN_IF_ERROR(Adopt(*node, std::move(input)));
  if (stream_.IsOperator("(")) RETURN_IF_ERROR(ParseArguments(*node));
  RETURN_IF_ERROR(CheckNestedName(*node));
  return node;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseTest(ExprPtr value) {
  auto node = New(ExprKind::kTest);
  auto negation = New(ExprKind::kUnary, Op::kNot);
  bool negated = stream_.SkipName("not");
  ASSIGN_OR_RETURN(node->name, ParseDottedName("a test's name"));
  if (!IsTestName(node->name))
    return NotSupported(node->line, absl::StrCat("the test '", node->name, "' is not supported"));
  RETURN_IF_ERROR(Adopt(*node, std::move(value)));
  bool operand =
      stream_.Is(TokenKind::kString) || stream_.Is(TokenKind::kInteger) || stream_.Is(TokenKind::kFloat) ||
      stream_.IsOperator("[") || stream_.IsOperator("{") ||
      (stream_.Is(TokenKind::kName) && !stream_.IsName("else") && !stream_.IsName("or") && !stream_.IsName("and"));
  if (stream_.IsOperator("(")) {
    RETURN_IF_ERROR(ParseArguments(*node));
  } else if (operand) {
    if (stream_.IsName("is")) return stream_.Error("tests cannot be chained with 'is'");
    ASSIGN_OR_RETURN(ExprPtr argument, ParsePrimary());
    ASSIGN_OR_RETURN(argument, ParsePostfix(std::move(argument)));
    RETURN_IF_ERROR(Adopt(*node, std::move(argument)));
  }
  if (!negated) return node;
  RETURN_IF_ERROR(Adopt(*negation, std::move(node)));
  return negation;
}

}  // namespace swiftcache::gateway::text::jinja
