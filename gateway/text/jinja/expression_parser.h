// SPDX-License-Identifier: Apache-2.0
// Expressions of a template: jinja2's grammar and precedence.
//
//   ExpressionParser expressions(stream);
//   ASSIGN_OR_RETURN(ExprPtr condition, expressions.ParseExpression());
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "gateway/text/jinja/syntax.h"
#include "gateway/text/jinja/token_stream.h"

namespace swiftcache::gateway::text::jinja {

/// Thread-safety: none. Ownership: borrows the stream.
/// Errors: INVALID_ARGUMENT (syntax; nested too deep), UNIMPLEMENTED (a filter, test or method that is not supported).
class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& stream) : stream_(stream) {}

  struct TupleOptions {
    bool with_condition = true;      // `a if b else c` may stand here
    bool in_parentheses = false;     // `()` is a tuple here
    std::string_view end_name = {};  // a name that ends it, as `recursive`
  };
  absl::StatusOr<ExprPtr> ParseExpression();
  /// `a` or `a, b`.
  absl::StatusOr<ExprPtr> ParseTuple(const TupleOptions& options);
  absl::StatusOr<ExprPtr> ParseTuple() { return ParseTuple(TupleOptions()); }
  /// What follows a value: |filter, is test, (call).
  absl::StatusOr<ExprPtr> ParseFilters(ExprPtr input);
  /// A filter's name and arguments and further filters, for filter blocks; the first one's input is null.
  absl::StatusOr<ExprPtr> ParseFilterChain();
  absl::StatusOr<Target> ParseTarget(bool with_attribute);

  /// Names that are called like functions, with the lines where they are.
  const std::vector<std::pair<std::string, int>>& called() const { return called_; }
  /// Names that something in the template gives a value.
  std::vector<std::string>& bound() { return bound_; }
  /// Names that are read, for the statements that ask whether their body reads `caller`.
  const std::vector<std::string>& read() const { return read_; }
  /// Counts one level of nesting of expressions and statements together.
  absl::Status Enter();
  void Leave() { --depth_; }

 private:
  using Level = absl::StatusOr<ExprPtr> (ExpressionParser::*)();
  struct OpName {
    std::string_view text;
    Op op;
  };

  absl::StatusOr<ExprPtr> ParseCondition();
  absl::StatusOr<ExprPtr> ParseOr();
  absl::StatusOr<ExprPtr> ParseAnd();
  absl::StatusOr<ExprPtr> ParseNot();
  absl::StatusOr<ExprPtr> ParseCompare();
  absl::StatusOr<ExprPtr> ParseSum();
  absl::StatusOr<ExprPtr> ParseConcat();
  absl::StatusOr<ExprPtr> ParseProduct();
  absl::StatusOr<ExprPtr> ParsePower();
  absl::StatusOr<ExprPtr> ParseUnary() { return ParseUnaryWith(true); }
  absl::StatusOr<ExprPtr> ParseUnaryWith(bool with_filter);
  absl::StatusOr<ExprPtr> ParsePrimary();
  absl::StatusOr<ExprPtr> ParseName();
  absl::StatusOr<ExprPtr> ParseStrings();
  absl::StatusOr<ExprPtr> ParseNumber();
  absl::StatusOr<ExprPtr> ParseList();
  absl::StatusOr<ExprPtr> ParseDict();
  absl::StatusOr<ExprPtr> ParsePostfix(ExprPtr value);
  absl::StatusOr<ExprPtr> ParseAttribute(ExprPtr value);
  absl::StatusOr<ExprPtr> ParseSubscript(ExprPtr value);
  absl::StatusOr<ExprPtr> ParseSlice(ExprPtr value, ExprPtr first);
  absl::StatusOr<ExprPtr> ParseSlicePart();
  absl::StatusOr<ExprPtr> ParseCall(ExprPtr callee);
  absl::StatusOr<ExprPtr> ParseFilter(ExprPtr input);
  absl::StatusOr<ExprPtr> ParseTest(ExprPtr value);
  absl::StatusOr<ExprPtr> ParseBinary(ExprKind kind, std::initializer_list<OpName> ops, Level next);
  absl::Status ParseArguments(Expr& call);
  absl::Status ParseArgument(Expr& call);
  absl::Status CheckNestedName(const Expr& filter) const;
  absl::StatusOr<std::string> ParseDottedName(std::string_view wanted);
  std::optional<Op> NextComparison();
  bool IsTupleEnd(std::string_view end_name) const;
  absl::StatusOr<Target> ParseTargetItem(bool with_attribute);

  std::unique_ptr<Expr> New(ExprKind kind, Op op = Op::kNone) const;
  /// Adds a child and keeps the depth bounded.
  absl::Status Adopt(Expr& parent, ExprPtr child) const;

  TokenStream& stream_;
  int depth_ = 0;
  std::vector<std::pair<std::string, int>> called_;
  std::vector<std::string> bound_;
  std::vector<std::string> read_;
};

}  // namespace swiftcache::gateway::text::jinja
