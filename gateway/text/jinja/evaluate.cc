// SPDX-License-Identifier: Apache-2.0
// Expressions.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "gateway/text/jinja/access.h"
#include "gateway/text/jinja/builders.h"
#include "gateway/text/jinja/filters.h"
#include "gateway/text/jinja/interpreter.h"
#include "gateway/text/jinja/methods.h"
#include "gateway/text/jinja/operators.h"
#include "gateway/text/jinja/print.h"
#include "gateway/text/jinja/value_tests.h"

namespace swiftcache::gateway::text::jinja {

absl::StatusOr<Value> Interpreter::Evaluate(const Expr& expr) {
  RETURN_IF_ERROR(budget_.Spend(1));
  if (expr.kind == ExprKind::kConst) return expr.constant;
  if (expr.kind == ExprKind::kName) return EvaluateName(expr);
  DepthGuard depth(budget_);
  RETURN_IF_ERROR(depth.status());
  line_ = expr.line;
  return EvaluateKind(expr);
}

absl::StatusOr<Value> Interpreter::EvaluateKind(const Expr& expr) {
  switch (expr.kind) {
    case ExprKind::kConst:
      return expr.constant;
    case ExprKind::kName:
      return EvaluateName(expr);
    case ExprKind::kAttribute: {
      ASSIGN_OR_RETURN(Value value, Evaluate(*expr.children[0]));
      return GetAttribute(budget_, value, expr.name);
    }
    case ExprKind::kItem:
      return EvaluateItem(expr);
    case ExprKind::kSlice:
      return EvaluateSlice(expr);
    case ExprKind::kCall:
      return EvaluateCall(expr, nullptr);
    case ExprKind::kFilter:
      return EvaluateFilter(expr, nullptr);
    case ExprKind::kTest:
      return EvaluateTest(expr);
    case ExprKind::kUnary:
      return EvaluateUnary(expr);
    case ExprKind::kArithmetic:
      return EvaluateArithmetic(expr);
    case ExprKind::kLogic:
      return EvaluateLogic(expr);
    case ExprKind::kConcat:
      return EvaluateConcat(expr);
    case ExprKind::kCompare:
      return EvaluateCompare(expr);
    case ExprKind::kIf:
      return EvaluateIf(expr);
    case ExprKind::kList:
      return EvaluateSequence(expr, ListKind::kList);
    case ExprKind::kTuple:
      return EvaluateSequence(expr, ListKind::kTuple);
    case ExprKind::kDict:
      return EvaluateDict(expr);
  }
  return Value();
}

absl::StatusOr<Value> Interpreter::EvaluateName(const Expr& expr) const {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    auto found = scope->variables.find(expr.name);
    if (found != scope->variables.end()) return found->second;
  }
  auto found = context_.find(expr.name);
  if (found != context_.end()) return found->second;
  if (const Function* function = FindFunction(expr.name)) return Value(function);
  return Value::Missing(absl::StrCat("'", expr.name, "' is undefined"));
}

absl::StatusOr<Value> Interpreter::EvaluateItem(const Expr& expr) {
  ASSIGN_OR_RETURN(Value value, Evaluate(*expr.children[0]));
  ASSIGN_OR_RETURN(Value key, Evaluate(*expr.children[1]));
  return GetItem(budget_, value, key);
}

absl::StatusOr<Value> Interpreter::EvaluateSlice(const Expr& expr) {
  ASSIGN_OR_RETURN(Value value, Evaluate(*expr.children[0]));
  Value bounds[3] = {Value(None{}), Value(None{}), Value(None{})};
  for (size_t i = 0; i < 3; ++i) {
    if (expr.children[i + 1] == nullptr) continue;
    ASSIGN_OR_RETURN(bounds[i], Evaluate(*expr.children[i + 1]));
  }
  return GetSlice(budget_, value, bounds[0], bounds[1], bounds[2]);
}

absl::StatusOr<Value> Interpreter::EvaluateUnary(const Expr& expr) {
  ASSIGN_OR_RETURN(Value value, Evaluate(*expr.children[0]));
  if (expr.op == Op::kNot) return Value::Bool(!IsTruthy(value));
  ASSIGN_OR_RETURN(Value negated, Negate(value));
  if (expr.op == Op::kNeg) return negated;
  return value.AsBool() != nullptr ? Value::Int(*value.AsInteger()) : value;
}

absl::StatusOr<Value> Interpreter::EvaluateArithmetic(const Expr& expr) {
  ASSIGN_OR_RETURN(Value left, Evaluate(*expr.children[0]));
  ASSIGN_OR_RETURN(Value right, Evaluate(*expr.children[1]));
  return Arithmetic(budget_, expr.op, left, right);
}

absl::StatusOr<Value> Interpreter::EvaluateLogic(const Expr& expr) {
  ASSIGN_OR_RETURN(Value left, Evaluate(*expr.children[0]));
  if (IsTruthy(left) == (expr.op == Op::kOr)) return left;
  return Evaluate(*expr.children[1]);
}

absl::StatusOr<Value> Interpreter::EvaluateConcat(const Expr& expr) {
  TextBuilder out(budget_);
  for (const ExprPtr& child : expr.children) {
    ASSIGN_OR_RETURN(Value part, Evaluate(*child));
    RETURN_IF_ERROR(AppendStr(part, out));
  }
  return FinishString(out);
}

absl::StatusOr<Value> Interpreter::EvaluateCompare(const Expr& expr) {
  ASSIGN_OR_RETURN(Value left, Evaluate(*expr.children[0]));
  for (size_t i = 0; i < expr.ops.size(); ++i) {
    ASSIGN_OR_RETURN(Value right, Evaluate(*expr.children[i + 1]));
    ASSIGN_OR_RETURN(bool holds, Compare(budget_, expr.ops[i], left, right));
    if (!holds) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

absl::StatusOr<Value> Interpreter::EvaluateIf(const Expr& expr) {
  ASSIGN_OR_RETURN(Value condition, Evaluate(*expr.children[1]));
  if (IsTruthy(condition)) return Evaluate(*expr.children[0]);
  if (expr.children[2] != nullptr) return Evaluate(*expr.children[2]);
  return Value::Missing("the inline if-expression evaluated to false and has no else");
}

absl::StatusOr<Value> Interpreter::EvaluateSequence(const Expr& expr, ListKind kind) {
  ListBuilder out(budget_, kind);
  for (const ExprPtr& child : expr.children) {
    ASSIGN_OR_RETURN(Value item, Evaluate(*child));
    if (!out.Add(std::move(item))) break;
  }
  return out.Finish();
}

absl::StatusOr<Value> Interpreter::EvaluateDict(const Expr& expr) {
  DictBuilder out(budget_);
  for (size_t i = 0; i + 1 < expr.children.size(); i += 2) {
    ASSIGN_OR_RETURN(Value key, Evaluate(*expr.children[i]));
    ASSIGN_OR_RETURN(Value value, Evaluate(*expr.children[i + 1]));
    if (!out.Add(std::move(key), std::move(value))) break;
  }
  return out.Finish();
}

absl::StatusOr<Value> Interpreter::EvaluateTest(const Expr& expr) {
  ASSIGN_OR_RETURN(Value value, Evaluate(*expr.children[0]));
  ASSIGN_OR_RETURN(Arguments arguments, EvaluateArguments(expr));
  ASSIGN_OR_RETURN(bool holds, ApplyTest(budget_, expr.name, value, arguments));
  return Value::Bool(holds);
}

absl::StatusOr<Value> Interpreter::EvaluateFilter(const Expr& expr, const Value* input) {
  const Expr* inner = expr.children[0].get();
  absl::StatusOr<Value> value = Value();
  if (inner == nullptr) {
    value = *input;
  } else if (input != nullptr && inner->kind == ExprKind::kFilter) {
    value = EvaluateFilter(*inner, input);
  } else {
    value = Evaluate(*inner);
  }
  RETURN_IF_ERROR(value.status());
  ASSIGN_OR_RETURN(Arguments arguments, EvaluateArguments(expr));
  return ApplyFilter(budget_, expr.name, *value, arguments);
}

absl::StatusOr<Arguments> Interpreter::EvaluateArguments(const Expr& expr) {
  Arguments arguments;
  for (size_t i = 1; i < expr.children.size(); ++i) {
    ASSIGN_OR_RETURN(Value value, Evaluate(*expr.children[i]));
    arguments.positional.push_back(std::move(value));
  }
  for (const auto& [name, argument] : expr.named) {
    ASSIGN_OR_RETURN(Value value, Evaluate(*argument));
    arguments.named.emplace_back(name, std::move(value));
  }
  return arguments;
}

absl::StatusOr<Value> Interpreter::EvaluateCall(const Expr& expr, const Value* caller) {
  ASSIGN_OR_RETURN(Value callee, Evaluate(*expr.children[0]));
  ASSIGN_OR_RETURN(Arguments arguments, EvaluateArguments(expr));
  line_ = expr.line;
  return Call(callee, arguments, caller);
}

absl::StatusOr<Value> Interpreter::Call(const Value& callee, const Arguments& arguments, const Value* caller) {
  if (auto* macro = std::get_if<std::shared_ptr<const Macro>>(&callee.rep()))
    return CallMacro(**macro, arguments, caller);
  if (callee.IsUndefined()) return absl::InvalidArgumentError(UndefinedMessage(callee));
  if (caller != nullptr) return absl::InvalidArgumentError("a call block wants a macro");
  if (auto* method = std::get_if<std::shared_ptr<const Method>>(&callee.rep()))
    return CallMethod(budget_, **method, arguments);
  if (auto* function = std::get_if<const Function*>(&callee.rep())) {
    FunctionContext context{budget_, wall_time_, namespaces_, raised_};
    return (*function)->call(context, arguments);
  }
  return absl::InvalidArgumentError(absl::StrCat("'", std::string(TypeName(callee)), "' object is not callable"));
}

}  // namespace swiftcache::gateway::text::jinja
