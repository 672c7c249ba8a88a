// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/jinja/string_methods.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "gateway/text/jinja/access.h"
#include "gateway/text/jinja/builders.h"
#include "gateway/text/jinja/print.h"
#include "gateway/text/jinja/text_functions.h"
#include "gateway/text/jinja/text_search.h"
#include "gateway/text/jinja/unicode.h"

namespace swiftcache::gateway::text::jinja {
namespace {

struct Call {
  Budget& budget;
  const Text& text;
  std::string_view name;
  const Arguments& arguments;
};

absl::StatusOr<Value> StripCall(const Call& call) {
  ASSIGN_OR_RETURN(Bound args, Bind(call.name, call.arguments, {"chars"}));
  const Text* characters = nullptr;
  if (args[0] && !args[0]->IsNone()) {
    ASSIGN_OR_RETURN(characters, TextArgument(call.name, *args[0]));
  }
  Side side = call.name == "lstrip" ? Side::kLeft : call.name == "rstrip" ? Side::kRight : Side::kBoth;
  return Strip(call.budget, call.text, characters, side);
}

absl::StatusOr<Value> SplitCall(const Call& call) {
  ASSIGN_OR_RETURN(Bound args, Bind(call.name, call.arguments, {"sep", "maxsplit"}));
  const Text* separator = nullptr;
  int64_t max_splits = -1;
  if (args[0] && !args[0]->IsNone()) {
    ASSIGN_OR_RETURN(separator, TextArgument(call.name, *args[0]));
    if (separator->bytes.empty()) return absl::InvalidArgumentError("split: empty separator");
  }
  if (args[1]) {
    ASSIGN_OR_RETURN(max_splits, IntegerArgument(call.name, *args[1]));
  }
  return Split(call.budget, call.text, separator, max_splits, call.name == "rsplit");
}

absl::StatusOr<Value> SplitLinesCall(const Call& call) {
  ASSIGN_OR_RETURN(Bound args, Bind(call.name, call.arguments, {"keepends"}));
  return SplitLines(call.budget, call.text, FlagArgument(args[0], false));
}

absl::StatusOr<bool> HasAffix(const Call& call, const Value& affix) {
  ASSIGN_OR_RETURN(const Text* wanted, TextArgument(call.name, affix));
  RETURN_IF_ERROR(call.budget.SpendBytes(std::min(wanted->size(), call.text.size())));
  return call.name == "startswith" ? call.text.bytes.starts_with(wanted->bytes)
                                   : call.text.bytes.ends_with(wanted->bytes);
}

absl::StatusOr<Value> AffixCall(const Call& call) {
  ASSIGN_OR_RETURN(Bound args, Bind(call.name, call.arguments, {"prefix"}));
  if (!args[0]) return absl::InvalidArgumentError(absl::StrCat(std::string(call.name), " wants a string"));
  const List* choices = args[0]->AsList();
  if (choices == nullptr || choices->kind != ListKind::kTuple) {
    ASSIGN_OR_RETURN(bool has, HasAffix(call, *args[0]));
    return Value::Bool(has);
  }
  for (const Value& choice : choices->items) {
    RETURN_IF_ERROR(call.budget.Spend(1));
    ASSIGN_OR_RETURN(bool has, HasAffix(call, choice));
    if (has) return Value::Bool(true);
  }
  return Value::Bool(false);
}

absl::StatusOr<Value> RemoveAffixCall(const Call& call) {
  ASSIGN_OR_RETURN(Bound args, Bind(call.name, call.arguments, {"affix"}));
  if (!args[0]) return absl::InvalidArgumentError(absl::StrCat(std::string(call.name), " wants a string"));
  ASSIGN_OR_RETURN(const Text* affix, TextArgument(call.name, *args[0]));
  RETURN_IF_ERROR(call.budget.SpendBytes(std::min(affix->size(), call.text.size())));
  int64_t begin = 0, end = call.text.size();
  if (call.name == "removeprefix" && call.text.bytes.starts_with(affix->bytes)) begin = affix->size();
  if (call.name == "removesuffix" && call.text.bytes.ends_with(affix->bytes)) end -= affix->size();
  return Substring(call.budget, call.text, begin, end);
}

absl::StatusOr<Value> CaseCall(const Call& call) {
  RETURN_IF_ERROR(Bind(call.name, call.arguments, {}).status());
  if (call.name == "upper") return UpperText(call.budget, call.text);
  if (call.name == "lower") return LowerText(call.budget, call.text);
  if (call.name == "capitalize") return CapitalizeText(call.budget, call.text);
  return TitleText(call.budget, call.text, /*filter_rules=*/false);
}

absl::StatusOr<Value> ReplaceCall(const Call& call) {
  ASSIGN_OR_RETURN(Bound args, Bind(call.name, call.arguments, {"old", "new", "count"}));
  if (!args[0] || !args[1]) return absl::InvalidArgumentError("replace wants the old and the new text");
  ASSIGN_OR_RETURN(const Text* old_text, TextArgument(call.name, *args[0]));
  ASSIGN_OR_RETURN(const Text* new_text, TextArgument(call.name, *args[1]));
  int64_t count = -1;
  if (args[2]) {
    ASSIGN_OR_RETURN(count, IntegerArgument(call.name, *args[2]));
  }
  return Replace(call.budget, call.text, *old_text, *new_text, count);
}

absl::StatusOr<Value> FindCall(const Call& call) {
  ASSIGN_OR_RETURN(Bound args, Bind(call.name, call.arguments, {"sub"}));
  if (!args[0]) return absl::InvalidArgumentError(absl::StrCat(std::string(call.name), " wants a string"));
  ASSIGN_OR_RETURN(const Text* wanted, TextArgument(call.name, *args[0]));
  ASSIGN_OR_RETURN(int64_t at, FindOnce(call.budget, call.text.bytes, wanted->bytes));
  if (at < 0 && call.name == "index") return absl::InvalidArgumentError("index: substring not found");
  return Value::Int(at < 0 ? -1 : CountPoints(std::string_view(call.text.bytes).substr(0, static_cast<size_t>(at))));
}

absl::StatusOr<Value> CountCall(const Call& call) {
  ASSIGN_OR_RETURN(Bound args, Bind(call.name, call.arguments, {"sub"}));
  if (!args[0]) return absl::InvalidArgumentError("count wants a string");
  ASSIGN_OR_RETURN(const Text* wanted, TextArgument(call.name, *args[0]));
  RETURN_IF_ERROR(call.budget.SpendBytes(call.text.size()));
  if (wanted->bytes.empty()) return Value::Int(call.text.points + 1);
  int64_t count = 0;
  if (wanted->size() > call.text.size()) return Value::Int(0);
  ASSIGN_OR_RETURN(TextSearch search, TextSearch::Create(call.budget, wanted->bytes));
  for (int64_t at = search.Find(call.text.bytes, 0); at >= 0; ++count) {
    at = search.Find(call.text.bytes, at + wanted->size());
  }
  return Value::Int(count);
}

absl::StatusOr<Value> JoinCall(const Call& call) {
  ASSIGN_OR_RETURN(Bound args, Bind(call.name, call.arguments, {"iterable"}));
  if (!args[0]) return absl::InvalidArgumentError("join wants something to join");
  ASSIGN_OR_RETURN(auto items, Iterate(call.budget, *args[0]));
  TextBuilder out(call.budget);
  for (size_t i = 0; i < items->items.size() && out.ok(); ++i) {
    ASSIGN_OR_RETURN(const Text* item, TextArgument(call.name, items->items[i]));
    if (i > 0) out.Append(call.text);
    out.Append(*item);
  }
  return FinishString(out);
}

absl::StatusOr<Value> ClassCall(const Call& call) {
  RETURN_IF_ERROR(Bind(call.name, call.arguments, {}).status());
  RETURN_IF_ERROR(call.budget.SpendBytes(call.text.size()));
  bool letter = false, cased = false;
  for (int64_t at = 0; at < call.text.size();) {
    char32_t point = NextPoint(call.text.bytes, &at);
    letter = call.name == "isspace"   ? IsSpace(point)
             : call.name == "isdigit" ? IsDigit(point)
             : call.name == "isalpha" ? IsAlpha(point)
             : call.name == "isalnum" ? IsAlpha(point) || IsDigit(point)
             : call.name == "isupper" ? !IsLower(point)
                                      : !IsUpper(point);
    if (!letter) return Value::Bool(false);
    cased |= IsUpper(point) || IsLower(point);
  }
  bool wants_case = call.name == "isupper" || call.name == "islower";
  return Value::Bool(wants_case ? cased : letter);
}

/// The argument that a replacement field names: {} the next, {0} by position, {name}.
absl::StatusOr<Value> Field(const Call& call, std::string_view field, int64_t* next) {
  int64_t index = 0;
  if (field.find_first_of("!:.[") != std::string_view::npos) {
    return absl::UnimplementedError(
        absl::StrCat("format: the field '{", std::string(field), "}' is not supported: use {}, {0} or {name}"));
  }
  bool positional = field.empty() || absl::SimpleAtoi(absl::string_view(field.data(), field.size()), &index);
  if (field.empty()) index = (*next)++;
  if (positional && index >= 0 && index < static_cast<int64_t>(call.arguments.positional.size())) {
    return call.arguments.positional[static_cast<size_t>(index)];
  }
  for (const auto& [name, value] : call.arguments.named) {
    if (name == field && !positional) return value;
  }
  return absl::InvalidArgumentError(absl::StrCat("format: no argument for the field '{", std::string(field), "}'"));
}

absl::StatusOr<Value> FormatCall(const Call& call) {
  TextBuilder out(call.budget);
  const std::string& bytes = call.text.bytes;
  int64_t next = 0;
  for (size_t at = 0; at < bytes.size() && out.ok();) {
    size_t brace = std::min(bytes.find_first_of("{}", at), bytes.size());
    out.Append(call.text, static_cast<int64_t>(at), static_cast<int64_t>(brace));
    if (brace == bytes.size()) break;
    bool doubled = brace + 1 < bytes.size() && bytes[brace + 1] == bytes[brace];
    if (doubled) {
      out.Append(call.text, static_cast<int64_t>(brace), static_cast<int64_t>(brace) + 1);
      at = brace + 2;
      continue;
    }
    size_t close = bytes.find('}', brace);
    if (bytes[brace] == '}' || close == std::string::npos) return absl::InvalidArgumentError("format: a single brace");
    ASSIGN_OR_RETURN(Value value, Field(call, std::string_view(bytes).substr(brace + 1, close - brace - 1), &next));
    RETURN_IF_ERROR(AppendStr(value, out));
    at = close + 1;
  }
  return FinishString(out);
}

using StringMethod = absl::StatusOr<Value> (*)(const Call&);
constexpr std::pair<std::string_view, StringMethod> kMethods[] = {
    {"strip", StripCall},
    {"lstrip", StripCall},
    {"rstrip", StripCall},
    {"split", SplitCall},
    {"rsplit", SplitCall},
    {"splitlines", SplitLinesCall},
    {"startswith", AffixCall},
    {"endswith", AffixCall},
    {"removeprefix", RemoveAffixCall},
    {"removesuffix", RemoveAffixCall},
    {"upper", CaseCall},
    {"lower", CaseCall},
    {"title", CaseCall},
    {"capitalize", CaseCall},
    {"replace", ReplaceCall},
    {"find", FindCall},
    {"index", FindCall},
    {"count", CountCall},
    {"join", JoinCall},
    {"format", FormatCall},
    {"isspace", ClassCall},
    {"isdigit", ClassCall},
    {"isalpha", ClassCall},
    {"isalnum", ClassCall},
    {"isupper", ClassCall},
    {"islower", ClassCall},
};

StringMethod FindMethod(std::string_view name) {
  for (const auto& [known, function] : kMethods) {
    if (known == name) return function;
  }
  return nullptr;
}

}  // namespace

bool IsStringMethod(std::string_view name) { return FindMethod(name) != nullptr; }

absl::StatusOr<Value> CallStringMethod(Budget& budget, const Text& text, std::string_view name,
                                       const Arguments& arguments) {
  return FindMethod(name)({budget, text, name, arguments});
}

}  // namespace swiftcache::gateway::text::jinja
