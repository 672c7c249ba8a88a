// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/jinja/access.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "gateway/text/jinja/builders.h"
#include "gateway/text/jinja/loop_attributes.h"
#include "gateway/text/jinja/methods.h"
#include "gateway/text/jinja/text_functions.h"
#include "gateway/text/jinja/unicode.h"

namespace swiftcache::gateway::text::jinja {
namespace {

constexpr int64_t kMaxNamePoints = 100;

/// An undefined value keeps this message as long as it exists, so a name that the template computed is cut short.
Value MissingAttribute(const Value& value, std::string_view name) {
  const bool cut = CountPoints(name) > kMaxNamePoints;
  if (cut) name = name.substr(0, static_cast<size_t>(PointOffset(name, kMaxNamePoints)));
  return Value::Missing(absl::StrCat("'", std::string(TypeName(value)), " object' has no attribute '",
                                     std::string(name), cut ? "...'" : "'"));
}

/// What Python's getattr finds; nothing where it raises AttributeError.
absl::StatusOr<std::optional<Value>> PythonAttribute(Budget& budget, const Value& value, std::string_view name) {
  RETURN_IF_ERROR(budget.SpendBytes(static_cast<int64_t>(name.size())));
  if (auto* space = std::get_if<Namespace*>(&value.rep())) {
    auto found = (*space)->attributes.find(name);
    if (found == (*space)->attributes.end()) return std::optional<Value>();
    return std::optional<Value>(found->second);
  }
  if (auto* loop = std::get_if<std::shared_ptr<const Loop>>(&value.rep())) return LoopAttribute(*loop, name);
  switch (LookUpMethod(value, name)) {
    case MethodAccess::kAbsent:
      return std::optional<Value>();
    case MethodAccess::kUnsafe:
      return std::optional<Value>(Value::Missing(absl::StrCat("access to attribute '", std::string(name), "' of '",
                                                              std::string(TypeName(value)), "' object is unsafe")));
    case MethodAccess::kAllowed:
      break;
  }
  return std::optional<Value>(Value(std::make_shared<const Method>(Method{value, std::string(name)})));
}

std::optional<int64_t> Position(int64_t index, int64_t size) {
  if (index < 0) index += size;
  if (index < 0 || index >= size) return std::nullopt;
  return index;
}

absl::StatusOr<Value> CharacterAt(Budget& budget, const Text& text, int64_t index) {
  if (text.IsAscii()) return Substring(budget, text, index, index + 1);
  RETURN_IF_ERROR(budget.SpendBytes(text.size()));
  int64_t begin = PointOffset(text.bytes, index), end = begin;
  NextPoint(text.bytes, &end);
  return Substring(budget, text, begin, end);
}

bool IsIndexable(const List& list) {
  return list.kind == ListKind::kList || list.kind == ListKind::kTuple || list.kind == ListKind::kRange;
}

/// value[key] as Python does it; nothing where it raises LookupError or TypeError.
absl::StatusOr<std::optional<Value>> PythonItem(Budget& budget, const Value& value, const Value& key) {
  if (auto* dict = value.AsDict()) {
    ASSIGN_OR_RETURN(auto hash, DictKey(budget, key));
    auto found = hash ? dict->index.find(*hash) : dict->index.end();
    return found == dict->index.end() ? std::optional<Value>()
                                      : std::optional<Value>(dict->items[found->second].second);
  }
  std::optional<int64_t> index = key.AsInteger();
  if (!index) return std::optional<Value>();
  if (auto* list = value.AsList(); list != nullptr && IsIndexable(*list)) {
    auto at = Position(*index, static_cast<int64_t>(list->items.size()));
    return at ? std::optional<Value>(list->items[static_cast<size_t>(*at)]) : std::optional<Value>();
  }
  if (auto* text = value.AsText()) {
    auto at = Position(*index, text->points);
    if (!at) return std::optional<Value>();
    ASSIGN_OR_RETURN(Value character, CharacterAt(budget, *text, *at));
    return std::optional<Value>(std::move(character));
  }
  return std::optional<Value>();
}

struct SliceRange {
  int64_t start = 0, stop = 0, step = 1;
  int64_t count() const {
    if (step > 0) return start < stop ? (stop - start - 1) / step + 1 : 0;
    // -(step + 1) does not overflow for the smallest integer, where -step would.
    return start > stop ? (start - stop - 1) / (step == INT64_MIN ? INT64_MAX : -step) + 1 : 0;
  }
};

absl::StatusOr<int64_t> SliceBound(const Value& bound, int64_t standard, int64_t size, bool backwards) {
  if (bound.IsNone()) return standard;
  auto index = bound.AsInteger();
  if (!index) {
    return absl::InvalidArgumentError(
        absl::StrCat("a slice wants integers or none, found '", std::string(TypeName(bound)), "'"));
  }
  int64_t at = *index < 0 ? *index + size : *index;
  return std::clamp<int64_t>(at, backwards ? -1 : 0, backwards ? size - 1 : size);
}

absl::StatusOr<SliceRange> ToRange(const Value& start, const Value& stop, const Value& step, int64_t size) {
  SliceRange range;
  if (!step.IsNone()) {
    if (!step.AsInteger() || *step.AsInteger() == 0)
      return absl::InvalidArgumentError("a slice's step must be an integer other than 0");
    range.step = *step.AsInteger();
  }
  bool backwards = range.step < 0;
  ASSIGN_OR_RETURN(range.start, SliceBound(start, backwards ? size - 1 : 0, size, backwards));
  ASSIGN_OR_RETURN(range.stop, SliceBound(stop, backwards ? -1 : size, size, backwards));
  return range;
}

absl::StatusOr<Value> SliceText(Budget& budget, const Text& text, const SliceRange& range) {
  RETURN_IF_ERROR(budget.SpendBytes(text.size()));
  if (range.step == 1) {
    int64_t begin = text.IsAscii() ? range.start : PointOffset(text.bytes, range.start);
    int64_t end = text.IsAscii() ? range.stop : PointOffset(text.bytes, range.stop);
    return Substring(budget, text, begin, std::max(begin, end));
  }
  Charge charge(budget);
  RETURN_IF_ERROR(charge.Grow(2 * static_cast<int64_t>(sizeof(int64_t)) * (text.points + 1)));
  std::vector<int64_t> offsets;
  for (int64_t at = 0; at < text.size();) {
    offsets.push_back(at);
    NextPoint(text.bytes, &at);
  }
  offsets.push_back(text.size());
  TextBuilder out(budget);
  for (int64_t i = 0, at = range.start; i < range.count() && out.ok(); ++i) {
    out.Append(text, offsets[static_cast<size_t>(at)], offsets[static_cast<size_t>(at) + 1]);
    if (i + 1 < range.count()) at += range.step;
  }
  return FinishString(out);
}

absl::StatusOr<Value> SliceList(Budget& budget, const List& list, const SliceRange& range) {
  ListBuilder out(budget, list.kind);
  for (int64_t i = 0, at = range.start; i < range.count(); ++i) {
    if (!out.Add(list.items[static_cast<size_t>(at)])) break;
    if (i + 1 < range.count()) at += range.step;
  }
  return out.Finish();
}

}  // namespace

absl::StatusOr<Value> GetAttribute(Budget& budget, const Value& value, std::string_view name) {
  if (value.IsUndefined()) return absl::InvalidArgumentError(UndefinedMessage(value));
  ASSIGN_OR_RETURN(std::optional<Value> found, PythonAttribute(budget, value, name));
  if (found) return *std::move(found);
  if (auto* dict = value.AsDict()) {
    if (const Value* item = dict->Find(name)) return *item;
  }
  return MissingAttribute(value, name);
}

absl::StatusOr<Value> GetItem(Budget& budget, const Value& value, const Value& key) {
  if (value.IsUndefined()) return absl::InvalidArgumentError(UndefinedMessage(value));
  ASSIGN_OR_RETURN(std::optional<Value> found, PythonItem(budget, value, key));
  const Text* name = key.AsText();
  if (!found && name != nullptr) {
    ASSIGN_OR_RETURN(found, PythonAttribute(budget, value, name->bytes));
    if (!found) return MissingAttribute(value, name->bytes);
  }
  if (found) return *std::move(found);
  auto index = key.AsInteger();
  return Value::Missing(absl::StrCat(std::string(TypeName(value)), " object has no element ",
                                     index ? std::to_string(*index) : "of type " + std::string(TypeName(key))));
}

absl::StatusOr<Value> GetSlice(Budget& budget, const Value& value, const Value& start, const Value& stop,
                               const Value& step) {
  if (value.IsUndefined()) return absl::InvalidArgumentError(UndefinedMessage(value));
  const Text* text = value.AsText();
  const List* list = value.AsList();
  if (list != nullptr && !IsIndexable(*list)) list = nullptr;
  if (text == nullptr && list == nullptr) {
    return Value::Missing(absl::StrCat(std::string(TypeName(value)), " object cannot be sliced"));
  }
  int64_t size = text != nullptr ? text->points : static_cast<int64_t>(list->items.size());
  ASSIGN_OR_RETURN(SliceRange range, ToRange(start, stop, step, size));
  return text != nullptr ? SliceText(budget, *text, range) : SliceList(budget, *list, range);
}

absl::StatusOr<std::shared_ptr<const List>> Iterate(Budget& budget, const Value& value) {
  if (auto* list = std::get_if<std::shared_ptr<const List>>(&value.rep())) return *list;
  absl::StatusOr<Value> items = Value();
  if (auto* text = value.AsText()) {
    items = Characters(budget, *text);
  } else if (auto* dict = value.AsDict()) {
    ListBuilder keys(budget);
    for (const auto& entry : dict->items) keys.Add(entry.first);
    items = keys.Finish();
  } else if (value.IsUndefined()) {
    items = ListBuilder(budget).Finish();
  } else {
    return absl::InvalidArgumentError(absl::StrCat("'", std::string(TypeName(value)), "' object is not iterable"));
  }
  RETURN_IF_ERROR(items.status());
  return std::get<std::shared_ptr<const List>>(items->rep());
}

absl::StatusOr<int64_t> Length(const Value& value) {
  if (auto* text = value.AsText()) return text->points;
  if (auto* dict = value.AsDict()) return static_cast<int64_t>(dict->items.size());
  if (auto* list = value.AsList(); list != nullptr && list->kind != ListKind::kGenerator) {
    return static_cast<int64_t>(list->items.size());
  }
  if (value.IsUndefined()) return 0;
  return absl::InvalidArgumentError(absl::StrCat("object of type '", std::string(TypeName(value)), "' has no len()"));
}

}  // namespace swiftcache::gateway::text::jinja
