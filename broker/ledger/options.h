// SPDX-License-Identifier: Apache-2.0
// What a ledger can be told when it is made, and the bounds that hold whatever it is told.
//
//   Ledger ledger({.id_prefix = random31}, [&] { return SixteenRandomBytes(); });
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/time/time.h"
#include "broker/elastic/policy.h"

namespace swiftcache::broker::ledger {

/// Bounds on the work of one call, whatever an engine asks for: leases that one RequestLease makes, and leases of which
/// an engine can be the donor, or the borrower, at one time. (The shared-memory transport has a generation word for
/// each lease: ShmGenerations::kWords.)
inline constexpr size_t kMaxLeasesPerResponse = 256;
inline constexpr size_t kMaxLeasesPerSide = 4096;

struct Options {
  elastic::PolicyOptions elastic = {};
  uint32_t id_prefix = 1;  // 31 random bits of this incarnation: makes lease ids unique over restarts
  /// Of one lease, at least one elastic unit. 0: 16 MiB or, if that is more, 1/2,048 of the donor's arena, so that all of
  /// it fits into kMaxLeasesPerSide leases.
  int64_t max_lease_bytes = 0;
  absl::Duration offer_timeout = absl::Seconds(3);    // a donor that has not answered an offer has declined it
  absl::Duration decline_backoff = absl::Seconds(2);  // until an extent that was declined is offered again, and a donor
                                                      // that has not answered is asked before others
  absl::Duration request_ttl = absl::Seconds(5);      // a request that is not repeated stops counting
  absl::Duration min_hold = absl::Seconds(2);         // leases younger than this are not taken back for fairness
  size_t max_remembered_requests = 256;               // of one engine: retries of older ones are new requests
  /// What the wall clock shows at a moment of this process's clock: limits are stamped by it, since those of one broker
  /// are compared with those of the next. None: the same.
  std::function<absl::Time(absl::Time)> wall_time = {};
};

}  // namespace swiftcache::broker::ledger
