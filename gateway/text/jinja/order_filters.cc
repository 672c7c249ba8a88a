// SPDX-License-Identifier: Apache-2.0
// Filters that compare items: sort, dictsort, unique, min, max.
#include <algorithm>
#include <numeric>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "gateway/text/jinja/access.h"
#include "gateway/text/jinja/builders.h"
#include "gateway/text/jinja/filters.h"
#include "gateway/text/jinja/methods.h"
#include "gateway/text/jinja/operators.h"
#include "gateway/text/jinja/text_functions.h"

namespace swiftcache::gateway::text::jinja {
namespace {

/// What an item is compared by: an attribute of it, in lower case unless case counts.
absl::StatusOr<Value> Key(Budget& budget, const Value& item, const std::optional<Value>& attribute,
                          bool case_sensitive) {
  Value key = item;
  if (attribute && !attribute->IsNone()) {
    if (attribute->AsText() != nullptr && attribute->AsText()->bytes.find(',') != std::string::npos) {
      return absl::UnimplementedError("sorting by several attributes is not supported");
    }
    ASSIGN_OR_RETURN(key, LookUpPath(budget, item, *attribute));
  }
  if (key.AsText() != nullptr && !case_sensitive) return LowerText(budget, *key.AsText());
  return key;
}

/// The positions of `keys` in ascending order, equal ones in their own.
absl::StatusOr<std::vector<size_t>> Order(Budget& budget, const std::vector<Value>& keys, bool reversed) {
  std::vector<size_t> order(keys.size());
  std::iota(order.begin(), order.end(), 0);
  absl::Status status;
  // After a failure every comparison says no, which any merge sort survives.
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (!status.ok()) return false;
    auto less = Less(budget, keys[reversed ? b : a], keys[reversed ? a : b]);
    if (!less.ok()) status = less.status();
    return less.ok() && *less;
  });
  RETURN_IF_ERROR(status);
  return order;
}

absl::StatusOr<Value> Sorted(Budget& budget, const std::vector<Value>& items, const std::vector<Value>& keys,
                             bool reversed) {
  ASSIGN_OR_RETURN(std::vector<size_t> order, Order(budget, keys, reversed));
  ListBuilder out(budget);
  for (size_t position : order) {
    if (!out.Add(items[position])) break;
  }
  return out.Finish();
}

absl::StatusOr<Value> Sort(const FilterCall& call) {
  ASSIGN_OR_RETURN(Bound args, Bind(call.name, call.arguments, {"reverse", "case_sensitive", "attribute"}));
  ASSIGN_OR_RETURN(auto items, Iterate(call.budget, call.input));
  std::vector<Value> keys;
  for (const Value& item : items->items) {
    ASSIGN_OR_RETURN(Value key, Key(call.budget, item, args[2], FlagArgument(args[1], false)));
    keys.push_back(std::move(key));
  }
  return Sorted(call.budget, items->items, keys, FlagArgument(args[0], false));
}

absl::StatusOr<Value> DictSort(const FilterCall& call) {
  ASSIGN_OR_RETURN(Bound args, Bind(call.name, call.arguments, {"case_sensitive", "by", "reverse"}));
  if (call.input.AsDict() == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("dictsort wants a dict, found '", std::string(TypeName(call.input)), "'"));
  }
  bool by_value = args[1] && args[1]->AsText() != nullptr && args[1]->AsText()->bytes == "value";
  ASSIGN_OR_RETURN(Value items, CallMethod(call.budget, {call.input, "items"}, {}));
  std::vector<Value> keys;
  for (const auto& entry : call.input.AsDict()->items) {
    const Value& compared = by_value ? entry.second : entry.first;
    ASSIGN_OR_RETURN(Value key, Key(call.budget, compared, std::nullopt, FlagArgument(args[0], false)));
    keys.push_back(std::move(key));
  }
  return Sorted(call.budget, items.AsList()->items, keys, FlagArgument(args[2], false));
}

absl::StatusOr<Value> Unique(const FilterCall& call) {
  ASSIGN_OR_RETURN(Bound args, Bind(call.name, call.arguments, {"case_sensitive", "attribute"}));
  ASSIGN_OR_RETURN(auto items, Iterate(call.budget, call.input));
  ListBuilder out(call.budget, ListKind::kGenerator);
  Charge charge(call.budget);
  std::set<std::string> seen;
  for (const Value& item : items->items) {
    ASSIGN_OR_RETURN(Value key, Key(call.budget, item, args[1], FlagArgument(args[0], false)));
    ASSIGN_OR_RETURN(auto hash, DictKey(call.budget, key));
    if (!hash)
      return absl::InvalidArgumentError(absl::StrCat("unique: unhashable type: '", std::string(TypeName(key)), "'"));
    RETURN_IF_ERROR(charge.Grow(64 + static_cast<int64_t>(hash->size())));
    if (seen.insert(*std::move(hash)).second && !out.Add(item)) break;
  }
  return out.Finish();
}

absl::StatusOr<Value> Extreme(const FilterCall& call) {
  ASSIGN_OR_RETURN(Bound args, Bind(call.name, call.arguments, {"case_sensitive", "attribute"}));
  ASSIGN_OR_RETURN(auto items, Iterate(call.budget, call.input));
  if (items->items.empty()) return Value::Missing("No aggregated item, sequence was empty.");
  Value best = items->items.front();
  ASSIGN_OR_RETURN(Value best_key, Key(call.budget, best, args[1], FlagArgument(args[0], false)));
  for (size_t i = 1; i < items->items.size(); ++i) {
    ASSIGN_OR_RETURN(Value key, Key(call.budget, items->items[i], args[1], FlagArgument(args[0], false)));
    ASSIGN_OR_RETURN(bool better,
                     call.name == "min" ? Less(call.budget, key, best_key) : Less(call.budget, best_key, key));
    if (!better) continue;
    best = items->items[i];
    best_key = std::move(key);
  }
  return best;
}

constexpr Filter kOrderFilters[] = {
    {"sort", Sort}, {"dictsort", DictSort}, {"unique", Unique}, {"min", Extreme}, {"max", Extreme},
};

}  // namespace

std::span<const Filter> OrderFilters() { return kOrderFilters; }

}  // namespace swiftcache::gateway::text::jinja
