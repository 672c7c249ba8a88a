// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/jinja/expression_parser.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace swiftcache::gateway::text::jinja {
namespace {

constexpr int kMaxNesting = 100;    // of the parser's own recursion
constexpr int kMaxTreeDepth = 300;  // of the tree, which chains of operators deepen without recursion here

class Nesting {
 public:
  explicit Nesting(ExpressionParser& parser) : parser_(parser), status_(parser.Enter()) {}
  ~Nesting() { parser_.Leave(); }
  const absl::Status& status() const { return status_; }

 private:
  ExpressionParser& parser_;
  absl::Status status_;
};

}  // namespace

absl::Status ExpressionParser::Enter() {
  if (++depth_ <= kMaxNesting) return absl::OkStatus();
  return stream_.Error(absl::StrCat("nested deeper than ", kMaxNesting, " levels"));
}

std::unique_ptr<Expr> ExpressionParser::New(ExprKind kind, Op op) const {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->op = op;
  expr->line = stream_.line();
  return expr;
}

absl::Status ExpressionParser::Adopt(Expr& parent, ExprPtr child) const {
  if (child != nullptr) parent.depth = std::max(parent.depth, child->depth + 1);
  parent.children.push_back(std::move(child));
  if (parent.depth <= kMaxTreeDepth) return absl::OkStatus();
  return stream_.Error(absl::StrCat("an expression of more than ", kMaxTreeDepth, " levels"));
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseExpression() { return ParseCondition(); }

absl::StatusOr<ExprPtr> ExpressionParser::ParseCondition() {
  Nesting nesting(*this);
  RETURN_IF_ERROR(nesting.status());
  ASSIGN_OR_RETURN(ExprPtr value, ParseOr());
  while (stream_.IsName("if")) {
    auto node = New(ExprKind::kIf);
    stream_.Next();
    ASSIGN_OR_RETURN(ExprPtr condition, ParseOr());
    ExprPtr otherwise;
    if (stream_.SkipName("else")) {
      ASSIGN_OR_RETURN(otherwise, ParseCondition());
    }
    for (ExprPtr* child : {&value, &condition, &otherwise}) RETURN_IF_ERROR(Adopt(*node, std::move(*child)));
    value = std::move(node);
  }
  return value;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseBinary(ExprKind kind, std::initializer_list<OpName> ops, Level next) {
  ASSIGN_OR_RETURN(ExprPtr left, (this->*next)());
  while (stream_.Is(kind == ExprKind::kLogic ? TokenKind::kName : TokenKind::kOperator)) {
    auto op = std::find_if(ops.begin(), ops.end(), [&](const OpName& o) { return o.text == stream_.current().text; });
    if (op == ops.end()) break;
    auto node = New(kind, op->op);
    stream_.Next();
    ASSIGN_OR_RETURN(ExprPtr right, (this->*next)());
    RETURN_IF_ERROR(Adopt(*node, std::move(left)));
    RETURN_IF_ERROR(Adopt(*node, std::move(right)));
    left = std::move(node);
  }
  return left;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseOr() {
  return ParseBinary(ExprKind::kLogic, {{"or", Op::kOr}}, &ExpressionParser::ParseAnd);
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseAnd() {
  return ParseBinary(ExprKind::kLogic, {{"and", Op::kAnd}}, &ExpressionParser::ParseNot);
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseNot() {
  if (!stream_.IsName("not")) return ParseCompare();
  Nesting nesting(*this);
  RETURN_IF_ERROR(nesting.status());
  auto node = New(ExprKind::kUnary, Op::kNot);
  stream_.Next();
  ASSIGN_OR_RETURN(ExprPtr operand, ParseNot());
  RETURN_IF_ERROR(Adopt(*node, std::move(operand)));
  return node;
}

std::optional<Op> ExpressionParser::NextComparison() {
  static constexpr OpName kComparisons[] = {{"==", Op::kEq}, {"!=", Op::kNe}, {"<", Op::kLt},
                                            {"<=", Op::kLe}, {">", Op::kGt},  {">=", Op::kGe}};
  if (stream_.SkipName("in")) return Op::kIn;
  if (stream_.IsName("not") && stream_.ahead().kind == TokenKind::kName && stream_.ahead().text == "in") {
    stream_.Next();
    stream_.Next();
    return Op::kNotIn;
  }
  for (const OpName& known : kComparisons) {
    if (stream_.SkipOperator(known.text)) return known.op;
  }
  return std::nullopt;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseCompare() {
  auto node = New(ExprKind::kCompare);
  ASSIGN_OR_RETURN(ExprPtr first, ParseSum());
  RETURN_IF_ERROR(Adopt(*node, std::move(first)));
  while (auto op = NextComparison()) {
    node->ops.push_back(*op);
    ASSIGN_OR_RETURN(ExprPtr operand, ParseSum());
    RETURN_IF_ERROR(Adopt(*node, std::move(operand)));
  }
  if (node->ops.empty()) return std::move(node->children.front());
  return node;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseSum() {
  return ParseBinary(ExprKind::kArithmetic, {{"+", Op::kAdd}, {"-", Op::kSub}}, &ExpressionParser::ParseConcat);
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseConcat() {
  auto node = New(ExprKind::kConcat);
  do {
    ASSIGN_OR_RETURN(ExprPtr part, ParseProduct());
    RETURN_IF_ERROR(Adopt(*node, std::move(part)));
  } while (stream_.SkipOperator("~"));
  if (node->children.size() == 1) return std::move(node->children.front());
  return node;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseProduct() {
  return ParseBinary(ExprKind::kArithmetic, {{"*", Op::kMul}, {"/", Op::kDiv}, {"//", Op::kFloorDiv}, {"%", Op::kMod}},
                     &ExpressionParser::ParsePower);
}

absl::StatusOr<ExprPtr> ExpressionParser::ParsePower() {
  return ParseBinary(ExprKind::kArithmetic, {{"**", Op::kPow}}, &ExpressionParser::ParseUnary);
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseUnaryWith(bool with_filter) {
  ExprPtr value;
  if (stream_.IsOperator("-") || stream_.IsOperator("+")) {
    Nesting nesting(*this);
    RETURN_IF_ERROR(nesting.status());
    auto node = New(ExprKind::kUnary, stream_.IsOperator("-") ? Op::kNeg : Op::kPos);
    stream_.Next();
    ASSIGN_OR_RETURN(ExprPtr operand, ParseUnaryWith(false));
    RETURN_IF_ERROR(Adopt(*node, std::move(operand)));
    value = std::move(node);
  } else {
    ASSIGN_OR_RETURN(value, ParsePrimary());
  }
  ASSIGN_OR_RETURN(value, ParsePostfix(std::move(value)));
  if (with_filter) return ParseFilters(std::move(value));
  return value;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParsePrimary() {
  switch (stream_.current().kind) {
    case TokenKind::kName:
      return ParseName();
    case TokenKind::kString:
      return ParseStrings();
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return ParseNumber();
    default:
      break;
  }
  if (stream_.IsOperator("[")) return ParseList();
  if (stream_.IsOperator("{")) return ParseDict();
  if (!stream_.SkipOperator("(")) return stream_.Unexpected("an expression");
  ASSIGN_OR_RETURN(ExprPtr value, ParseTuple({.in_parentheses = true}));
  RETURN_IF_ERROR(stream_.ExpectOperator(")"));
  return value;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseName() {
  auto node = New(ExprKind::kName);
  node->name = stream_.current().text;
  stream_.Next();
  bool truth = node->name == "true" || node->name == "True";
  if (truth || node->name == "false" || node->name == "False") {
    node->kind = ExprKind::kConst;
    node->constant = Value::Bool(truth);
  } else if (node->name == "none" || node->name == "None") {
    node->kind = ExprKind::kConst;
    node->constant = Value(None{});
  } else {
    read_.push_back(node->name);
  }
  return node;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseStrings() {
  auto node = New(ExprKind::kConst);
  std::string text;
  for (; stream_.Is(TokenKind::kString); stream_.Next()) text += stream_.current().text;
  node->constant = Value::String(FreeText(std::move(text)));
  return node;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseNumber() {
  auto node = New(ExprKind::kConst);
  const std::string& text = stream_.current().text;
  int64_t integer = 0;
  double number = 0;
  if (stream_.Is(TokenKind::kInteger)) {
    if (!absl::SimpleAtoi(text, &integer)) return stream_.Error("an integer that does not fit into 64 bits");
    node->constant = Value::Int(integer);
  } else {
    if (!absl::SimpleAtod(text, &number)) return stream_.Error("a number that cannot be read");
    node->constant = Value::Float(number);
  }
  stream_.Next();
  return node;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseList() {
  auto node = New(ExprKind::kList);
  stream_.Next();
  while (!stream_.IsOperator("]")) {
    if (!node->children.empty()) RETURN_IF_ERROR(stream_.ExpectOperator(","));
    if (stream_.IsOperator("]")) break;
    ASSIGN_OR_RETURN(ExprPtr item, ParseExpression());
    RETURN_IF_ERROR(Adopt(*node, std::move(item)));
  }
  stream_.Next();
  return node;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseDict() {
  auto node = New(ExprKind::kDict);
  stream_.Next();
  while (!stream_.IsOperator("}")) {
    if (!node->children.empty()) RETURN_IF_ERROR(stream_.ExpectOperator(","));
    if (stream_.IsOperator("}")) break;
    ASSIGN_OR_RETURN(ExprPtr key, ParseExpression());
    RETURN_IF_ERROR(Adopt(*node, std::move(key)));
    RETURN_IF_ERROR(stream_.ExpectOperator(":"));
    ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
    RETURN_IF_ERROR(Adopt(*node, std::move(value)));
  }
  stream_.Next();
  return node;
}

bool ExpressionParser::IsTupleEnd(std::string_view end_name) const {
  return stream_.Is(TokenKind::kPrintEnd) || stream_.Is(TokenKind::kBlockEnd) || stream_.IsOperator(")") ||
         (!end_name.empty() && stream_.IsName(end_name));
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseTuple(const TupleOptions& options) {
  auto node = New(ExprKind::kTuple);
  bool is_tuple = false;
  while (!IsTupleEnd(options.end_name)) {
    ASSIGN_OR_RETURN(ExprPtr item, options.with_condition ? ParseExpression() : ParseOr());
    RETURN_IF_ERROR(Adopt(*node, std::move(item)));
    if (!stream_.SkipOperator(",")) break;
    is_tuple = true;
  }
  if (is_tuple) return node;
  if (!node->children.empty()) return std::move(node->children.front());
  if (options.in_parentheses) return node;
  return stream_.Unexpected("an expression");
}

absl::StatusOr<Target> ExpressionParser::ParseTargetItem(bool with_attribute) {
  Target target;
  if (stream_.SkipOperator("(")) {
    ASSIGN_OR_RETURN(target, ParseTarget(with_attribute));
    RETURN_IF_ERROR(stream_.ExpectOperator(")"));
    return target;
  }
  target.name = stream_.current().text;
  for (std::string_view reserved : {"true", "false", "none", "True", "False", "None"}) {
    if (stream_.IsName(reserved)) return stream_.Error("a constant cannot be assigned to");
  }
  RETURN_IF_ERROR(stream_.Expect(TokenKind::kName, "a name to assign to"));
  if (with_attribute && stream_.SkipOperator(".")) {
    target.attribute = stream_.current().text;
    return stream_.Expect(TokenKind::kName, "an attribute's name").ok() ? absl::StatusOr<Target>(target)
                                                                        : stream_.Unexpected("an attribute's name");
  }
  bound_.push_back(target.name);
  return target;
}

absl::StatusOr<Target> ExpressionParser::ParseTarget(bool with_attribute) {
  Nesting nesting(*this);
  RETURN_IF_ERROR(nesting.status());
  ASSIGN_OR_RETURN(Target first, ParseTargetItem(with_attribute));
  if (!stream_.IsOperator(",")) return first;
  Target tuple;
  tuple.items.push_back(std::move(first));
  while (stream_.SkipOperator(",")) {
    if (stream_.IsName("in") || stream_.IsOperator("=") || stream_.IsOperator(")")) break;
    ASSIGN_OR_RETURN(Target item, ParseTargetItem(with_attribute));
    tuple.items.push_back(std::move(item));
  }
  return tuple;
}

}  // namespace swiftcache::gateway::text::jinja
