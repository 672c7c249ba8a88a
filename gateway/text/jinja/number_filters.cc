// SPDX-License-Identifier: Apache-2.0
// Filters that make numbers: length, int, float, abs, round, sum; and default.
#include <charconv>
#include <cmath>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "gateway/text/jinja/access.h"
#include "gateway/text/jinja/filters.h"
#include "gateway/text/jinja/operators.h"
#include "gateway/text/jinja/text_functions.h"

namespace swiftcache::gateway::text::jinja {
namespace {

absl::StatusOr<Value> Default(const FilterCall& call) {
  ASSIGN_OR_RETURN(Bound args, Bind(call.name, call.arguments, {"default_value", "boolean"}));
  bool missing = call.input.IsUndefined() || (FlagArgument(args[1], false) && !IsTruthy(call.input));
  if (!missing) return call.input;
  return args[0].value_or(Value::String(FreeText("")));
}

absl::StatusOr<Value> LengthFilter(const FilterCall& call) {
  RETURN_IF_ERROR(Bind(call.name, call.arguments, {}).status());
  ASSIGN_OR_RETURN(int64_t length, Length(call.input));
  return Value::Int(length);
}

/// The characters of a number in Python's notation: trimmed, single underscores between digits taken out.
absl::StatusOr<std::string> Cleaned(const FilterCall& call, const Text& text) {
  ASSIGN_OR_RETURN(Value stripped, Strip(call.budget, text, nullptr, Side::kBoth));
  const std::string& bytes = stripped.AsText()->bytes;
  std::string out;
  for (size_t i = 0; i < bytes.size() && bytes.size() < 400; ++i) {
    bool between = i > 0 && i + 1 < bytes.size() && std::isdigit(static_cast<unsigned char>(bytes[i - 1])) &&
                   std::isdigit(static_cast<unsigned char>(bytes[i + 1]));
    if (bytes[i] != '_' || !between) out += bytes[i];
  }
  return out;
}

template <typename Number>
std::optional<Number> ParseNumber(std::string_view text) {
  bool sign = !text.empty() && text.front() == '+';
  if (sign) text.remove_prefix(1);
  Number number = 0;
  auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || (sign && text.front() == '-') || result.ec != std::errc() ||
      result.ptr != text.data() + text.size())
    return std::nullopt;
  return number;
}

absl::StatusOr<Value> Truncated(double number, const Value& standard) {
  if (std::isnan(number) || std::isinf(number)) return standard;
  if (std::abs(number) >= 9.2e18) return absl::InvalidArgumentError("int: the number leaves 64 bits");
  return Value::Int(static_cast<int64_t>(number));
}

absl::StatusOr<Value> Int(const FilterCall& call) {
  ASSIGN_OR_RETURN(Bound args, Bind(call.name, call.arguments, {"default", "base"}));
  if (args[1]) return absl::UnimplementedError("int with a base is not supported");
  if (call.input.IsUndefined()) return absl::InvalidArgumentError(UndefinedMessage(call.input));
  Value standard = args[0].value_or(Value::Int(0));
  if (auto integer = call.input.AsInteger()) return Value::Int(*integer);
  if (auto* number = call.input.AsFloat()) return Truncated(*number, standard);
  if (call.input.AsText() == nullptr) return standard;
  absl::StatusOr<std::string> text = Cleaned(call, *call.input.AsText());
  RETURN_IF_ERROR(text.status());
  if (auto integer = ParseNumber<int64_t>(*text)) return Value::Int(*integer);
  if (auto number = ParseNumber<double>(*text)) return Truncated(*number, standard);
  return standard;
}

absl::StatusOr<Value> Float(const FilterCall& call) {
  ASSIGN_OR_RETURN(Bound args, Bind(call.name, call.arguments, {"default"}));
  if (call.input.IsUndefined()) return absl::InvalidArgumentError(UndefinedMessage(call.input));
  Value standard = args[0].value_or(Value::Float(0));
  if (call.input.IsNumber()) return Value::Float(call.input.ToDouble());
  if (call.input.AsText() == nullptr) return standard;
  absl::StatusOr<std::string> text = Cleaned(call, *call.input.AsText());
  RETURN_IF_ERROR(text.status());
  auto number = ParseNumber<double>(*text);
  return number ? Value::Float(*number) : standard;
}

absl::StatusOr<Value> Abs(const FilterCall& call) {
  RETURN_IF_ERROR(Bind(call.name, call.arguments, {}).status());
  if (auto integer = call.input.AsInteger()) return *integer < 0 ? Negate(call.input) : Value::Int(*integer);
  if (auto* number = call.input.AsFloat()) return Value::Float(std::abs(*number));
  return IntegerArgument(call.name, call.input).status();
}

/// round(number, precision) of Python: half to even on the exact decimal value, which is what printf does.
double RoundCommon(double number, int64_t precision) {
  if (precision < 0) {
    double unit = std::pow(10.0, static_cast<double>(-precision));
    return std::nearbyint(number / unit) * unit;
  }
  char buffer[512];
  std::snprintf(buffer, sizeof(buffer), "%.*f", static_cast<int>(std::min<int64_t>(precision, 64)), number);
  return std::strtod(buffer, nullptr);
}

absl::StatusOr<Value> Round(const FilterCall& call) {
  ASSIGN_OR_RETURN(Bound args, Bind(call.name, call.arguments, {"precision", "method"}));
  ASSIGN_OR_RETURN(int64_t precision, IntegerArgument(call.name, args[0].value_or(Value::Int(0))));
  Value method_value = args[1].value_or(Value::String(FreeText("common")));
  ASSIGN_OR_RETURN(const Text* method, TextArgument(call.name, method_value));
  if (!call.input.IsNumber()) return IntegerArgument(call.name, call.input).status();
  double number = call.input.ToDouble(), unit = std::pow(10.0, static_cast<double>(precision));
  if (method->bytes == "ceil") return Value::Float(std::ceil(number * unit) / unit);
  if (method->bytes == "floor") return Value::Float(std::floor(number * unit) / unit);
  if (method->bytes != "common") return absl::InvalidArgumentError("round: the method must be common, ceil or floor");
  if (call.input.AsInteger() && precision >= 0) return Value::Int(*call.input.AsInteger());
  double rounded = RoundCommon(number, precision);
  if (call.input.AsInteger()) return Truncated(rounded, call.input);
  return Value::Float(rounded);
}

absl::StatusOr<Value> Sum(const FilterCall& call) {
  ASSIGN_OR_RETURN(Bound args, Bind(call.name, call.arguments, {"attribute", "start"}));
  ASSIGN_OR_RETURN(auto items, Iterate(call.budget, call.input));
  Value sum = args[1].value_or(Value::Int(0));
  if (sum.AsText() != nullptr) return absl::InvalidArgumentError("sum cannot add strings: use join");
  for (const Value& element : items->items) {
    Value item = element;
    if (args[0] && !args[0]->IsNone()) {
      ASSIGN_OR_RETURN(item, LookUpPath(call.budget, item, *args[0]));
    }
    ASSIGN_OR_RETURN(sum, Arithmetic(call.budget, Op::kAdd, sum, item));
  }
  return sum;
}

constexpr Filter kNumberFilters[] = {
    {"default", Default},
    {"d", Default},
    {"length", LengthFilter},
    {"count", LengthFilter},
    {"int", Int},
    {"float", Float},
    {"abs", Abs},
    {"round", Round},
    {"sum", Sum},
};

}  // namespace

std::span<const Filter> NumberFilters() { return kNumberFilters; }

}  // namespace swiftcache::gateway::text::jinja
