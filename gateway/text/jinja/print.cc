// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/jinja/print.h"

#include <charconv>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "gateway/text/jinja/unicode.h"

namespace swiftcache::gateway::text::jinja {
namespace {

std::string Escaped(char32_t point, char quote) {
  char buffer[16];
  if (point == '\\' || point == static_cast<char32_t>(quote)) return std::string("\\") + static_cast<char>(point);
  if (point == '\n') return "\\n";
  if (point == '\r') return "\\r";
  if (point == '\t') return "\\t";
  const char* format = point < 0x100 ? "\\x%02x" : point < 0x10000 ? "\\u%04x" : "\\U%08x";
  std::snprintf(buffer, sizeof(buffer), format, static_cast<unsigned>(point));
  return buffer;
}

void AppendQuoted(const Text& text, TextBuilder& out) {
  bool single = text.bytes.find('\'') == std::string::npos || text.bytes.find('"') != std::string::npos;
  char quote = single ? '\'' : '"';
  MarkCursor marks(text);
  if (text.safe) out.Append("Markup(");
  out.Append(std::string_view(&quote, 1));
  for (int64_t at = 0; at < text.size() && out.ok();) {
    int64_t begin = at;
    char32_t point = NextPoint(text.bytes, &at);
    if (IsPrintable(point) && point != '\\' && point != static_cast<char32_t>(quote)) {
      out.Append(text, begin, at);
    } else {
      out.Append(Escaped(point, quote), marks.At(begin));
    }
  }
  out.Append(std::string_view(&quote, 1));
  if (text.safe) out.Append(")");
}

absl::Status AppendItems(const List& list, TextBuilder& out) {
  for (size_t i = 0; i < list.items.size(); ++i) {
    out.Step();
    if (i > 0) out.Append(", ");
    RETURN_IF_ERROR(AppendRepr(list.items[i], out));
  }
  return out.status();
}

absl::Status AppendRange(const List& list, TextBuilder& out) {
  auto at = [&](size_t i) { return list.items[i].AsInteger().value_or(0); };
  size_t n = list.items.size();
  int64_t first = n > 0 ? at(0) : 0, step = n > 1 ? at(1) - at(0) : 1;
  out.Append(absl::StrCat("range(", first, ", ", n > 0 ? at(n - 1) + step : 0));
  out.Append(step == 1 ? std::string(")") : absl::StrCat(", ", step, ")"));
  return out.status();
}

absl::Status Unprintable(const Value& value) {
  return absl::UnimplementedError(
      absl::StrCat("a value of type ", std::string(TypeName(value)),
                   " cannot be printed: print what it holds (|list makes a list of a generator)"));
}

absl::Status AppendList(const Value& value, const List& list, TextBuilder& out) {
  switch (list.kind) {
    case ListKind::kGenerator:
      return Unprintable(value);
    case ListKind::kRange:
      return AppendRange(list, out);
    case ListKind::kList:
      break;
    case ListKind::kTuple:
      out.Append("(");
      RETURN_IF_ERROR(AppendItems(list, out));
      out.Append(list.items.size() == 1 ? ",)" : ")");
      return out.status();
    default:
      out.Append(absl::StrCat(std::string(TypeName(value)), "("));
  }
  out.Append("[");
  RETURN_IF_ERROR(AppendItems(list, out));
  out.Append(list.kind == ListKind::kList ? "]" : "])");
  return out.status();
}

absl::Status AppendDict(const Dict& dict, TextBuilder& out) {
  out.Append("{");
  for (size_t i = 0; i < dict.items.size(); ++i) {
    out.Step();
    if (i > 0) out.Append(", ");
    RETURN_IF_ERROR(AppendRepr(dict.items[i].first, out));
    out.Append(": ");
    RETURN_IF_ERROR(AppendRepr(dict.items[i].second, out));
  }
  out.Append("}");
  return out.status();
}

}  // namespace

std::string FloatRepr(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d < 0 ? "-inf" : "inf";
  char buffer[64];
  double size = std::abs(d);
  bool fixed = size == 0 || (size >= 1e-4 && size < 1e16);
  auto end = std::to_chars(buffer, buffer + sizeof(buffer), d,
                           fixed ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(buffer, end.ptr);
  if (fixed && text.find('.') == std::string::npos) text += ".0";
  return text;
}

absl::Status AppendRepr(const Value& value, TextBuilder& out) {
  RETURN_IF_ERROR(out.status());
  if (auto* text = value.AsText()) {
    AppendQuoted(*text, out);
    return out.status();
  }
  if (value.IsUndefined()) {
    out.Append("Undefined");
    return out.status();
  }
  return AppendStr(value, out);
}

absl::Status AppendStr(const Value& value, TextBuilder& out) {
  RETURN_IF_ERROR(out.status());
  if (auto* text = value.AsText()) {
    out.Append(*text);
  } else if (auto* list = value.AsList()) {
    return AppendList(value, *list, out);
  } else if (auto* dict = value.AsDict()) {
    return AppendDict(*dict, out);
  } else if (auto* b = value.AsBool()) {
    out.Append(*b ? "True" : "False");
  } else if (auto integer = value.AsInteger()) {
    out.Append(absl::StrCat(*integer));
  } else if (auto* d = value.AsFloat()) {
    out.Append(FloatRepr(*d));
  } else if (value.IsNone()) {
    out.Append("None");
  } else if (!value.IsUndefined()) {
    return Unprintable(value);
  }
  return out.status();
}

absl::StatusOr<TextPtr> Str(Budget& budget, const Value& value) {
  if (auto* text = std::get_if<TextPtr>(&value.rep())) return *text;
  TextBuilder out(budget);
  RETURN_IF_ERROR(AppendStr(value, out));
  return out.Finish();
}

}  // namespace swiftcache::gateway::text::jinja
