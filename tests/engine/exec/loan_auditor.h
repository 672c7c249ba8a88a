// SPDX-License-Identifier: Apache-2.0
// What the borrowers of one engine had of it, as its transport let them in and shut them out: to be held against the
// accounts that the engine keeps as their donor.
//
//   LoanAuditor auditor(transport, clock);
//   EXPECT_EQ(auditor.Compare(coordinator.Accounts()), "");
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "engine/lease/account.h"
#include "tests/fakes/fake_transport.h"

namespace swiftcache::engine::exec {

/// Adds up what each lease had, when it ends, where the donor adds up time and bytes. Thread-safety: safe. Ownership:
/// borrows transport and clock; sets the transport's hooks, before its first call.
class LoanAuditor {
 public:
  LoanAuditor(transport::FakeTransport& transport, const Clock& clock) : clock_(clock) {
    transport.on_grant = [this](const transport::GrantSpec& spec) {
      absl::MutexLock lock(&mutex_);
      open_[spec.lease] = {ModelOf(spec.borrower_instance), spec.bytes, clock_.Now()};
      ++borrowed_[ModelOf(spec.borrower_instance)].leases;
      return absl::OkStatus();
    };
    transport.on_fence = [this](kv::LeaseId lease) {
      absl::MutexLock lock(&mutex_);
      const auto loan = open_.find(lease);
      if (loan == open_.end()) return;
      ++borrowed_[loan->second.model].ended;
      borrowed_[loan->second.model].byte_micros += loan->second.Had(clock_.Now());
      open_.erase(loan);
    };
  }
  static std::string ModelOf(const std::string& borrower_instance) {
    return absl::StrCat("model of ", borrower_instance);
  }

  /// Empty, or what differs. REQUIRES: the coordinator has nothing to do.
  std::string Compare(const std::map<std::string, lease::Account>& accounts) const {
    absl::MutexLock lock(&mutex_);
    std::map<std::string, Borrowed> borrowed = borrowed_;
    for (const auto& [id, loan] : open_) {
      borrowed[loan.model].bytes += loan.bytes;
      borrowed[loan.model].byte_micros += loan.Had(clock_.Now());
    }
    if (borrowed.size() != accounts.size()) return absl::StrCat(accounts.size(), " accounts of ", borrowed.size());
    for (const auto& [model, account] : accounts) {
      Borrowed lent{.leases = account.leases, .bytes = account.bytes, .byte_micros = account.byte_micros};
      for (const lease::Account::Ended& ended : account.ended) lent.ended += ended.all();
      if (lent == borrowed[model]) continue;
      return absl::StrCat(model, ": lent ", Show(lent), ", borrowed ", Show(borrowed[model]));
    }
    return "";
  }

 private:
  struct Loan {
    std::string model;
    int64_t bytes = 0;
    absl::Time since;
    absl::int128 Had(absl::Time until) const {
      return absl::int128(bytes) * (absl::ToUnixMicros(until) - absl::ToUnixMicros(since));
    }
  };
  struct Borrowed {
    int64_t leases = 0, ended = 0, bytes = 0;
    absl::int128 byte_micros = 0;
    friend bool operator==(const Borrowed&, const Borrowed&) = default;
  };
  static std::string Show(const Borrowed& sum) {
    return absl::StrCat(sum.leases, " leases, ", sum.ended, " ended, ", sum.bytes, " bytes, ",
                        static_cast<int64_t>(sum.byte_micros), " byte microseconds");
  }

  const Clock& clock_;
  mutable absl::Mutex mutex_;
  std::map<kv::LeaseId, Loan> open_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Borrowed> borrowed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace swiftcache::engine::exec
