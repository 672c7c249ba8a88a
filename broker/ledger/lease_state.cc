// SPDX-License-Identifier: Apache-2.0
#include "broker/ledger/lease_state.h"

#include "absl/strings/str_cat.h"

namespace swiftcache::broker::ledger {

const char* StateName(LeaseState state) {
  switch (state) {
    case LeaseState::kOffered:
      return "offered";
    case LeaseState::kGranted:
      return "granted";
    case LeaseState::kRevoking:
      return "revoking";
    case LeaseState::kReleased:
      return "released";
    case LeaseState::kFenced:
      return "fenced";
  }
  return "unknown";
}

bool HasEnded(LeaseState state) { return state == LeaseState::kReleased || state == LeaseState::kFenced; }

bool MayStep(LeaseState from, LeaseState to) {
  switch (from) {
    case LeaseState::kOffered:
      return to == LeaseState::kGranted || to == LeaseState::kRevoking || to == LeaseState::kReleased;
    case LeaseState::kGranted:
      return to == LeaseState::kRevoking || HasEnded(to);
    case LeaseState::kRevoking:
      return HasEnded(to);
    case LeaseState::kReleased:
    case LeaseState::kFenced:
      return false;
  }
  return false;
}

absl::Status CheckStep(int64_t lease_id, LeaseState from, LeaseState to) {
  if (MayStep(from, to)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("lease ", lease_id, " is ", StateName(from),
                                                    ", which does not become ", StateName(to),
                                                    "; read its state from Watch"));
}

}  // namespace swiftcache::broker::ledger
