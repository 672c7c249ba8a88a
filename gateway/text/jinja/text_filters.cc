// SPDX-License-Identifier: Apache-2.0
// Filters that make text: trim, replace, indent, tojson, ...
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/units.h"
#include "gateway/text/jinja/access.h"
#include "gateway/text/jinja/builders.h"
#include "gateway/text/jinja/filters.h"
#include "gateway/text/jinja/json.h"
#include "gateway/text/jinja/print.h"
#include "gateway/text/jinja/text_functions.h"

namespace swiftcache::gateway::text::jinja {
namespace {

absl::StatusOr<Value> String(const FilterCall& call) {
  RETURN_IF_ERROR(Bind(call.name, call.arguments, {}).status());
  ASSIGN_OR_RETURN(TextPtr text, Str(call.budget, call.input));
  return Value::String(std::move(text));
}

absl::StatusOr<Value> Trim(const FilterCall& call) {
  ASSIGN_OR_RETURN(Bound args, Bind(call.name, call.arguments, {"chars"}));
  ASSIGN_OR_RETURN(TextPtr text, Str(call.budget, call.input));
  const Text* characters = nullptr;
  if (args[0] && !args[0]->IsNone()) {
    ASSIGN_OR_RETURN(characters, TextArgument(call.name, *args[0]));
  }
  return Strip(call.budget, *text, characters, Side::kBoth);
}

absl::StatusOr<Value> Case(const FilterCall& call) {
  RETURN_IF_ERROR(Bind(call.name, call.arguments, {}).status());
  ASSIGN_OR_RETURN(TextPtr text, Str(call.budget, call.input));
  if (call.name == "upper") return UpperText(call.budget, *text);
  if (call.name == "lower") return LowerText(call.budget, *text);
  if (call.name == "capitalize") return CapitalizeText(call.budget, *text);
  return TitleText(call.budget, *text, /*filter_rules=*/true);
}

absl::StatusOr<Value> ReplaceFilter(const FilterCall& call) {
  ASSIGN_OR_RETURN(Bound args, Bind(call.name, call.arguments, {"old", "new", "count"}));
  if (!args[0] || !args[1]) return absl::InvalidArgumentError("replace wants the old and the new text");
  ASSIGN_OR_RETURN(TextPtr text, Str(call.budget, call.input));
  ASSIGN_OR_RETURN(TextPtr old_text, Str(call.budget, *args[0]));
  ASSIGN_OR_RETURN(TextPtr new_text, Str(call.budget, *args[1]));
  int64_t count = -1;
  if (args[2] && !args[2]->IsNone()) {
    ASSIGN_OR_RETURN(count, IntegerArgument(call.name, *args[2]));
  }
  return Replace(call.budget, *text, *old_text, *new_text, count);
}

/// The indent as a text: a number of spaces, or a string as it is.
absl::StatusOr<TextPtr> Indentation(const FilterCall& call, const std::optional<Value>& width) {
  if (width && width->AsText() != nullptr) return Str(call.budget, *width);
  ASSIGN_OR_RETURN(int64_t spaces, IntegerArgument(call.name, width.value_or(Value::Int(4))));
  ASSIGN_OR_RETURN(Value text, RepeatText(call.budget, *FreeText(" "), spaces));
  return std::get<TextPtr>(text.rep());
}

absl::StatusOr<Value> Indent(const FilterCall& call) {
  ASSIGN_OR_RETURN(Bound args, Bind(call.name, call.arguments, {"width", "first", "blank"}));
  ASSIGN_OR_RETURN(TextPtr indentation, Indentation(call, args[0]));
  ASSIGN_OR_RETURN(const Text* text, TextArgument(call.name, call.input));
  bool blank = FlagArgument(args[2], false);
  // jinja2 adds a newline before it splits, so that an empty text has one line and a last newline a blank one.
  ASSIGN_OR_RETURN(Value ended, ConcatTexts(call.budget, *text, *FreeText("\n")));
  ASSIGN_OR_RETURN(Value lines, SplitLines(call.budget, *ended.AsText(), /*keep_ends=*/false));
  TextBuilder out(call.budget);
  out.SetSafe(text->safe);
  if (FlagArgument(args[1], false)) out.Append(*indentation);
  for (size_t i = 0; i < lines.AsList()->items.size() && out.ok(); ++i) {
    const Text& line = *lines.AsList()->items[i].AsText();
    if (i > 0) out.Append("\n");
    if (i > 0 && (blank || line.size() > 0)) out.Append(*indentation);
    out.Append(line);
  }
  return FinishString(out);
}

absl::StatusOr<Value> Join(const FilterCall& call) {
  ASSIGN_OR_RETURN(Bound args, Bind(call.name, call.arguments, {"d", "attribute"}));
  ASSIGN_OR_RETURN(TextPtr separator, Str(call.budget, args[0].value_or(Value())));
  ASSIGN_OR_RETURN(auto items, Iterate(call.budget, call.input));
  TextBuilder out(call.budget);
  for (size_t i = 0; i < items->items.size() && out.ok(); ++i) {
    Value item = items->items[i];
    if (args[1] && !args[1]->IsNone()) {
      ASSIGN_OR_RETURN(item, LookUpPath(call.budget, item, *args[1]));
    }
    if (i > 0) out.Append(*separator);
    RETURN_IF_ERROR(AppendStr(item, out));
  }
  return FinishString(out);
}

absl::StatusOr<Value> Safe(const FilterCall& call) {
  RETURN_IF_ERROR(Bind(call.name, call.arguments, {}).status());
  TextBuilder out(call.budget);
  RETURN_IF_ERROR(AppendStr(call.input, out));
  out.SetSafe(true);
  return FinishString(out);
}

absl::StatusOr<Value> Escape(const FilterCall& call) {
  RETURN_IF_ERROR(Bind(call.name, call.arguments, {}).status());
  ASSIGN_OR_RETURN(TextPtr text, Str(call.budget, call.input));
  return EscapeHtml(call.budget, *text);
}

absl::Status ReadSeparators(const Value& separators, JsonFormat* format) {
  const List* pair = separators.AsList();
  if (pair == nullptr || pair->items.size() != 2) {
    return absl::InvalidArgumentError("tojson: separators wants two strings, as (',', ':')");
  }
  ASSIGN_OR_RETURN(const Text* item, TextArgument("tojson", pair->items[0]));
  ASSIGN_OR_RETURN(const Text* key, TextArgument("tojson", pair->items[1]));
  format->item_separator = item->bytes;
  format->key_separator = key->bytes;
  return absl::OkStatus();
}

absl::StatusOr<Value> ToJson(const FilterCall& call) {
  ASSIGN_OR_RETURN(Bound args, Bind(call.name, call.arguments, {"ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonFormat format;
  format.ensure_ascii = FlagArgument(args[0], false);
  format.sort_keys = FlagArgument(args[3], false);
  if (args[1] && !args[1]->IsNone()) {
    ASSIGN_OR_RETURN(format.indent, IntegerArgument(call.name, *args[1]));
  }
  if (args[2] && !args[2]->IsNone()) RETURN_IF_ERROR(ReadSeparators(*args[2], &format));
  TextBuilder out(call.budget);
  RETURN_IF_ERROR(AppendJson(call.input, format, out));
  return FinishString(out);
}

constexpr Filter kTextFilters[] = {
    {"trim", Trim},
    {"string", String},
    {"upper", Case},
    {"lower", Case},
    {"title", Case},
    {"capitalize", Case},
    {"replace", ReplaceFilter},
    {"indent", Indent},
    {"join", Join},
    {"safe", Safe},
    {"escape", Escape},
    {"e", Escape},
    {"tojson", ToJson},
};

}  // namespace

std::span<const Filter> TextFilters() { return kTextFilters; }

}  // namespace swiftcache::gateway::text::jinja
