// SPDX-License-Identifier: Apache-2.0
// The life of a lease and the steps that it may take (ARCHITECTURE.md, the life of a lease).
//
//   RETURN_IF_ERROR(CheckStep(lease.id, lease.state, LeaseState::kActive));
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace swiftcache::broker::ledger {

/// offered -> granted -> active -> revoking -> released | fenced.
enum class LeaseState { kOffered, kGranted, kActive, kRevoking, kReleased, kFenced };

/// Lower case, for messages and logs.
const char* StateName(LeaseState state);

/// released or fenced.
bool HasEnded(LeaseState state);

/// | from            | to                          | whose step                                                      |
/// |-----------------|-----------------------------|-----------------------------------------------------------------|
/// | offered         | granted, released           | donor accepts; declines, or says nothing in time                |
/// | offered         | revoking                    | operator, limit, dead borrower; the donor may have accepted     |
/// | granted         | active                      | borrower has mapped it                                          |
/// | granted, active | revoking, released, fenced  | donor's need; borrower gives back or lost it; donor alone       |
/// | revoking        | released, fenced            | donor                                                           |
bool MayStep(LeaseState from, LeaseState to);

/// FAILED_PRECONDITION naming lease and both states where MayStep says no.
absl::Status CheckStep(int64_t lease_id, LeaseState from, LeaseState to);

}  // namespace swiftcache::broker::ledger
