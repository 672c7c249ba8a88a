// SPDX-License-Identifier: Apache-2.0
#include "broker/ledger/limits.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace swiftcache::broker::ledger {

bool Limits::Learn(const LeaseLimit& limit) {
  const auto it = limits_.find(limit.model_name);
  if (it == limits_.end() ? limits_.size() >= kMaxModels : it->second.set_at_micros >= limit.set_at_micros)
    return false;
  if (limit.max_borrowed_bytes.value_or(0) < 0) return false;
  limits_[limit.model_name] = limit;
  Enforce(limit.model_name);
  return true;
}

absl::StatusOr<LeaseLimit> Limits::Set(const std::string& model_name, std::optional<int64_t> max_borrowed_bytes,
                                       absl::Time wall_time) {
  if (max_borrowed_bytes.value_or(0) < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_borrowed_bytes is ", *max_borrowed_bytes, ", wanted at least 0"));
  }
  const auto it = limits_.find(model_name);
  const int64_t last = it == limits_.end() ? INT64_MIN : it->second.set_at_micros;
  const LeaseLimit limit{model_name, max_borrowed_bytes,
                         last == INT64_MAX ? last : std::max(absl::ToUnixMicros(wall_time), last + 1)};
  if (it != limits_.end()) limits_.erase(it);
  if (Learn(limit)) return limit;
  return absl::ResourceExhaustedError(absl::StrCat("the broker remembers the limits of ", limits_.size(),
                                                   " models, its bound; restart it and all engines to forget them"));
}

void Limits::Enforce(const std::string& model_name) {
  const std::optional<int64_t> max = MaxOf(model_name);
  if (!max.has_value()) return;
  const Holding& holding = table_.BorrowedByModel(model_name);
  int64_t bytes = holding.bytes_that_stay();
  if (bytes <= *max) return;
  std::vector<const Record*> held;
  for (const auto& [place, record] : holding.stay) held.push_back(record);
  std::sort(held.begin(), held.end(), [](const Record* a, const Record* b) { return a->order > b->order; });
  for (const Record* record : held) {
    if (bytes <= *max) break;
    bytes -= record->lease.num_bytes;
    table_.AskToRevoke(record->lease.id, RevokeReason::kLimit);
  }
}

std::optional<int64_t> Limits::MaxOf(const std::string& model_name) const {
  const auto it = limits_.find(model_name);
  return it == limits_.end() ? std::nullopt : it->second.max_borrowed_bytes;
}

int64_t Limits::Left(const std::string& model_name) const {
  const std::optional<int64_t> max = MaxOf(model_name);
  return max.has_value() ? std::max<int64_t>(0, *max - BorrowedBytes(model_name)) : INT64_MAX;
}

std::vector<LeaseLimit> Limits::all() const {
  std::vector<LeaseLimit> all;
  for (const auto& [model_name, limit] : limits_) all.push_back(limit);
  return all;
}

absl::Status Limits::CheckInvariants() const {
  for (const auto& [model_name, limit] : limits_) {
    const int64_t bytes = table_.BorrowedByModel(model_name).bytes_that_stay();
    if (bytes <= limit.max_borrowed_bytes.value_or(INT64_MAX)) continue;
    return absl::InternalError(
        absl::StrCat("model ", model_name, " borrows ", bytes, " of ", *limit.max_borrowed_bytes));
  }
  return absl::OkStatus();
}

}  // namespace swiftcache::broker::ledger
