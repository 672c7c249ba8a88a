// SPDX-License-Identifier: Apache-2.0
// Filters over sequences that keep their order: list, first, last, map, select, ...
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "gateway/text/jinja/access.h"
#include "gateway/text/jinja/builders.h"
#include "gateway/text/jinja/filters.h"
#include "gateway/text/jinja/methods.h"
#include "gateway/text/jinja/text_functions.h"
#include "gateway/text/jinja/value_tests.h"

namespace swiftcache::gateway::text::jinja {
namespace {

absl::StatusOr<Value> CopyList(Budget& budget, const List& list, ListKind kind, bool reversed) {
  ListBuilder out(budget, kind);
  size_t size = list.items.size();
  for (size_t i = 0; i < size; ++i) {
    if (!out.Add(list.items[reversed ? size - 1 - i : i])) break;
  }
  return out.Finish();
}

absl::StatusOr<Value> ToList(const FilterCall& call) {
  RETURN_IF_ERROR(Bind(call.name, call.arguments, {}).status());
  ASSIGN_OR_RETURN(auto items, Iterate(call.budget, call.input));
  return CopyList(call.budget, *items, ListKind::kList, /*reversed=*/false);
}

absl::StatusOr<Value> End(const FilterCall& call) {
  RETURN_IF_ERROR(Bind(call.name, call.arguments, {}).status());
  bool last = call.name == "last";
  if (last && call.input.AsList() != nullptr && call.input.AsList()->kind == ListKind::kGenerator) {
    return absl::InvalidArgumentError("last: a generator has no end to look at: make it a list with |list");
  }
  ASSIGN_OR_RETURN(auto items, Iterate(call.budget, call.input));
  if (items->items.empty())
    return Value::Missing(last ? "No last item, sequence was empty." : "No first item, sequence was empty.");
  return last ? items->items.back() : items->items.front();
}

absl::StatusOr<Value> Reverse(const FilterCall& call) {
  RETURN_IF_ERROR(Bind(call.name, call.arguments, {}).status());
  if (call.input.AsText() != nullptr)
    return GetSlice(call.budget, call.input, Value(None{}), Value(None{}), Value::Int(-1));
  ASSIGN_OR_RETURN(auto items, Iterate(call.budget, call.input));
  bool list = items->kind == ListKind::kGenerator;  // jinja2 must make a list of one
  return CopyList(call.budget, *items, list ? ListKind::kList : ListKind::kGenerator, /*reversed=*/true);
}

absl::StatusOr<Value> Items(const FilterCall& call) {
  RETURN_IF_ERROR(Bind(call.name, call.arguments, {}).status());
  if (call.input.IsUndefined()) return ListBuilder(call.budget, ListKind::kGenerator).Finish();
  if (call.input.AsDict() == nullptr) return absl::InvalidArgumentError("Can only get item pairs from a mapping.");
  ASSIGN_OR_RETURN(Value view, CallMethod(call.budget, {call.input, "items"}, {}));
  return CopyList(call.budget, *view.AsList(), ListKind::kGenerator, /*reversed=*/false);
}

Arguments Without(const Arguments& arguments, size_t count) {
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin(), rest.positional.begin() + static_cast<int64_t>(count));
  return rest;
}

absl::StatusOr<Value> MapAttribute(const FilterCall& call) {
  ASSIGN_OR_RETURN(Bound args, Bind(call.name, call.arguments, {"attribute", "default"}));
  ASSIGN_OR_RETURN(auto items, Iterate(call.budget, call.input));
  ListBuilder out(call.budget, ListKind::kGenerator);
  for (const Value& item : items->items) {
    ASSIGN_OR_RETURN(Value found, LookUpPath(call.budget, item, *args[0]));
    if (found.IsUndefined() && args[1]) found = *args[1];
    if (!out.Add(std::move(found))) break;
  }
  return out.Finish();
}

absl::StatusOr<Value> Map(const FilterCall& call) {
  bool by_attribute = false;
  for (const auto& argument : call.arguments.named) by_attribute |= argument.first == "attribute";
  if (call.arguments.positional.empty() && by_attribute) return MapAttribute(call);
  if (call.arguments.positional.empty()) return absl::InvalidArgumentError("map wants a filter's name or attribute=");
  ASSIGN_OR_RETURN(const Text* name, TextArgument(call.name, call.arguments.positional[0]));
  Arguments rest = Without(call.arguments, 1);
  ASSIGN_OR_RETURN(auto items, Iterate(call.budget, call.input));
  DepthGuard depth(call.budget);  // map('map', 'map', ...) calls itself
  RETURN_IF_ERROR(depth.status());
  ListBuilder out(call.budget, ListKind::kGenerator);
  for (const Value& item : items->items) {
    ASSIGN_OR_RETURN(Value mapped, ApplyFilter(call.budget, name->bytes, item, rest));
    if (!out.Add(std::move(mapped))) break;
  }
  return out.Finish();
}

/// select, reject, selectattr and rejectattr.
absl::StatusOr<Value> Select(const FilterCall& call) {
  bool by_attribute = call.name.ends_with("attr"), wanted = call.name.starts_with("select");
  size_t skipped = by_attribute ? 1 : 0;
  if (call.arguments.positional.size() < skipped) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(call.name), " wants an attribute's name"));
  }
  std::string test;
  if (call.arguments.positional.size() > skipped) {
    ASSIGN_OR_RETURN(const Text* name, TextArgument(call.name, call.arguments.positional[skipped]));
    test = name->bytes;
  }
  Arguments rest = Without(call.arguments, test.empty() ? skipped : skipped + 1);
  ListBuilder out(call.budget, ListKind::kGenerator);
  if (!IsTruthy(call.input)) return out.Finish();
  ASSIGN_OR_RETURN(auto items, Iterate(call.budget, call.input));
  for (const Value& item : items->items) {
    Value subject = item;
    if (by_attribute) {
      ASSIGN_OR_RETURN(subject, LookUpPath(call.budget, item, call.arguments.positional[0]));
    }
    absl::StatusOr<bool> passes = IsTruthy(subject);
    if (!test.empty()) passes = ApplyTest(call.budget, test, subject, rest);
    RETURN_IF_ERROR(passes.status());
    RETURN_IF_ERROR(call.budget.Spend(1));
    if (*passes == wanted && !out.Add(item)) break;
  }
  return out.Finish();
}

constexpr Filter kListFilters[] = {
    {"list", ToList}, {"first", End},     {"last", End},          {"reverse", Reverse}, {"items", Items},
    {"map", Map},     {"select", Select}, {"selectattr", Select}, {"reject", Select},   {"rejectattr", Select},
};

}  // namespace

std::span<const Filter> ListFilters() { return kListFilters; }

}  // namespace swiftcache::gateway::text::jinja
