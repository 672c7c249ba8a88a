// SPDX-License-Identifier: Apache-2.0
#include "gateway/text/jinja/value.h"

#include <algorithm>
#include <cmath>

#include "common/base/status_macros.h"
#include "gateway/text/jinja/print.h"

namespace swiftcache::gateway::text::jinja {
namespace {

std::string_view ListTypeName(ListKind kind) {
  switch (kind) {
    case ListKind::kTuple:
      return "tuple";
    case ListKind::kRange:
      return "range";
    case ListKind::kGenerator:
      return "generator";
    case ListKind::kKeys:
      return "dict_keys";
    case ListKind::kValues:
      return "dict_values";
    case ListKind::kItems:
      return "dict_items";
    case ListKind::kList:
      break;
  }
  return "list";
}

/// Writes the key of one value. Charges the budget for the memory while it is written; whoever keeps it charges for
/// that.
class KeyWriter {
 public:
  explicit KeyWriter(Budget& budget) : budget_(budget), charge_(budget) {}

  /// Whether Python can hash the value.
  absl::StatusOr<bool> Write(const Value& value) {
    RETURN_IF_ERROR(budget_.Spend(1));
    if (auto* list = value.AsList(); list != nullptr && list->kind == ListKind::kTuple) return WriteTuple(*list);
    if (auto* text = value.AsText()) {
      RETURN_IF_ERROR(charge_.Grow(text->size() + 1));
      key_ += 's';
      key_ += text->bytes;
      return true;
    }
    std::string scalar = ScalarKey(value);
    RETURN_IF_ERROR(charge_.Grow(static_cast<int64_t>(scalar.size())));
    key_ += scalar;
    return !scalar.empty();
  }
  std::string Take() { return std::move(key_); }

 private:
  /// Each item behind its length, so that ("a", "b") and ("ab",) differ.
  absl::StatusOr<bool> WriteTuple(const List& list) {
    key_ += '(';
    for (const Value& item : list.items) {
      const size_t begin = key_.size();
      ASSIGN_OR_RETURN(bool hashable, Write(item));
      if (!hashable) return false;
      const std::string length = std::to_string(key_.size() - begin) + ":";
      RETURN_IF_ERROR(charge_.Grow(static_cast<int64_t>(length.size())));
      RETURN_IF_ERROR(budget_.SpendBytes(static_cast<int64_t>(key_.size() - begin)));
      key_.insert(begin, length);
    }
    return true;
  }

  static std::string ScalarKey(const Value& value) {
    if (auto integer = value.AsInteger()) return "i" + std::to_string(*integer);
    if (auto* d = value.AsFloat()) {
      bool whole = std::trunc(*d) == *d && std::abs(*d) < 9e18;
      return whole ? "i" + std::to_string(static_cast<int64_t>(*d)) : "f" + FloatRepr(*d);
    }
    return value.IsNone() ? "n" : value.IsUndefined() ? "u" : "";
  }

  Budget& budget_;
  Charge charge_;
  std::string key_;
};

}  // namespace

Value Value::Missing(std::string what) {
  return Value(Rep(Undefined{std::make_shared<const std::string>(std::move(what))}));
}

const Text* Value::AsText() const {
  auto* text = std::get_if<TextPtr>(&rep_);
  return text == nullptr ? nullptr : text->get();
}

const List* Value::AsList() const {
  auto* list = std::get_if<std::shared_ptr<const List>>(&rep_);
  return list == nullptr ? nullptr : list->get();
}

const Dict* Value::AsDict() const {
  auto* dict = std::get_if<std::shared_ptr<const Dict>>(&rep_);
  return dict == nullptr ? nullptr : dict->get();
}

std::optional<int64_t> Value::AsInteger() const {
  if (auto* i = std::get_if<int64_t>(&rep_)) return *i;
  if (auto* b = AsBool()) return *b ? 1 : 0;
  return std::nullopt;
}

double Value::ToDouble() const {
  if (auto* d = AsFloat()) return *d;
  return static_cast<double>(AsInteger().value_or(0));
}

const Value* Dict::Find(std::string_view name) const {
  auto found = index.find("s" + std::string(name));
  return found == index.end() ? nullptr : &items[found->second].second;
}

int Depth(const Value& value) {
  if (auto* list = value.AsList()) return list->depth;
  if (auto* dict = value.AsDict()) return dict->depth;
  if (auto* loop = std::get_if<std::shared_ptr<const Loop>>(&value.rep())) return (*loop)->items->depth + 1;
  if (auto* method = std::get_if<std::shared_ptr<const Method>>(&value.rep())) return Depth((*method)->self) + 1;
  return 0;
}

std::string_view TypeName(const Value& value) {
  struct Visitor {
    std::string_view operator()(const Undefined&) { return "Undefined"; }
    std::string_view operator()(const None&) { return "NoneType"; }
    std::string_view operator()(bool) { return "bool"; }
    std::string_view operator()(int64_t) { return "int"; }
    std::string_view operator()(double) { return "float"; }
    std::string_view operator()(const TextPtr&) { return "str"; }
    std::string_view operator()(const std::shared_ptr<const List>& list) { return ListTypeName(list->kind); }
    std::string_view operator()(const std::shared_ptr<const Dict>&) { return "dict"; }
    std::string_view operator()(Namespace*) { return "Namespace"; }
    std::string_view operator()(const std::shared_ptr<const Loop>&) { return "LoopContext"; }
    std::string_view operator()(const std::shared_ptr<const Macro>&) { return "Macro"; }
    std::string_view operator()(const std::shared_ptr<const Method>&) { return "method"; }
    std::string_view operator()(const Function*) { return "function"; }
  };
  return std::visit(Visitor{}, value.rep());
}

bool IsTruthy(const Value& value) {
  struct Visitor {
    bool operator()(const Undefined&) { return false; }
    bool operator()(const None&) { return false; }
    bool operator()(bool b) { return b; }
    bool operator()(int64_t i) { return i != 0; }
    bool operator()(double d) { return d != 0; }
    bool operator()(const TextPtr& text) { return !text->bytes.empty(); }
    bool operator()(const std::shared_ptr<const List>& list) {
      return list->kind == ListKind::kGenerator || !list->items.empty();
    }
    bool operator()(const std::shared_ptr<const Dict>& dict) { return !dict->items.empty(); }
    bool operator()(Namespace*) { return true; }
    bool operator()(const std::shared_ptr<const Loop>&) { return true; }
    bool operator()(const std::shared_ptr<const Macro>&) { return true; }
    bool operator()(const std::shared_ptr<const Method>&) { return true; }
    bool operator()(const Function*) { return true; }
  };
  return std::visit(Visitor{}, value.rep());
}

std::string UndefinedMessage(const Value& value) {
  auto* undefined = std::get_if<Undefined>(&value.rep());
  return undefined == nullptr || undefined->what == nullptr ? "an undefined value is used" : *undefined->what;
}

absl::StatusOr<std::optional<std::string>> DictKey(Budget& budget, const Value& value) {
  KeyWriter writer(budget);
  ASSIGN_OR_RETURN(bool hashable, writer.Write(value));
  return hashable ? std::optional<std::string>(writer.Take()) : std::nullopt;
}

}  // namespace swiftcache::gateway::text::jinja
