// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/jinja/operators.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "gateway/text/jinja/builders.h"
#include "gateway/text/jinja/text_functions.h"
#include "gateway/text/jinja/text_search.h"

namespace swiftcache::gateway::text::jinja {
namespace {

constexpr const char* kOpNames[] = {"",   "+",  "-", "*",  "/", "//", "%",  "**",
                                    "==", "!=", "<", "<=", ">", ">=", "in", "not in"};

absl::Status BadOperands(Op op, const Value& left, const Value& right) {
  for (const Value* value : {&left, &right}) {
    if (value->IsUndefined()) return absl::InvalidArgumentError(UndefinedMessage(*value));
  }
  return absl::InvalidArgumentError(absl::StrCat("unsupported operand types for ", kOpNames[static_cast<int>(op)],
                                                 ": '", std::string(TypeName(left)), "' and '",
                                                 std::string(TypeName(right)), "'"));
}

absl::Status TooLarge() {
  return absl::InvalidArgumentError("an integer leaves 64 bits: the template may not compute with larger ones");
}

absl::Status DivisionByZero() { return absl::InvalidArgumentError("division by zero"); }

absl::StatusOr<Value> IntegerPower(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) return DivisionByZero();
    return Value::Float(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  if (base >= -1 && base <= 1) exponent = exponent % 2 == 0 ? (exponent == 0 ? 0 : 2) : 1;
  int64_t result = 1;
  for (; exponent > 0; --exponent) {
    if (__builtin_mul_overflow(result, base, &result)) return TooLarge();
  }
  return Value::Int(result);
}

absl::StatusOr<Value> FloorDivide(Op op, int64_t a, int64_t b) {
  if (b == 0) return DivisionByZero();
  if (a == INT64_MIN && b == -1) return op == Op::kMod ? absl::StatusOr<Value>(Value::Int(0)) : TooLarge();
  int64_t quotient = a / b, rest = a % b;
  bool round_down = rest != 0 && (rest < 0) != (b < 0);
  return Value::Int(op == Op::kMod ? (round_down ? rest + b : rest) : (round_down ? quotient - 1 : quotient));
}

absl::StatusOr<Value> IntegerArithmetic(Op op, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (op) {
    case Op::kAdd:
      return __builtin_add_overflow(a, b, &result) ? TooLarge() : absl::StatusOr<Value>(Value::Int(result));
    case Op::kSub:
      return __builtin_sub_overflow(a, b, &result) ? TooLarge() : absl::StatusOr<Value>(Value::Int(result));
    case Op::kMul:
      return __builtin_mul_overflow(a, b, &result) ? TooLarge() : absl::StatusOr<Value>(Value::Int(result));
    case Op::kPow:
      return IntegerPower(a, b);
    case Op::kDiv:
      if (b == 0) return DivisionByZero();
      return Value::Float(static_cast<double>(a) / static_cast<double>(b));
    default:
      return FloorDivide(op, a, b);
  }
}

absl::StatusOr<Value> FloatArithmetic(Op op, double a, double b) {
  bool divides = op == Op::kDiv || op == Op::kFloorDiv || op == Op::kMod;
  if (divides && b == 0) return DivisionByZero();
  double rest = divides ? std::fmod(a, b) : 0;
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  switch (op) {
    case Op::kAdd:
      return Value::Float(a + b);
    case Op::kSub:
      return Value::Float(a - b);
    case Op::kMul:
      return Value::Float(a * b);
    case Op::kDiv:
      return Value::Float(a / b);
    case Op::kPow:
      return Value::Float(std::pow(a, b));
    case Op::kMod:
      return Value::Float(rest == 0 ? std::copysign(0.0, b) : rest);
    default:
      return Value::Float(std::round((a - rest) / b));
  }
}

absl::StatusOr<Value> RepeatList(Budget& budget, const List& list, int64_t times) {
  ListBuilder out(budget, list.kind);
  for (int64_t i = 0; i < times && !list.items.empty(); ++i) {
    for (const Value& item : list.items) {
      if (!out.Add(item)) return out.Finish();
    }
  }
  return out.Finish();
}

absl::StatusOr<Value> Multiply(Budget& budget, const Value& left, const Value& right) {
  const Value& sequence = left.AsInteger() ? right : left;
  std::optional<int64_t> times = left.AsInteger() ? left.AsInteger() : right.AsInteger();
  const List* list = sequence.AsList();
  if (times && sequence.AsText() != nullptr) return RepeatText(budget, *sequence.AsText(), *times);
  if (times && list != nullptr && list->kind <= ListKind::kTuple) return RepeatList(budget, *list, *times);
  return BadOperands(Op::kMul, left, right);
}

absl::StatusOr<Value> Add(Budget& budget, const Value& left, const Value& right) {
  if (left.AsText() != nullptr && right.AsText() != nullptr)
    return ConcatTexts(budget, *left.AsText(), *right.AsText());
  const List *a = left.AsList(), *b = right.AsList();
  if (a == nullptr || b == nullptr || a->kind != b->kind || a->kind > ListKind::kTuple) {
    return BadOperands(Op::kAdd, left, right);
  }
  ListBuilder out(budget, a->kind);
  for (const List* list : {a, b}) {
    for (const Value& item : list->items) {
      if (!out.Add(item)) break;
    }
  }
  return out.Finish();
}

bool SameSequenceType(const List& a, const List& b) {
  return a.kind == b.kind && (a.kind == ListKind::kList || a.kind == ListKind::kTuple || a.kind == ListKind::kRange);
}

absl::StatusOr<bool> EqualLists(Budget& budget, const List& a, const List& b) {
  if (&a == &b) return true;
  if (!SameSequenceType(a, b) || a.items.size() != b.items.size()) return false;
  for (size_t i = 0; i < a.items.size(); ++i) {
    ASSIGN_OR_RETURN(bool equal, Equal(budget, a.items[i], b.items[i]));
    if (!equal) return false;
  }
  return true;
}

absl::StatusOr<bool> EqualDicts(Budget& budget, const Dict& a, const Dict& b) {
  if (a.items.size() != b.items.size()) return false;
  for (const auto& [key, position] : a.index) {
    RETURN_IF_ERROR(budget.SpendBytes(static_cast<int64_t>(key.size())));
    auto other = b.index.find(key);
    if (other == b.index.end()) return false;
    ASSIGN_OR_RETURN(bool equal, Equal(budget, a.items[position].second, b.items[other->second].second));
    if (!equal) return false;
  }
  return true;
}

absl::StatusOr<bool> LessLists(Budget& budget, const List& a, const List& b) {
  size_t common = std::min(a.items.size(), b.items.size());
  for (size_t i = 0; i < common; ++i) {
    ASSIGN_OR_RETURN(bool equal, Equal(budget, a.items[i], b.items[i]));
    if (!equal) return Less(budget, a.items[i], b.items[i]);
  }
  return a.items.size() < b.items.size();
}

}  // namespace

absl::StatusOr<Value> Arithmetic(Budget& budget, Op op, const Value& left, const Value& right) {
  auto a = left.AsInteger(), b = right.AsInteger();
  if (a && b) return IntegerArithmetic(op, *a, *b);
  if (left.IsNumber() && right.IsNumber()) return FloatArithmetic(op, left.ToDouble(), right.ToDouble());
  if (op == Op::kMul) return Multiply(budget, left, right);
  if (op == Op::kAdd) return Add(budget, left, right);
  if (op == Op::kMod && left.AsText() != nullptr) {
    return absl::UnimplementedError("`%` on a string (printf formatting) is not supported: use ~ or .format()");
  }
  return BadOperands(op, left, right);
}

absl::StatusOr<Value> Negate(const Value& value) {
  if (auto integer = value.AsInteger()) return IntegerArithmetic(Op::kSub, 0, *integer);
  if (auto* d = value.AsFloat()) return Value::Float(-*d);
  return BadOperands(Op::kSub, value, value);
}

absl::StatusOr<bool> Equal(Budget& budget, const Value& left, const Value& right) {
  RETURN_IF_ERROR(budget.Spend(1));
  if (left.IsNumber() && right.IsNumber()) {
    auto a = left.AsInteger(), b = right.AsInteger();
    return a && b ? *a == *b : left.ToDouble() == right.ToDouble();
  }
  if (left.AsText() != nullptr && right.AsText() != nullptr) {
    RETURN_IF_ERROR(budget.SpendBytes(left.AsText()->size()));
    return left.AsText()->bytes == right.AsText()->bytes;
  }
  if (left.AsList() != nullptr && right.AsList() != nullptr) return EqualLists(budget, *left.AsList(), *right.AsList());
  if (left.AsDict() != nullptr && right.AsDict() != nullptr) return EqualDicts(budget, *left.AsDict(), *right.AsDict());
  if (left.rep().index() != right.rep().index()) return false;
  if (auto* space = std::get_if<Namespace*>(&left.rep())) return *space == std::get<Namespace*>(right.rep());
  if (auto* macro = std::get_if<std::shared_ptr<const Macro>>(&left.rep())) {
    return *macro == std::get<std::shared_ptr<const Macro>>(right.rep());
  }
  return left.IsUndefined() || left.IsNone();
}

absl::StatusOr<bool> Less(Budget& budget, const Value& left, const Value& right) {
  RETURN_IF_ERROR(budget.Spend(1));
  if (left.IsNumber() && right.IsNumber()) {
    auto a = left.AsInteger(), b = right.AsInteger();
    return a && b ? *a < *b : left.ToDouble() < right.ToDouble();
  }
  if (left.AsText() != nullptr && right.AsText() != nullptr) {
    RETURN_IF_ERROR(budget.SpendBytes(left.AsText()->size()));
    return left.AsText()->bytes < right.AsText()->bytes;  // UTF-8 sorts as code points do
  }
  const List *a = left.AsList(), *b = right.AsList();
  if (a != nullptr && b != nullptr && a->kind == b->kind && a->kind <= ListKind::kTuple)
    return LessLists(budget, *a, *b);
  return BadOperands(Op::kLt, left, right);
}

absl::StatusOr<bool> Contains(Budget& budget, const Value& container, const Value& item) {
  if (auto* text = container.AsText()) {
    const Text* wanted = item.AsText();
    if (wanted == nullptr) return BadOperands(Op::kIn, item, container);
    ASSIGN_OR_RETURN(int64_t at, FindOnce(budget, text->bytes, wanted->bytes));
    return at >= 0;
  }
  if (auto* dict = container.AsDict()) {
    ASSIGN_OR_RETURN(auto key, DictKey(budget, item));
    if (!key) return BadOperands(Op::kIn, item, container);
    return dict->index.contains(*key);
  }
  if (container.IsUndefined()) return false;
  const List* list = container.AsList();
  if (list == nullptr) return BadOperands(Op::kIn, item, container);
  for (const Value& candidate : list->items) {
    ASSIGN_OR_RETURN(bool equal, Equal(budget, candidate, item));
    if (equal) return true;
  }
  return false;
}

absl::StatusOr<bool> Compare(Budget& budget, Op op, const Value& left, const Value& right) {
  bool negate = op == Op::kNe || op == Op::kNotIn;
  absl::StatusOr<bool> result = false;
  if (op == Op::kEq || op == Op::kNe) {
    result = Equal(budget, left, right);
  } else if (op == Op::kIn || op == Op::kNotIn) {
    result = Contains(budget, right, left);
  } else if (left.IsUndefined() || right.IsUndefined()) {
    return BadOperands(op, left, right);
  } else if (op == Op::kLt || op == Op::kGt) {
    result = op == Op::kLt ? Less(budget, left, right) : Less(budget, right, left);
  } else {
    const Value &low = op == Op::kLe ? left : right, &high = op == Op::kLe ? right : left;
    result = Less(budget, low, high);
    if (result.ok() && !*result) result = Equal(budget, low, high);
  }
  if (result.ok() && negate) return !*result;
  return result;
}

}  // namespace swiftcache::gateway::text::jinja
