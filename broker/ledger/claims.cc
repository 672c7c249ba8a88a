// SPDX-License-Identifier: Apache-2.0
#include "broker/ledger/claims.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/name.h"
#include "common/base/status_macros.h"

namespace swiftcache::broker::ledger {
namespace {

constexpr size_t kMaxCapabilityBytes = 128;  // as a lease's channel carries

bool NamesBlocksOf(const Extent& extent, int64_t num_blocks) {
  return extent.first_block >= 0 && extent.num_blocks >= 1 && extent.first_block <= num_blocks &&
         extent.num_blocks <= num_blocks - extent.first_block;
}

}  // namespace

absl::Status Claims::Hear(const Member& donor, const Lease& lease, absl::Time now) {
  const Record* record = table_.Find(lease.id);
  const Party& who = donor.engine.party;
  if (lease.donor != who || (record != nullptr && record->donor != donor.id)) {
    const Party& owner = record != nullptr ? record->lease.donor : lease.donor;
    return absl::PermissionDeniedError(absl::StrCat("lease ", lease.id.value(), " is of donor ", owner.name, " (",
                                                    owner.instance_id, "), which alone speaks of it; found ", who.name,
                                                    " (", who.instance_id, ")"));
  }
  if (lease.state == LeaseState::kGranted) return HearGranted(donor, lease, now);
  if (!HasEnded(lease.state)) {
    return absl::InvalidArgumentError(absl::StrCat("lease ", lease.id.value(), ": a donor says ",
                                                   StateName(lease.state), ", wanted granted, released or fenced"));
  }
  if (record == nullptr) return absl::OkStatus();
  if (record->lease.epoch.has_value()) return table_.Step(lease.id, lease.state);
  const std::optional<RevokeReason> why = record->lease.revoke_reason;
  const bool was_withdrawn = why == RevokeReason::kBorrowerGone || why == RevokeReason::kLimit;
  if (was_withdrawn) return table_.Step(lease.id, LeaseState::kReleased);  // the donor did not decline
  EndOffer(lease.id, now);
  return absl::OkStatus();
}

absl::Status Claims::HearGranted(const Member& donor, const Lease& claim, absl::Time now) {
  if (!claim.epoch.has_value()) return absl::InvalidArgumentError("a lease is granted at an epoch; found none");
  const Record* record = table_.Find(claim.id);
  if (record == nullptr) return Enter(donor, claim, now);
  const Lease& lease = record->lease;
  const bool same_epoch = !lease.epoch.has_value() || lease.epoch == claim.epoch;
  if (!same_epoch || lease.extent != claim.extent || lease.borrower != claim.borrower) {
    return absl::FailedPreconditionError(absl::StrCat(
        "lease ", claim.id.value(), " of blocks ", lease.extent.first_block, "+", lease.extent.num_blocks, " to ",
        lease.borrower.name, " at epoch ", lease.epoch.value_or(Epoch(0)).value(), " (0: none), found blocks ",
        claim.extent.first_block, "+", claim.extent.num_blocks, " to ", claim.borrower.name, " at epoch ",
        claim.epoch->value(), "; a lease is granted once, as it was offered"));
  }
  if (!lease.epoch.has_value()) table_.Accept(claim.id, *claim.epoch);
  return absl::OkStatus();
}

absl::Status Claims::CheckSound(const Engine& donor, const Lease& claim) {
  const bool sound =
      claim.id.value() >= 1 && donor.page_bytes >= 1 && claim.borrower.name != claim.donor.name &&
      !claim.borrower.name.empty() && IsName(claim.borrower.name) && IsName(claim.borrower.instance_id) &&
      !claim.borrower_model.empty() && IsName(claim.borrower_model) && claim.channel == donor.channel &&
      !claim.capability.empty() && claim.capability.size() <= kMaxCapabilityBytes && claim.borrower_blocks >= 0 &&
      claim.borrower_blocks <= claim.num_bytes && NamesBlocksOf(claim.extent, donor.num_blocks) &&
      claim.num_bytes == claim.extent.num_blocks * donor.block_bytes && claim.num_bytes % donor.page_bytes == 0 &&
      claim.extent.first_block * donor.block_bytes % donor.page_bytes == 0;
  if (sound) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "lease ", claim.id.value(), " of ", claim.num_bytes, " bytes, blocks ", claim.extent.first_block, "+",
      claim.extent.num_blocks, " of ", donor.num_blocks,
      ": wanted whole pages of the donor's blocks, a borrower, its model, the donor's channel and a capability"));
}

// The broker does not know the lease: an earlier one made it, or this one has not seen its donor for a while, or waited
// too short a time for its answer.
absl::Status Claims::Enter(const Member& donor, const Lease& claim, absl::Time now) {
  RETURN_IF_ERROR(CheckSound(donor.engine, claim));
  if (table_.LentBy(donor.id).leases >= static_cast<int64_t>(kMaxLeasesPerSide)) {
    return absl::FailedPreconditionError(
        absl::StrCat(claim.donor.name, " lends on ", kMaxLeasesPerSide, " leases, the most: end some"));
  }
  const std::vector<LeaseId> others = table_.Overlapping(donor.id, claim.extent);
  for (const LeaseId other : others) {
    if (!table_.Find(other)->lease.epoch.has_value()) continue;
    return absl::FailedPreconditionError(absl::StrCat("leases ", claim.id.value(), " and ", other.value(), " of donor ",
                                                      claim.donor.name, " share a block; end one of them"));
  }
  for (const LeaseId offer : others) table_.MustStep(offer, LeaseState::kReleased);
  table_.Insert({.lease = claim, .entered = now});
  limits_.Enforce(claim.borrower_model);
  return absl::OkStatus();
}

void Claims::HearAll(const Member& donor, const std::vector<Lease>& leases, absl::Time now) {
  std::set<LeaseId> named;
  for (const Lease& lease : leases) {
    if (named.size() == kMaxLeasesPerSide) break;
    if (lease.state == LeaseState::kGranted && Hear(donor, lease, now).ok()) named.insert(lease.id);
  }
  std::vector<LeaseId> ended;
  const Holding& lent = table_.LentBy(donor.id);
  for (const Places* places : {&lent.stay, &lent.revoking}) {
    for (const auto& [place, record] : *places) {
      if (record->lease.epoch.has_value() && named.count(record->lease.id) == 0) ended.push_back(record->lease.id);
    }
  }
  for (const LeaseId id : ended) table_.MustStep(id, LeaseState::kReleased);
}

}  // namespace swiftcache::broker::ledger
