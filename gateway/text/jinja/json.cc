// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/jinja/json.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "gateway/text/jinja/print.h"
#include "gateway/text/jinja/unicode.h"

namespace swiftcache::gateway::text::jinja {
namespace {

constexpr int64_t kMaxIndent = 64;

std::string EscapedUnit(unsigned unit) {
  char buffer[16];
  std::snprintf(buffer, sizeof(buffer), "\\u%04x", unit);
  return buffer;
}

std::string Escaped(char32_t point) {
  switch (point) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    case '\b':
      return "\\b";
    case '\f':
      return "\\f";
    default:
      break;
  }
  if (point < 0x10000) return EscapedUnit(point);
  return EscapedUnit(0xD800 + ((point - 0x10000) >> 10)) + EscapedUnit(0xDC00 + ((point - 0x10000) & 0x3FF));
}

class JsonWriter {
 public:
  JsonWriter(const JsonFormat& format, TextBuilder& out)
      : format_(format),
        out_(out),
        item_separator_(format.item_separator.value_or(format.indent ? "," : ", ")),
        key_separator_(format.key_separator.value_or(": ")) {}

  absl::Status Write(const Value& value, int64_t level) {
    RETURN_IF_ERROR(out_.status());
    if (auto* text = value.AsText()) return WriteString(*text);
    if (auto* dict = value.AsDict()) return WriteDict(*dict, level);
    if (auto* list = value.AsList();
        list != nullptr && (list->kind == ListKind::kList || list->kind == ListKind::kTuple)) {
      return WriteList(*list, level);
    }
    return WriteScalar(value);
  }

 private:
  absl::Status WriteScalar(const Value& value) {
    if (auto* b = value.AsBool()) {
      out_.Append(*b ? "true" : "false");
    } else if (auto* d = value.AsFloat()) {
      out_.Append(std::isnan(*d) ? "NaN" : std::isinf(*d) ? (*d < 0 ? "-Infinity" : "Infinity") : FloatRepr(*d));
    } else if (auto integer = value.AsInteger()) {
      out_.Append(absl::StrCat(*integer));
    } else if (value.IsNone()) {
      out_.Append("null");
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("Object of type ", std::string(TypeName(value)), " is not JSON serializable"));
    }
    return out_.status();
  }

  absl::Status WriteString(const Text& text) {
    MarkCursor marks(text);
    out_.Append("\"");
    for (int64_t at = 0; at < text.size() && out_.ok();) {
      int64_t begin = at;
      char32_t point = NextPoint(text.bytes, &at);
      if (point < 0x20 || point == '"' || point == '\\' || (format_.ensure_ascii && point > 0x7E)) {
        out_.Append(Escaped(point), marks.At(begin));
      } else {
        out_.Append(text, begin, at);
      }
    }
    out_.Append("\"");
    return out_.status();
  }

  absl::Status WriteList(const List& list, int64_t level) {
    out_.Append("[");
    for (size_t i = 0; i < list.items.size(); ++i) {
      out_.Step();
      if (i > 0) out_.Append(item_separator_);
      NewLine(level + 1);
      RETURN_IF_ERROR(Write(list.items[i], level + 1));
    }
    if (!list.items.empty()) NewLine(level);
    out_.Append("]");
    return out_.status();
  }

  absl::Status WriteDict(const Dict& dict, int64_t level) {
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.items) entries.push_back(&entry);
    if (format_.sort_keys) RETURN_IF_ERROR(SortByKey(entries));
    out_.Append("{");
    for (size_t i = 0; i < entries.size(); ++i) {
      out_.Step();
      if (i > 0) out_.Append(item_separator_);
      NewLine(level + 1);
      RETURN_IF_ERROR(WriteKey(entries[i]->first));
      out_.Append(key_separator_);
      RETURN_IF_ERROR(Write(entries[i]->second, level + 1));
    }
    if (!entries.empty()) NewLine(level);
    out_.Append("}");
    return out_.status();
  }

  static absl::Status SortByKey(std::vector<const std::pair<Value, Value>*>& entries) {
    for (auto* entry : entries) {
      if (entry->first.AsText() == nullptr)
        return absl::InvalidArgumentError("sort_keys wants a dict whose keys are strings");
    }
    std::stable_sort(entries.begin(), entries.end(),
                     [](auto* a, auto* b) { return a->first.AsText()->bytes < b->first.AsText()->bytes; });
    return absl::OkStatus();
  }

  absl::Status WriteKey(const Value& key) {
    if (auto* text = key.AsText()) return WriteString(*text);
    if (!key.IsNumber() && !key.IsNone()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "keys of JSON objects must be strings, numbers, bool or none, not ", std::string(TypeName(key))));
    }
    out_.Append("\"");
    RETURN_IF_ERROR(WriteScalar(key));
    out_.Append("\"");
    return out_.status();
  }

  void NewLine(int64_t level) {
    if (format_.indent) out_.Append("\n" + std::string(static_cast<size_t>(*format_.indent * level), ' '));
  }

  const JsonFormat& format_;
  TextBuilder& out_;
  const std::string item_separator_, key_separator_;
};

}  // namespace

absl::Status AppendJson(const Value& value, const JsonFormat& format, TextBuilder& out) {
  if (format.indent && *format.indent > kMaxIndent) {
    return absl::InvalidArgumentError(
        absl::StrCat("tojson: an indent of ", *format.indent, " is too large: use at most ", kMaxIndent));
  }
  JsonFormat checked = format;
  if (checked.indent) checked.indent = std::max<int64_t>(*checked.indent, 0);
  return JsonWriter(checked, out).Write(value, 0);
}

}  // namespace swiftcache::gateway::text::jinja
