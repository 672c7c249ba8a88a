// SPDX-License-Identifier: Apache-2.0
// The values of a template: those of Python that chat templates use.
//
//   Value v = Value::String(FreeText("hi"));
//   if (const Text* text = v.AsText()) Use(text->bytes);
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "gateway/text/jinja/budget.h"
#include "gateway/text/jinja/text.h"

namespace swiftcache::gateway::text::jinja {

struct List;
struct Dict;
struct Namespace;
struct Loop;
struct Macro;  // interpreter.h
struct Method;
struct Function;  // functions.h

struct None {};
/// Knows what was looked up in vain, for the error if it is used.
struct Undefined {
  std::shared_ptr<const std::string> what;
};

/// Thread-safety: a value; what it points to is immutable except a namespace. Errors: none.
/// Ownership: shares what it points to, because Python's values do; namespaces and functions are borrowed (the
/// rendering owns the first, so that cycles through them cannot leak; the second live for ever).
class Value {
 public:
  using Rep = std::variant<Undefined, None, bool, int64_t, double, TextPtr, std::shared_ptr<const List>,
                           std::shared_ptr<const Dict>, Namespace*, std::shared_ptr<const Loop>,
                           std::shared_ptr<const Macro>, std::shared_ptr<const Method>, const Function*>;
  Value() = default;
  Value(Rep rep) : rep_(std::move(rep)) {}  // NOLINT: every alternative is a value

  static Value Missing(std::string what);
  static Value String(TextPtr text) { return Value(Rep(std::move(text))); }
  static Value Bool(bool b) { return Value(Rep(std::in_place_type<bool>, b)); }
  static Value Int(int64_t i) { return Value(Rep(std::in_place_type<int64_t>, i)); }
  static Value Float(double d) { return Value(Rep(std::in_place_type<double>, d)); }

  const Rep& rep() const { return rep_; }
  bool IsUndefined() const { return std::holds_alternative<Undefined>(rep_); }
  bool IsNone() const { return std::holds_alternative<None>(rep_); }
  bool IsNumber() const { return AsInteger().has_value() || std::holds_alternative<double>(rep_); }
  const Text* AsText() const;
  const List* AsList() const;
  const Dict* AsDict() const;
  const bool* AsBool() const { return std::get_if<bool>(&rep_); }
  const double* AsFloat() const { return std::get_if<double>(&rep_); }
  /// Integers and, as in Python, booleans.
  std::optional<int64_t> AsInteger() const;
  /// Any number as a double. REQUIRES: IsNumber().
  double ToDouble() const;

 private:
  Rep rep_;
};

enum class ListKind { kList, kTuple, kRange, kGenerator, kKeys, kValues, kItems };

/// Every finite sequence; `kind` says how Python would print, compare and index it.
struct List {
  ListKind kind = ListKind::kList;
  std::vector<Value> items;
  int depth = 1;  // of nesting; bounded, so that recursion over values is
  Charge charge;
};

struct Dict {
  std::vector<std::pair<Value, Value>> items;  // in the order of insertion
  std::map<std::string, size_t> index;         // DictKey(key) -> position in items
  int depth = 1;
  Charge charge;
  const Value* Find(std::string_view name) const;  // by a string key
};

struct Namespace {
  std::map<std::string, Value, std::less<>> attributes;
};

/// The `loop` variable of one iteration.
struct Loop {
  std::shared_ptr<const List> items;
  int64_t index = 0;
};

/// A method looked up on a value and not yet called.
struct Method {
  Value self;
  std::string name;
};

/// 1 + the deepest value within; namespaces and functions count as leaves.
int Depth(const Value& value);
/// Python's name of the type, for messages.
std::string_view TypeName(const Value& value);
bool IsTruthy(const Value& value);
/// The message of an undefined value's error.
std::string UndefinedMessage(const Value& value);

/// Equal keys (1 == 1.0 == true) give equal strings; nothing for what Python cannot hash. Every value within is paid
/// for: tuples may share their items, and then are far larger than the memory that they take.
absl::StatusOr<std::optional<std::string>> DictKey(Budget& budget, const Value& value);

}  // namespace swiftcache::gateway::text::jinja
