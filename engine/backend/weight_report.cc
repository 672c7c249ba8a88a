// SPDX-License-Identifier: Apache-2.0
#include "engine/backend/weight_report.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace swiftcache::engine::backend {
namespace {

using FormatCount = std::pair<WeightFormat, int64_t>;

std::vector<FormatCount> MostFrequentFirst(const WeightReport& report) {
  std::vector<FormatCount> counts(report.stored.begin(), report.stored.end());
  std::stable_sort(counts.begin(), counts.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return counts;
}

std::string Rounding(const WeightReport& report) {
  if (report.rounded == 0) return "none of them";
  return absl::StrFormat("%d of them (largest relative error %.2g)", report.rounded, report.largest_relative_error);
}

}  // namespace

std::string Describe(const WeightReport& report) {
  std::vector<std::string> counts;
  for (const auto& [format, count] : MostFrequentFirst(report)) {
    const char* noun = !counts.empty() ? " " : count == 1 ? " matrix " : " matrices ";
    counts.push_back(absl::StrCat(count, noun, NameOf(format)));
  }
  return absl::StrCat(absl::StrJoin(counts, ", "), " as stored; packed as ", report.packed, ", which rounds ",
                      Rounding(report), report.rows.empty() ? "" : "; activations in ", report.rows);
}

std::string StoredFormats(const WeightReport& report) {
  return absl::StrJoin(MostFrequentFirst(report), "+",
                       [](std::string* out, const FormatCount& entry) { absl::StrAppend(out, NameOf(entry.first)); });
}

}  // namespace swiftcache::engine::backend
