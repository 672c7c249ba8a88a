// SPDX-License-Identifier: Apache-2.0
// What donors say of their leases. The donor alone says what becomes of a lease; whatever it says can be said twice,
// late and to a broker that knows nothing of the lease.
//
//   RETURN_IF_ERROR(claims.Hear(donor, lease, now));
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "broker/ledger/lease.h"
#include "broker/ledger/lease_table.h"
#include "broker/ledger/limits.h"
#include "broker/ledger/members.h"
#include "broker/ledger/options.h"

namespace swiftcache::broker::ledger {

/// Thread-safety: none. Ownership: borrows table and limits.
class Claims {
 public:
  Claims(const Options& options, LeaseTable& table, Limits& limits)
      : options_(options), table_(table), limits_(limits) {}

  /// GRANTED: the donor gives this lease, whether it was offered or the broker has lost it; the donor's word ends offers
  /// that overlap it. RELEASED and FENCED: it has ended, or was never accepted. As Ledger::ReportLease.
  absl::Status Hear(const Member& donor, const Lease& lease, absl::Time now);
  /// All that the donor gives: as Hear of each; what it had accepted and does not name has ended. What is refused is
  /// left out: the donor sees that it is missing, says it again, and hears why.
  void HearAll(const Member& donor, const std::vector<Lease>& leases, absl::Time now);
  /// Ends an offer that was declined, or not answered: the extent is not offered again for decline_backoff.
  void EndOffer(LeaseId id, absl::Time now) { table_.Decline(id, now + options_.decline_backoff); }

 private:
  absl::Status HearGranted(const Member& donor, const Lease& claim, absl::Time now);
  static absl::Status CheckSound(const Engine& donor, const Lease& claim);
  absl::Status Enter(const Member& donor, const Lease& claim, absl::Time now);

  const Options& options_;
  LeaseTable& table_;
  Limits& limits_;
};

}  // namespace swiftcache::broker::ledger
