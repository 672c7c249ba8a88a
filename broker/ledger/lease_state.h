// SPDX-License-Identifier: Apache-2.0
// The life of a lease and the steps that it may take (ARCHITECTURE.md, the life of a lease).
//
//   RETURN_IF_ERROR(CheckStep(lease.id, lease.state, LeaseState::kRevoking));
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace swiftcache::broker::ledger {

/// offered -> granted -> revoking -> released | fenced.
enum class LeaseState { kOffered, kGranted, kRevoking, kReleased, kFenced };

/// Lower case, for messages and logs.
const char* StateName(LeaseState state);

/// released or fenced.
bool HasEnded(LeaseState state);

/// | from            | to                          | whose word                                                      |
/// |-----------------|-----------------------------|-----------------------------------------------------------------|
/// | offered         | granted, released           | the donor's; its silence is a no                                |
/// | offered,        | revoking                    | the broker's, which asks the donor: operator, limit, fairness,  |
/// | granted         |                             | an offer to a dead borrower                                     |
/// | granted,        | released, fenced            | the donor's; the broker forgets the leases of a donor that is   |
/// | revoking        |                             | gone, and learns them again when it comes back                  |
bool MayStep(LeaseState from, LeaseState to);

/// FAILED_PRECONDITION naming lease and both states where MayStep says no.
absl::Status CheckStep(int64_t lease_id, LeaseState from, LeaseState to);

}  // namespace swiftcache::broker::ledger
