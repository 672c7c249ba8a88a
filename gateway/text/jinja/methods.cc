// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/jinja/methods.h"

#include <algorithm>
#include <span>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "gateway/text/jinja/access.h"
#include "gateway/text/jinja/builders.h"
#include "gateway/text/jinja/operators.h"
#include "gateway/text/jinja/string_methods.h"

namespace swiftcache::gateway::text::jinja {
namespace {

using Names = std::span<const std::string_view>;
constexpr std::string_view kDictMethods[] = {"get", "items", "keys", "values"};
constexpr std::string_view kUnsafeDictMethods[] = {"clear", "pop", "popitem", "setdefault", "update"};
constexpr std::string_view kListMethods[] = {"count", "index"};
constexpr std::string_view kUnsafeListMethods[] = {"append", "clear",  "extend",  "insert",
                                                   "pop",    "remove", "reverse", "sort"};

bool Has(Names names, std::string_view name) { return std::find(names.begin(), names.end(), name) != names.end(); }

MethodAccess LookUp(Names allowed, Names unsafe, std::string_view name) {
  return Has(allowed, name)  ? MethodAccess::kAllowed
         : Has(unsafe, name) ? MethodAccess::kUnsafe
                             : MethodAccess::kAbsent;
}

absl::StatusOr<Value> DictView(Budget& budget, const Dict& dict, ListKind kind) {
  ListBuilder out(budget, kind);
  for (const auto& [key, value] : dict.items) {
    Value item = kind == ListKind::kKeys ? key : value;
    if (kind == ListKind::kItems) {
      ListBuilder pair(budget, ListKind::kTuple);
      pair.Add(key);
      pair.Add(value);
      ASSIGN_OR_RETURN(item, pair.Finish());
    }
    if (!out.Add(std::move(item))) break;
  }
  return out.Finish();
}

absl::StatusOr<Value> CallDictMethod(Budget& budget, const Dict& dict, const std::string& name,
                                     const Arguments& arguments) {
  if (name != "get") {
    RETURN_IF_ERROR(Bind(name, arguments, {}).status());
    return DictView(budget, dict,
                    name == "items"  ? ListKind::kItems
                    : name == "keys" ? ListKind::kKeys
                                     : ListKind::kValues);
  }
  ASSIGN_OR_RETURN(Bound args, Bind("get", arguments, {"key", "default"}));
  if (!args[0] || !arguments.named.empty()) return absl::InvalidArgumentError("get wants a key and perhaps a default");
  ASSIGN_OR_RETURN(auto key, DictKey(budget, *args[0]));
  if (!key) return absl::InvalidArgumentError(absl::StrCat("unhashable type: '", std::string(TypeName(*args[0])), "'"));
  auto found = dict.index.find(*key);
  if (found != dict.index.end()) return dict.items[found->second].second;
  return args[1].value_or(Value(None{}));
}

absl::StatusOr<Value> CallListMethod(Budget& budget, const List& list, const std::string& name,
                                     const Arguments& arguments) {
  ASSIGN_OR_RETURN(Bound args, Bind(name, arguments, {"value"}));
  if (!args[0]) return absl::InvalidArgumentError(name + " wants a value");
  int64_t count = 0;
  for (size_t i = 0; i < list.items.size(); ++i) {
    ASSIGN_OR_RETURN(bool equal, Equal(budget, list.items[i], *args[0]));
    if (equal && name == "index") return Value::Int(static_cast<int64_t>(i));
    count += equal;
  }
  if (name == "index") return absl::InvalidArgumentError("index: the value is not in the list");
  return Value::Int(count);
}

absl::StatusOr<Value> Cycle(const Loop& loop, const Arguments& arguments) {
  int64_t size = static_cast<int64_t>(arguments.positional.size());
  if (size == 0 || !arguments.named.empty())
    return absl::InvalidArgumentError("loop.cycle wants the items to cycle through");
  return arguments.positional[static_cast<size_t>(loop.index % size)];
}

}  // namespace

MethodAccess LookUpMethod(const Value& self, std::string_view name) {
  if (self.AsText() != nullptr) return IsStringMethod(name) ? MethodAccess::kAllowed : MethodAccess::kAbsent;
  if (self.AsDict() != nullptr) return LookUp(kDictMethods, kUnsafeDictMethods, name);
  const List* list = self.AsList();
  if (list != nullptr && list->kind == ListKind::kList) return LookUp(kListMethods, kUnsafeListMethods, name);
  if (list != nullptr && list->kind <= ListKind::kRange) return LookUp(kListMethods, {}, name);
  return MethodAccess::kAbsent;
}

bool IsMethodName(std::string_view name) {
  for (Names names : {Names(kDictMethods), Names(kUnsafeDictMethods), Names(kListMethods), Names(kUnsafeListMethods)}) {
    if (Has(names, name)) return true;
  }
  return IsStringMethod(name) || name == "cycle";
}

absl::StatusOr<Value> CallMethod(Budget& budget, const Method& method, const Arguments& arguments) {
  if (auto* text = method.self.AsText()) return CallStringMethod(budget, *text, method.name, arguments);
  if (auto* dict = method.self.AsDict()) return CallDictMethod(budget, *dict, method.name, arguments);
  if (auto* list = method.self.AsList()) return CallListMethod(budget, *list, method.name, arguments);
  if (auto* loop = std::get_if<std::shared_ptr<const Loop>>(&method.self.rep())) return Cycle(**loop, arguments);
  return absl::InvalidArgumentError(absl::StrCat("'", std::string(TypeName(method.self)), "' object has no methods"));
}

}  // namespace swiftcache::gateway::text::jinja
