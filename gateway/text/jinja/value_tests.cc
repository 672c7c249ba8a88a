// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/jinja/value_tests.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "gateway/text/jinja/filters.h"
#include "gateway/text/jinja/operators.h"
#include "gateway/text/jinja/print.h"
#include "gateway/text/jinja/unicode.h"

namespace swiftcache::gateway::text::jinja {
namespace {

using Property = bool (*)(const Value& value);

bool IsSequence(const Value& v) {
  const List* list = v.AsList();
  return v.AsText() != nullptr || v.AsDict() != nullptr || v.IsUndefined() ||
         (list != nullptr && list->kind <= ListKind::kRange);
}

bool IsIterable(const Value& v) {
  return v.AsText() != nullptr || v.AsDict() != nullptr || v.AsList() != nullptr || v.IsUndefined() ||
         std::holds_alternative<std::shared_ptr<const Loop>>(v.rep());
}

bool IsCallable(const Value& v) {
  return std::holds_alternative<std::shared_ptr<const Macro>>(v.rep()) || v.IsUndefined() ||
         std::holds_alternative<std::shared_ptr<const Method>>(v.rep()) ||
         std::holds_alternative<const Function*>(v.rep()) ||
         std::holds_alternative<std::shared_ptr<const Loop>>(v.rep());
}

bool IsTrue(const Value& v) { return v.AsBool() != nullptr && *v.AsBool(); }
bool IsFalse(const Value& v) { return v.AsBool() != nullptr && !*v.AsBool(); }
bool IsInt(const Value& v) { return std::holds_alternative<int64_t>(v.rep()); }
bool IsSafe(const Value& v) { return v.AsText() != nullptr && v.AsText()->safe; }

constexpr std::pair<std::string_view, Property> kProperties[] = {
    {"defined", [](const Value& v) { return !v.IsUndefined(); }},
    {"undefined", [](const Value& v) { return v.IsUndefined(); }},
    {"none", [](const Value& v) { return v.IsNone(); }},
    {"boolean", [](const Value& v) { return v.AsBool() != nullptr; }},
    {"true", IsTrue},
    {"false", IsFalse},
    {"integer", IsInt},
    {"float", [](const Value& v) { return v.AsFloat() != nullptr; }},
    {"number", [](const Value& v) { return v.IsNumber(); }},
    {"string", [](const Value& v) { return v.AsText() != nullptr; }},
    {"mapping", [](const Value& v) { return v.AsDict() != nullptr; }},
    {"sequence", IsSequence},
    {"iterable", IsIterable},
    {"callable", IsCallable},
    {"escaped", IsSafe},
};

constexpr std::pair<std::string_view, Op> kComparisons[] = {
    {"eq", Op::kEq}, {"equalto", Op::kEq}, {"==", Op::kEq},       {"ne", Op::kNe},
    {"!=", Op::kNe}, {"lt", Op::kLt},      {"lessthan", Op::kLt}, {"<", Op::kLt},
    {"le", Op::kLe}, {"<=", Op::kLe},      {"gt", Op::kGt},       {"greaterthan", Op::kGt},
    {">", Op::kGt},  {"ge", Op::kGe},      {">=", Op::kGe},       {"in", Op::kIn},
};

constexpr std::string_view kOthers[] = {"odd", "even", "divisibleby", "lower", "upper", "filter", "test", "sameas"};

template <typename Table>
auto Find(const Table& table, std::string_view name) -> decltype(&table[0].second) {
  for (const auto& entry : table) {
    if (entry.first == name) return &entry.second;
  }
  return nullptr;
}

absl::StatusOr<bool> Divides(Budget& budget, const Value& value, const Value& divisor, int64_t wanted) {
  ASSIGN_OR_RETURN(Value rest, Arithmetic(budget, Op::kMod, value, divisor));
  return Equal(budget, rest, Value::Int(wanted));
}

/// str.isupper or islower of str(value).
absl::StatusOr<bool> HasCase(Budget& budget, const Value& value, bool upper) {
  ASSIGN_OR_RETURN(TextPtr text, Str(budget, value));
  RETURN_IF_ERROR(budget.SpendBytes(text->size()));
  bool cased = false;
  for (int64_t at = 0; at < text->size();) {
    char32_t point = NextPoint(text->bytes, &at);
    if (upper ? IsLower(point) : IsUpper(point)) return false;
    cased |= IsUpper(point) || IsLower(point);
  }
  return cased;
}

absl::StatusOr<bool> Same(Budget& budget, const Value& a, const Value& b) {
  if (a.rep().index() != b.rep().index()) return false;
  bool object = a.AsList() != nullptr || a.AsDict() != nullptr;
  return object ? a.AsList() == b.AsList() && a.AsDict() == b.AsDict() : Equal(budget, a, b);
}

absl::StatusOr<bool> ApplyOther(Budget& budget, std::string_view name, const Value& value,
                                const std::optional<Value>& other) {
  if (name == "odd" || name == "even") return Divides(budget, value, Value::Int(2), name == "odd" ? 1 : 0);
  if (name == "lower" || name == "upper") return HasCase(budget, value, name == "upper");
  const Text* text = value.AsText();
  if (name == "filter") return text != nullptr && IsFilterName(text->bytes);
  if (name == "test") return text != nullptr && IsTestName(text->bytes);
  if (!other) return absl::InvalidArgumentError(absl::StrCat("the test '", std::string(name), "' wants an argument"));
  return name == "sameas" ? Same(budget, value, *other) : Divides(budget, value, *other, 0);
}

}  // namespace

bool IsTestName(std::string_view name) {
  bool other = false;
  for (std::string_view known : kOthers) other |= known == name;
  return other || Find(kProperties, name) != nullptr || Find(kComparisons, name) != nullptr;
}

absl::StatusOr<bool> ApplyTest(Budget& budget, std::string_view name, const Value& value, const Arguments& arguments) {
  if (auto* property = Find(kProperties, name)) {
    RETURN_IF_ERROR(Bind(name, arguments, {}).status());
    return (*property)(value);
  }
  if (!IsTestName(name)) {
    return absl::UnimplementedError(absl::StrCat("the test '", std::string(name), "' is not supported"));
  }
  ASSIGN_OR_RETURN(Bound args, Bind(name, arguments, {"other"}));
  auto* comparison = Find(kComparisons, name);
  if (comparison == nullptr) return ApplyOther(budget, name, value, args[0]);
  if (!args[0]) return absl::InvalidArgumentError(absl::StrCat("the test '", std::string(name), "' wants an argument"));
  return Compare(budget, *comparison, value, *args[0]);
}

}  // namespace swiftcache::gateway::text::jinja
