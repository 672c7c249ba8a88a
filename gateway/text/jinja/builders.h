// SPDX-License-Identifier: Apache-2.0
// Builds lists and dicts within a budget; the first error is kept, and Finish returns it.
//
//   ListBuilder out(budget);
//   for (...) out.Add(value);
//   return out.Finish();
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "gateway/text/jinja/value.h"

namespace swiftcache::gateway::text::jinja {

/// Thread-safety: none. Ownership: borrows the budget.
/// Errors: RESOURCE_EXHAUSTED (memory, steps, values nested too deep).
class ListBuilder {
 public:
  explicit ListBuilder(Budget& budget, ListKind kind = ListKind::kList);
  bool Add(Value value);
  bool ok() const { return status_.ok(); }
  absl::StatusOr<Value> Finish();

 private:
  Budget& budget_;
  std::shared_ptr<List> list_;
  absl::Status status_;
};

/// A later value of a key replaces the earlier one in its place, as in Python.
/// Thread-safety: none. Ownership: borrows the budget. Errors: as ListBuilder, and INVALID_ARGUMENT for an unhashable
/// key.
class DictBuilder {
 public:
  explicit DictBuilder(Budget& budget);
  bool Add(Value key, Value value);
  bool Add(std::string_view key, Value value) {
    return Add(Value::String(FreeText(std::string(key))), std::move(value));
  }
  absl::StatusOr<Value> Finish();

 private:
  Budget& budget_;
  std::shared_ptr<Dict> dict_;
  absl::Status status_;
};

/// A string that no message content went into, or (marked) only such.
absl::StatusOr<Value> NewString(Budget& budget, std::string_view bytes, bool marked = false);
/// Bytes [begin, end) of a text, with its marks.
absl::StatusOr<Value> Substring(Budget& budget, const Text& text, int64_t begin, int64_t end);
/// Finish() of a builder as a value.
absl::StatusOr<Value> FinishString(TextBuilder& builder);

}  // namespace swiftcache::gateway::text::jinja
