// SPDX-License-Identifier: Apache-2.0
// Finds one string in another, in linear time for all inputs (Knuth, Morris, Pratt).
//
//   ASSIGN_OR_RETURN(TextSearch search, TextSearch::Create(budget, "needle"));
//   int64_t at = search.Find(haystack, 0);
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "gateway/text/jinja/budget.h"

namespace swiftcache::gateway::text::jinja {

/// Thread-safety: immutable. Ownership: borrows `wanted`; its table is charged to the budget. Errors:
/// RESOURCE_EXHAUSTED.
class TextSearch {
 public:
  static absl::StatusOr<TextSearch> Create(Budget& budget, std::string_view wanted);
  /// Where `wanted` begins at or after `from`, or -1.
  int64_t Find(std::string_view bytes, int64_t from) const;

 private:
  TextSearch(std::string_view wanted, Charge charge);

  std::string_view wanted_;
  std::vector<int64_t> borders_;  // of wanted[0, i]: the longest proper prefix that is also its suffix
  Charge charge_;
};

/// Whether and where `wanted` is in `bytes`, once; -1 where it is not.
absl::StatusOr<int64_t> FindOnce(Budget& budget, std::string_view bytes, std::string_view wanted);

}  // namespace swiftcache::gateway::text::jinja
