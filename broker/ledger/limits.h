// SPDX-License-Identifier: Apache-2.0
// What operators allow the engines of a model to borrow together.
//
//   limits.Set({.model_name = "chat", .max_borrowed_bytes = 64 << 20, .set_at_micros = now});
//   const int64_t may = limits.Left("chat");
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "broker/ledger/lease.h"
#include "broker/ledger/lease_table.h"

namespace swiftcache::broker::ledger {

/// A lease counts by the model of its borrower, whether that is here or not. A limit that was lifted is remembered too:
/// an engine that has not heard of it may bring the old one. Thread-safety: none. Ownership: borrows the table.
class Limits {
 public:
  /// Models whose limits are remembered: more than any cluster serves.
  static constexpr size_t kMaxModels = 4096;

  explicit Limits(LeaseTable& table) : table_(table) {}

  /// Takes a limit if it is younger than what is known, and asks to revoke what is beyond it. False: it is not.
  bool Learn(const LeaseLimit& limit);
  /// A limit that is younger than all that were known before. INVALID_ARGUMENT: negative. RESOURCE_EXHAUSTED: of too
  /// many models.
  absl::StatusOr<LeaseLimit> Set(const std::string& model_name, std::optional<int64_t> max_borrowed_bytes,
                                 absl::Time wall_time);
  /// Asks to revoke the newest leases beyond the model's limit.
  void Enforce(const std::string& model_name);

  /// Bytes that the model's engines may still borrow; INT64_MAX: there is no limit.
  int64_t Left(const std::string& model_name) const;
  int64_t BorrowedBytes(const std::string& model_name) const { return table_.BorrowedByModel(model_name).bytes; }
  /// By model name, with those that were lifted.
  std::vector<LeaseLimit> all() const;
  /// INTERNAL: a model has more than it may have, beyond what is being revoked.
  absl::Status CheckInvariants() const;

 private:
  std::optional<int64_t> MaxOf(const std::string& model_name) const;

  LeaseTable& table_;
  std::map<std::string, LeaseLimit> limits_;
};

}  // namespace swiftcache::broker::ledger
