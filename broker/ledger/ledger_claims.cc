// SPDX-License-Identifier: Apache-2.0
// Ledger, the part that adds and removes engines with the leases that they claim.
#include <algorithm>
#include <utility>

#include "broker/ledger/ledger.h"

namespace swiftcache::broker::ledger {
namespace {

bool IsHeld(LeaseState state) { return state != LeaseState::kOffered && !HasEnded(state); }

}  // namespace

void Ledger::AddEngine(const Engine& engine, const std::vector<Lease>& held, absl::Time now) {
  Tick(now);
  Replace(engine, now);
  std::erase_if(orphans_, [&](const auto& entry) { return entry.second.lease.borrower == engine.party; });
  std::set<LeaseId> claimed;
  for (const Lease& claim : held) {
    if (claimed.size() == 2 * kMaxLeasesPerSide) break;
    if (!IsHeld(claim.state) || claim.id.value() < 1 || claimed.count(claim.id) > 0) continue;
    if (claim.donor == engine.party) {
      ClaimAsDonor(claim, now);
    } else if (claim.borrower == engine.party) {
      ClaimAsBorrower(claim, now);
    } else {
      continue;
    }
    claimed.insert(claim.id);
  }
  DropUnclaimed(engine.party, claimed);
  SettleOrphans(engine.party);
  for (const auto& [model_name, limit] : limits_) EnforceLimit(model_name, limit);
}

void Ledger::Replace(const Engine& engine, absl::Time now) {
  const auto it = members_.find(engine.party.name);
  if (it != members_.end() && it->second.engine.party != engine.party) RemoveEngine(engine.party.name, now);
  Member& member = members_[engine.party.name];
  const bool same_arena =
      member.engine.num_blocks == engine.num_blocks && member.engine.block_bytes == engine.block_bytes &&
      member.engine.block_tokens == engine.block_tokens && member.engine.page_bytes == engine.page_bytes;
  member.engine = engine;
  if (same_arena) return;
  // Extents of an arena with another geometry mean nothing now.
  const auto carved = [&](const Record& record) { return record.lease.donor == engine.party; };
  for (const LeaseId id : table_.Where(carved)) table_.MustStep(id, LeaseState::kReleased);
  member.policy = engine.num_blocks < 1 || engine.block_tokens < 1
                      ? nullptr
                      : elastic::CreatePolicy(options_.elastic,
                                              {.num_blocks = engine.num_blocks, .block_tokens = engine.block_tokens});
}

void Ledger::ClaimAsDonor(const Lease& claim, absl::Time now) {
  Record* record = table_.Find(claim.id);
  if (record == nullptr) return EnterClaim(claim, now);
  Lease& lease = record->lease;
  if (lease.donor != claim.donor || !claim.epoch.has_value()) return;
  if (!lease.epoch.has_value()) {  // its report that it accepted was lost
    lease.epoch = claim.epoch;
    if (lease.state == LeaseState::kOffered) table_.MustStep(lease.id, LeaseState::kGranted);
  }
  if (claim.state == LeaseState::kRevoking) BeginRevoking(claim.id);
}

bool Ledger::ClaimIsSound(const Lease& claim) const {
  const Engine& donor = members_.at(claim.donor.name).engine;
  if (donor.page_bytes < 1 || claim.borrower.name == claim.donor.name || claim.borrower.name.empty()) return false;
  if (!claim.epoch.has_value() || claim.capability.empty() || claim.borrower_blocks < 0 ||
      claim.borrower_blocks > claim.num_bytes) {
    return false;
  }
  const Extent& extent = claim.extent;
  if (extent.first_block < 0 || extent.num_blocks < 1 || extent.first_block > donor.num_blocks ||
      extent.num_blocks > donor.num_blocks - extent.first_block) {
    return false;
  }
  return claim.num_bytes == extent.num_blocks * donor.block_bytes && claim.num_bytes % donor.page_bytes == 0 &&
         extent.first_block * donor.block_bytes % donor.page_bytes == 0;
}

// A claim of a lease that the table does not have: an earlier incarnation of the broker made it.
void Ledger::EnterClaim(const Lease& claim, absl::Time now) {
  if (!ClaimIsSound(claim)) return table_.ReportEnd(claim, claim.donor);
  const std::vector<LeaseId> others = table_.Overlapping(claim.donor, claim.extent);
  const bool taken =
      std::any_of(others.begin(), others.end(), [&](LeaseId id) { return table_.Find(id)->lease.epoch.has_value(); });
  if (taken) return table_.ReportEnd(claim, claim.donor);
  for (const LeaseId offer : others) table_.MustStep(offer, LeaseState::kReleased);  // the owner's word counts
  const auto orphan = orphans_.find({claim.id, claim.borrower});
  Record record{.lease = claim, .entered = now};
  if (orphan == orphans_.end()) {
    record.confirm_by = now + options_.confirm_timeout;
  } else {
    if (orphan->second.lease.state == LeaseState::kActive && claim.state == LeaseState::kGranted) {
      record.lease.state = LeaseState::kActive;
    }
    orphans_.erase(orphan);
  }
  table_.Insert(std::move(record));
}

void Ledger::ClaimAsBorrower(const Lease& claim, absl::Time now) {
  Record* record = table_.Find(claim.id);
  if (record != nullptr && record->lease.borrower == claim.borrower) {
    record->confirm_by = absl::InfiniteFuture();
    const bool mapped = claim.state == LeaseState::kActive && record->lease.state == LeaseState::kGranted;
    if (mapped) table_.MustStep(claim.id, LeaseState::kActive);
    return;
  }
  const auto donor = members_.find(claim.donor.name);
  if (record != nullptr || (donor != members_.end() && donor->second.engine.party == claim.donor)) {
    return table_.ReportEnd(claim, claim.borrower);
  }
  orphans_[{claim.id, claim.borrower}] = {.lease = claim, .until = now + options_.confirm_timeout};
}

// Ends leases that the engine held and does not claim any more.
void Ledger::DropUnclaimed(const Party& who, const std::set<LeaseId>& claimed) {
  const auto lent = [&](const Record& record) {
    return record.lease.donor == who && record.lease.epoch.has_value() && claimed.count(record.lease.id) == 0;
  };
  for (const LeaseId id : table_.Where(lent)) table_.MustStep(id, LeaseState::kReleased);
  const auto borrowed = [&](const Record& record) {
    return record.lease.borrower == who && record.lease.state == LeaseState::kActive &&
           claimed.count(record.lease.id) == 0;
  };
  for (const LeaseId id : table_.Where(borrowed)) BeginRevoking(id);
}

// Ends orphans whose donor has registered and did not claim them.
void Ledger::SettleOrphans(const Party& donor) {
  for (const auto& [claim, orphan] : orphans_) {
    if (orphan.lease.donor == donor) table_.ReportEnd(orphan.lease, orphan.lease.borrower);
  }
  std::erase_if(orphans_, [&](const auto& entry) { return entry.second.lease.donor == donor; });
}

void Ledger::RemoveEngine(const std::string& name, absl::Time now) {
  Tick(now);
  const auto it = members_.find(name);
  if (it == members_.end()) return;
  const Party party = it->second.engine.party;
  members_.erase(it);
  for (const LeaseId id : table_.Where([&](const Record& record) { return record.lease.donor == party; })) {
    table_.MustStep(id, LeaseState::kReleased);
  }
  for (const LeaseId id : table_.Where([&](const Record& record) { return record.lease.borrower == party; })) {
    BeginRevoking(id);
  }
  std::erase_if(backoffs_, [&](const Backoff& backoff) { return backoff.donor == party; });
  std::erase_if(orphans_, [&](const auto& entry) { return entry.second.lease.borrower == party; });
}

}  // namespace swiftcache::broker::ledger
